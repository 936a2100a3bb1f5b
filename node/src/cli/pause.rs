//! `annulus pause`: allow the peer of a folder to compute, or not.

use super::error::Error;
use super::invite::right_in;
use super::output;
use crate::participant::permission;
use crate::store::lock::is_up;
use crate::web::pause::Switch;
use annulus_net::files::FileError;
use std::path::{Path, PathBuf};

/// Pause the peer of a folder, or let it go on.
///
/// The peer finishes its round, saves its state, frees the device, and waits until `annulus pause --end`, or `annulus unpause`. The
/// others go on, and no work is lost. A peer that is started while paused waits too.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  annulus pause runs/digits
  annulus pause runs/digits --end
")]
pub struct PauseArgs {
    /// The run's folder.
    pub dir: PathBuf,
    /// End the pause: the peer takes part again.
    #[arg(long)]
    pub end: bool,
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
pub fn pause(folder: &Path) -> Result<(), Error> {
    press(folder, true)?;
    let dir = folder.display();
    output::print(&match is_up(folder) {
        true => format!(
            "paused: the peer of {dir} leaves the ring after its round, until `annulus pause {dir} --end`\n"
        ),
        false => format!(
            "paused: no peer runs in {dir} now, and one that is started there waits until `annulus pause {dir} --end`\n"
        ),
    });
    Ok(())
}

/// Goes on.
pub fn unpause(folder: &Path) -> Result<(), Error> {
    let dir = folder.display();
    let text = match (press(folder, false)?, is_up(folder)) {
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
