//! Tensors in safetensors files.

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::blocks::Packing;
use crate::error::GraphError;
use crate::host::{Element, HostTensor, Numbers};
use crate::protobuf::words;
use burn::tensor::{bf16, f16};

/// Parameters that one message names at most.
const MOST_NAMED: usize = 20;

/// The tensors of a safetensors file, sorted by name. Floats become `f32`, integers `i64`. Tensors that
/// `annulus quantize` has packed into [blocks](crate::Blocks) are unpacked.
///
/// # Errors
///
/// If the bytes are no safetensors file, or a tensor has elements of another type.
pub fn read_tensors(file: &[u8]) -> Result<Vec<(String, HostTensor)>, GraphError> {
    let fault = |error: safetensors::SafeTensorError| GraphError::weights(error.to_string());
    let (_, header) = SafeTensors::read_metadata(file).map_err(fault)?;
    let tensors = SafeTensors::deserialize(file).map_err(fault)?;
    let mut read = Vec::with_capacity(tensors.len());
    for (name, view) in tensors.iter() {
        let packing = header.metadata().as_ref();
        let packing = packing.and_then(|metadata| metadata.get(&Packing::key(name)));
        let tensor = match packing {
            Some(packing) => unpacked(packing, &view),
            None => tensor(&view),
        };
        let tensor = tensor.map_err(|problem| GraphError::weights(format!("`{name}`: {problem}")))?;
        read.push((name.to_owned(), tensor));
    }
    read.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(read)
}

/// An entry of a safetensors file's metadata; none if it has no such entry.
///
/// # Errors
///
/// If the bytes are no safetensors file.
pub fn metadata_of(file: &[u8], key: &str) -> Result<Option<String>, GraphError> {
    let header = SafeTensors::read_metadata(file).map_err(|error| GraphError::weights(error.to_string()))?;
    Ok(header
        .1
        .metadata()
        .as_ref()
        .and_then(|entries| entries.get(key).cloned()))
}

/// Values for parameters of these names and shapes, from tensors by name. A parameter without axes may come with one, as
/// modules have it. Tensors that are no parameters are left out.
///
/// # Errors
///
/// If some are missing, or of another shape or type: all of them in one message.
pub fn first_values<'a>(
    wanted: impl IntoIterator<Item = (&'a str, &'a [usize])>,
    tensors: &[(String, HostTensor)],
) -> Result<Vec<HostTensor>, GraphError> {
    let (mut values, mut problems) = (Vec::new(), Vec::new());
    for (name, shape) in wanted {
        match tensors.iter().find(|(own, _)| own == name) {
            None => problems.push(format!("`{name}` is missing")),
            Some((_, value)) if value.element() != Element::Float => {
                problems.push(format!("`{name}` is made of {}", value.element().name()));
            }
            Some((_, value)) if value.shape() == shape || (shape.is_empty() && value.shape() == [1]) => {
                values.push(value.reshaped(shape.to_vec()));
            }
            Some((_, value)) => {
                problems.push(format!("`{name}` is {:?}, not {shape:?}", value.shape()));
            }
        }
    }
    let more = problems.len().saturating_sub(MOST_NAMED);
    problems.truncate(MOST_NAMED);
    if more > 0 {
        problems.push(format!("and {more} more"));
    }
    match problems.is_empty() {
        true => Ok(values),
        false => Err(GraphError::model(problems.join("; "))),
    }
}

fn unpacked(packing: &str, view: &TensorView) -> Result<HostTensor, String> {
    let packing: Packing = packing.parse()?;
    if view.dtype() != Dtype::U8 {
        return Err(format!(
            "blocks of type {:?}, which should be bytes",
            view.dtype()
        ));
    }
    let values = packing.unpack(view.data())?;
    HostTensor::new(packing.shape, Numbers::Floats(values))
}

pub(crate) fn tensor(view: &TensorView) -> Result<HostTensor, String> {
    let bytes = view.data();
    let numbers = match view.dtype() {
        Dtype::F32 => Numbers::Floats(words(bytes, f32::from_le_bytes)?),
        Dtype::F64 => Numbers::Floats(words(bytes, |b| f64::from_le_bytes(b) as f32)?),
        Dtype::F16 => Numbers::Floats(words(bytes, |b| f16::from_le_bytes(b).to_f32())?),
        Dtype::BF16 => Numbers::Floats(words(bytes, |b| bf16::from_le_bytes(b).to_f32())?),
        Dtype::I64 => Numbers::Integers(words(bytes, i64::from_le_bytes)?),
        Dtype::I32 => Numbers::Integers(words(bytes, |b| i32::from_le_bytes(b).into())?),
        Dtype::I16 => Numbers::Integers(words(bytes, |b| i16::from_le_bytes(b).into())?),
        Dtype::I8 => Numbers::Integers(words(bytes, |b| i8::from_le_bytes(b).into())?),
        Dtype::U8 => Numbers::Integers(words(bytes, |b| u8::from_le_bytes(b).into())?),
        Dtype::BOOL => Numbers::Booleans(bytes.iter().map(|byte| *byte != 0).collect()),
        other => return Err(format!("elements of type {other:?}")),
    };
    HostTensor::new(view.shape().to_vec(), numbers)
}
