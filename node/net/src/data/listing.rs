//! Lists the files of a data set, as peers send it and the run's manifest names it.
//!
//! It knows no peers and no disk.

use annulus_core::Digest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Most files of a data set.
pub const MAX_FILES: usize = 256;

/// Longest file name in bytes.
pub const MAX_NAME: usize = 200;

/// The files of a data set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// Whether the task sees a folder; otherwise there is one file.
    pub folder: bool,
    /// The files.
    pub files: Vec<ListedFile>,
}

/// A file of a data set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedFile {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its BLAKE3 hash.
    pub hash: [u8; 32],
}

impl Listing {
    /// Whether it is safe to use: at least one file, no dangerous names, no duplicates.
    pub fn is_sound(&self) -> bool {
        // Some file systems ignore case.
        let mut names = BTreeSet::new();
        let mut is_new = |name: &str| names.insert(name.to_lowercase());
        (1..=MAX_FILES).contains(&self.files.len())
            && (self.folder || self.files.len() == 1)
            && self
                .files
                .iter()
                .all(|file| is_safe_name(&file.name) && is_new(&file.name))
            && self.checked_total().is_some()
    }

    /// Bytes of all files.
    pub fn total(&self) -> u64 {
        self.checked_total().unwrap_or(u64::MAX)
    }

    fn checked_total(&self) -> Option<u64> {
        let mut sizes = self.files.iter().map(|file| file.size);
        sizes.try_fold(0u64, u64::checked_add)
    }

    /// The digest in the run's manifest. The name of a single file does not count.
    pub fn digest(&self) -> Digest {
        let mut listing = self.clone();
        if let ([file], false) = (&mut listing.files[..], self.folder) {
            file.name.clear();
        }
        let bytes = postcard::to_allocvec(&listing).expect("plain data can be encoded");
        Digest(blake3::derive_key("annulus 1 listing of data files", &bytes))
    }
}

/// Whether a name from elsewhere can safely become a file name, in its folder, on any system.
pub fn is_safe_name(name: &str) -> bool {
    let bad = |c: char| c.is_control() || "/\\:*?\"<>|".contains(c);
    let stem = name.split('.').next().unwrap_or_default().to_ascii_uppercase();
    let numbered = |prefix| {
        stem.strip_prefix(prefix)
            .is_some_and(|rest| rest.len() == 1 && rest.as_bytes()[0].is_ascii_digit())
    };
    let is_device =
        ["CON", "PRN", "AUX", "NUL"].contains(&stem.as_str()) || numbered("COM") || numbered("LPT");
    !name.is_empty()
        && name.len() <= MAX_NAME
        && !name.starts_with(['.', ' '])
        && !name.ends_with(['.', ' '])
        && !name.chars().any(bad)
        && !is_device
}
