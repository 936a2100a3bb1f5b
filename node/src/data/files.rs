//! The files that a run learns from: on disk natively, in memory in a browser's tab.
//!
//! A task asks for files by name and reads them. The names are recorded, because exactly these files are handed to
//! peers that lack them. This module knows nothing of formats, devices or peers.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Cursor, Read};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use memmap2::Mmap;

use super::error::DataError;

/// The user's data: one file, or a folder of files. Clones are the same data.
#[derive(Clone, Debug)]
pub struct Data(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The name in messages, and the path if it is on disk.
    path: PathBuf,
    folder: bool,
    /// Files in memory; none if the data is on disk.
    held: Option<Vec<(String, Bytes)>>,
    /// The names of files that were asked for.
    used: Mutex<BTreeSet<String>>,
}

impl Data {
    /// The file or folder at a path.
    ///
    /// # Errors
    ///
    /// If nothing can be read there.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let metadata = std::fs::metadata(path).map_err(|source| read_error(path, source))?;
        Ok(Self::new(path.to_owned(), metadata.is_dir(), None))
    }

    /// One file in memory.
    pub fn file_in_memory(name: &str, bytes: impl Into<Bytes>) -> Self {
        let held = vec![(name.to_owned(), bytes.into())];
        Self::new(PathBuf::from(name), false, Some(held))
    }

    /// A folder in memory: names and contents.
    pub fn folder_in_memory(files: Vec<(String, Bytes)>) -> Self {
        Self::new(PathBuf::from("the fetched data"), true, Some(files))
    }

    fn new(path: PathBuf, folder: bool, held: Option<Vec<(String, Bytes)>>) -> Self {
        let used = Mutex::default();
        Self(Arc::new(Inner {
            path,
            folder,
            held,
            used,
        }))
    }

    /// The name in messages: the path that the user gave.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Whether it is a folder.
    pub fn is_folder(&self) -> bool {
        self.0.folder
    }

    /// The data as one file.
    ///
    /// # Errors
    ///
    /// If it is a folder.
    pub fn single(&self) -> Result<DataFile, DataError> {
        if self.0.folder {
            return Err(DataError::Malformed {
                path: self.0.path.clone(),
                problem: "is a folder: name a file".to_owned(),
            });
        }
        let name = match &self.0.held {
            Some(files) => files[0].0.clone(),
            None => {
                let name = self.0.path.file_name().unwrap_or_default();
                name.to_string_lossy().into_owned()
            }
        };
        self.used().insert(name.clone());
        Ok(self.at(name))
    }

    /// The file of this name in the folder; none if it is not there.
    ///
    /// # Errors
    ///
    /// If the data is a file.
    pub fn file(&self, name: &str) -> Result<Option<DataFile>, DataError> {
        if !self.0.folder {
            return Err(DataError::Malformed {
                path: self.0.path.clone(),
                problem: "it is a file; give the folder that holds the files".to_owned(),
            });
        }
        let there = match &self.0.held {
            Some(files) => files.iter().any(|(held, _)| held == name),
            None => self.0.path.join(name).is_file(),
        };
        if there {
            self.used().insert(name.to_owned());
        }
        Ok(there.then(|| self.at(name.to_owned())))
    }

    /// The files that were asked for and found, sorted by name: everything that is needed to make the same task.
    pub fn files_used(&self) -> Vec<DataFile> {
        let used = self.used();
        used.iter().map(|name| self.at(name.clone())).collect()
    }

    fn used(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.used.lock().expect("nobody panics while holding the names")
    }

    fn at(&self, name: String) -> DataFile {
        DataFile {
            data: self.clone(),
            name,
        }
    }
}

/// One file of the [`Data`].
#[derive(Clone, Debug)]
pub struct DataFile {
    data: Data,
    name: String,
}

impl DataFile {
    /// Its name, without a folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its path, or its name in messages if it is in memory.
    pub fn path(&self) -> PathBuf {
        match self.data.0.folder {
            true => self.data.0.path.join(&self.name),
            false => self.data.0.path.clone(),
        }
    }

