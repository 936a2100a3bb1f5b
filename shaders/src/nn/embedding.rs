//! Rows of a table for whole numbers, and the way back.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Int, Tensor};

use crate::ops::embedding::embedding;
use crate::ops::linear::{WeightLayout, linear};

/// How an [`Embedding`] is made.
#[derive(Clone, Debug)]
pub struct EmbeddingConfig {
    inner: burn::nn::EmbeddingConfig,
}

impl EmbeddingConfig {
    /// A table of `count` rows of `width` numbers, initialized as Burn's.
    pub fn new(count: usize, width: usize) -> Self {
        Self {
            inner: burn::nn::EmbeddingConfig::new(count, width),
        }
    }

    /// With other initial numbers.
    pub fn with_initializer(self, initializer: Initializer) -> Self {
        Self {
            inner: self.inner.with_initializer(initializer),
        }
    }

    /// The layer with its initial numbers.
    pub fn init(&self, device: &Device) -> Embedding {
        let burn::nn::Embedding { weight } = self.inner.init(device);
        Embedding { weight }
    }
}

/// A row of a table for each token.
#[derive(Module, Debug)]
pub struct Embedding {
    /// `[count, width]`.
    pub weight: Param<Tensor<2>>,
}

impl Embedding {
    /// Tokens `[windows, length]` to `[windows, length, width]`.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        embedding(tokens, self.weight.val(), None)
    }

    /// The same, plus the row of `positions` for each token's place in its window, in one launch.
    pub fn forward_at(&self, tokens: Tensor<2, Int>, positions: &Self) -> Tensor<3> {
        embedding(tokens, self.weight.val(), Some(positions.weight.val()))
    }

    /// Features `[.., width]` to one score for each row, `[.., count]`: the output layer that shares
    /// the table (Press and Wolf, 2017).
    pub fn scores<const D: usize>(&self, features: Tensor<D>) -> Tensor<D> {
        linear(
            features,
            self.weight.val(),
            None,
            None,
            WeightLayout::OutputsFirst,
        )
    }
}
