//! Tensors as rows of their last axis.

use burn::backend::TensorMetadata;

/// How many rows there are and how many numbers each has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Product of all axes but the last.
    pub count: usize,
    /// The last axis.
    pub width: usize,
}

impl Rows {
    /// Those of a tensor.
    pub fn of(tensor: &impl TensorMetadata) -> Self {
        let shape = tensor.shape();
        let width = shape[shape.num_dims() - 1];
        Self {
            count: shape.num_elements() / width.max(1),
            width,
        }
    }

    /// Whether there is no number at all.
    pub fn is_empty(&self) -> bool {
        self.count * self.width == 0
    }
}
