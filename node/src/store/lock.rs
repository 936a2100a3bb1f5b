//! Locks a run's folder, which belongs to one process at a time.

use crate::store::files::{At, FileError};
use crate::store::run_dir::CheckpointError;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

/// The right to write to a run's folder, until it is dropped or the process ends in any way.
#[derive(Debug)]
pub struct RunLock {
    path: PathBuf,
    file: File,
}

impl RunLock {
    /// Locks a folder, and creates it if needed.
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
        // Closing alone is not enough while a child process is being started and has a copy.
        let _ = self.file.unlock();
    }
}
