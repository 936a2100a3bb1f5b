//! How good a run's newest checkpoint is.

use crate::offline::whole;
use crate::participant::error::Error;
use crate::participant::run_setup::RunSetup;
use crate::task::Eval;
use crate::task_factory::TaskFactory;
use annulus_core::Round;
use std::path::{Path, PathBuf};

/// Evaluates the newest checkpoint of a run's folder; where the model is split, together with those of others of its members.
pub fn evaluate(
    (dir, others): (&Path, &[PathBuf]),
    data: Option<&Path>,
    device: &str,
    factories: &[TaskFactory],
) -> Result<(Round, Eval), Error> {
    let loaded = whole::load(dir, others)?;
    let mut trainer = RunSetup::whole(&loaded.manifest, data, device, factories)?;
    let eval = trainer.worker.score(loaded.state.params)?;
    eval.map(|eval| (loaded.head.round, eval))
        .ok_or(Error::NothingHeldOut(loaded.manifest.task))
}
