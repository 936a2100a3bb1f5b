//! The parts of a split model that a run's folder has in its checkpoints, for a peer that may have to go back to them.

use crate::store::parts_file::SavedParts;
use crate::store::run_dir::{CheckpointError, RunDir};
use annulus_core::moments::Moments;
use annulus_core::saved::Saved;
use annulus_core::{Digest, Round};
use std::path::Path;

/// Which checkpoints are there, and what is in them.
#[derive(Debug, Default)]
pub struct OnDisk {
    /// In the order of their rounds.
    files: Vec<(Round, Saved)>,
}

impl OnDisk {
    /// What is in a folder. One that cannot be read is none.
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

    /// One more is there, and so many are kept.
    pub fn add(&mut self, round: Round, saved: Saved, keep: usize) {
        self.files.retain(|(other, _)| *other != round);
        self.files.push((round, saved));
        let old = self.files.len().saturating_sub(keep.max(1));
        self.files.drain(..old);
    }

    /// What there is, as a peer is told it.
    pub fn saved(&self) -> Vec<Saved> {
        self.files.iter().map(|(_, saved)| *saved).collect()
    }

    /// The newest that is of a lineage.
    pub fn newest_of(&self, stepped: Digest) -> Option<Round> {
        let mut files = self.files.iter().rev();
        files
            .find(|(_, saved)| saved.stepped == stepped)
            .map(|(round, _)| *round)
    }
}

/// Reads the parts of one, if they are of this lineage, and compares them with their digests.
///
/// # Errors
///
/// If it is not as it was written.
pub fn read(dir: &Path, round: Round, stepped: Digest) -> Result<Option<Moments>, CheckpointError> {
    let kept = RunDir::open(dir)?.load(round)?.state.kept;
    Ok(Some(kept).filter(|kept| kept.stepped == stepped))
}
