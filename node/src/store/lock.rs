//! Locks a run's folder, which belongs to one process at a time.

use crate::store::run_dir::CheckpointError;
use annulus_net::files::{At, FileError};
use annulus_net::open;
use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// The file that is locked.
const NAME: &str = "lock";

/// The files of a run's folder that a peer goes on from, and the folder of its checkpoints.
const TRUSTED: [&str; 6] = [
    "checkpoints",
    "evals.jsonl",
    "ledger",
    "manifest.bin",
    "options",
    "peers.json",
];

/// The right to write to a run's folder, until it is dropped or the process ends in any way.
#[derive(Debug)]
pub struct RunLock {
    path: PathBuf,
    file: File,
    /// The directory, open, where the system opens directories.
    dir: Option<File>,
}

impl RunLock {
    /// Locks a folder, and creates it if needed.
    ///
    /// # Errors
    ///
    /// If another process has it, or another user can write there.
    pub fn take(path: &Path) -> Result<Self, CheckpointError> {
        let made = open::own_folder_builder().recursive(true).create(path);
        made.map_err(|error| CheckpointError::Folder(path.to_path_buf(), error))?;
        alone(path)?;
        let name = path.join(NAME);
        let file = open::lock_file(&name).at(&name)?;
        match file.try_lock() {
            // The process that had it may just have removed it, because no run began there.
            Ok(()) if !is_at(&file, fs::symlink_metadata(&name)) => {
                Err(CheckpointError::Locked(path.to_path_buf()))
            }
            Ok(()) => Ok(Self {
                path: path.to_path_buf(),
                file,
                dir: File::open(path).ok(),
            }),
            Err(TryLockError::WouldBlock) => Err(CheckpointError::Locked(path.to_path_buf())),
            Err(TryLockError::Error(error)) => Err(FileError::new(&name, error).into()),
        }
    }

    /// The directory, where it was when it was locked.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the directory is now: nowhere if somebody has removed it, or if the system does not tell.
    pub fn place(&self) -> Option<PathBuf> {
        let is = |path: &PathBuf| self.dir.as_ref().is_none_or(|dir| is_at(dir, fs::metadata(path)));
        let first = Some(self.path.clone()).filter(is);
        first.or_else(|| path_of(self.dir.as_ref()?).filter(is))
    }
}

