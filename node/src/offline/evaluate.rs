//! How good a run's newest checkpoint is.

use crate::participant::error::Error;
use crate::participant::run_setup::RunSetup;
use crate::store::run_dir::RunDir;
use crate::task::Eval;
use crate::task_factory::TaskFactory;
use annulus_core::Round;
use std::path::Path;

/// Evaluates the newest checkpoint of a run's folder.
pub fn evaluate(
    dir: &Path,
    data: Option<&Path>,
    device: &str,
    factories: &[TaskFactory],
) -> Result<(Round, Eval), Error> {
    let loaded = RunDir::open(dir)?.load_latest()?;
    let mut whole = RunSetup::whole(&loaded.manifest, data, device, factories)?;
    let eval = whole.worker.score(loaded.state.params)?;
    eval.map(|eval| (loaded.head.round, eval))
        .ok_or(Error::NothingHeldOut(loaded.manifest.task))
}
