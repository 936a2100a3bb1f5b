//! Causal self-attention.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::linear::{Linear, LinearConfig};
use crate::ops::attention::{head_dim, packed_attention};

/// How a [`CausalSelfAttention`] is made.
#[derive(Clone, Debug)]
pub struct CausalSelfAttentionConfig {
    width: usize,
    heads: usize,
    bias: bool,
}

impl CausalSelfAttentionConfig {
    /// For tokens of `width` numbers, shared among `heads`, with biases.
    ///
    /// # Panics
    ///
    /// If the width is not a multiple of four times the heads.
    pub fn new(width: usize, heads: usize) -> Self {
        head_dim(3 * width, heads);
        Self {
            width,
            heads,
            bias: true,
        }
    }

    /// With biases or without.
    pub fn with_bias(self, bias: bool) -> Self {
        Self { bias, ..self }
    }

    /// The layer with its initial numbers, those of its linear layers.
    pub fn init(&self, device: &Device) -> CausalSelfAttention {
        let layer = |outputs| {
            LinearConfig::new(self.width, outputs)
                .with_bias(self.bias)
                .init(device)
        };
        CausalSelfAttention {
            qkv: layer(3 * self.width),
            output: layer(self.width),
            heads: self.heads,
        }
    }
}

/// Each token takes from itself and those before it (Vaswani et al., 2017), without a matrix of
/// tokens by tokens in memory (Dao et al., 2022).
#[derive(Module, Debug)]
pub struct CausalSelfAttention {
    /// Queries, keys and values side by side.
    pub qkv: Linear,
    /// What becomes of the values taken.
    pub output: Linear,
    /// Heads.
    pub heads: usize,
}

impl CausalSelfAttention {
    /// `[windows, tokens, width]` to the same, plus `residual` if given.
    pub fn forward(&self, x: Tensor<3>, residual: Option<Tensor<3>>) -> Tensor<3> {
        let taken = packed_attention(self.qkv.forward(x), self.heads, true);
        match residual {
            Some(residual) => self.output.forward_add(taken, residual),
            None => self.output.forward(taken),
        }
    }
}
