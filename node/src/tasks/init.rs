//! Weights that a run starts from: a safetensors file in its data, which the setting `init=NAME` names.
//!
//! It must not know models: they say which parameters they have.

use annulus_graph::{GraphError, HostTensor, Numbers, first_values, read_tensors};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
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

/// A model's parameters in its order, and the bytes of the file that they come from.
type Start = (Vec<f32>, Vec<u8>);

/// The weights that the setting names, in the order of a model's parameters, and the file's bytes; none if it names none.
/// `folder`: how to give the data as a folder.
pub(super) fn start<M: Module>(
    name: &str,
    (data, folder): (Option<&Data>, &str),
    model: impl FnOnce() -> M,
) -> Result<Option<Start>, TaskError> {
    let Some(data) = data.filter(|data| data.is_folder()) else {
        return match name.is_empty() {
            true => Ok(None),
            false => Err(format!("init={name} is in no folder: {folder}, and the weights beside it").into()),
        };
    };
    let Some(file) = weights(name, data)? else {
        return Ok(None);
    };
    Ok(Some((parameters(&model(), (name, &file))?, file)))
}

/// A model's parameters from a file of weights, in its order.
fn parameters<M: Module>(model: &M, file: (&str, &[u8])) -> Result<Vec<f32>, TaskError> {
    let mut list = Parameters::default();
    model.visit(&mut list);
    fit(file, |tensors| {
        let wanted = list.found.iter().map(|(name, shape)| (&**name, &**shape));
        let values = first_values(wanted, tensors)?;
        let floats = values.iter().filter_map(|value| match value.numbers() {
            Numbers::Floats(values) => Some(&**values),
            _ => None,
        });
        Ok::<_, GraphError>(floats.collect::<Vec<_>>().concat())
    })
}

/// The names and shapes of a model's parameters. It draws no values.
#[derive(Default)]
struct Parameters {
    path: Vec<String>,
    found: Vec<(String, Vec<usize>)>,
}

impl ModuleVisitor for Parameters {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let shape = param.lazy_shape().to_vec();
        self.found.push((self.path.join("."), shape));
    }
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
