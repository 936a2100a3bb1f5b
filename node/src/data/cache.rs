//! Data that was fetched from other peers, kept for the next time, each set in a place named by its digest.
//!
//! ```text
//! DIGEST.file/NAME    a data set of one file        DIGEST.partial/    one that is still being fetched
//! DIGEST.folder/      one that is a folder          DIGEST.lock        held by the process that fetches it
//! DIGEST.path         where else on this machine somebody had it
//! ```
//! A place gets its name only when its content has been found to be the data of that digest. It must not know where data
//! comes from.

use crate::data::provision::{Listing, Store, Trouble};
use crate::store::files::{At, FileError, PARTIAL, write_atomic};
use annulus_core::Digest;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Names the folder of fetched data instead of the usual one.
const VARIABLE: &str = "ANNULUS_CACHE";

/// How often to look whether another process on this machine has fetched the data.
const LOOK: Duration = Duration::from_millis(500);

/// Where fetched data is kept: `$ANNULUS_CACHE`, or `annulus` in what the system has for such things.
pub fn folder() -> Option<PathBuf> {
    let of = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?);
        // As the XDG specification wants it: one that is relative is passed over.
        path.is_absolute().then_some(path)
    };
    let system = || {
        if cfg!(windows) {
            of("LOCALAPPDATA")
        } else if cfg!(target_os = "macos") {
            Some(of("HOME")?.join("Library/Caches"))
        } else {
            Some(of("HOME")?.join(".cache"))
        }
    };
    of(VARIABLE).or_else(|| Some(of("XDG_CACHE_HOME").or_else(system)?.join("annulus")))
}

/// The place of one data set.
#[derive(Clone, Debug)]
pub struct Place {
    folder: PathBuf,
    digest: Digest,
}

impl Place {
    /// In a folder such as [`folder`] gives.
    pub fn new(folder: PathBuf, digest: Digest) -> Self {
        Self { folder, digest }
    }

    /// The data, if it is here: what to hand to the task.
    pub fn found(&self) -> Option<PathBuf> {
        let folder = self.named(".folder");
        if folder.is_dir() {
            return Some(folder);
        }
        let mut files = fs::read_dir(self.named(".file")).ok()?;
        Some(files.next()?.ok()?.path())
    }

    /// Remembers where on this machine the data is: at a path that somebody has named.
    pub fn note(&self, path: &Path) -> Result<(), FileError> {
        fs::create_dir_all(&self.folder).at(&self.folder)?;
        let path = std::path::absolute(path).at(path)?;
        let note = path.to_string_lossy();
        write_atomic(&self.named(".path"), |out| out.write_all(note.as_bytes()))
    }

    /// Where it was noted to be, if anything is there.
    pub fn noted(&self) -> Option<PathBuf> {
        let path = PathBuf::from(fs::read_to_string(self.named(".path")).ok()?);
        path.exists().then_some(path)
    }

    /// Throws away what is here, as it has turned out to be damaged.
    pub fn remove(&self) -> Result<(), FileError> {
        [".folder", ".file"]
            .iter()
            .try_for_each(|kind| remove_dir(&self.named(kind)))
    }

    /// Makes ready to fetch. While another process on this machine fetches the same, calls `wait` once and waits for that:
    /// then there may be nothing left to fetch.
    pub async fn fetching(&self, wait: impl FnOnce()) -> Result<Fetching, FileError> {
        let mut wait = Some(wait);
        fs::create_dir_all(&self.folder).at(&self.folder)?;
        let path = self.named(".lock");
        let lock = File::create(&path).at(&path)?;
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

    fn named(&self, kind: &str) -> PathBuf {
        self.folder.join(self.digest.to_hex() + kind)
    }
}

/// A data set on its way here. Dropping it keeps what has arrived, to go on with later.
#[derive(Debug)]
pub struct Fetching {
    place: Place,
    _lock: File,
}

impl Fetching {
    /// A store that `is_it` tells whether the data at a path is the one that is wanted.
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
        fs::create_dir_all(&dir).at(&dir)?;
        for entry in fs::read_dir(&dir).at(&dir)? {
            let path = entry.at(&dir)?.path();
            let wanted =
                |(name, _): &(String, u64)| Some(OsString::from(name).as_os_str()) == path.file_name();
            if !self.listing.files.iter().any(wanted) {
                fs::remove_file(&path).at(&path)?;
            }
        }
        let mut have = Vec::new();
        for (name, size) in &self.listing.files {
            let path = dir.join(name);
            let file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(&path)
                .at(&path)?;
            let len = file.metadata().at(&path)?.len();
            if len > *size {
                file.set_len(0).at(&path)?;
            }
            have.push(if len > *size { 0 } else { len });
        }
        Ok(have)
    }

    fn write(&mut self, file: usize, bytes: &[u8]) -> Result<(), FileError> {
        let path = self.dir().join(&self.listing.files[file].0);
        let out = match &mut self.open {
            Some((open, out)) if *open == file => out,
            _ => {
                let out = OpenOptions::new().append(true).open(&path).at(&path)?;
                &mut self.open.insert((file, out)).1
            }
        };
        out.write_all(bytes).at(&path)
    }

