//! Why data could not be read.

use std::path::PathBuf;

/// Why data could not be read. No error leaves anything half loaded.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The operating system refused to read a file or a folder.
    #[error("cannot read {path}: {source}; check the path given as data and its permissions", path = .path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
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
