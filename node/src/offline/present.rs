//! The present state of a run in which a peer trains on this machine: the peer saves it on request.

use crate::participant::error::Error;
use crate::store::run_dir::{CheckpointError, RunDir};
use crate::store::save_now::{Asked, ask};
use crate::store::which::Which;
use annulus_net::files::FileError;
use std::path::Path;

/// Has the peer that runs in a folder, if one does, save what it has learnt so far, and tells a person, on standard error, which
/// round that is. An older checkpoint, a model file and the parts of a split model are taken as they are.
///
/// # Errors
///
/// If the folder cannot be written to.
pub fn save_present(dir: &Path, which: Which) -> Result<(), Error> {
    if which != Which::Newest || !dir.is_dir() {
        return Ok(());
    }
    let Ok(run) = RunDir::open(dir) else {
        // Reading it tells what is wrong.
        return Ok(());
    };
    let asked = match run.manifest().split {
        None => ask(dir).map_err(|error| CheckpointError::from(FileError::new(dir, error)))?,
        Some(_) => return Ok(()),
    };
    let round = || run.checkpoints().ok().and_then(|all| Some(all.last()?.round));
    match (asked, round()) {
        (Asked::Saved, Some(round)) => {
            eprintln!("note: this is round {round}, which the peer that trains there has just saved");
        }
        (Asked::InVain, Some(round)) => eprintln!(
            "note: this is round {round}, its last checkpoint: the peer there does not save now, as it waits or catches up"
        ),
        _ => {}
    }
    Ok(())
}
