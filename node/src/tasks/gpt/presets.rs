//! Sizes of the transformer, from a toy to GPT-2 small.

use serde::{Deserialize, Serialize};

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
            width,
            context,
            bias: self == Self::Gpt2,
            vocabulary: if self == Self::Gpt2 { 50_304 } else { 0 },
        }
    }
}

impl Shape {
    /// Parameters of the model.
    pub fn parameters(&self) -> usize {
        let Self { width, bias, .. } = *self;
        let bias = |count| if bias { count } else { 0 };
        let norm = width + bias(width);
        let attention = 4 * width * width + bias(4 * width);
        let mlp = 8 * width * width + bias(5 * width);
        (self.vocabulary + self.context) * width + self.layers * (attention + mlp + 2 * norm) + norm
    }
}
