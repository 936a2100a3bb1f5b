//! Settings of the language model, and the size of the model that follows from them.

use serde::{Deserialize, Serialize};

use super::presets::{Preset, Shape};
use super::text::Unit;

/// Settings of [`Gpt`](super::Gpt). A number 0 means the preset's value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GptConfig {
    /// Sizes to start from.
    pub preset: Preset,
    /// Blocks.
    pub layers: usize,
    /// Attention heads of each block.
    pub heads: usize,
    /// Numbers of each head; 0: the width divided by the heads.
    pub head_size: usize,
    /// Hidden units of each block's perceptron; 0: four times the width.
    pub hidden: usize,
    /// Length of a token's vector; a multiple of the heads.
    pub width: usize,
    /// Tokens seen at once.
    pub context: usize,
    /// Whether linear layers and norms have biases; null: as in the preset.
    pub bias: Option<bool>,
    /// The unit of text that is a token: `bytes` or `characters`.
    pub vocabulary: Unit,
    /// Rows of the embedding, if there should be more than the vocabulary has.
    pub vocabulary_size: usize,
    /// Share of the features that are zeroed in training.
    pub dropout: f64,
    /// Gradient checkpointing: keeps fewer activations in memory and computes more. Burn keeps the results of matrix
    /// products and recomputes the rest: `nano` with context 256 and batch 32 took 514 MB instead of 785, and 14 %
    /// longer.
    pub recompute: bool,
    /// Most windows of the held-out text for an evaluation, spread evenly.
    pub eval_windows: usize,
    /// The file of the data folder whose weights the run starts from; empty: random ones.
    pub init: String,
    /// Whether each peer fetches only the parts of the text that it trains on, while it trains.
    pub stream: bool,
}

impl Default for GptConfig {
    fn default() -> Self {
        Self {
            preset: Preset::Nano,
            layers: 0,
            heads: 0,
            head_size: 0,
            hidden: 0,
            width: 0,
            context: 0,
            bias: None,
            vocabulary: Unit::Bytes,
            vocabulary_size: 0,
            dropout: 0.0,
            recompute: false,
            // All of a megabyte of text at the default context.
            eval_windows: 2000,
            init: String::new(),
            stream: false,
        }
    }
}

impl GptConfig {
    /// The size of the model for a vocabulary of this many tokens.
    ///
    /// # Errors
    ///
    /// If a number is out of bounds.
    pub fn shape(&self, tokens: usize) -> Result<Shape, String> {
        let preset = self.preset.shape();
        let or = |value, preset| if value == 0 { preset } else { value };
        let (heads, width) = (or(self.heads, preset.heads), or(self.width, preset.width));
        let shape = Shape {
            layers: or(self.layers, preset.layers),
            heads,
            head_size: or(self.head_size, width / heads),
            hidden: or(self.hidden, width.saturating_mul(4)),
            width,
            context: or(self.context, preset.context),
            bias: self.bias.unwrap_or(preset.bias),
            vocabulary: or(self.vocabulary_size, preset.vocabulary.max(tokens)),
        };
        // Bounds that keep a typing error from allocating terabytes.
        let bounds = [
            ("layers", shape.layers, 1, 256),
            ("heads", shape.heads, 1, 256),
            ("width", shape.width, 1, 16_384),
            ("hidden", shape.hidden, 1, 65_536),
            ("context", shape.context, 1, 65_536),
            ("vocabulary_size", shape.vocabulary, tokens, 1 << 20),
            ("eval_windows", self.eval_windows, 1, usize::MAX),
        ];
        for (name, value, least, most) in bounds {
            if !(least..=most).contains(&value) {
                return Err(format!("{name}={value} is not between {least} and {most}"));
            }
        }
        if self.head_size > 0 && (self.head_size > 1_024 || !self.head_size.is_multiple_of(4)) {
            let size = self.head_size;
            return Err(format!("head_size={size} is no multiple of 4 up to 1024"));
        }
        if self.head_size == 0 && !shape.width.is_multiple_of(4 * shape.heads) {
            let Shape { width, heads, .. } = shape;
            return Err(format!(
                "width={width} is not a multiple of 4 times heads={heads}"
            ));
        }
        if self.stream && (self.vocabulary != Unit::Bytes || !self.init.is_empty()) {
            return Err(
                "stream=true goes with vocabulary=bytes and without init: both need all data on every peer"
                    .into(),
            );
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(format!("dropout={} is not at least 0 and below 1", self.dropout));
        }
        Ok(shape)
    }
}
