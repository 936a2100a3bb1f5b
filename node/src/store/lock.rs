//! A run's directory belongs to one process at a time.

use crate::store::files::{At, FileError};
use crate::store::run_dir::CheckpointError;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

/// The right to write into a run's directory, until it is dropped or the process ends, however it does.
#[derive(Debug)]
pub struct RunLock {
    path: PathBuf,
    file: File,
}

impl RunLock {
    /// Takes a directory, and makes it if there is none.
    pub fn take(path: &Path) -> Result<Self, CheckpointError> {
        fs::create_dir_all(path).at(path)?;
        let name = path.join("lock");
        let file = File::create(&name).at(&name)?;
        match file.try_lock() {
            Ok(()) => Ok(Self {
                path: path.to_path_buf(),
                file,
            }),
            Err(TryLockError::WouldBlock) => Err(CheckpointError::Locked(path.to_path_buf())),
            Err(TryLockError::Error(error)) => Err(FileError::new(&name, error).into()),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // Closing alone would not do where a child process was just being started and holds a copy.
        let _ = self.file.unlock();
    }
}
