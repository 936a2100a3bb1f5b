//! Models of Hugging Face written by hand, of our layers: what a model from a file is measured against.

use annulus_shaders::cpu::dropout::Mask;
use annulus_shaders::nn::{
    Activation, Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, Mlp, RmsNorm,
    RmsNormConfig,
};
use annulus_shaders::ops::attention::{AttentionOptions, attention};
use annulus_shaders::ops::cross_entropy::cross_entropy;
use annulus_shaders::ops::dropout::dropout;
use annulus_shaders::ops::gated::swiglu;
use annulus_shaders::ops::rotary_halves::rope_halves;
use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};

/// Sizes of a model and its batch.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub width: usize,
    pub words: usize,
    pub tokens: usize,
    pub samples: usize,
}

/// As `python/tests/models.py` is asked to export them.
pub const SIZES: Sizes = Sizes {
    width: 256,
    words: 1000,
    tokens: 64,
    samples: 8,
};

const LAYERS: usize = 2;
const HEADS: usize = 4;
/// Heads of Llama's keys and values.
const GROUPS: usize = 2;
/// Classes that BERT tells apart.
const CLASSES: usize = 3;
/// Dropout of BERT.
const RATE: f32 = 0.1;

/// A model that has its own batch.
pub trait Twin: Module {
    /// The loss in training. The seed is dropout's.
    fn loss(&self, seed: u64, device: &Device) -> Tensor<1>;
}

fn linear(inputs: usize, outputs: usize, bias: bool, device: &Device) -> Linear {
    LinearConfig::new(inputs, outputs).with_bias(bias).init(device)
}

/// `[samples, tokens, heads * width]` to `[samples, heads, tokens, width]`, which copies nothing.
fn heads(x: Tensor<3>, count: usize) -> Tensor<4> {
    let [samples, tokens, width] = x.dims();
    x.reshape([samples, tokens, count, width / count]).swap_dims(1, 2)
}

/// The other way.
fn joined(x: Tensor<4>) -> Tensor<3> {
    let [samples, heads, tokens, width] = x.dims();
    x.swap_dims(1, 2).reshape([samples, tokens, heads * width])
}

/// Some token ids.
fn ids(sizes: Sizes) -> Vec<i32> {
    let count = sizes.samples * sizes.tokens;
    (0..count).map(|at| (at * 7919 % sizes.words) as i32).collect()
}

fn tokens(sizes: Sizes, device: &Device) -> Tensor<2, Int> {
    Tensor::from_data(TensorData::new(ids(sizes), [sizes.samples, sizes.tokens]), device)
}

/// Hugging Face's `LlamaForCausalLM` with tied embeddings.
#[derive(Module, Debug)]
pub struct Llama {
    tokens: Embedding,
    blocks: Vec<LlamaBlock>,
    norm: RmsNorm,
    width: usize,
    length: usize,
    samples: usize,
    words: usize,
}

#[derive(Module, Debug)]
struct LlamaBlock {
    norm_1: RmsNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    norm_2: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Llama {
    pub fn new(sizes: Sizes, device: &Device) -> Self {
        let width = sizes.width;
        let linear = |inputs, outputs| linear(inputs, outputs, false, device);
        let block = || LlamaBlock {
            norm_1: RmsNormConfig::new(width).init(device),
            query: linear(width, width),
            key: linear(width, width / HEADS * GROUPS),
            value: linear(width, width / HEADS * GROUPS),
            output: linear(width, width),
            norm_2: RmsNormConfig::new(width).init(device),
            gate: linear(width, 2 * width),
            up: linear(width, 2 * width),
            down: linear(2 * width, width),
        };
        Self {
            tokens: EmbeddingConfig::new(sizes.words, width).init(device),
            blocks: (0..LAYERS).map(|_| block()).collect(),
            norm: RmsNormConfig::new(width).init(device),
            width,
            length: sizes.tokens,
            samples: sizes.samples,
            words: sizes.words,
        }
    }

    fn sizes(&self) -> Sizes {
        Sizes {
            width: self.width,
            words: self.words,
            tokens: self.length,
            samples: self.samples,
        }
    }

    /// Cosine and sine of the rotary angles.
    fn angles(&self, device: &Device) -> [Tensor<3>; 2] {
        let width = self.width / HEADS;
        let angle = |at: usize| {
            let (place, number) = (at / width, at % width % (width / 2));
            place as f32 * 10_000f32.powf(-2.0 * number as f32 / width as f32)
        };
        let table = |of: fn(f32) -> f32| {
            let values: Vec<f32> = (0..self.length * width).map(|at| of(angle(at))).collect();
            Tensor::from_data(TensorData::new(values, [1, self.length, width]), device)
        };
        [table(f32::cos), table(f32::sin)]
    }
}

impl LlamaBlock {
    fn forward(&self, x: Tensor<3>, [cosine, sine]: [Tensor<3>; 2]) -> Tensor<3> {
        let normed = self.norm_1.forward(x.clone());
        let queries = heads(self.query.forward(normed.clone()), HEADS);
        let keys = heads(self.key.forward(normed.clone()), GROUPS);
        let values = heads(self.value.forward(normed), GROUPS);
        let options = AttentionOptions {
            causal: true,
            ..AttentionOptions::default()
        };
        let queries = rope_halves(queries, cosine.clone(), sine.clone());
        let seen = attention(queries, rope_halves(keys, cosine, sine), values, options);
        let x = self.output.forward_add(joined(seen), x);
        let normed = self.norm_2.forward(x.clone());
        let hidden = swiglu(self.gate.forward(normed.clone()), self.up.forward(normed));
        self.down.forward_add(hidden, x)
    }
}

impl Twin for Llama {
    fn loss(&self, _seed: u64, device: &Device) -> Tensor<1> {
        let sizes = self.sizes();
        let angles = self.angles(device);
        let x = self.tokens.forward(tokens(sizes, device));
        let blocks = self.blocks.iter();
        let x = blocks.fold(x, |x, block| block.forward(x, angles.clone()));
        let rows = sizes.samples * sizes.tokens;
        let features = self.norm.forward(x).reshape([rows, sizes.width]);
        let mut next = ids(sizes);
        next.rotate_left(1);
        self.tokens
            .cross_entropy(features, Tensor::from_data(TensorData::new(next, [rows]), device))
    }
}

/// Hugging Face's `BertForSequenceClassification`.
#[derive(Module, Debug)]
pub struct Bert {
    words: Embedding,
    positions: Embedding,
    types: Embedding,
    norm: LayerNorm,
    blocks: Vec<BertBlock>,
    pooler: Linear,
    classifier: Linear,
    width: usize,
    length: usize,
    samples: usize,
    vocabulary: usize,
}

#[derive(Module, Debug)]
struct BertBlock {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    norm_1: LayerNorm,
    mlp: Mlp,
    norm_2: LayerNorm,
}

/// Masks of dropout, another one for each use.
struct Drops {
    seed: u64,
    next: u64,
}

impl Drops {
    fn mask(&mut self) -> Mask {
        self.next += 1;
        Mask {
            rate: RATE,
            seed: self.seed,
            offset: self.next,
        }
    }

