//! Predicts new rows with a trained model: from its file alone, or from a run's folder as its file would.

use crate::participant::error::Error;
use crate::participant::run_data::{about, find};
use crate::store::run_dir::RunDir;
use crate::store::which::Which;
use crate::task::{Predict, TaskError, Tensors};
use crate::task_factory::TaskFactory;
use annulus_net::files::read_named;
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::path::Path;

/// Largest model file that is read.
const LIMIT: usize = 4 << 30;

/// The predictor of a model file, or of a checkpoint of a run's folder. `data`: the run's, if it is not found here; a file needs
/// none.
///
/// # Errors
///
/// If there is no model, or its task predicts nothing.
pub fn predictor(
    (model, which): (&Path, Which),
    data: Option<&Path>,
    factories: &[TaskFactory],
) -> Result<Box<dyn Predict>, Error> {
    let (task, metadata, tensors) = match model.is_dir() {
        true => of_folder((model, which), data, factories)?,
        false if which == Which::Newest => of_file(model)?,
        false => {
            return Err(Error::Task(
                "a model file holds one model: leave out --round, or name the run's folder".into(),
            ));
        }
    };
    let factory = find(factories, &task)?;
    let predictor = (factory.predictor)(&metadata, &tensors)?;
    predictor.ok_or_else(|| Error::Task(format!("the task {task} predicts nothing from files").into()))
}

/// A model: its task, its metadata and its tensors.
type Model = (String, BTreeMap<String, String>, Tensors);

fn of_folder(
    (dir, which): (&Path, Which),
    data: Option<&Path>,
    factories: &[TaskFactory],
) -> Result<Model, Error> {
    let loaded = RunDir::open(dir)?.load_which(which)?;
    super::warn(&loaded.warnings);
    super::note_round(loaded.head.round);
    let manifest = &loaded.manifest;
    if manifest.split.is_some() {
        return Err(Error::Split);
    }
    let about = about(manifest, Some(&loaded.state.params), data, factories);
    if let Some(why) = about.lacks {
        return Err(Error::Task(why.into()));
    }
    let metadata = about
        .metadata
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
    Ok((
        manifest.task.clone(),
        metadata,
        Tensors::of(&manifest.layout, &loaded.state.params),
    ))
}

fn of_file(path: &Path) -> Result<Model, Error> {
    let failed = |why: &dyn std::fmt::Display| {
        let path = path.display();
        Error::Task(TaskError::from(format!(
            "{path} is no model that predicts: {why}. Name a run's folder, or a file that `annulus export` wrote"
        )))
    };
    let bytes = read_named(path, LIMIT).map_err(|error| Error::Task(error.into()))?;
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| failed(&error))?;
    let metadata: BTreeMap<String, String> = header
        .metadata()
        .iter()
        .flatten()
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    let task = metadata
        .get("task")
        .cloned()
        .ok_or_else(|| failed(&"it names no task"))?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| failed(&error))?;
    let floats = tensors
        .iter()
        .filter(|(_, tensor)| tensor.dtype() == Dtype::F32)
        .map(|(name, tensor)| {
            let number = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
            let (numbers, _) = tensor.data().as_chunks::<4>();
            (name.to_owned(), numbers.iter().map(number).collect())
        });
    let tensors = floats.collect();
    Ok((task, metadata, tensors))
}
