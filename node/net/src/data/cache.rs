//! Caches data that was fetched from other peers. Each set has a place named by its digest.
//!
//! ```text
//! DIGEST.blocks/   its pieces (`pieces.rs`)      DIGEST.lock    held by the process that fetches it
//! DIGEST.used      when it was last used, by its modification time; locked while it is used
//! DIGEST.path      where else on this machine the data was
//! DIGEST.runs      the runs whose peers may fetch it from here
//! ```
//!
//! The cache has a budget. To make room it drops pieces of the least recently used set, the oldest first, and none that
//! is in use. Each piece is written as a whole, so a crash leaves it or nothing.
//!
//! This module does not know where data comes from.

use crate::data::demand::Demand;
use crate::data::pieces::{LISTING, MARK, Pieces, nodes_name, piece_name, used_file};
use crate::data::provision::{Here, Listing, PIECE, Store};
use crate::data::tree::piece;
use crate::files::{At, FileError, PARTIAL, read_limited, remove_if_there, write_atomic, write_unsynced};
use crate::open;
use crate::user_folders;
use annulus_core::{Digest, RunId};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirEntry, File, TryLockError};
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The suffix of a set's folder of pieces.
const BLOCKS: &str = ".blocks";

/// The environment variable that names another folder for fetched data.
const VARIABLE: &str = "ANNULUS_CACHE";

/// Most bytes in the cache if its user names no budget.
pub const LIMIT: u64 = 64 << 30;

/// Longest note of paths, and most paths in it: guesses.
const PATH_LIMIT: usize = 1 << 16;
const PATHS: usize = 8;

/// Most runs that are noted of a set, the newest: a guess.
const RUNS: usize = 200;

/// How often to check whether another process on this machine has fetched the data.
const LOOK: Duration = Duration::from_millis(500);

/// The folder for fetched data: `$ANNULUS_CACHE`, or `annulus` in the system's usual place.
pub fn folder() -> Option<PathBuf> {
    user_folders::named(VARIABLE).or_else(user_folders::cache)
}

/// The place of one data set.
#[derive(Clone, Debug)]
pub struct Place {
    folder: PathBuf,
    digest: Digest,
}

impl Place {
    /// The place in a folder such as [`folder`] returns.
    pub fn new(folder: PathBuf, digest: Digest) -> Self {
        Self { folder, digest }
    }

    /// The path of the data for the task, if all of it is here.
    pub fn found(&self) -> Option<PathBuf> {
        let folder = self.named(BLOCKS);
        let pieces = Pieces::open(&folder)?;
        let files = 0..pieces.listing().files.len();
        let whole = files.into_iter().all(|file| pieces.missing(file).is_empty());
        whole.then(|| {
            let _ = self.use_now();
            folder
        })
    }

    /// Remembers a path on this machine at which a user had the data. Others are remembered too: a copy that is made and deleted
    /// later must not make the first one unknown.
    pub fn note(&self, path: &Path) -> Result<(), FileError> {
        make_folder(&self.folder)?;
        let path = std::path::absolute(path).at(path)?;
        let mut paths = self.noted();
        paths.retain(|other| *other != path);
        paths.insert(0, path);
        let lines = paths.iter().take(PATHS).map(|path| path.to_string_lossy());
        // No path has a zero byte.
        let note = lines.collect::<Vec<_>>().join("\0");
        write_atomic(&self.named(".path"), |out| out.write_all(note.as_bytes()))
    }

    /// The paths that were noted, the newest first, whether or not they still exist.
    pub fn noted(&self) -> Vec<PathBuf> {
        let note = read_limited(&self.named(".path"), PATH_LIMIT).unwrap_or_default();
        let paths = note.split(|byte| *byte == 0).filter(|path| !path.is_empty());
        paths
            .filter_map(|path| Some(PathBuf::from(str::from_utf8(path).ok()?)))
            .collect()
    }

