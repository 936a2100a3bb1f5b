//! The two protocol types that training needs: a hash, and where each tensor lies in a flat vector.

use serde::{Deserialize, Serialize};

/// BLAKE3 of something that all peers must share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// BLAKE3 of bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

/// One parameter tensor's place in the flat vector.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorSpec {
    /// Path in the model, such as `layer1.weight`.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// First element in the flat vector.
    pub offset: usize,
    /// Whether weight decay applies (not to biases and norms).
    pub decay: bool,
}

impl TensorSpec {
    /// Elements of the tensor.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the tensor has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How the model's parameters lie in the flat vector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Layout {
    /// Tensors in visiting order, without gaps.
    pub tensors: Vec<TensorSpec>,
    /// Elements of the flat vector.
    pub len: usize,
}
