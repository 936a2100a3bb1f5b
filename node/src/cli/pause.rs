//! `annulus pause` and `annulus unpause`: whether the peer of a folder may compute.

use super::error::Error;
use super::invite::right_in;
use super::output;
use crate::participant::permission;
use crate::store::files::FileError;
use crate::web::pause::Switch;
use std::path::{Path, PathBuf};

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
    press(&args.dir, true)?;
    output::print(&format!(
        "paused: the peer of {dir} leaves the ring after its round, until `annulus unpause {dir}`\n",
        dir = args.dir.display()
    ));
    Ok(())
}

/// Goes on.
pub fn unpause(args: &UnpauseArgs) -> Result<(), Error> {
    let text = match press(&args.dir, false)? {
        true => "goes on",
        false => "was not paused",
    };
    output::print(&format!("the peer of {} {text}\n", args.dir.display()));
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