    /// Notes whether peers of a run may fetch the data from here.
    pub fn share_with(&self, run: RunId, shared: bool) -> Result<(), FileError> {
        let mut runs = self.runs();
        runs.retain(|other| *other != run);
        runs.extend(shared.then_some(run));
        let old = runs.len().saturating_sub(RUNS);
        let lines: String = runs[old..].iter().map(|run| run.to_hex() + "\n").collect();
        make_folder(&self.folder)?;
        write_atomic(&self.named(".runs"), |out| out.write_all(lines.as_bytes()))
    }

    /// Whether peers of a run may fetch the data from here: its user named it for that run or fetched it from there. Knowing
    /// the digest, which the manifest of another run can name too, is not enough.
    pub fn is_shared_with(&self, run: RunId) -> bool {
        self.runs().contains(&run)
    }

    fn runs(&self) -> Vec<RunId> {
        let text = read_limited(&self.named(".runs"), RUNS * 65).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.lines().filter_map(RunId::from_hex).collect()
    }

    /// Notes the time of use. If that fails, the data set is dropped sooner.
    fn use_now(&self) -> std::io::Result<File> {
        let file = open::lock_file(&self.named(".used"))?;
        file.set_modified(SystemTime::now())?;
        Ok(file)
    }

    /// Prepares to fetch. If another process on this machine fetches the same set, calls `wait` once and waits for it.
    /// Afterwards there may be nothing left to fetch.
    pub async fn fetching(&self, wait: impl FnOnce()) -> Result<Fetching, FileError> {
        let mut wait = Some(wait);
        make_folder(&self.folder)?;
        let path = self.named(".lock");
        let lock = open::lock_file(&path).at(&path)?;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {
                    if let Some(wait) = wait.take() {
                        wait();
                    }
                    tokio::time::sleep(LOOK).await;
                }
                Err(TryLockError::Error(error)) => return Err(FileError::new(&path, error)),
            }
        }
        let used = self.use_now().at(&path)?;
        used.lock_shared().at(&path)?;
        Ok(Fetching {
            place: self.clone(),
            _locks: [lock, used],
        })
    }

    /// Drops pieces of other sets until this many bytes fit within the limit.
    fn make_room(&self, bytes: u64, limit: u64) -> Result<(), FileError> {
        let (mut kept, mut free) = (0u64, Vec::new());
        for entry in fs::read_dir(&self.folder).at(&self.folder)? {
            let path = entry.at(&self.folder)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let digest = name.strip_suffix(BLOCKS).and_then(Digest::from_hex);
            if digest.is_none_or(|digest| digest == self.digest) {
                continue;
            }
            let mut pieces: Vec<_> = fs::read_dir(&path)
                .into_iter()
                .flatten()
                .flatten()
                .filter_map(size_and_time)
                .collect();
            kept += pieces.iter().map(|(_, size, _)| size).sum::<u64>();
            pieces.sort();
            // Those who use it hold a lock.
            if let Ok(used) = open::lock_file(&used_file(&path))
                && used.try_lock().is_ok()
            {
                free.push((
                    used.metadata().and_then(|used| used.modified()).ok(),
                    path,
                    pieces,
                    used,
                ));
            }
        }
        free.sort_by_key(|(used, ..)| *used);
        for (_, path, pieces, _lock) in free {
            for (_, size, piece) in pieces {
                if kept.saturating_add(bytes) <= limit {
                    return Ok(());
                }
                if fs::remove_file(piece).is_ok() {
                    kept -= size;
                }
            }
            // Some systems refuse to remove what is read. It does no harm.
            let _ = fs::remove_dir_all(&path);
        }
        Ok(())
    }

    fn named(&self, kind: &str) -> PathBuf {
        self.folder.join(self.digest.to_hex() + kind)
    }
}

/// A data set that is being fetched. Dropping it keeps what has arrived, for the next time.
#[derive(Debug)]
pub struct Fetching {
    place: Place,
    _locks: [File; 2],
}

