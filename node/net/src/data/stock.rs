//! The files of a run that a peer serves: a listing that the run's manifest can name, and the proof of each block.
//!
//! It knows no peers.

use super::demand::Demand;
use super::error::DataError;
use super::files::{Data, DataFile};
use super::listing::{ListedFile, Listing, is_safe_name};
use super::tree::Blocks;
use std::path::Path;
#[cfg(feature = "native")]
use std::path::PathBuf;
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
    /// Where to read them.
    pub files: Vec<DataFile>,
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

    /// The demand for pieces, if the data is streamed.
    pub fn demand(&self) -> Option<Arc<Demand>> {
        self.0.data.demand().cloned()
    }

    /// Where another process can read them as plain files: where they are, or copies in a folder.
    ///
    /// # Errors
    ///
    /// If they cannot be read or written.
    #[cfg(feature = "native")]
    pub fn plain(&self, copies: &Path) -> Result<PathBuf, DataError> {
        let data = &self.0.data;
        let files = data.files_used();
        if files
            .iter()
            .all(|file| file.proof().is_none() && file.path().is_file())
        {
            return Ok(self.path().to_owned());
        }
        crate::open::make_folder(copies).map_err(|source| DataError::of(copies, source))?;
        for file in &files {
            let path = copies.join(file.name());
            // A copy of an earlier start.
            let former = crate::open::named(&path).and_then(Blocks::of).ok();
            if former.is_some() && former == file.proof() {
                continue;
            }
            let mut reader = file.reader()?;
            crate::files::write_atomic(&path, |out| std::io::copy(&mut reader, out).map(drop)).map_err(
                |error| DataError::Malformed {
                    path,
                    problem: error.to_string(),
                },
            )?;
        }
        Ok(match data.is_folder() {
            true => copies.to_owned(),
            false => copies.join(files[0].name()),
        })
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
    let (mut listed, mut blocks) = (Vec::new(), Vec::new());
    let files = data.files_used();
    for file in &files {
        let mut name = file.name().to_owned();
        if !data.is_folder() && !is_safe_name(&name) {
            // The name of a single file does not matter.
            name = "data".to_owned();
        }
        let read = || {
            let path = file.path();
            Blocks::of(file.reader()?).map_err(|source| DataError::Read { path, source })
        };
        let found = file.proof().map_or_else(read, Ok)?;
        listed.push(ListedFile {
            name,
            size: found.size(),
            hash: found.root(),
        });
        blocks.push(found);
    }
    let folder = data.is_folder();
    Ok(Checked {
        listing: Listing {
            folder,
            files: listed,
        },
        files,
        blocks,
        lost: OnceLock::new(),
    })
}
