//! Tensors of Burn's CPU backend as slices.

use burn::backend::flex::FlexTensor;
use burn::tensor::{Shape, TensorData};

/// The same numbers in row-major order; free if they are so already.
pub fn contiguous(tensor: FlexTensor) -> FlexTensor {
    if tensor.is_contiguous() {
        tensor
    } else {
        tensor.to_contiguous()
    }
}

/// The numbers of a contiguous tensor.
pub fn floats(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().expect("contiguous f32")
}

/// A tensor of these numbers.
pub fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape.into()))
}

/// The same buffer seen in another shape with as many elements.
pub fn reshaped(tensor: FlexTensor, shape: impl Into<Shape>) -> FlexTensor {
    contiguous(tensor).reshape(shape.into())
}
