//! A run's newest state with all parameters, also where each member of the run held only parts of the model.

use crate::store::run_dir::{CheckpointError, LoadedRun, RunDir};
use annulus_core::Digest;
use annulus_core::parts::{PartSet, Parts};
use std::path::{Path, PathBuf};

/// Reads the newest state in a run's folder. Where the model was split, that takes the folders of `others` too, so that each part
/// is in one of them: of the checkpoints after the same step, the newest that together have all.
///
/// # Errors
///
/// If there is no such state.
pub fn load(dir: &Path, others: &[PathBuf]) -> Result<LoadedRun, CheckpointError> {
    let first = RunDir::open(dir)?;
    let Some(parts) = Parts::of(first.manifest()).filter(|_| first.manifest().split.is_some()) else {
        return first.load_latest();
    };
    let mut dirs = vec![first];
    for other in others {
        let dir = RunDir::open(other)?;
        if dir.manifest().run_id() != dirs[0].manifest().run_id() {
            return Err(CheckpointError::OtherRun(other.clone()));
        }
        dirs.push(dir);
    }
    let mut lacking = parts.all();
    for stepped in steps(&dirs)? {
        match gather(&dirs, parts, stepped)? {
            Ok(run) => return Ok(run),
            Err(lacks) if lacks.len() < lacking.len() => lacking = lacks,
            Err(_) => {}
        }
    }
    Err(CheckpointError::Parts(
        dir.to_path_buf(),
        lacking.len(),
        parts.all().len(),
    ))
}

/// After which steps there are checkpoints, newest first: each named by the lineage after it.
fn steps(dirs: &[RunDir]) -> Result<Vec<Digest>, CheckpointError> {
    let mut found = Vec::new();
    for dir in dirs {
        for file in dir.checkpoints()? {
            // One that cannot be read is none.
            if let Ok(label) = dir.label(file.round) {
                found.push((label.head.samples, label.head.stepped));
            }
        }
    }
    found.sort();
    found.dedup();
    Ok(found.into_iter().rev().map(|(_, stepped)| stepped).collect())
}

/// The state after a step, or the parts that nobody has.
fn gather(
    dirs: &[RunDir],
    parts: Parts,
    stepped: Digest,
) -> Result<Result<LoadedRun, PartSet>, CheckpointError> {
    let (mut lacking, mut whole, mut warnings) = (parts.all(), None, Vec::new());
    let mut params = vec![0.0; dirs[0].manifest().layout.len];
    for dir in dirs {
        let at = |round| dir.label(round).is_ok_and(|label| label.head.stepped == stepped);
        let Some(file) = dir.checkpoints()?.into_iter().rfind(|file| at(file.round)) else {
            continue;
        };
        let run = match dir.load(file.round) {
            Ok(run) => run,
            Err(error) => {
                warnings.push(format!("passed over {error}"));
                continue;
            }
        };
        let here = run.state.kept.set().and(&lacking);
        for range in here.iter().filter_map(|part| parts.range(part)) {
            params[range.clone()].copy_from_slice(&run.state.kept.weights(&run.manifest, range));
        }
        lacking = lacking.without(&here);
        whole.get_or_insert(run);
    }
    Ok(match whole {
        Some(mut run) if lacking.is_empty() => {
            run.state.params = params;
            run.warnings.extend(warnings);
            Ok(run)
        }
        _ => Err(lacking),
    })
}
