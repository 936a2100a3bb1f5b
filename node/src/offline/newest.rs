//! Finds checkpoints of several members' folders that belong together because they are of the same step. Each holds
//! some parts of the model.

use crate::store::run_dir::{CheckpointError, RunDir};
use annulus_core::Digest;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The folders of one run's members, of which `dir` is the first.
///
/// # Errors
///
/// If one is not a run's folder, or belongs to another run.
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

/// The checkpoints of each step, newest step first; those of one folder newest first.
///
/// # Errors
///
/// If a folder cannot be read.
pub fn together(dirs: &[RunDir]) -> Result<Vec<Vec<PathBuf>>, CheckpointError> {
    // The lineage after a step names it.
    let mut steps: BTreeMap<(u64, Digest), Vec<PathBuf>> = BTreeMap::new();
    for dir in dirs {
        for file in dir.checkpoints()?.into_iter().rev() {
            // Skips those that cannot be read.
            if let Ok(label) = dir.label(file.round) {
                let step = (label.head.samples, label.head.stepped);
                steps.entry(step).or_default().push(file.path);
            }
        }
    }
    Ok(steps.into_values().rev().collect())
}
