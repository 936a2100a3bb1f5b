//! Why data could not be read.

use std::io;
use std::path::{Path, PathBuf};

use crate::open;

/// Why data could not be read. No error leaves anything half loaded.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The operating system refused to read a file or a folder.
    #[error("cannot read {path}: {source}; check the path given as data and its permissions", path = .path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A pipe, a folder or a device stands where a plain file should be.
    #[error("{path} is {what}: name a file", path = .path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// The kind that was found there.
        what: &'static str,
    },
    /// A file changed after it was opened.
    #[error(
        "the data file {path} has changed while it was in use: put it back as it was and go on with the run, or begin another \
         run with what is there now",
        path = .path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A part of data that was fetched is gone, or is not what was fetched.
    #[error(
        "the data that was fetched has lost {path}: start the peer again, and it fetches that part again",
        path = .path.display()
    )]
    Lost {
        /// The part.
        path: PathBuf,
    },
    /// A part of streamed data is not here now.
    #[error("a part of the run's data is not on this machine now")]
    Elsewhere,
    /// A folder has none of the expected files.
    #[error("{folder} holds no data set: it should hold {expected}", folder = .folder.display())]
    NothingFound {
        /// The folder.
        folder: PathBuf,
        /// The expected files.
        expected: &'static str,
    },
    /// A file exists, but its content is wrong.
    #[error("{path}: {problem}", path = .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
}

impl DataError {
    /// Sorts an error that the operating system reported about a path.
    pub(crate) fn of(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match open::odd(&source) {
            Some(odd) => Self::NotAFile { path, what: odd.what },
            None => Self::Read { path, source },
        }
    }
}
