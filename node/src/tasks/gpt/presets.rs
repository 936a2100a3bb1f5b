//! Sizes of the transformer, from a toy to GPT-2 small.

use serde::{Deserialize, Serialize};

use crate::task::{Place, Units, kept};
use annulus_graph::Work;

/// A transformer's size, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// 0.1 million parameters: seconds on any processor.
    Pico,
    /// 0.8 million: nanoGPT's setting for processors.
    Nano,
    /// 2.7 million.
    Micro,
    /// 10.8 million: nanoGPT's setting for characters on a GPU.
    Mini,
    /// 25.6 million.
    Small,
    /// 124 million: the shape of GPT-2 small, with biases and its vocabulary (50,304 as in nanoGPT: 50,257, padded to a
    /// multiple of 64).
    Gpt2,
}

/// A transformer's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks of attention and perceptron.
    pub layers: usize,
    /// Attention heads of each.
    pub heads: usize,
    /// Numbers of each head.
    pub head_size: usize,
    /// Hidden units of each perceptron.
    pub hidden: usize,
    /// Length of a token's vector.
    pub width: usize,
    /// Tokens seen at once.
    pub context: usize,
    /// Whether linear layers and norms have biases.
    pub bias: bool,
    /// Rows of the embedding.
    pub vocabulary: usize,
}

impl Preset {
    /// Its size. The vocabulary is 0 if it depends on the data.
    pub fn shape(self) -> Shape {
        let [layers, heads, width, context] = match self {
            Self::Pico => [2, 2, 64, 64],
            Self::Nano => [4, 4, 128, 64],
            Self::Micro => [6, 6, 192, 128],
            Self::Mini => [6, 6, 384, 256],
            Self::Small => [8, 8, 512, 512],
            Self::Gpt2 => [12, 12, 768, 1024],
        };
        Shape {
            layers,
            heads,
            head_size: width / heads,
            hidden: 4 * width,
            width,
            context,
            bias: self == Self::Gpt2,
            vocabulary: if self == Self::Gpt2 { 50_304 } else { 0 },
        }
    }
}

impl Shape {
    /// Numbers of all heads together.
    pub fn inner(&self) -> usize {
        self.heads * self.head_size
    }

    /// The shape with about this share of its heads and hidden units, and where those lie in the model's tensors.
    pub fn pruned(&self, keep: f64) -> (Self, Vec<Units>) {
        let (size, inner) = (self.head_size, self.inner());
        // llama.cpp's blocks are of 32.
        let grain = if self.hidden.is_multiple_of(32) { 32 } else { 1 };
        let smaller = Self {
            heads: kept(self.heads, keep, 1),
            hidden: kept(self.hidden, keep, grain),
            ..*self
        };
        let units = |block: usize| {
            let at = |name: &str, axis| Place::of(format!("blocks.{block}.{name}"), axis);
            let with_bias = |layer: &str| {
                let bias = self.bias.then(|| at(&format!("{layer}.bias"), 0));
                std::iter::once(at(&format!("{layer}.weight"), 1)).chain(bias)
            };
            let heads = with_bias("attention.qkv")
                .flat_map(|place| [0, inner, 2 * inner].map(|start| place.clone().each(size).from(start)));
            [
                Units {
                    count: self.heads,
                    kept: smaller.heads,
                    places: heads
                        .chain([at("attention.output.weight", 0).each(size)])
                        .collect(),
                },
                Units {
                    count: self.hidden,
                    kept: smaller.hidden,
                    places: with_bias("mlp.up").chain([at("mlp.down.weight", 0)]).collect(),
                },
            ]
        };
        (smaller, (0..self.layers).flat_map(units).collect())
    }

    /// What a forward pass multiplies for a window of tokens.
    pub fn work(&self) -> Work {
        let of_block = 4 * self.width * self.inner() + 2 * self.width * self.hidden;
        let weights = self.layers * of_block + self.vocabulary * self.width;
        Work {
            rows: self.context as u64,
            products: self.context as u64 * weights as u64,
            bytes: 0,
        }
    }

    /// Parameters of the model.
    pub fn parameters(&self) -> usize {
        let Self {
            width, hidden, bias, ..
        } = *self;
        let inner = self.inner();
        let bias = |count| if bias { count } else { 0 };
        let norm = width + bias(width);
        let attention = 4 * width * inner + bias(3 * inner + width);
        let mlp = 2 * width * hidden + bias(hidden + width);
        (self.vocabulary + self.context) * width + self.layers * (attention + mlp + 2 * norm) + norm
    }
}
