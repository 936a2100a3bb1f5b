//! What comes next? A small language model: GPT-2's transformer on the bytes or characters of any text.
//!
//! Learns from a text that comes with it, or from a file of any size. Sample *i* is the stretch of text that
//! begins at token *i*, so that the run's shuffled order gives the random crops that such models are trained on. The
//! last tenth of the text is held out.

pub mod generate;
pub mod model;
#[cfg(test)]
mod pinned;
pub mod presets;
pub mod text;

use annulus_shaders::nn::CrossEntropy;
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::task::{Data, Emit, Prompt, Scores, Task, TaskError, Writing};
use annulus_core::Digest;
use generate::{Choice, Writer};
use model::Transformer;
use presets::{Preset, Shape};
use text::{Text, Unit};

/// Tokens evaluated at once: enough to keep a processor busy; more only costs memory.
const EVALUATION_TOKENS: usize = 2048;

/// Tokens that a processor's core works on at once: fewer make matrices too small to be quick, more leave cores idle.
const PIECE_TOKENS: usize = 192;

/// Settings of [`Gpt`]. A number that is 0 is the preset's.
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

/// The text, and how the model is built.
#[derive(Debug)]
pub struct Gpt {
    config: GptConfig,
    shape: Shape,
    text: Text,
    /// Tokens to train on; the others are held out.
    train: u64,
}

impl Task for Gpt {
    type Model = Transformer;
    type Config = GptConfig;

    const NAME: &'static str = "gpt";
    const ABOUT: &'static str = "what comes next? a small language model of a text about this project, or of any text \
                                 with --data FILE";
    // nanoGPT's for a processor (its README, "I only have a macbook").
    const SETTINGS: &'static [&'static str] = &[
        "rounds=2000",
        "batch=12",
        "optimizer=adamw",
        "lr=1e-3",
        "beta2=0.99",
        "weight_decay=0.1",
        "clip=1",
        "schedule=cosine",
        "warmup=100",
    ];

    fn new(config: GptConfig, data: Option<&Data>) -> Result<Self, TaskError> {
        // Before the data is read, which may take long.
        config.shape(1)?;
        let text = match data {
            Some(data) => Text::read_from(&data.single()?, config.vocabulary)?,
            None => Text::shipped(config.vocabulary),
        };
        let shape = config.shape(text.vocabulary().size())?;
        let train = text.tokens() / 10 * 9 + text.tokens() % 10 * 9 / 10;
        let held_out = text.tokens() - train;
        if train <= shape.context as u64 || held_out < 2 {
            return Err(format!(
                "the text is too short: of its {} tokens {train} are to train on and {held_out} held out, and a sample \
                 is of {} (context=N sets that)",
                text.tokens(),
                shape.context + 1,
            )
            .into());
        }
        Ok(Self {
            config,
            shape,
            text,
            train,
        })
    }

    fn pieces(&self, samples: usize) -> usize {
        match self.config.dropout > 0.0 {
            true => 1,
            false => samples * self.shape.context / PIECE_TOKENS,
        }
    }

    fn recompute(&self) -> bool {
        self.config.recompute
    }

    fn samples(&self) -> u64 {
        self.train - self.shape.context as u64
    }

    fn digest(&self) -> Digest {
        self.text.digest()
    }

    fn model(&self, device: &Device) -> Transformer {
        Transformer::new(&self.shape, self.config.dropout, device)
    }

    fn loss(&self, model: &Transformer, samples: &[u64], device: &Device) -> Tensor<1> {
        self.windows_loss(model, samples, self.shape.context, device)
    }

    fn write<'a>(
        &'a self,
        model: &'a Transformer,
        prompt: &'a Prompt,
        device: &'a Device,
        emit: Emit<'a>,
    ) -> Writing<'a> {
        Box::pin(async move {
            let vocabulary = self.text.vocabulary();
            // What does not occur in the text cannot be gone on from; the rest can.
            let known = |c: &char| vocabulary.encode(c.encode_utf8(&mut [0; 4])).is_ok();
            let known: String = prompt.text.chars().filter(known).collect();
            let tokens = vocabulary.encode(&known).unwrap_or_default();
            let choice = Choice {
                temperature: prompt.temperature,
                top_k: 0,
            };
            let context = self.shape.context;
            let mut writer = Writer::new(model, vocabulary, context, choice, prompt.seed, device);
            writer.write(&tokens, prompt.tokens, emit).await?;
            Ok(true)
        })
    }

    fn evaluate(&self, model: &Transformer, device: &Device) -> Option<Scores> {
        let (windows, rest) = self.held_out();
        let context = self.shape.context;
        let mut loss = Tensor::<1>::zeros([1], device);
        let mut predicted = 0;
        let mut add = |windows: &[u64], length: usize| {
            let count = windows.len() * length;
            loss = loss.clone() + self.windows_loss(model, windows, length, device) * count as f32;
            predicted += count;
        };
        for part in windows.chunks((EVALUATION_TOKENS / context).max(1)) {
            add(part, context);
        }
        if let Some((start, length)) = rest {
            add(&[start], length);
        }
        Some(Scores {
            loss: loss / predicted as f32,
            accuracy: None,
        })
    }
}

impl Gpt {
    /// The mean loss of predicting each next token in windows of one length.
    fn windows_loss(&self, model: &Transformer, starts: &[u64], length: usize, device: &Device) -> Tensor<1> {
        let (inputs, targets) = self.batch(starts, length, device);
        let features = model.features(inputs);
        let [windows, length, width] = features.dims();
        let logits = model.logits(features.reshape([windows * length, width]));
        CrossEntropy::new().forward(logits, targets)
    }

    /// Tokens `[windows, length]`, and for each the one that comes next, `[windows * length]`.
    fn batch(&self, starts: &[u64], length: usize, device: &Device) -> (Tensor<2, Int>, Tensor<1, Int>) {
        let count = starts.len() * length;
        let (mut inputs, mut targets) = (Vec::<i32>::with_capacity(count), Vec::<i32>::with_capacity(count));
        let mut window = Vec::with_capacity(length + 1);
        for start in starts {
            window.clear();
            self.text.read(*start, length + 1, &mut window);
            inputs.extend(&window[..length]);
            targets.extend(&window[1..]);
        }
        (
            Tensor::from_data(TensorData::new(inputs, [starts.len(), length]), device),
            Tensor::from_data(TensorData::new(targets, [count]), device),
        )
    }

    /// Where the windows of an evaluation begin, end to end if all are looked at; and the shorter one that is left at
    /// the end, with its length.
    fn held_out(&self) -> (Vec<u64>, Option<(u64, usize)>) {
        let context = self.shape.context as u64;
        // The last token is only predicted.
        let predicted = self.text.tokens() - self.train - 1;
        let whole = predicted / context;
        let most = self.config.eval_windows as u64;
        if whole > most {
            let spread =
                |i| self.train + (u128::from(i) * u128::from(whole) / u128::from(most)) as u64 * context;
            return ((0..most).map(spread).collect(), None);
        }
        let starts = (0..whole).map(|i| self.train + i * context).collect();
        let rest = (predicted % context) as usize;
        (starts, (rest > 0).then_some((self.train + whole * context, rest)))
    }
}

#[cfg(test)]
mod tests;
