//! Caches data that was fetched from other peers. Each set has a place named by its digest.
//!
//! ```text
//! DIGEST.file/NAME    a data set of one file        DIGEST.partial/    one that is still being fetched
//! DIGEST.folder/      one that is a folder          DIGEST.lock        held by the process that fetches it
//! DIGEST.path         where else on this machine the data was
//! DIGEST.runs         the runs whose peers may fetch it from here
//! DIGEST.used         when it was last used, by its modification time
//! ```
//!
//! The cache has at most [`LIMIT`] bytes. It drops the least recently used sets to make room.
//!
//! A place gets its name only after its content was checked against the digest. This module does not know where data
//! comes from.

use crate::data::provision::{ListedFile, Listing, Store, Trouble};
use crate::data::tree::BLOCK;
use crate::files::{At, FileError, PARTIAL, read_limited, remove_if_there, write_atomic};
use crate::open;
use crate::user_folders;
use annulus_core::{Digest, RunId};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, DirEntry, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The environment variable that names another folder for fetched data.
const VARIABLE: &str = "ANNULUS_CACHE";

/// Most bytes in the cache.
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

    /// The path of the data for the task, if it is here.
    pub fn found(&self) -> Option<PathBuf> {
        let folder = self.named(".folder");
        let found = match folder.is_dir() {
            true => folder,
            false => fs::read_dir(self.named(".file")).ok()?.next()?.ok()?.path(),
        };
        self.use_now();
        Some(found)
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
    fn use_now(&self) {
        let file = open::lock_file(&self.named(".used"));
        let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
    }

    /// Removes the set because it is damaged.
    pub fn remove(&self) -> Result<(), FileError> {
        [".folder", ".file"]
            .iter()
            .try_for_each(|kind| remove_dir(&self.named(kind)))
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
        Ok(Fetching {
            place: self.clone(),
            _lock: lock,
        })
    }

    /// Drops other sets, the least recently used first, until this many bytes fit within the limit. Keeps those that
    /// another process is fetching, and those that cannot be removed.
    fn make_room(&self, bytes: u64, limit: u64) -> Result<(), FileError> {
        let mut sets = BTreeMap::new();
        for entry in fs::read_dir(&self.folder).at(&self.folder)? {
            let path = entry.at(&self.folder)?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let Some((digest, kind)) = name.split_once('.') else {
                continue;
            };
            let Some(digest) = Digest::from_hex(digest).filter(|digest| *digest != self.digest) else {
                continue;
            };
            let (size, used): &mut (u64, _) = sets.entry(digest).or_insert((0, SystemTime::UNIX_EPOCH));
            match kind {
                "file" | "folder" | "partial" => *size += size_of(&path),
                "used" => *used = path.metadata().and_then(|file| file.modified()).unwrap_or(*used),
                _ => {}
            }
        }
        let mut sets: Vec<_> = sets.into_iter().filter(|(_, (size, _))| *size > 0).collect();
        sets.sort_by_key(|(_, (_, used))| *used);
        let mut kept: u64 = sets.iter().map(|(_, (size, _))| size).sum();
        for (digest, (size, _)) in sets {
            if kept.saturating_add(bytes) <= limit {
                break;
            }
            // Some systems refuse to remove a set while it is read. It does no harm.
            if let Ok(true) = Self::new(self.folder.clone(), digest).forget() {
                kept -= size;
            }
        }
        Ok(())
    }

    /// Removes the whole set, unless it is being fetched. Returns whether it did.
    fn forget(&self) -> Result<bool, FileError> {
        let path = self.named(".lock");
        let lock = open::lock_file(&path).at(&path)?;
        if lock.try_lock().is_err() {
            return Ok(false);
        }
        self.remove()?;
        remove_dir(&self.named(PARTIAL))?;
        remove_if_there(&self.named(".used"))?;
        Ok(true)
    }

    fn named(&self, kind: &str) -> PathBuf {
        self.folder.join(self.digest.to_hex() + kind)
    }
}

/// A data set that is being fetched. Dropping it keeps what has arrived, for the next time.
#[derive(Debug)]
pub struct Fetching {
    place: Place,
    _lock: File,
}

impl Fetching {
    /// A store in which `is_it` decides whether the data at a path is the right one.
    pub fn into_store<F: FnMut(&Path) -> Result<(), Trouble>>(self, is_it: F) -> Partial<F> {
        Partial {
            fetching: self,
            is_it,
            listing: Listing {
                folder: false,
                files: Vec::new(),
            },
            open: None,
        }
    }
}

