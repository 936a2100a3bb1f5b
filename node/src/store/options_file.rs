//! Remembers a peer's options in its run's folder, as words of the command line, one to a line. People may read and change it.

use annulus_net::files::{FileError, read_limited, write_private};
use std::path::{Path, PathBuf};

/// Longest file that is read: some dozens of options, each as long as people type them.
const LIMIT: usize = 1 << 16;

/// The file in a run's folder.
pub fn path(dir: &Path) -> PathBuf {
    dir.join("options")
}

/// Writes them atomically.
pub fn save(dir: &Path, words: &[String]) -> Result<(), FileError> {
    let lines: String = words.iter().map(|word| format!("{word}\n")).collect();
    write_private(&path(dir), lines.as_bytes())
}

/// Reads them. Without the file there are none.
pub fn load(dir: &Path) -> Result<Vec<String>, FileError> {
    match read_limited(&path(dir), LIMIT) {
        Err(FileError::Missing(_)) => Ok(Vec::new()),
        read => {
            let read = read?;
            let text = String::from_utf8_lossy(&read);
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            Ok(lines.map(str::to_owned).collect())
        }
    }
}
