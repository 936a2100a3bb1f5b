//! `annulus pause` and `annulus unpause`: allow the peer of a folder to compute, or not.

use super::error::Error;
use super::invite::right_in;
use super::output;
use crate::participant::permission;
use crate::web::pause::Switch;
use annulus_net::files::FileError;
use annulus_net::open;
use std::fs::TryLockError;
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
    press(&args.dir, true)?;
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
    let lock = open::own_to_read(&dir.join("lock"));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Goes on.
pub fn unpause(args: &UnpauseArgs) -> Result<(), Error> {
    let dir = args.dir.display();
    let text = match (press(&args.dir, false)?, runs(&args.dir)) {
        (false, _) => format!("the peer of {dir} was not paused"),
        (true, true) => format!("the peer of {dir} takes part again"),
        (true, false) => {
            format!("not paused any more: no peer runs in {dir} now, and `annulus resume {dir}` starts it")
        }
    };
    output::print(&format!("{text}\n"));
    Ok(())
}

/// Pauses or unpauses the peer of a folder. Returns whether it was paused.
fn press(dir: &Path, pressed: bool) -> Result<bool, Error> {
    // Another folder would be waited for in vain.
    right_in(dir)?;
    let file = permission::file(dir);
    let switch = Switch::new(&file);
    let was = switch.is_pressed();
    switch
        .set(pressed)
        .map_err(|error| Error::of(FileError::new(&file, error)))?;
    Ok(was)
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
