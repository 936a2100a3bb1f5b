//! The files that a run learns from: on disk natively, as they were or in pieces, and in memory in a browser's tab.
//!
//! A task asks for files by name and reads them. The names are recorded, because exactly these files are handed to
//! peers that lack them. This module knows nothing of formats, devices or peers.

use std::collections::BTreeSet;
use std::io::{Cursor, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;

use super::contents::Contents;
use super::demand::Demand;
use super::error::DataError;
use super::pieces::{Pieces, PiecesReader};
use super::tree::Blocks;
use crate::open;

/// The user's data: one file, or a folder of files. Clones are the same data.
///
/// ```
/// use annulus_net::data::Data;
///
/// let data = Data::folder_in_memory(vec![("words".into(), "one two".into())]);
/// let words = data.file("words")?.expect("it is there");
/// assert!(data.file("numbers")?.is_none());
/// assert_eq!(words.size()?, 7);
/// // Exactly the files that were asked for go to peers that lack them.
/// assert_eq!(data.files_used().len(), 1);
/// # Ok::<(), annulus_net::data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Data(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The name in messages, and the path if it is on disk.
    path: PathBuf,
    folder: bool,
    place: Place,
    /// The names of files that were asked for.
    used: Mutex<BTreeSet<String>>,
    /// Bytes of memory that a task may take to read them; none: the task knows.
    memory: Option<u64>,
}

/// Where the files are.
#[derive(Debug)]
enum Place {
    /// At the path.
    Disk,
    /// In memory: names and contents.
    Memory(Vec<(String, Bytes)>),
    /// In the pieces that were fetched, which lie at the path.
    Pieces(Arc<Pieces>),
}

impl Data {
    /// The file or folder at a path, or the data that was fetched and is kept there in pieces.
    ///
    /// # Errors
    ///
    /// If there is neither a plain file nor a folder.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        if let Some(pieces) = Pieces::open(path) {
            let folder = pieces.listing().folder;
            return Ok(Self::new(
                path.to_owned(),
                folder,
                Place::Pieces(Arc::new(pieces)),
            ));
        }
        let found = std::fs::metadata(path).and_then(|metadata| {
            let folder = metadata.is_dir();
            if !folder {
                open::is_file(&metadata)?;
            }
            Ok(folder)
        });
        let folder = found.map_err(|source| DataError::of(path, source))?;
        Ok(Self::new(path.to_owned(), folder, Place::Disk))
    }

    /// Streamed data in a folder of pieces.
    #[cfg(feature = "native")]
    pub(super) fn on_demand(path: &Path, demand: Arc<Demand>) -> Option<Self> {
        let pieces = Pieces::open(path)?.on_demand(demand);
        let folder = pieces.listing().folder;
        Some(Self::new(
            path.to_owned(),
            folder,
            Place::Pieces(Arc::new(pieces)),
        ))
    }

    /// The demand for pieces, if the data is streamed.
    pub fn demand(&self) -> Option<&Arc<Demand>> {
        match &self.0.place {
            Place::Pieces(pieces) => pieces.demand(),
            Place::Disk | Place::Memory(_) => None,
        }
    }

    /// One file in memory.
    pub fn file_in_memory(name: &str, bytes: impl Into<Bytes>) -> Self {
        let held = vec![(name.to_owned(), bytes.into())];
        Self::new(PathBuf::from(name), false, Place::Memory(held))
    }

    /// A folder in memory: names and contents.
    pub fn folder_in_memory(files: Vec<(String, Bytes)>) -> Self {
        Self::new(PathBuf::from("the fetched data"), true, Place::Memory(files))
    }

    fn new(path: PathBuf, folder: bool, place: Place) -> Self {
        let used = Mutex::default();
        Self(Arc::new(Inner {
            path,
            folder,
            place,
            used,
            memory: None,
        }))
    }

    /// The same data, not yet cloned. A task may take this many bytes of memory to read it.
    pub fn within(mut self, memory: Option<u64>) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.memory = memory;
        }
        self
    }

    /// Bytes of memory that a task may take to read it, if somebody has said.
    pub fn memory(&self) -> Option<u64> {
        self.0.memory
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
            return Err(DataError::NotAFile {
                path: self.0.path.clone(),
                what: "a folder",
            });
        }
        let name = match &self.0.place {
            Place::Memory(files) => files[0].0.clone(),
            Place::Pieces(pieces) => pieces.listing().files[0].name.clone(),
            Place::Disk => {
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
    /// If the data is a file, or what has that name cannot be read as one.
    pub fn file(&self, name: &str) -> Result<Option<DataFile>, DataError> {
        if !self.0.folder {
            return Err(DataError::Malformed {
                path: self.0.path.clone(),
                problem: "it is a file; give the folder that holds the files".to_owned(),
            });
        }
        let there = match &self.0.place {
            Place::Memory(files) => files.iter().any(|(held, _)| held == name),
            Place::Pieces(pieces) => pieces.place_of(name).is_some(),
            Place::Disk => self.holds(name)?,
        };
        if there {
            self.used().insert(name.to_owned());
        }
        Ok(there.then(|| self.at(name.to_owned())))
    }

    /// Whether a folder on disk has a file of this name.
    fn holds(&self, name: &str) -> Result<bool, DataError> {
        let path = self.0.path.join(name);
        match std::fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => Ok(false),
            Ok(metadata) => {
                let is_file = open::is_file(&metadata);
                is_file
                    .map(|()| true)
                    .map_err(|error| DataError::of(&path, error))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            // Looking at a file needs permission for its folder only.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                Err(DataError::of(self.path(), error))
            }
            Err(error) => Err(DataError::of(&path, error)),
        }
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
        match self.bytes() {
            At::Memory(bytes) => Ok(bytes.len() as u64),
            At::Pieces(pieces, file) => Ok(pieces.listing().files[file].size),
            At::Disk(path) => {
                let metadata = std::fs::metadata(&path).map_err(|source| DataError::of(&path, source))?;
                Ok(metadata.len())
            }
        }
    }

    /// Reads it from its beginning.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    pub fn reader(&self) -> Result<Box<dyn Read + Send>, DataError> {
        Ok(match self.bytes() {
            At::Memory(bytes) => Box::new(Cursor::new(bytes.clone())),
            At::Pieces(pieces, file) => Box::new(PiecesReader::new(pieces.clone(), file)),
            At::Disk(path) => Box::new(open::named(&path).map_err(|source| DataError::of(&path, source))?),
        })
    }

    /// Its bytes, any of which can be read: a file on disk stays there, so it may be larger than memory.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    pub fn contents(&self) -> Result<Contents, DataError> {
        match self.bytes() {
            At::Memory(bytes) => Ok(Contents::of(bytes.clone())),
            At::Pieces(pieces, file) => Ok(Contents::of_pieces(pieces.clone(), file)),
            At::Disk(path) => Contents::open(path),
        }
    }

    /// A part of it as it is now, for a peer that checks it.
    #[cfg(feature = "native")]
    pub(super) fn part(&self, range: std::ops::Range<u64>) -> Result<Vec<u8>, DataError> {
        match self.bytes() {
            At::Memory(bytes) => Ok(bytes[range.start as usize..range.end as usize].to_vec()),
            At::Pieces(pieces, file) => pieces.part(file, range),
            At::Disk(path) => {
                let mut part = vec![0; (range.end - range.start) as usize];
                let read = open::named(&path).and_then(|file| open::read_at(&file, &mut part, range.start));
                match read {
                    Ok(()) => Ok(part),
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                        Err(DataError::Changed { path })
                    }
                    Err(error) => Err(DataError::of(&path, error)),
                }
            }
        }
    }

    /// Its proven hash tree, if that is known without reading it.
    pub(super) fn proof(&self) -> Option<Blocks> {
        match self.bytes() {
            At::Pieces(pieces, file) => pieces.proof(file).ok().cloned(),
            At::Memory(_) | At::Disk(_) => None,
        }
    }

    fn bytes(&self) -> At<'_> {
        match &self.data.0.place {
            Place::Disk => At::Disk(self.path()),
            Place::Memory(files) => {
                let file = files.iter().find(|(name, _)| *name == self.name);
                At::Memory(&file.expect("files are named once they are found").1)
            }
            Place::Pieces(pieces) => {
                let file = pieces.place_of(&self.name);
                At::Pieces(pieces, file.expect("files are named once they are found"))
            }
        }
    }
}

