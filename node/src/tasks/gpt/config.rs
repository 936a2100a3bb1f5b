//! Settings of the language model, and the model's size that follows from them.

use serde::{Deserialize, Serialize};

use super::presets::{Preset, Shape};
use super::text::Unit;

/// Settings of [`Gpt`](super::Gpt). A number that is 0 is the preset's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GptConfig {
    /// Sizes to start from.
    pub preset: Preset,
    /// Blocks.
    pub layers: usize,
    /// Attention heads of each block.
    pub heads: usize,
    /// Length of the vector that stands for a token; a multiple of the heads.
    pub width: usize,
    /// Tokens seen at once.
    pub context: usize,
    /// Whether linear layers and norms have biases; null: as the preset says.
    pub bias: Option<bool>,
    /// What a token is: `bytes` or `characters`.
    pub vocabulary: Unit,
    /// Rows of the embedding, if there are to be more than the vocabulary has.
    pub vocabulary_size: usize,
    /// Share of the features that are zeroed in training.
    pub dropout: f64,
    /// Whether to keep less in memory and compute more: gradient checkpointing. Burn's keeps what matrix products make
    /// and computes the rest again: `nano` with context 256 and batch 32 took 514 MB instead of 785, and 14 % longer.
    pub recompute: bool,
    /// Most windows of the held-out text that an evaluation looks at, spread evenly.
    pub eval_windows: usize,
}

impl Default for GptConfig {
    fn default() -> Self {
        Self {
            preset: Preset::Nano,
            layers: 0,
            heads: 0,
            width: 0,
            context: 0,
            bias: None,
            vocabulary: Unit::Bytes,
            vocabulary_size: 0,
            dropout: 0.0,
            recompute: false,
            // All of a megabyte of text at the default context.
            eval_windows: 2000,
        }
    }
}

impl GptConfig {
    /// The model's size for data with so many tokens in its vocabulary.
    ///
    /// # Errors
    ///
    /// If a number is out of its bounds.
    pub fn shape(&self, tokens: usize) -> Result<Shape, String> {
        let preset = self.preset.shape();
        let or = |value, preset| if value == 0 { preset } else { value };
        let shape = Shape {
            layers: or(self.layers, preset.layers),
            heads: or(self.heads, preset.heads),
            width: or(self.width, preset.width),
            context: or(self.context, preset.context),
            bias: self.bias.unwrap_or(preset.bias),
            vocabulary: or(self.vocabulary_size, preset.vocabulary.max(tokens)),
        };
        // Bounds that keep a slip of the finger from asking for terabytes.
        let bounds = [
            ("layers", shape.layers, 1, 256),
            ("heads", shape.heads, 1, 256),
            ("width", shape.width, 1, 16_384),
            ("context", shape.context, 1, 65_536),
            ("vocabulary_size", shape.vocabulary, tokens, 1 << 20),
            ("eval_windows", self.eval_windows, 1, usize::MAX),
        ];
        for (name, value, least, most) in bounds {
            if !(least..=most).contains(&value) {
                return Err(format!("{name}={value} is not between {least} and {most}"));
            }
        }
        if !shape.width.is_multiple_of(4 * shape.heads) {
            let Shape { width, heads, .. } = shape;
            return Err(format!(
                "width={width} is not a multiple of 4 times heads={heads}"
            ));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(format!("dropout={} is not at least 0 and below 1", self.dropout));
        }
        Ok(shape)
    }
}