    /// Gives the place its name.
    fn settle(&self) -> Result<PathBuf, FileError> {
        let place = &self.fetching.place;
        let dir = self.dir();
        for (name, _) in &self.listing.files {
            let path = dir.join(name);
            // For writing, as some systems make nothing durable otherwise.
            let file = OpenOptions::new().append(true).open(&path);
            file.and_then(|file| file.sync_all()).at(&path)?;
        }
        place.remove()?;
        let to = place.named(if self.listing.folder { ".folder" } else { ".file" });
        fs::rename(&dir, &to).at(&to)?;
        Ok(match self.listing.folder {
            true => to,
            false => to.join(&self.listing.files[0].0),
        })
    }
}

impl<F: FnMut(&Path) -> Result<(), Trouble>> Store for Partial<F> {
    type Whole = PathBuf;

    fn begin(&mut self, listing: &Listing) -> Result<Vec<u64>, String> {
        self.open = None;
        self.listing = listing.clone();
        self.ready().map_err(|error| error.to_string())
    }

    fn append(&mut self, file: usize, bytes: &[u8]) -> Result<(), String> {
        self.write(file, bytes).map_err(|error| error.to_string())
    }

    fn finish(&mut self) -> Result<PathBuf, Trouble> {
        self.open = None;
        let dir = self.dir();
        let path = match self.listing.folder {
            true => dir,
            false => dir.join(&self.listing.files[0].0),
        };
        (self.is_it)(&path)?;
        self.settle().map_err(|error| Trouble::Here(error.to_string()))
    }

    fn clear(&mut self) -> Result<(), String> {
        self.open = None;
        remove_dir(&self.dir()).map_err(|error| error.to_string())
    }
}

fn remove_dir(path: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(FileError::new(path, error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    fn listing(folder: bool, files: &[(&str, u64)]) -> Listing {
        let files = files.iter().map(|(name, size)| ((*name).to_owned(), *size));
        Listing {
            folder,
            files: files.collect(),
        }
    }

    #[tokio::test]
    async fn a_place_gets_its_name_only_with_the_right_data_in_it() {
        let scratch = Scratch::new();
        let place = Place::new(scratch.0.join("new"), Digest([7; 32]));
        assert_eq!(place.found(), None);
        let two = listing(true, &[("a", 3), ("b", 2)]);
        // The first process ends in the middle of it.
        let is_it = |_: &Path| -> Result<(), Trouble> { panic!("it is not whole") };
        let mut store = place.fetching(|| ()).await.unwrap().into_store(is_it);
        assert_eq!(store.begin(&two).unwrap(), [0, 0]);
        store.append(0, b"on").unwrap();
        drop(store);
        assert_eq!(place.found(), None);
        // The second goes on, and finds that it is something else.
        let is_it = |path: &Path| match fs::read(path.join("a")).unwrap().as_slice() {
            b"one" => Ok(()),
            _ => Err(Trouble::Data("another".into())),
        };
        let mut store = place.fetching(|| ()).await.unwrap().into_store(is_it);
        assert_eq!(store.begin(&two).unwrap(), [2, 0]);
        store.append(0, b"x").unwrap();
        store.append(1, b"to").unwrap();
        assert_eq!(store.finish(), Err(Trouble::Data("another".into())));
        assert_eq!(place.found(), None);
        store.clear().unwrap();
        assert_eq!(store.begin(&two).unwrap(), [0, 0]);
        store.append(0, b"one").unwrap();
        store.append(1, b"to").unwrap();
        let found = store.finish().unwrap();
        assert_eq!(place.found(), Some(found.clone()));
        assert_eq!(fs::read(found.join("b")).unwrap(), b"to");
        place.remove().unwrap();
        assert_eq!(place.found(), None);
    }

    #[test]
    fn where_data_lies_is_remembered_while_it_is_there() {
        let scratch = Scratch::new();
        let place = Place::new(scratch.0.join("new"), Digest([6; 32]));
        assert_eq!(place.noted(), None);
        let data = scratch.0.join("book.txt");
        fs::write(&data, "text").unwrap();
        place.note(&data).unwrap();
        assert_eq!(place.noted(), Some(data.clone()));
        assert_eq!(place.found(), None);
        fs::remove_file(&data).unwrap();
        assert_eq!(place.noted(), None);
    }

    #[tokio::test]
    async fn what_another_offer_left_behind_is_in_nobodys_way() {
        let scratch = Scratch::new();
        let place = Place::new(scratch.0.clone(), Digest([8; 32]));
        let mut store = place.fetching(|| ()).await.unwrap().into_store(|_: &Path| Ok(()));
        store.begin(&listing(true, &[("a.gz", 9), ("b", 9)])).unwrap();
        store.append(0, b"gzipped").unwrap();
        store.append(1, b"plain").unwrap();
        // Somebody else has it as one file, whose name was that of a longer one.
        assert_eq!(store.begin(&listing(false, &[("b", 4)])).unwrap(), [0]);
        store.append(0, b"text").unwrap();
        let found = store.finish().unwrap();
        assert_eq!(fs::read(&found).unwrap(), b"text");
        assert_eq!(
            (place.found(), found.file_name()),
            (Some(found.clone()), Some("b".as_ref()))
        );
    }

    #[tokio::test]
    async fn two_processes_do_not_fetch_the_same_at_once() {
        let scratch = Scratch::new();
        let place = Place::new(scratch.0.clone(), Digest([9; 32]));
        let first = place.fetching(|| panic!("nobody is there")).await.unwrap();
        let (second, (told, mut waits)) = (place.clone(), tokio::sync::oneshot::channel());
        let second = tokio::spawn(async move { second.fetching(|| told.send(()).unwrap()).await.unwrap() });
        (&mut waits).await.unwrap();
        assert!(!second.is_finished());
        drop(first);
        second.await.unwrap();
    }
}