impl Fetching {
    /// A store within a budget of bytes, in which `is_it` decides whether the data at a path is the right one.
    pub fn into_store<F: FnMut(&Path) -> Result<(), String>>(self, budget: u64, is_it: F) -> Arriving<F> {
        Arriving {
            fetching: self,
            budget,
            is_it,
            listing: Vec::new(),
            nodes: BTreeMap::new(),
        }
    }
}

/// The [`Store`] of data that is being fetched.
pub struct Arriving<F> {
    fetching: Fetching,
    budget: u64,
    is_it: F,
    /// As it is written.
    listing: Vec<u8>,
    /// The nodes of each file, as they are written.
    nodes: BTreeMap<usize, Vec<u8>>,
}

impl<F> Arriving<F> {
    fn folder(&self) -> PathBuf {
        self.fetching.place.named(BLOCKS)
    }

    fn ready(&mut self, listing: &Listing) -> Result<Vec<Here>, FileError> {
        self.fetching.place.make_room(listing.total(), self.budget)?;
        let folder = self.folder();
        let listed = postcard::to_allocvec(listing).expect("plain data can be encoded");
        self.listing = [MARK, &listed].concat();
        if Pieces::open(&folder).is_none_or(|pieces| pieces.listing().digest() != listing.digest()) {
            // The same data in other files, or a listing that a crash has cut off.
            remove_dir(&folder)?;
            self.nodes.clear();
            self.write_facts()?;
        }
        let left = fs::read_dir(&folder).at(&folder)?.flatten();
        for left in left.filter(|entry| entry.file_name().to_string_lossy().ends_with(PARTIAL)) {
            remove_if_there(&left.path())?;
        }
        let gone = || FileError::new(&folder, std::io::ErrorKind::NotFound.into());
        let pieces = Pieces::open(&folder).ok_or_else(gone)?;
        let here = |file| {
            let nodes = pieces
                .proof(file)
                .map(|proof| proof.nodes().to_vec())
                .unwrap_or_default();
            let missing = pieces.missing(file);
            Here { nodes, missing }
        };
        let here: Vec<Here> = (0..listing.files.len()).map(here).collect();
        let nodes = here.iter().map(|here| here.nodes.clone()).enumerate();
        self.nodes = nodes.filter(|(_, nodes)| !nodes.is_empty()).collect();
        Ok(here)
    }

    /// Writes all but the pieces.
    fn write_facts(&self) -> Result<(), FileError> {
        let folder = self.folder();
        make_folder(&folder)?;
        write_unsynced(&folder.join(LISTING), &self.listing)?;
        let mut nodes = self.nodes.iter();
        nodes.try_for_each(|(file, nodes)| write_unsynced(&folder.join(nodes_name(*file)), nodes))
    }

    /// Writes a file, also if somebody has removed the folder.
    fn add(&self, name: String, bytes: &[u8]) -> Result<(), String> {
        let path = self.folder().join(name);
        let written = match write_unsynced(&path, bytes) {
            Err(FileError::NoFolder(_)) => self.write_facts().and_then(|()| write_unsynced(&path, bytes)),
            written => written,
        };
        written.map_err(|error| error.to_string())
    }
}

impl<F: FnMut(&Path) -> Result<(), String>> Store for Arriving<F> {
    type Whole = PathBuf;

    fn begin(&mut self, listing: &Listing) -> Result<Vec<Here>, String> {
        self.ready(listing).map_err(|error| error.to_string())
    }

    fn prove(&mut self, file: usize, nodes: &[u8]) -> Result<(), String> {
        self.nodes.insert(file, nodes.to_vec());
        self.add(nodes_name(file), nodes)
    }

    fn put(&mut self, file: usize, piece: u64, bytes: &[u8]) -> Result<(), String> {
        self.add(piece_name(file, piece), bytes)
    }

    fn finish(&mut self) -> Result<PathBuf, String> {
        let folder = self.folder();
        (self.is_it)(&folder)?;
        Ok(folder)
    }
}

