//! Finds the parts of a split model in a folder's checkpoints, for a peer that may have to go back to them.

use crate::store::parts_file::SavedParts;
use crate::store::run_dir::{CheckpointError, RunDir};
use annulus_core::moments::Moments;
use annulus_core::saved::Saved;
use annulus_core::{Digest, Round};
use std::path::Path;

/// The checkpoints and their parts.
#[derive(Debug, Default)]
pub struct OnDisk {
    /// Ordered by round.
    files: Vec<(Round, Saved)>,
}

impl OnDisk {
    /// The checkpoints in a folder, without those that cannot be read.
    pub fn of(dir: &RunDir) -> Self {
        let mut on_disk = Self::default();
        for file in dir.checkpoints().unwrap_or_default() {
            if let Ok(parts) = SavedParts::open(&file.path, dir.manifest()) {
                let (stepped, parts) = (parts.label.head.stepped, parts.set());
                on_disk.files.push((file.round, Saved { stepped, parts }));
            }
        }
        on_disk
    }

    /// Adds a checkpoint, of which `keep` are kept.
    pub fn add(&mut self, round: Round, saved: Saved, keep: usize) {
        self.files.retain(|(other, _)| *other != round);
        self.files.push((round, saved));
        let old = self.files.len().saturating_sub(keep.max(1));
        self.files.drain(..old);
    }

    /// What a peer may say that it has.
    pub fn saved(&self) -> Vec<Saved> {
        self.files.iter().map(|(_, saved)| *saved).collect()
    }

    /// The newest checkpoint of a lineage.
    pub fn newest_of(&self, stepped: Digest) -> Option<Round> {
        let mut files = self.files.iter().rev();
        files
            .find(|(_, saved)| saved.stepped == stepped)
            .map(|(round, _)| *round)
    }
}

/// Reads a checkpoint's parts, if they are of this lineage, and compares them with their digests.
///
/// # Errors
///
/// If it has changed since it was written.
pub fn read(dir: &Path, round: Round, stepped: Digest) -> Result<Option<Moments>, CheckpointError> {
    let kept = RunDir::open(dir)?.load(round)?.state.kept;
    Ok(Some(kept).filter(|kept| kept.stepped == stepped))
}
