//! Takes the least important units out of a trained model.

use super::saved::Saved;
use crate::task::{Pruning, TaskError, without_units};

/// The model without the units that go. Its file names the smaller settings.
///
/// # Errors
///
/// If it is quantized, or is not the model that its settings say.
pub(crate) fn pruned(model: &Saved, pruning: &Pruning<String>) -> Result<Saved, TaskError> {
    if let Some(kind) = model.quantized() {
        let path = model.path.display();
        return Err(format!("{path} is quantized ({kind}): prune first, and quantize the result").into());
    }
    let mut metadata = model.metadata.clone();
    metadata.insert("task_config".into(), pruning.config.clone());
    let changed = pruning.metadata.iter();
    metadata.extend(changed.map(|(key, value)| ((*key).to_owned(), value.clone())));
    Ok(Saved {
        tensors: without_units(&model.tensors, &pruning.units)?,
        metadata,
        ..model.clone()
    })
}
