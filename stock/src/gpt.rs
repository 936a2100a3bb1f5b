//! A transformer like GPT-2's: the same as the task `gpt`, of Burn's layers.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::module::linear;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use crate::{Training, draw};

/// Sizes of a [`Gpt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GptShape {
    /// Different tokens.
    pub vocabulary: usize,
    /// Most tokens in a window.
    pub context: usize,
    /// Numbers that stand for a token.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Heads of the attention.
    pub heads: usize,
    /// Whether linear layers and norms have biases.
    pub bias: bool,
}

/// Deviation of initial weights (GPT-2's; Radford et al. 2019, section 2.3).
const DEVIATION: f64 = 0.02;

/// Tokens to logits.
#[derive(Module, Debug)]
pub struct Gpt {
    /// Also the output layer, transposed.
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
}

impl Gpt {
    /// A model with random parameters.
    pub fn new(shape: &GptShape, device: &Device) -> Self {
        let embedding = |count| {
            EmbeddingConfig::new(count, shape.width)
                .with_initializer(normal(DEVIATION))
                .init(device)
        };
        Self {
            tokens: embedding(shape.vocabulary),
            positions: embedding(shape.context),
            blocks: (0..shape.layers).map(|_| Block::new(shape, device)).collect(),
            norm: norm(shape, device),
        }
    }

    /// Tokens `[windows, length]`, no longer than the context, to features `[windows, length, width]`.
    pub fn features(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [_, length] = tokens.dims();
        let positions = self.positions.weight.val().narrow(0, 0, length);
        let x = self.tokens.forward(tokens) + positions.unsqueeze();
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        self.norm.forward(x)
    }

    /// Mean cross-entropy over tokens `[windows, length]` and the tokens that follow them.
    pub fn loss(&self, tokens: Tensor<2, Int>, targets: Tensor<1, Int>) -> Tensor<1> {
        let device = tokens.device();
        let features = self.features(tokens).flatten::<2>(0, 1);
        let logits = linear(features, self.tokens.weight.val().transpose(), None);
        CrossEntropyLossConfig::new()
            .init(&device)
            .forward(logits, targets)
    }
}

/// Attention and a perceptron, each a branch whose output is added.
#[derive(Module, Debug)]
pub struct Block {
    norm_1: LayerNorm,
    attention: CausalSelfAttention,
    norm_2: LayerNorm,
    mlp: Mlp,
}

impl Block {
    fn new(shape: &GptShape, device: &Device) -> Self {
        Self {
            norm_1: norm(shape, device),
            attention: CausalSelfAttention::new(shape, device),
            norm_2: norm(shape, device),
            mlp: Mlp::new(shape, device),
        }
    }

    /// `[windows, length, width]` to the same.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let attended = self.attention.forward(self.norm_1.forward(x.clone()));
        let x = x + attended;
        let thought = self.mlp.forward(self.norm_2.forward(x.clone()));
        x + thought
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
    fn new(shape: &GptShape, device: &Device) -> Self {
        let width = shape.width;
        Self {
            qkv: layer(width, 3 * width, shape.bias, DEVIATION, device),
            output: layer(width, width, shape.bias, residual(shape), device),
            heads: shape.heads,
        }
    }

    /// `[windows, length, width]` to the same.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.output
            .forward(causal_attention(self.qkv.forward(x), self.heads))
    }
}

/// Attention by products, a mask and a softmax: queries, keys and values side by side, `[windows, length, 3 width]`, to
/// `[windows, length, width]`.
pub fn causal_attention(qkv: Tensor<3>, heads: usize) -> Tensor<3> {
    let [windows, length, columns] = qkv.dims();
    let width = columns / 3;
    let size = width / heads;
    let device = qkv.device();
    let mut parts = qkv.chunk(3, 2).into_iter().map(|part| {
        let split = part.reshape([windows, length, heads, size]);
        split.swap_dims(1, 2)
    });
    let mut part = || parts.next().expect("it was cut in three");
    let (queries, keys, values) = (part(), part(), part());
    // Scaled before the product, where there are fewer numbers.
    let scores = (queries * (size as f64).powf(-0.5)).matmul(keys.transpose());
    let later = Tensor::<2, Bool>::tril_mask([length, length], 0, &device);
    let weights = softmax(scores.mask_fill(later.unsqueeze(), f32::NEG_INFINITY), 3);
    let taken = weights.matmul(values).swap_dims(1, 2);
    taken.reshape([windows, length, width])
}

/// A perceptron with one hidden layer, four times as wide.
#[derive(Module, Debug)]
pub struct Mlp {
    up: Linear,
    down: Linear,
}

impl Mlp {
    fn new(shape: &GptShape, device: &Device) -> Self {
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
fn residual(shape: &GptShape) -> f64 {
    DEVIATION / (2.0 * shape.layers as f64).sqrt()
}

fn normal(deviation: f64) -> Initializer {
    Initializer::Normal {
        mean: 0.0,
        std: deviation,
    }
}

fn norm(shape: &GptShape, device: &Device) -> LayerNorm {
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

/// Its training by AdamW on random tokens.
pub struct GptTraining {
    model: Option<Gpt>,
    adam: ModuleOptimizer,
    shape: GptShape,
    batch: usize,
    seed: u64,
    device: Device,
}

impl GptTraining {
    /// Fresh, on a device without autodiff; `batch` windows a step.
    pub fn new(shape: GptShape, batch: usize, device: &Device) -> Self {
        let device = device.clone().autodiff();
        Self {
            model: Some(Gpt::new(&shape, &device)),
            adam: AdamWConfig::new().init(),
            shape,
            batch,
            seed: 1,
            device,
        }
    }
}

impl Training for GptTraining {
    fn step(&mut self) -> f32 {
        let count = self.batch * self.shape.context;
        let mut tokens = || {
            (0..count)
                .map(|_| draw(&mut self.seed, self.shape.vocabulary))
                .collect::<Vec<i32>>()
        };
        let (tokens, targets) = (tokens(), tokens());
        let shape = [self.batch, self.shape.context];
        let tokens = Tensor::from_data(TensorData::new(tokens, shape), &self.device);
        let targets = Tensor::from_data(TensorData::new(targets, [count]), &self.device);
        let model = self.model.take().expect("put back after each step");
        let loss = model.loss(tokens, targets);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        self.model = Some(self.adam.step(1e-3, model, gradients));
        loss.into_scalar::<f32>()
    }
}
