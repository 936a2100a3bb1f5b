//! Predicts new rows with a trained model: from its file alone, or from a run's folder as its file would.

use super::saved::Saved;
use crate::participant::error::Error;
use crate::participant::run_data::find;
use crate::store::which::Which;
use crate::task::Predict;
use crate::task_factory::TaskFactory;
use std::path::Path;

/// The predictor of a model file, or of a checkpoint of a run's folder. `data`: the run's, if it is not found here; a file needs
/// none.
///
/// # Errors
///
/// If there is no model, or its task predicts nothing.
pub fn predictor(
    model: (&Path, Which),
    data: Option<&Path>,
    factories: &[TaskFactory],
) -> Result<Box<dyn Predict>, Error> {
    let saved = Saved::open(model, data, factories)?;
    let (task, factory) = (&saved.task, find(factories, &saved.task)?);
    let predictor = (factory.predictor)(&saved.metadata, &saved.tensors())?;
    predictor.ok_or_else(|| Error::Task(format!("the task {task} predicts nothing from files").into()))
}