    fn out<const D: usize>(&mut self, x: Tensor<D>) -> Tensor<D> {
        dropout(x, self.mask())
    }
}

impl Bert {
    pub fn new(sizes: Sizes, device: &Device) -> Self {
        let width = sizes.width;
        let linear = |inputs, outputs| linear(inputs, outputs, true, device);
        let norm = || LayerNormConfig::new(width).with_epsilon(1e-12).init(device);
        let embedding = |count| EmbeddingConfig::new(count, width).init(device);
        let block = || BertBlock {
            query: linear(width, width),
            key: linear(width, width),
            value: linear(width, width),
            output: linear(width, width),
            norm_1: norm(),
            mlp: Mlp {
                up: linear(width, 2 * width),
                down: linear(2 * width, width),
            },
            norm_2: norm(),
        };
        Self {
            words: embedding(sizes.words),
            positions: embedding(sizes.tokens),
            types: embedding(2),
            norm: norm(),
            blocks: (0..LAYERS).map(|_| block()).collect(),
            pooler: linear(width, width),
            classifier: linear(width, CLASSES),
            width,
            length: sizes.tokens,
            samples: sizes.samples,
            vocabulary: sizes.words,
        }
    }

    fn sizes(&self) -> Sizes {
        Sizes {
            width: self.width,
            words: self.vocabulary,
            tokens: self.length,
            samples: self.samples,
        }
    }

    /// Hides the last three tokens of the first sample, which are padding.
    fn padding(&self, device: &Device) -> Tensor<4> {
        let hidden = self.length - 3..self.length;
        let values =
            (0..self.samples * self.length).map(|at| if hidden.contains(&at) { f32::MIN } else { 0.0 });
        let values: Vec<f32> = values.collect();
        Tensor::from_data(TensorData::new(values, [self.samples, 1, 1, self.length]), device)
    }
}

impl BertBlock {
    fn forward(&self, x: Tensor<3>, mask: Tensor<4>, drops: &mut Drops) -> Tensor<3> {
        let part = |layer: &Linear| heads(layer.forward(x.clone()), HEADS);
        let options = AttentionOptions {
            mask: Some(mask),
            dropout: Some(drops.mask()),
            ..AttentionOptions::default()
        };
        let seen = attention(part(&self.query), part(&self.key), part(&self.value), options);
        let seen = drops.out(self.output.forward(joined(seen)));
        let x = self.norm_1.forward(seen + x);
        let thought = drops.out(self.mlp.forward(x.clone(), Activation::Gelu, None));
        self.norm_2.forward(thought + x)
    }
}

impl Twin for Bert {
    fn loss(&self, seed: u64, device: &Device) -> Tensor<1> {
        let sizes = self.sizes();
        let mut drops = Drops { seed, next: 0 };
        let mask = self.padding(device);
        let x = self.words.forward_at(tokens(sizes, device), &self.positions);
        let types = Tensor::<2, Int>::zeros([sizes.samples, sizes.tokens], device);
        let x = drops.out(self.norm.forward(x + self.types.forward(types)));
        let blocks = self.blocks.iter();
        let x = blocks.fold(x, |x, block| block.forward(x, mask.clone(), &mut drops));
        let first = x.narrow(1, 0, 1).reshape([sizes.samples, sizes.width]);
        let pooled = drops.out(self.pooler.forward(first).tanh());
        let classes: Vec<i32> = (0..sizes.samples).map(|at| (at % CLASSES) as i32).collect();
        let classes = Tensor::<1, Int>::from_data(TensorData::new(classes, [sizes.samples]), device);
        cross_entropy(self.classifier.forward(pooled), classes, None)
    }
}