    /// Its length in bytes.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn size(&self) -> Result<u64, DataError> {
        if let Some(bytes) = self.held() {
            return Ok(bytes.len() as u64);
        }
        let path = self.path();
        let metadata = std::fs::metadata(&path).map_err(|source| read_error(&path, source))?;
        Ok(metadata.len())
    }

    /// Reads it from its beginning.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    pub fn reader(&self) -> Result<Box<dyn Read + Send>, DataError> {
        if let Some(bytes) = self.held() {
            return Ok(Box::new(Cursor::new(bytes.clone())));
        }
        let path = self.path();
        let file = File::open(&path).map_err(|source| read_error(&path, source))?;
        Ok(Box::new(file))
    }

    /// All its bytes. A file on disk is mapped, not loaded, so it may be larger than memory.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn contents(&self) -> Result<Contents, DataError> {
        if let Some(bytes) = self.held() {
            return Ok(Contents(Place::Held(bytes.clone())));
        }
        let path = self.path();
        let read = |source| read_error(&path, source);
        let file = File::open(&path).map_err(read)?;
        if file.metadata().map_err(read)?.len() == 0 {
            // Systems refuse to map an empty file.
            return Ok(Contents(Place::Held(Bytes::new())));
        }
        // SAFETY: the map is only read. If somebody changes the file meanwhile, its bytes change under us, as users of
        // `Contents` are told, so none may rely on earlier checks of its bytes. The worst outcome is a wrong value, or
        // the end of the process if the file is truncated.
        let map = unsafe { Mmap::map(&file) }.map_err(read)?;
        Ok(Contents(Place::Mapped(map)))
    }

    fn held(&self) -> Option<&Bytes> {
        let mut files = self.data.0.held.iter().flatten();
        files.find(|(name, _)| *name == self.name).map(|(_, bytes)| bytes)
    }
}

/// The bytes of a file. They may change if somebody changes the file, so check again where it matters.
#[derive(Debug)]
pub struct Contents(Place);

#[derive(Debug)]
enum Place {
    Held(Bytes),
    Mapped(Mmap),
}

impl Contents {
    /// Bytes that are not from a file.
    pub fn of(bytes: impl Into<Bytes>) -> Self {
        Self(Place::Held(bytes.into()))
    }
}

impl Deref for Contents {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Place::Held(bytes) => bytes,
            Place::Mapped(map) => map,
        }
    }
}

fn read_error(path: &Path, source: std::io::Error) -> DataError {
    DataError::Read {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut reader: Box<dyn Read + Send>) -> Vec<u8> {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_folder_is_the_same_on_disk_and_in_memory_and_tells_what_was_used() {
        let path = std::env::temp_dir().join(format!("annulus-files-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        for (name, bytes) in [("a", &b"one"[..]), ("b", b""), ("secret", b"private")] {
            std::fs::write(path.join(name), bytes).unwrap();
        }
        let held = [("a", &b"one"[..]), ("b", b""), ("secret", b"private")];
        let held = held.map(|(name, bytes)| (name.to_owned(), Bytes::from_static(bytes)));
        for data in [Data::open(&path).unwrap(), Data::folder_in_memory(held.to_vec())] {
            assert!(data.is_folder() && data.files_used().is_empty());
            assert!(data.single().unwrap_err().to_string().contains("is a folder"));
            assert!(data.file("c").unwrap().is_none());
            for (name, bytes) in [("b", &b""[..]), ("a", b"one")] {
                let file = data.file(name).unwrap().unwrap();
                assert_eq!(file.size().unwrap(), bytes.len() as u64);
                assert_eq!(all(file.reader().unwrap()), bytes);
                assert_eq!(&*file.contents().unwrap(), bytes);
            }
            let used = data.files_used();
            let used: Vec<&str> = used.iter().map(DataFile::name).collect();
            assert_eq!(used, ["a", "b"]);
        }
        let data = Data::open(&path.join("a")).unwrap();
        assert!(data.file("a").unwrap_err().to_string().contains("is a file"));
        let file = data.single().unwrap();
        assert_eq!((file.name(), &*file.contents().unwrap()), ("a", &b"one"[..]));
        assert_eq!(data.files_used()[0].path(), path.join("a"));
        std::fs::remove_dir_all(&path).unwrap();
        assert!(Data::open(&path).is_err() && file.size().is_err() && file.reader().is_err());
    }
}
