//! The loss of classifiers and language models.

use burn::tensor::{Int, Tensor};

use crate::ops::cross_entropy::cross_entropy;

/// Mean cross-entropy between the softmax of logits and target classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrossEntropy;

impl CrossEntropy {
    /// Over all rows.
    pub fn new() -> Self {
        Self
    }

    /// Logits `[rows, classes]` and targets `[rows]` to a tensor of one element.
    pub fn forward(&self, logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
        cross_entropy(logits, targets, None)
    }
}
