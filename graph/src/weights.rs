//! Tensors in safetensors files.

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::error::GraphError;
use crate::host::{HostTensor, Numbers};
use crate::protobuf::words;
use burn::tensor::{bf16, f16};

/// The tensors of a safetensors file, sorted by name. Floats become `f32`, integers `i64`.
///
/// # Errors
///
/// If the bytes are no safetensors file, or a tensor has elements of another type.
pub fn read_tensors(file: &[u8]) -> Result<Vec<(String, HostTensor)>, GraphError> {
    let tensors = SafeTensors::deserialize(file).map_err(|error| GraphError::weights(error.to_string()))?;
    let mut read = Vec::with_capacity(tensors.len());
    for (name, view) in tensors.iter() {
        let tensor = tensor(&view).map_err(|problem| GraphError::weights(format!("`{name}`: {problem}")))?;
        read.push((name.to_owned(), tensor));
    }
    read.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(read)
}

fn tensor(view: &TensorView) -> Result<HostTensor, String> {
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
