//! The transformer of GPT-2, as in nanoGPT.
//!
//! Decoder only, norms before the branches, learned positions, exact GELU (by the error function), one matrix for
//! embedding and output. It knows nothing of text or training.

use annulus_shaders::nn::{
    Activation, CausalSelfAttention, CausalSelfAttentionConfig, Embedding, EmbeddingConfig, LayerNorm,
    LayerNormConfig, Linear, LinearConfig, Mlp,
};
use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Initializer};
use burn::tensor::{Device, Int, Tensor};

use super::presets::Shape;

/// Standard deviation of initial weights (GPT-2's; Radford et al. 2019, section 2.3).
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
        self.norm.forward(self.blocks(self.embed(tokens)))
    }

    /// Tokens `[windows, length]` to the input of the first block.
    pub fn embed(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.dropout
            .forward(self.tokens.forward_at(tokens, &self.positions))
    }

    /// One block: `[windows, length, width]` to the same shape.
    pub fn block(&self, index: usize, x: Tensor<3>) -> Tensor<3> {
        self.blocks[index].forward(x)
    }

    /// All blocks: `[windows, length, width]` to the same shape.
    pub fn blocks(&self, x: Tensor<3>) -> Tensor<3> {
        self.blocks.iter().fold(x, |x, block| block.forward(x))
    }

    /// The last block's output for one window, `[1, length, width]`, to the logits of the next token, `[vocabulary]`.
    pub fn last_logits(&self, x: Tensor<3>) -> Tensor<1> {
        let features = self.norm.forward(x);
        let [_, length, width] = features.dims();
        let last = features.slice([0..1, length - 1..length]).reshape([1, width]);
        self.logits(last).squeeze_dim(0)
    }

    /// The last block's output, `[windows, length, width]`, and the token that follows each place,
    /// `[windows * length]`, to the mean loss.
    pub fn loss(&self, x: Tensor<3>, targets: Tensor<1, Int>) -> Tensor<1> {
        let [windows, length, width] = x.dims();
        let features = self.norm.forward(x);
        let features = features.reshape([windows * length, width]);
        self.tokens.cross_entropy(features, targets)
    }

    /// Features `[n, width]` to logits `[n, vocabulary]`.
    pub fn logits(&self, features: Tensor<2>) -> Tensor<2> {
        self.tokens.scores(features)
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
            attention: attention(shape, device),
            norm_2: norm(shape, device),
            mlp: mlp(shape, device),
            dropout: DropoutConfig::new(dropout).init(),
        }
    }

    /// `[windows, length, width]` to the same shape.
    ///
    /// Dropout is only on the branches, not on attention weights, which a fused attention never has in memory.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        if self.dropout.prob == 0.0 {
            // The branch's last product adds the residual.
            let x = self.attention.forward(self.norm_1.forward(x.clone()), Some(x));
            return self
                .mlp
                .forward(self.norm_2.forward(x.clone()), Activation::Gelu, Some(x));
        }
        let attended = self.attention.forward(self.norm_1.forward(x.clone()), None);
        let x = x + self.dropout.forward(attended);
        let thought = self
            .mlp
            .forward(self.norm_2.forward(x.clone()), Activation::Gelu, None);
        x + self.dropout.forward(thought)
    }
}

fn attention(shape: &Shape, device: &Device) -> CausalSelfAttention {
    let (width, inner) = (shape.width, shape.inner());
    let mut attention = CausalSelfAttentionConfig::new(inner, shape.heads)
        .with_bias(false)
        .init(device);
    attention.qkv = layer(width, 3 * inner, shape.bias, DEVIATION, device);
    attention.output = layer(inner, width, shape.bias, residual(shape), device);
    attention
}

/// One hidden layer.
fn mlp(shape: &Shape, device: &Device) -> Mlp {
    let (width, hidden) = (shape.width, shape.hidden);
    Mlp {
        up: layer(width, hidden, shape.bias, DEVIATION, device),
        down: layer(hidden, width, shape.bias, residual(shape), device),
    }
}

/// Standard deviation at the end of a branch: smaller, since each layer adds up two branches.
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

/// Random weights, and zero biases: Burn would draw those too.
fn layer(inputs: usize, outputs: usize, bias: bool, deviation: f64, device: &Device) -> Linear {
    let config = LinearConfig::new(inputs, outputs).with_bias(false);
    let mut layer = config.with_initializer(normal(deviation)).init(device);
    layer.bias = bias.then(|| Initializer::Zeros.init([outputs], device));
    layer
}
