//! `annulus pause` and `annulus unpause`: allow the peer of a folder to compute, or not.

use super::error::Error;
use super::invite::right_in;
use super::output;
use crate::participant::permission;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// Pause the peer of a folder until `annulus unpause`.
///
/// The peer finishes its round, saves its state, frees the device, and waits. The others go on, and no work is lost. A peer that is
/// started while paused waits too.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  annulus pause runs/digits
")]
pub struct PauseArgs {
    /// The run's folder.
    pub dir: PathBuf,
}

/// Let the peer of a folder take part again after `annulus pause`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  annulus unpause runs/digits
")]
pub struct UnpauseArgs {
    /// The run's folder.
    pub dir: PathBuf,
}

/// Pauses.
pub fn pause(args: &PauseArgs) -> Result<(), Error> {
    // In any other folder it would have no effect.
    right_in(&args.dir)?;
    let file = permission::file(&args.dir);
    std::fs::write(&file, "")
        .map_err(|error| Error::failed(format!("cannot write {}: {error}", file.display())))?;
    let dir = args.dir.display();
    output::print(&match runs(&args.dir) {
        true => format!(
            "paused: the peer of {dir} leaves the ring after its round, until `annulus unpause {dir}`\n"
        ),
        false => format!(
            "paused: no peer runs in {dir} now, and one that is started there waits until `annulus unpause {dir}`\n"
        ),
    });
    Ok(())
}

/// Whether a peer runs in a folder now: it holds the folder's lock.
fn runs(dir: &Path) -> bool {
    let lock = File::open(dir.join("lock"));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Goes on.
pub fn unpause(args: &UnpauseArgs) -> Result<(), Error> {
    right_in(&args.dir)?;
    let file = permission::file(&args.dir);
    let dir = args.dir.display();
    let text = match std::fs::remove_file(&file) {
        Ok(()) if runs(&args.dir) => format!("the peer of {dir} takes part again"),
        Ok(()) => {
            format!("not paused any more: no peer runs in {dir} now, and `annulus resume {dir}` starts it")
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => format!("the peer of {dir} was not paused"),
        Err(error) => {
            return Err(Error::failed(format!(
                "cannot remove {}: {error}",
                file.display()
            )));
        }
    };
    output::print(&format!("{text}\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::lock::RunLock;
    use crate::testing::Scratch;

    #[test]
    fn it_is_known_whether_a_peer_runs_in_a_folder() {
        let scratch = Scratch::new();
        assert!(!runs(&scratch.0), "nobody was ever there");
        let lock = RunLock::take(&scratch.0).unwrap();
        assert!(runs(&scratch.0));
        drop(lock);
        assert!(!runs(&scratch.0) && RunLock::take(&scratch.0).is_ok());
    }
}
