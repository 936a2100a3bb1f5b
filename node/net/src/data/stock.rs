//! The files of a run that a peer serves: a listing that the run's manifest can name, and the proof of each block.
//!
//! It knows no peers.

use super::error::DataError;
use super::files::Data;
use super::listing::{ListedFile, Listing, is_safe_name};
use super::tree::Blocks;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// The files that a task has read. Clones share what was found out about them.
#[derive(Clone, Debug)]
pub struct Stock(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    data: Data,
    checked: OnceLock<Result<Checked, String>>,
}

/// The result of reading all files once.
#[derive(Debug)]
pub struct Checked {
    /// The files and their hashes.
    pub listing: Listing,
    /// Their paths.
    pub paths: Vec<PathBuf>,
    /// The proofs of their blocks.
    pub blocks: Vec<Blocks>,
    /// The first file that could no longer be read, with why.
    pub lost: OnceLock<String>,
}

impl Stock {
    /// The files that the task has asked for so far.
    pub fn new(data: Data) -> Self {
        Self(Arc::new(Inner {
            data,
            checked: OnceLock::new(),
        }))
    }

    /// Where they are.
    pub fn path(&self) -> &Path {
        self.0.data.path()
    }

    /// Bytes of all files.
    pub fn size(&self) -> Option<u64> {
        let files = self.0.data.files_used();
        let mut sizes = files.iter().map(|file| file.size().ok());
        sizes.try_fold(0u64, |sum, size| sum.checked_add(size?))
    }

    /// Hashes the files; the first call reads all of them.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    pub fn check(&self) -> Result<&Checked, String> {
        let checked = self
            .0
            .checked
            .get_or_init(|| check(&self.0.data).map_err(|error| error.to_string()));
        checked.as_ref().map_err(Clone::clone)
    }

    /// The result if they were read already.
    pub fn checked(&self) -> Option<Result<&Checked, String>> {
        Some(self.0.checked.get()?.as_ref().map_err(Clone::clone))
    }
}

fn check(data: &Data) -> Result<Checked, DataError> {
    let (mut files, mut paths, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
    for file in data.files_used() {
        let mut name = file.name().to_owned();
        if !data.is_folder() && !is_safe_name(&name) {
            // The name of a single file does not matter.
            name = "data".to_owned();
        }
        let path = file.path();
        let found = Blocks::of(file.reader()?).map_err(|source| DataError::Read {
            path: path.clone(),
            source,
        })?;
        files.push(ListedFile {
            name,
            size: found.size(),
            hash: found.root(),
        });
        paths.push(path);
        blocks.push(found);
    }
    let folder = data.is_folder();
    Ok(Checked {
        listing: Listing { folder, files },
        paths,
        blocks,
        lost: OnceLock::new(),
    })
}
