//! Remembers in which folders this user's peers have trained on this machine, so that people find them again.
//!
//! Losing the file loses only a list, so nothing fails with it.

use annulus_net::files::{FileError, read_limited, write_private};
use annulus_net::open;
use std::path::{Path, PathBuf};

/// The file.
const NAME: &str = "folders.json";

/// Folders that are remembered, the newest first.
const REMEMBERED: usize = 64;

/// A longer file is not one of ours.
const LIMIT: usize = 1 << 20;

/// The folders that a file in `data` names, the newest first.
pub fn noted(data: &Path) -> Vec<PathBuf> {
    let bytes = read_limited(&data.join(NAME), LIMIT).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// Puts a folder first in the file, and forgets those that are gone.
///
/// # Errors
///
/// If the disk fails.
pub fn note(data: &Path, folder: &Path) -> Result<(), FileError> {
    let failed = |error| FileError::new(data, error);
    let folder = std::path::absolute(folder).map_err(failed)?;
    std::fs::create_dir_all(data).map_err(failed)?;
    let lock = open::lock_file(&data.join("lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    let mut folders = noted(data);
    folders.retain(|noted| *noted != folder && noted.is_dir());
    folders.insert(0, folder);
    folders.truncate(REMEMBERED);
    // A path that is no text cannot be written, and the others stay.
    let Ok(text) = serde_json::to_vec(&folders) else {
        return Ok(());
    };
    write_private(&data.join(NAME), &text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn the_newest_folder_is_first_and_those_that_are_gone_are_forgotten() {
        let scratch = Scratch::new();
        let data = scratch.0.join("data");
        assert!(noted(&data).is_empty());
        let folders = ["a", "b", "c"].map(|name| scratch.0.join(name));
        folders.iter().for_each(|folder| {
            std::fs::create_dir(folder).unwrap();
            note(&data, folder).unwrap();
        });
        std::fs::remove_dir(&folders[1]).unwrap();
        note(&data, &folders[0]).unwrap();
        assert_eq!(noted(&data), [folders[0].clone(), folders[2].clone()]);
        std::fs::write(data.join(NAME), "[").unwrap();
        assert!(noted(&data).is_empty());
    }
}