/// Whether a peer runs in a folder now: it holds the folder's lock.
pub fn is_up(dir: &Path) -> bool {
    let lock = open::own_to_read(&dir.join(NAME));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// The path of an open folder, also after somebody has renamed it.
#[cfg(target_os = "linux")]
fn path_of(file: &File) -> Option<PathBuf> {
    use std::os::fd::AsRawFd;
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

#[cfg(not(target_os = "linux"))]
fn path_of(_file: &File) -> Option<PathBuf> {
    None
}

/// Whether an open file or folder is what was found at a path.
#[cfg(unix)]
fn is_at(file: &File, found: io::Result<Metadata>) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |found: io::Result<Metadata>| found.map(|found| (found.dev(), found.ino())).ok();
    place(file.metadata()) == place(found)
}

/// Elsewhere open files are not removed.
#[cfg(not(unix))]
fn is_at(_file: &File, _found: io::Result<Metadata>) -> bool {
    true
}

/// Fails if another user can put files into a directory, or write to those in it, and could so mislead this process. Root can do
/// so anyway.
fn alone(dir: &Path) -> Result<(), CheckpointError> {
    owned(dir, dir, &fs::metadata(dir).at(dir)?)?;
    let within = |name: &str| dir.join(name);
    let saved = fs::read_dir(within("checkpoints"))
        .into_iter()
        .flatten()
        .flatten();
    for path in TRUSTED
        .map(within)
        .into_iter()
        .chain(saved.map(|entry| entry.path()))
    {
        // Where nothing is to be seen, reading it will tell. Links are refused there too.
        if let Ok(found) = fs::symlink_metadata(&path).as_ref()
            && !found.is_symlink()
        {
            owned(dir, &path, found)?;
        }
    }
    Ok(())
}

/// Fails if another user owns a part of a directory, or can write to it.
#[cfg(unix)]
fn owned(dir: &Path, path: &Path, found: &Metadata) -> Result<(), CheckpointError> {
    use std::os::unix::fs::MetadataExt;
    let dir = dir.display();
    // SAFETY: it takes nothing and only answers.
    let me = unsafe { libc::geteuid() };
    let foreign = |why: String| Err(CheckpointError::Foreign(path.to_path_buf(), why));
    if found.uid() != me && found.uid() != 0 {
        return foreign(format!(
            "belongs to another user (number {}), whose files could mislead this peer. Run this as that user, or go on in a \
             copy of your own: `cp -r {dir} COPY`",
            found.uid()
        ));
    }
    // Many systems give each user a private group with the user's own number.
    let (group, all) = (
        found.mode() & 0o020 != 0 && found.gid() != me,
        found.mode() & 0o002 != 0,
    );
    if group || all {
        return foreign(format!(
            "can be written by other users, whose files could mislead this peer. `chmod -R go-w {dir}` keeps them out"
        ));
    }
    Ok(())
}

#[cfg(not(unix))]
fn owned(_dir: &Path, _path: &Path, _found: &Metadata) -> Result<(), CheckpointError> {
    Ok(())
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // Closing alone is not enough while a child process is being started and has a copy.
        let _ = self.file.unlock();
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::testing::Scratch;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn it_is_known_whether_a_peer_runs_in_a_folder() {
        let scratch = Scratch::new();
        assert!(!is_up(&scratch.0), "nobody was ever there");
        let lock = RunLock::take(&scratch.0).unwrap();
        assert!(is_up(&scratch.0));
        drop(lock);
        assert!(!is_up(&scratch.0) && RunLock::take(&scratch.0).is_ok());
    }

    #[test]
    fn a_lock_that_is_a_link_empties_no_other_file() {
        let scratch = Scratch::new();
        let (dir, other) = (scratch.0.join("run"), scratch.0.join("other"));
        fs::create_dir(&dir).unwrap();
        fs::write(&other, "precious").unwrap();
        symlink(&other, dir.join("lock")).unwrap();
        let error = RunLock::take(&dir).unwrap_err().to_string();
        assert!(error.contains("lock is a link"), "{error}");
        assert_eq!(fs::read(&other).unwrap(), b"precious");
    }

    #[test]
    fn a_folder_that_others_can_write_or_own_is_not_taken() {
        let scratch = Scratch::new();
        let dir = scratch.0.join("run");
        let mode = |mode| fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
        drop(RunLock::take(&dir).unwrap());
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o022, 0);
        for (bits, is_taken) in [(0o777, false), (0o757, false), (0o755, true), (0o700, true)] {
            mode(bits);
            let taken = RunLock::take(&dir);
            assert_eq!(taken.is_ok(), is_taken, "{bits:o}: {taken:?}");
            let told = taken.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(is_taken || told.contains("chmod -R go-w"), "{told}");
        }
        // The same goes for its parts.
        let (saved, ledger) = (dir.join("checkpoints"), dir.join("ledger"));
        let at = saved.join("round-00000001.safetensors");
        fs::create_dir(&saved).unwrap();
        for (part, is_folder) in [(&saved, true), (&ledger, false), (&at, false)] {
            if !is_folder {
                fs::write(part, "").unwrap();
            }
            let mode = |mode| fs::set_permissions(part, Permissions::from_mode(mode)).unwrap();
            mode(0o777);
            let told = RunLock::take(&dir).unwrap_err().to_string();
            let (part, advice) = (part.display(), format!("`chmod -R go-w {}`", dir.display()));
            assert!(
                told.starts_with(&format!("{part} can")) && told.contains(&advice),
                "{told}"
            );
            mode(0o755);
            drop(RunLock::take(&dir).unwrap());
        }
        if std::os::unix::fs::chown(&dir, Some(65_534), None).is_err() {
            return println!("skipped: only root gives folders away");
        }
        let told = RunLock::take(&dir).unwrap_err().to_string();
        assert!(told.contains("another user"), "{told}");
    }

    #[test]
    fn a_folder_that_is_renamed_or_removed_is_followed_or_missed() {
        let scratch = Scratch::new();
        let (dir, moved) = (scratch.0.join("run"), scratch.0.join("moved"));
        let lock = RunLock::take(&dir).unwrap();
        assert_eq!(lock.place(), Some(dir.clone()));
        fs::rename(&dir, &moved).unwrap();
        let follows = cfg!(target_os = "linux").then(|| moved.clone());
        assert_eq!(lock.place(), follows);
        // Another folder of the old name is another's.
        let other = RunLock::take(&dir).unwrap();
        assert_eq!((lock.place(), other.place()), (follows, Some(dir)));
        fs::remove_dir_all(&moved).unwrap();
        assert_eq!(lock.place(), None);
    }
}