/// The [`Store`] of data that is being fetched.
pub struct Partial<F> {
    fetching: Fetching,
    is_it: F,
    listing: Listing,
    /// The file that is being written.
    open: Option<(usize, File)>,
}

impl<F> Partial<F> {
    fn dir(&self) -> PathBuf {
        self.fetching.place.named(PARTIAL)
    }

    fn ready(&self) -> Result<Vec<u64>, FileError> {
        let dir = self.dir();
        make_folder(&dir)?;
        let there: Result<Vec<_>, _> = fs::read_dir(&dir).at(&dir)?.collect();
        let there: Vec<PathBuf> = there.at(&dir)?.iter().map(DirEntry::path).collect();
        match (&there[..], &self.listing.files[..], self.listing.folder) {
            // Another peer may have another name for a single file. The part that has arrived is kept under the new
            // name.
            ([path], [file], false) => fs::rename(path, dir.join(&file.name)).at(path)?,
            _ => {
                let names: Vec<&OsStr> = self.listing.files.iter().map(|file| file.name.as_ref()).collect();
                let unwanted = |path: &&PathBuf| path.file_name().is_none_or(|name| !names.contains(&name));
                for path in there.iter().filter(unwanted) {
                    fs::remove_file(path).at(path)?;
                }
            }
        }
        let mut have = Vec::new();
        for ListedFile { name, size, .. } in &self.listing.files {
            let path = dir.join(name);
            let file = open::own(&path, OpenOptions::new().create(true).append(true)).at(&path)?;
            let len = file.metadata().at(&path)?.len();
            // A longer file is something else, and only a part of the last block may have reached the disk.
            let keep = match len.cmp(size) {
                Ordering::Less => len - len % BLOCK as u64,
                Ordering::Equal => len,
                Ordering::Greater => 0,
            };
            file.set_len(keep).at(&path)?;
            have.push(keep);
        }
        Ok(have)
    }

    fn write(&mut self, file: usize, bytes: &[u8]) -> Result<(), FileError> {
        let path = self.dir().join(&self.listing.files[file].name);
        let out = match &mut self.open {
            Some((open, out)) if *open == file => out,
            _ => {
                let out = OpenOptions::new().append(true).open(&path).at(&path)?;
                &mut self.open.insert((file, out)).1
            }
        };
        out.write_all(bytes).at(&path)
    }

    /// Gives the place its final name.
    fn settle(&self) -> Result<PathBuf, FileError> {
        let place = &self.fetching.place;
        let dir = self.dir();
        for ListedFile { name, .. } in &self.listing.files {
            let path = dir.join(name);
            // Opened for writing, since some systems flush nothing otherwise.
            let file = OpenOptions::new().append(true).open(&path);
            file.and_then(|file| file.sync_all()).at(&path)?;
        }
        place.remove()?;
        let to = place.named(if self.listing.folder { ".folder" } else { ".file" });
        fs::rename(&dir, &to).at(&to)?;
        place.use_now();
        Ok(match self.listing.folder {
            true => to,
            false => to.join(&self.listing.files[0].name),
        })
    }
}

impl<F: FnMut(&Path) -> Result<(), Trouble>> Store for Partial<F> {
    type Whole = PathBuf;

    fn begin(&mut self, listing: &Listing) -> Result<Vec<u64>, String> {
        self.open = None;
        self.listing = listing.clone();
        let place = &self.fetching.place;
        let room = place.make_room(listing.total(), LIMIT);
        room.and_then(|()| self.ready())
            .map_err(|error| error.to_string())
    }

    fn append(&mut self, file: usize, bytes: &[u8]) -> Result<(), String> {
        self.write(file, bytes).map_err(|error| error.to_string())
    }

    fn finish(&mut self) -> Result<PathBuf, Trouble> {
        self.open = None;
        let dir = self.dir();
        let path = match self.listing.folder {
            true => dir,
            false => dir.join(&self.listing.files[0].name),
        };
        (self.is_it)(&path)?;
        self.settle().map_err(|error| Trouble::Here(error.to_string()))
    }

    fn clear(&mut self) -> Result<(), String> {
        self.open = None;
        remove_dir(&self.dir()).map_err(|error| error.to_string())
    }
}

/// Bytes of a file, or of the files in a folder.
fn size_of(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else {
        return path.metadata().map_or(0, |file| file.len());
    };
    let sizes = entries
        .flatten()
        .map(|entry| entry.metadata().map_or(0, |file| file.len()));
    sizes.sum()
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
