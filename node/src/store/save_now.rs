//! Asks the peer that runs in a folder to save its state now, so that others see what it has learnt so far.
//!
//! The request is a file in the folder. The peer removes it once the state is safe on disk.

use crate::store::lock::is_up;
use annulus_net::open;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a peer may take. It looks each second, and then writes its state. A guess for large models.
const PATIENCE: Duration = Duration::from_secs(20);

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// No peer runs in the folder.
    Nobody,
    /// It has saved its state.
    Saved,
    /// It has not, in [`PATIENCE`].
    InVain,
}

/// The file by which a peer is asked.
pub fn file(dir: &Path) -> PathBuf {
    dir.join("save")
}

/// Asks the peer in a folder, and waits until it has saved.
///
/// # Errors
///
/// If the file cannot be made.
pub fn ask(dir: &Path) -> io::Result<Asked> {
    if !is_up(dir) {
        return Ok(Asked::Nobody);
    }
    let file = file(dir);
    open::lock_file(&file)?;
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if !file.exists() {
            return Ok(Asked::Saved);
        }
        if !is_up(dir) {
            // It has saved at its end.
            let _ = std::fs::remove_file(&file);
            return Ok(Asked::Nobody);
        }
        sleep(LOOK);
    }
    let _ = std::fs::remove_file(&file);
    Ok(Asked::InVain)
}
