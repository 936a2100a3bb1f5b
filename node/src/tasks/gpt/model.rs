//! The transformer: GPT-2's, as nanoGPT writes it.
//!
//! Decoder only, norms before the branches, learned positions, GELU in its exact form (by the error function), one
//! matrix for embedding and output. It knows nothing of text or training.

use burn::module::Module;
use burn::nn::{
    Dropout, DropoutConfig, Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear,
    LinearConfig,
};
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::module::linear;
use burn::tensor::{Bool, Device, Int, Tensor};

use super::presets::Shape;

/// Deviation of initial weights (GPT-2's; Radford et al. 2019, section 2.3).
const DEVIATION: f64 = 0.02;

/// Tokens to logits.
#[derive(Module, Debug)]
pub struct Transformer {
    /// Also the output layer, transposed.
    tokens: Embedding,
    positions: Embedding,
    dropout: Dropout,
    blocks: Vec<Block>,
    norm: LayerNorm,
}

impl Transformer {
    /// A model with random parameters.
    pub fn new(shape: &Shape, dropout: f64, device: &Device) -> Self {
        let embedding = |count| {
            EmbeddingConfig::new(count, shape.width)
                .with_initializer(normal(DEVIATION))
                .init(device)
        };
        Self {
            tokens: embedding(shape.vocabulary),
            positions: embedding(shape.context),
            dropout: DropoutConfig::new(dropout).init(),
            blocks: (0..shape.layers)
                .map(|_| Block::new(shape, dropout, device))
                .collect(),
            norm: norm(shape, device),
        }
    }

    /// Tokens `[windows, length]`, no longer than the context, to features `[windows, length, width]`.
    pub fn features(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [_, length] = tokens.dims();
        let positions = self.positions.weight.val().narrow(0, 0, length);
        let x = self.tokens.forward(tokens) + positions.unsqueeze();
        let x = self
            .blocks
            .iter()
            .fold(self.dropout.forward(x), |x, block| block.forward(x));
        self.norm.forward(x)
    }

    /// Features `[n, width]` to logits `[n, vocabulary]`.
    pub fn logits(&self, features: Tensor<2>) -> Tensor<2> {
        linear(features, self.tokens.weight.val().transpose(), None)
    }
}

/// Attention and a perceptron, each a branch whose output is added.
#[derive(Module, Debug)]
pub struct Block {
    norm_1: LayerNorm,
    attention: CausalSelfAttention,
    norm_2: LayerNorm,
    mlp: Mlp,
    dropout: Dropout,
}

impl Block {
    fn new(shape: &Shape, dropout: f64, device: &Device) -> Self {
        Self {
            norm_1: norm(shape, device),
            attention: CausalSelfAttention::new(shape, device),
            norm_2: norm(shape, device),
            mlp: Mlp::new(shape, device),
            dropout: DropoutConfig::new(dropout).init(),
        }
    }

    /// `[windows, length, width]` to the same.
    ///
    /// Dropout is on the branches alone; not on attention weights, which a fused attention never has in memory.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let attended = self.attention.forward(self.norm_1.forward(x.clone()));
        let x = x + self.dropout.forward(attended);
        let thought = self.mlp.forward(self.norm_2.forward(x.clone()));
        x + self.dropout.forward(thought)
    }
}

/// Each position takes from itself and those before it.
#[derive(Module, Debug)]
pub struct CausalSelfAttention {
    /// Queries, keys and values side by side.
    qkv: Linear,
    output: Linear,
    heads: usize,
}

impl CausalSelfAttention {
    fn new(shape: &Shape, device: &Device) -> Self {
        let width = shape.width;
        Self {
            qkv: layer(width, 3 * width, shape.bias, DEVIATION, device),
            output: layer(width, width, shape.bias, residual(shape), device),
            heads: shape.heads,
        }
    }

    /// `[windows, length, width]` to the same.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [windows, length, width] = x.dims();
        let size = width / self.heads;
        let device = x.device();
        let mut parts = self.qkv.forward(x).chunk(3, 2).into_iter().map(|part| {
            let split = part.reshape([windows, length, self.heads, size]);
            split.swap_dims(1, 2)
        });
        let mut part = || parts.next().expect("it was cut in three");
        let (queries, keys, values) = (part(), part(), part());
        // Scaled before the product, where there are fewer numbers.
        let scores = (queries * (size as f64).powf(-0.5)).matmul(keys.transpose());
        let later = Tensor::<2, Bool>::tril_mask([length, length], 0, &device);
        let weights = softmax(scores.mask_fill(later.unsqueeze(), f32::NEG_INFINITY), 3);
        let taken = weights.matmul(values).swap_dims(1, 2);
        self.output.forward(taken.reshape([windows, length, width]))
    }
}

/// A perceptron with one hidden layer, four times as wide.
#[derive(Module, Debug)]
pub struct Mlp {
    up: Linear,
    down: Linear,
}

impl Mlp {
    fn new(shape: &Shape, device: &Device) -> Self {
        let (width, hidden) = (shape.width, 4 * shape.width);
        Self {
            up: layer(width, hidden, shape.bias, DEVIATION, device),
            down: layer(hidden, width, shape.bias, residual(shape), device),
        }
    }

    /// `[windows, length, width]` to the same.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.down.forward(gelu(self.up.forward(x)))
    }
}

/// Deviation where a branch ends: smaller, since there are two branches a layer that add up.
fn residual(shape: &Shape) -> f64 {
    DEVIATION / (2.0 * shape.layers as f64).sqrt()
}

fn normal(deviation: f64) -> Initializer {
    Initializer::Normal {
        mean: 0.0,
        std: deviation,
    }
}

fn norm(shape: &Shape, device: &Device) -> LayerNorm {
    LayerNormConfig::new(shape.width)
        .with_bias(shape.bias)
        .init(device)
}

/// Random weights, and biases of 0: Burn would draw those too.
fn layer(inputs: usize, outputs: usize, bias: bool, deviation: f64, device: &Device) -> Linear {
    let config = LinearConfig::new(inputs, outputs).with_bias(false);
    let mut layer = config.with_initializer(normal(deviation)).init(device);
    layer.bias = bias.then(|| Initializer::Zeros.init([outputs], device));
    layer
}