/// Whether the data at a path is the right one.
type Check = fn(&Path) -> Result<(), String>;

/// The [`Store`] of streamed data, in a place of its own.
pub struct Supplied {
    arriving: Arriving<Check>,
    demand: Arc<Demand>,
    /// The length of each file.
    sizes: Vec<u64>,
    /// The files that are needed whole.
    whole: Whole,
    /// The pieces that have to be here first: those of whole files, and one of each other, since its proof comes with it.
    first: BTreeSet<(usize, u64)>,
    /// Called once they are here.
    begun: Option<Begun>,
}

/// Picks files by name that are needed whole; none: no file is.
pub type Whole = Option<fn(&str) -> bool>;

/// Takes the folder of pieces once the data can be used.
pub type Begun = Box<dyn FnOnce(PathBuf) + Send>;

impl Supplied {
    /// A store in which `demand` keeps to its budget of bytes. Calls `begun` once the data can be used.
    pub fn new(fetching: Fetching, (demand, budget): (Arc<Demand>, u64), whole: Whole, begun: Begun) -> Self {
        Self {
            arriving: fetching.into_store(budget, |_| Ok(())),
            demand,
            sizes: Vec::new(),
            whole,
            first: BTreeSet::new(),
            begun: Some(begun),
        }
    }

    /// Counts a piece that is here, and removes those that have to go.
    fn count(&mut self, file: usize, index: u64) {
        let Range { start, end } = piece(self.sizes[file], index);
        for (file, index) in self.demand.put((file, index), end - start) {
            // Some systems refuse to remove what is read. It does no harm.
            let _ = fs::remove_file(self.arriving.folder().join(piece_name(file, index)));
        }
    }

    fn tell_if_begun(&mut self) {
        if self.first.is_empty()
            && let Some(begun) = self.begun.take()
        {
            begun(self.arriving.folder());
        }
    }
}

impl Store for Supplied {
    type Whole = ();

    fn begin(&mut self, listing: &Listing) -> Result<Vec<Here>, String> {
        let mut here = self.arriving.begin(listing)?;
        self.sizes = listing.files.iter().map(|file| file.size).collect();
        for (file, here) in here.iter_mut().enumerate() {
            let missing: BTreeSet<u64> = std::mem::take(&mut here.missing).into_iter().collect();
            let all = 0..self.sizes[file].div_ceil(PIECE);
            all.filter(|index| !missing.contains(index))
                .for_each(|index| self.count(file, index));
            let is_whole = self.whole.is_some_and(|whole| whole(&listing.files[file].name));
            let first = missing.into_iter().filter(|index| is_whole || *index == 0);
            self.first.extend(first.map(|index| (file, index)));
        }
        let first: Vec<_> = self.first.iter().copied().collect();
        self.demand.want(&first, false);
        self.tell_if_begun();
        Ok(here)
    }

    fn prove(&mut self, file: usize, nodes: &[u8]) -> Result<(), String> {
        self.arriving.prove(file, nodes)
    }

    fn put(&mut self, file: usize, piece: u64, bytes: &[u8]) -> Result<(), String> {
        self.arriving.put(file, piece, bytes)?;
        self.count(file, piece);
        self.first.remove(&(file, piece));
        self.tell_if_begun();
        Ok(())
    }

    fn has_begun(&self) -> bool {
        self.begun.is_none()
    }

    fn finish(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// When a piece was written, its size and its path; none if this is another file.
fn size_and_time(entry: DirEntry) -> Option<(Option<SystemTime>, u64, PathBuf)> {
    let is_piece = entry.file_name().to_string_lossy().contains('-');
    let found = entry
        .metadata()
        .ok()
        .filter(|found| is_piece && found.is_file())?;
    Some((found.modified().ok(), found.len(), entry.path()))
}

/// Makes a folder, and those above it.
fn make_folder(path: &Path) -> Result<(), FileError> {
    open::own_folder_builder().recursive(true).create(path).at(path)
}

fn remove_dir(path: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(FileError::new(path, error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
