//! Predicts new rows with a trained model, or writes with it: from its file alone, or from a run's folder as its file would.

use super::saved::Saved;
use crate::participant::error::Error;
use crate::participant::run_data::find;
use crate::participant::run_setup::Means;
use crate::store::which::Which;
use crate::task::Predict;
use crate::task_factory::TaskFactory;
use crate::trainer::Worker;
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
    let predictor = of(&saved, factories)?;
    let task = &saved.task;
    predictor.ok_or_else(|| Error::Task(format!("the task {task} predicts nothing from files").into()))
}

fn of(saved: &Saved, factories: &[TaskFactory]) -> Result<Option<Box<dyn Predict>>, Error> {
    let factory = find(factories, &saved.task)?;
    Ok((factory.predictor)(&saved.metadata, &saved.tensors())?)
}

/// A trained model that answers.
pub enum Answering {
    /// It predicts from rows or files.
    Predicts(Box<dyn Predict>),
    /// It continues texts.
    Writes {
        /// Has the model.
        worker: Box<dyn Worker>,
        /// The task's name.
        task: String,
    },
}

/// The model in a file, or in a checkpoint of a run's folder, on `given.device` if it writes.
///
/// # Errors
///
/// If there is no model, or its task answers nothing.
pub fn answering(
    model: (&Path, Which),
    given: Means<'_>,
    factories: &[TaskFactory],
) -> Result<Answering, Error> {
    let saved = Saved::open(model, given.data, factories)?;
    if let Some(predictor) = of(&saved, factories)? {
        return Ok(Answering::Predicts(predictor));
    }
    let worker = saved.writer(given, factories).map_err(|error| match error {
        Error::WritesNothing(task) => {
            Error::Task(format!("the task {task} predicts nothing from files, and writes nothing").into())
        }
        error => error,
    })?;
    let task = saved.task;
    Ok(Answering::Writes { worker, task })
}