/// Where the bytes of a file are.
enum At<'a> {
    Disk(PathBuf),
    Memory(&'a Bytes),
    /// In pieces, as the file of this number.
    Pieces(&'a Arc<Pieces>, usize),
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
                let contents = file.contents().unwrap();
                assert_eq!(&*contents.part(0..contents.len()).unwrap(), bytes);
            }
            let used = data.files_used();
            let used: Vec<&str> = used.iter().map(DataFile::name).collect();
            assert_eq!(used, ["a", "b"]);
        }
        let data = Data::open(&path.join("a")).unwrap();
        assert!(data.file("a").unwrap_err().to_string().contains("is a file"));
        let file = data.single().unwrap();
        assert_eq!(file.name(), "a");
        assert_eq!(data.files_used()[0].path(), path.join("a"));
        std::fs::create_dir(path.join("folder")).unwrap();
        let folder = Data::open(&path).unwrap();
        assert!(folder.file("folder").unwrap().is_none());
        #[cfg(unix)]
        {
            std::os::unix::net::UnixListener::bind(path.join("socket")).unwrap();
            let told = folder.file("socket").unwrap_err().to_string();
            assert!(told.contains("socket is a socket: name a file"), "{told}");
            assert!(Data::open(&path.join("socket")).is_err());
        }
        std::fs::remove_dir_all(&path).unwrap();
        assert!(Data::open(&path).is_err() && file.size().is_err() && file.reader().is_err());
    }

    #[cfg(all(unix, feature = "native"))]
    #[test]
    fn a_folder_that_may_not_be_looked_into_is_not_called_empty() {
        use std::os::unix::fs::PermissionsExt;
        use std::os::unix::process::CommandExt;
        const FOLDER: &str = "ANNULUS_TEST_FORBIDDEN_FOLDER";
        if let Some(folder) = std::env::var_os(FOLDER) {
            let data = Data::open(Path::new(&folder)).unwrap();
            let told = data.file("train-images").unwrap_err().to_string();
            assert!(
                told.contains("Permission denied") && !told.contains("train-images"),
                "{told}"
            );
            return;
        }
        let scratch = crate::testing::Scratch::new();
        let folder = scratch.0.join("folder");
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o0)).unwrap();
        let (_, module) = module_path!().split_once("::").unwrap();
        let name = format!("{module}::a_folder_that_may_not_be_looked_into_is_not_called_empty");
        let mut test = std::process::Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", &name]).env(FOLDER, &folder);
        // SAFETY: it takes nothing and only answers.
        if unsafe { libc::geteuid() } == 0 {
            // Root may look into everything.
            test.uid(65_534);
        }
        match test.output() {
            Err(error) => println!("skipped: another user may not run this test ({error})"),
            Ok(output) => assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stdout)
            ),
        }
    }
}
