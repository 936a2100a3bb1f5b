//! Evaluates a checkpoint of a run.

use super::parts_on_disk::PartsOnDisk;
use super::warn;
use crate::participant::error::Error;
use crate::participant::memory;
use crate::participant::run_setup::{Means, RunSetup};
use crate::store::run_dir::RunDir;
use crate::store::which::Which;
use crate::task::Eval;
use crate::task_factory::TaskFactory;
use annulus_core::Round;
use burn::tensor::read_sync;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The result of an evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluated {
    /// The checkpoint's round.
    pub round: Round,
    /// The scores.
    pub eval: Eval,
    /// How many times steps were loaded in a pass; 1 if the whole model fits.
    pub runs: usize,
}

/// Evaluates a checkpoint of a run's folder. Of a split model it takes the newest one that lies in the folders of several
/// members, and loads as many steps at a time as fit in memory.
///
/// # Errors
///
/// If there is no complete checkpoint, no held-out data, or no room for a single step.
pub fn evaluate(
    (dir, others, which): (&Path, &[PathBuf], Which),
    given: Means<'_>,
    factories: &[TaskFactory],
) -> Result<Evaluated, Error> {
    let run = RunDir::open(dir)?;
    if run.manifest().split.is_none() {
        let loaded = run.load_which(which)?;
        warn(&loaded.warnings);
        let mut trainer = RunSetup::whole(&loaded.manifest, given, factories)?;
        let eval = trainer.worker.score(loaded.state.params)?;
        return evaluated(loaded.head.round, eval, 1, &loaded.manifest.task);
    }
    which.of_split()?;
    memory::keep_within(given.memory);
    let on_disk = Arc::new(PartsOnDisk::newest(dir, others)?);
    warn(&on_disk.warnings);
    let (round, manifest) = (on_disk.label.head.round, &on_disk.manifest);
    let mut inference = RunSetup::inference(manifest, given, factories, on_disk.clone().reader())?;
    if let Some(runs) = inference.to_evaluate()? {
        let eval = read_sync(inference.evaluate())?;
        return evaluated(round, Some(eval), runs, &manifest.task);
    }
    // The task has no held-out data that can be computed in steps.
    let mut trainer = RunSetup::whole(manifest, given, factories)?;
    let eval = trainer.worker.score(on_disk.all()?)?;
    evaluated(round, eval, 1, &manifest.task)
}

fn evaluated(round: Round, eval: Option<Eval>, runs: usize, task: &str) -> Result<Evaluated, Error> {
    let eval = eval.ok_or_else(|| Error::NothingHeldOut(task.to_owned()))?;
    Ok(Evaluated { round, eval, runs })
}
