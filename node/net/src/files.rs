//! Replaces files atomically, and explains errors of the operating system with advice.
//!
//! It does not know what is in the files.

use crate::open::{self, Odd};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// The suffix of a file that is still being written.
pub const PARTIAL: &str = ".partial";

/// Buffer for small writes; larger ones go directly to the file.
const BUFFER_BYTES: usize = 256 * 1024;

/// Why a file could not be read or written. The old content is still there.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// No space is left, or a quota or a limit on file sizes is reached.
    #[error("no space left for {path}: free some, what was saved before is kept", path = .0.display())]
    Full(PathBuf),
    /// The user has no permission, or the file system is read-only.
    #[error("no permission for {path}: choose another directory or change its owner", path = .0.display())]
    Denied(PathBuf),
    /// There is no such file.
    #[error("{path} does not exist", path = .0.display())]
    Missing(PathBuf),
    /// The folder to write to does not exist.
    #[error("the folder {path} is gone, or was never there: make it, or name another", path = .0.display())]
    NoFolder(PathBuf),
    /// A link, a pipe or the like stands where a plain file should be.
    #[error("{path} {1}", path = .0.display())]
    Odd(PathBuf, Odd),
    /// Any other error of the operating system.
    #[error("{path}: {1}", path = .0.display())]
    Io(PathBuf, io::Error),
}

impl FileError {
    /// Classifies an error of the operating system.
    pub fn new(path: &Path, error: io::Error) -> Self {
        use io::ErrorKind as Kind;
        let path = path.to_path_buf();
        if let Some(odd) = open::odd(&error) {
            return Self::Odd(path, odd);
        }
        match error.kind() {
            Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => Self::Full(path),
            Kind::PermissionDenied | Kind::ReadOnlyFilesystem => Self::Denied(path),
            Kind::NotFound => Self::Missing(path),
            Kind::UnexpectedEof => Self::Io(
                path,
                io::Error::new(error.kind(), "it ends too early, so it is not whole"),
            ),
            _ => Self::Io(path, error),
        }
    }

    /// Sorts an error from making a file. If something does not exist, that is its folder.
    pub fn of_new(path: &Path, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::NoFolder(parent(path).to_path_buf()),
            _ => Self::new(path, error),
        }
    }
}

/// Adds to [`io::Error`]s the path that they lack.
pub trait At<T> {
    /// Names the file that the error is about.
    fn at(self, path: &Path) -> Result<T, FileError>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, path: &Path) -> Result<T, FileError> {
        self.map_err(|error| FileError::new(path, error))
    }
}

/// Writes a temporary file, flushes it, and only then renames it. On an error nothing is left behind. Others may read the file,
/// and only its owner may write to it, whatever the umask.
pub fn write_atomic(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> Result<(), FileError> {
    write_by(path, owners(), Lasts::Yes, write)
}

/// Writes bytes likewise, but not so that they survive a power failure: for what is proven when it is read.
pub fn write_unsynced(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    write_by(path, owners(), Lasts::No, |out| out.write_all(bytes))
}

/// For a file that only its owner may write to, whatever the umask.
fn owners() -> OpenOptions {
    #[cfg_attr(not(unix), expect(unused_mut))]
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, open::OWNERS);
    options
}

/// Whether a file must be whole after a power failure.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lasts {
    Yes,
    No,
}

/// Writes bytes to a file that only its owner may read, from the first byte on.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    write_by(path, options, Lasts::Yes, |out| out.write_all(bytes))
}

fn write_by(
    path: &Path,
    mut options: OpenOptions,
    lasts: Lasts,
    write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> Result<(), FileError> {
    let mut name = path.as_os_str().to_owned();
    name.push(PARTIAL);
    let partial = Partial(PathBuf::from(name));
    remove_if_there(&partial.0)?;
    let file = options.write(true).create_new(true).open(&partial.0);
    let file = file.map_err(|error| FileError::of_new(path, error))?;
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, &file);
    write(&mut out).and_then(|()| out.flush()).at(path)?;
    if lasts == Lasts::Yes {
        // Without this a power failure could leave the name on an empty file.
        file.sync_all().at(path)?;
    }
    drop(out);
    fs::rename(&partial.0, path).at(path)?;
    match lasts {
        Lasts::Yes => sync_parent(path),
        Lasts::No => Ok(()),
    }
}

/// Flushes a folder's list of names.
pub fn sync_parent(path: &Path) -> Result<(), FileError> {
    let parent = parent(path);
    // Only Unix opens folders; elsewhere the rename alone has to do.
    if cfg!(unix) {
        File::open(parent).and_then(|dir| dir.sync_all()).at(parent)
    } else {
        Ok(())
    }
}

fn parent(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Removes a file; a missing file is fine.
pub fn remove_if_there(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FileError::new(path, error)),
        _ => Ok(()),
    }
}

/// Fails unless a folder within a run's folder exists and is no link.
pub fn own_folder(path: &Path) -> Result<(), FileError> {
    match open::folder(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(FileError::NoFolder(path.to_path_buf())),
        is => is.at(path),
    }
}

/// Reads a whole file of a run's folder, at most `limit` bytes. A longer one is cut there, and the caller's own check refuses
/// it.
pub fn read_limited(path: &Path, limit: usize) -> Result<Vec<u8>, FileError> {
    all_of(open::own_to_read(path), limit).at(path)
}

/// Reads a file that the user named, in the same way.
pub fn read_named(path: &Path, limit: usize) -> Result<Vec<u8>, FileError> {
    all_of(open::named(path), limit).at(path)
}

fn all_of(file: io::Result<File>, limit: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file?.take(limit as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A file that is removed unless it was renamed.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        // After the rename there is no file of this name.
        let _ = fs::remove_file(&self.0);
    }
}
