//! How good a run's newest checkpoint is.

use super::parts_on_disk::PartsOnDisk;
use super::warn;
use crate::participant::error::Error;
use crate::participant::memory;
use crate::participant::run_setup::{Means, RunSetup};
use crate::store::run_dir::RunDir;
use crate::task::Eval;
use crate::task_factory::TaskFactory;
use annulus_core::Round;
use burn::tensor::read_sync;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluated {
    /// The checkpoint's round.
    pub round: Round,
    /// How good it is.
    pub eval: Eval,
    /// Into how many runs of steps the model was cut that were in memory one after the other.
    pub runs: usize,
}

/// Evaluates the newest checkpoint of a run's folder; where the model is split, together with those of others of its members, and
/// as much of it at a time as memory has room for.
///
/// # Errors
///
/// If there is no whole checkpoint, or nothing to evaluate on, or no room for a single step.
pub fn evaluate(
    (dir, others): (&Path, &[PathBuf]),
    given: Means<'_>,
    factories: &[TaskFactory],
) -> Result<Evaluated, Error> {
    let run = RunDir::open(dir)?;
    if run.manifest().split.is_none() {
        let loaded = run.load_latest()?;
        warn(&loaded.warnings);
        let mut trainer = RunSetup::whole(&loaded.manifest, given, factories)?;
        let eval = trainer.worker.score(loaded.state.params)?;
        return evaluated(loaded.head.round, eval, 1, &loaded.manifest.task);
    }
    memory::keep_within(given.memory);
    let on_disk = Arc::new(PartsOnDisk::newest(dir, others)?);
    warn(&on_disk.warnings);
    let (round, manifest) = (on_disk.label.head.round, &on_disk.manifest);
    let mut inference = RunSetup::inference(manifest, given, factories, on_disk.clone().reader())?;
    if let Some(runs) = inference.to_evaluate()? {
        let eval = read_sync(inference.evaluate())?;
        return evaluated(round, Some(eval), runs, &manifest.task);
    }
    // Nothing that the task holds out can be computed in steps.
    let mut trainer = RunSetup::whole(manifest, given, factories)?;
    let eval = trainer.worker.score(on_disk.all()?)?;
    evaluated(round, eval, 1, &manifest.task)
}

fn evaluated(round: Round, eval: Option<Eval>, runs: usize, task: &str) -> Result<Evaluated, Error> {
    let eval = eval.ok_or_else(|| Error::NothingHeldOut(task.to_owned()))?;
    Ok(Evaluated { round, eval, runs })
}
