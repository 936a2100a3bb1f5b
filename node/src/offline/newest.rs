//! Which checkpoints of several members' folders belong together, where each has parts of a model: those after the same step.

use crate::store::run_dir::{CheckpointError, RunDir};
use annulus_core::Digest;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The folders of one run's members, the first of which is `dir`.
///
/// # Errors
///
/// If one of them is none, or of another run.
pub fn folders(dir: &Path, others: &[PathBuf]) -> Result<Vec<RunDir>, CheckpointError> {
    let mut dirs = vec![RunDir::open(dir)?];
    for other in others {
        let dir = RunDir::open(other)?;
        if dir.manifest().run_id() != dirs[0].manifest().run_id() {
            return Err(CheckpointError::OtherRun(other.clone()));
        }
        dirs.push(dir);
    }
    Ok(dirs)
}

/// The checkpoints after each step that there are any of, those after the newest first; of each folder the newest first.
///
/// # Errors
///
/// If a folder cannot be read.
pub fn together(dirs: &[RunDir]) -> Result<Vec<Vec<PathBuf>>, CheckpointError> {
    // A step is named by the lineage after it.
    let mut steps: BTreeMap<(u64, Digest), Vec<PathBuf>> = BTreeMap::new();
    for dir in dirs {
        for file in dir.checkpoints()?.into_iter().rev() {
            // One that cannot be read is none.
            if let Ok(label) = dir.label(file.round) {
                let step = (label.head.samples, label.head.stepped);
                steps.entry(step).or_default().push(file.path);
            }
        }
    }
    Ok(steps.into_values().rev().collect())
}
