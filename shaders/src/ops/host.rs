//! Tensors of Burn's CPU backend as slices.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::ops::IntTensorOps;
use burn::tensor::{IntDType, Shape, TensorData};

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

/// The numbers of a contiguous tensor, to be changed in place; copied first if others share them.
pub fn floats_mut(tensor: &mut FlexTensor) -> &mut [f32] {
    // It may be a part of a larger storage.
    let (start, end) = tensor.layout().contiguous_offsets().expect("contiguous");
    &mut tensor.storage_mut()[start..end]
}

/// Whole numbers in row-major order as `i32`; free if they are so already.
pub fn integers(tensor: FlexTensor) -> FlexTensor {
    contiguous(Flex::int_cast(tensor, IntDType::I32))
}

/// The numbers of a contiguous tensor of `i32`.
pub fn whole(tensor: &FlexTensor) -> &[i32] {
    tensor.as_slice().expect("contiguous i32")
}

/// A tensor of these numbers.
pub fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape.into()))
}
