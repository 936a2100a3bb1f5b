//! `annulus pause` and `annulus unpause`: whether the peer of a folder may compute.

use super::error::Error;
use super::invite::right_in;
use super::output;
use crate::participant::permission;
use std::io;
use std::path::PathBuf;

/// Have the peer of a folder leave the ring until `annulus unpause`.
///
/// It finishes the round in work, saves its state, frees the device, and waits; the others go on, and no work is lost. That
/// holds for a peer that is started later, too.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  annulus pause runs/digits
")]
pub struct PauseArgs {
    /// The run's folder.
    pub dir: PathBuf,
}

/// Have the peer of a folder come back into the ring after `annulus pause`.
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
    // Another folder would be waited for in vain.
    right_in(&args.dir)?;
    let file = permission::file(&args.dir);
    std::fs::write(&file, "")
        .map_err(|error| Error::failed(format!("cannot write {}: {error}", file.display())))?;
    output::print(&format!(
        "paused: the peer of {dir} leaves the ring after its round, until `annulus unpause {dir}`\n",
        dir = args.dir.display()
    ));
    Ok(())
}

/// Goes on.
pub fn unpause(args: &UnpauseArgs) -> Result<(), Error> {
    right_in(&args.dir)?;
    let file = permission::file(&args.dir);
    let text = match std::fs::remove_file(&file) {
        Ok(()) => "goes on",
        Err(error) if error.kind() == io::ErrorKind::NotFound => "was not paused",
        Err(error) => {
            return Err(Error::failed(format!(
                "cannot remove {}: {error}",
                file.display()
            )));
        }
    };
    output::print(&format!("the peer of {} {text}\n", args.dir.display()));
    Ok(())
}
