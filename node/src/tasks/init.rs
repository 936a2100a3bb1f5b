//! Weights that a run starts from: a safetensors file in its data, which the setting `init=NAME` names.
//!
//! It must not know models: they say which parameters they have.

use annulus_graph::{HostTensor, read_tensors};
use std::io::Read as _;
use std::path::{Component, Path};

use crate::task::{Data, TaskError};

/// Help for the setting.
pub(super) const HELP: (&str, &str) = (
    "init=NAME",
    "safetensors file in the folder whose weights the run starts from",
);

/// A file's bytes; none if it is not there.
pub(super) fn bytes(data: &Data, name: &str) -> Result<Option<Vec<u8>>, TaskError> {
    let Some(file) = data.file(name)? else {
        return Ok(None);
    };
    let mut bytes = Vec::with_capacity(usize::try_from(file.size()?)?);
    file.reader()?.read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// The bytes of the file that the setting names; none if it names none.
pub(super) fn weights(name: &str, data: &Data) -> Result<Option<Vec<u8>>, TaskError> {
    if name.is_empty() {
        return Ok(None);
    }
    // The settings may come from another peer, which must not choose a file elsewhere.
    let mut parts = Path::new(name).components();
    if parts.next() != Some(Component::Normal(name.as_ref())) {
        return Err(format!("init={name} is no file's name; put the file into the data folder").into());
    }
    let absent = || format!("{} has no {name}, which init= names", data.path().display());
    Ok(Some(bytes(data, name)?.ok_or_else(absent)?))
}

/// Gives a model's parameters the tensors of such a file by `take`, which tells all that do not fit.
pub(super) fn fit<T, E: std::fmt::Display>(
    (name, file): (&str, &[u8]),
    take: impl FnOnce(&[(String, HostTensor)]) -> Result<T, E>,
) -> Result<T, TaskError> {
    let unfit = |error: &dyn std::fmt::Display| format!("{name} does not fit the model: {error}");
    let tensors = read_tensors(file).map_err(|error| unfit(&error))?;
    Ok(take(&tensors).map_err(|error| unfit(&error))?)
}
