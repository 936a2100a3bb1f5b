//! Predicts the next token: a small language model, GPT-2's transformer on the bytes or characters of any text.
//!
//! It learns from a built-in text, or from a file of any size. Sample *i* is the window of text that begins at token
//! *i*, so the run's shuffled order gives the random crops that such models are trained on. The last tenth of the text
//! is held out.

pub mod config;
pub mod generate;
mod gguf;
pub mod model;
#[cfg(test)]
mod pinned;
pub mod presets;
pub mod text;
pub mod windows;

use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Tensor, TensorData};
use std::collections::BTreeMap;
use std::time::Duration;

use super::init;
use crate::task::{
    Answers, Data, DataFile, Emit, FileTensor, Generate, Generating, HeldOut, Layer, Layout, Prompt, Pruning,
    Right, Scores, Stages, Task, TaskError, Tensors, TestPart, Tested, WriteInSteps, floats, pieces,
};
use crate::trainer::{with_parameters, with_tensors};
use generate::{Choice, Whole, Writer};
use model::Transformer;
use presets::Shape;
use text::{Text, Unit};
use windows::{Tokens, Windows};

pub use config::GptConfig;

/// Tokens to evaluate at once: enough to keep a processor busy. More would only cost memory.
const EVALUATION_TOKENS: usize = 2048;

/// Tokens of held-out text by which two models are compared, about. The error of an accuracy is then 0.3 points, and of the
/// difference of two like models much less. The 124 million parameters of `gpt2` take 10 minutes on two cores, a guess.
const TESTED_TOKENS: usize = 1 << 15;

/// Logits that are in memory at once in such a comparison.
const TESTED_LOGITS: usize = 1 << 22;

/// The text's name in a folder.
const TEXT: &str = "input.txt";

/// The text, and the settings of the model.
#[derive(Debug)]
pub struct Gpt {
    config: GptConfig,
    shape: Shape,
    windows: Windows,
    /// The parameters to start from, in the model's order, if the settings name some.
    start: Option<Vec<f32>>,
    /// Whether the text is the run's, and its vocabulary too.
    knows_text: bool,
}

impl Task for Gpt {
    type Model = Transformer;
    type Dataset = Windows;
    type Config = GptConfig;

    const NAME: &'static str = "gpt";
    const ABOUT: &'static str = "what comes next? a small language model of a text about this project, or of any text \
                                 with --data FILE";
    // nanoGPT's settings for a processor (its README, "I only have a macbook").
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
    const HELP: &'static [(&'static str, &'static str)] = &[
        (
            "preset=pico|nano|micro|mini|small|gpt2",
            "size of the model: 0.1, 0.8, 2.7, 10.8, 25.6 or 124 million parameters",
        ),
        ("layers=N", "transformer blocks; 0: as the preset has"),
        (
            "head_size=N",
            "numbers of each attention head, a multiple of 4; 0: width divided by heads",
        ),
        ("hidden=N", "hidden units of each block; 0: 4 times the width"),
        ("heads=N", "attention heads of each block; 0: as the preset has"),
        (
            "width=N",
            "length of a token's vector, a multiple of 4 times heads; 0: as the preset has",
        ),
        (
            "context=N",
            "tokens that the model sees at once; 0: as the preset has",
        ),
        (
            "bias=true|false",
            "biases in linear layers and norms (default: as the preset has)",
        ),
        (
            "vocabulary=bytes|characters",
            "what a token is: a byte of any file, or a character of a UTF-8 text",
        ),
        (
            "vocabulary_size=N",
            "rows of the embedding, if more than the vocabulary has; 0: as many as it has",
        ),
        ("dropout=X", "share of features zeroed in training"),
        (
            "recompute=true|false",
            "gradient checkpointing: less memory, and slower",
        ),
        (
            "stream=true|false",
            "each peer fetches only the parts of the text that it trains on, while it trains",
        ),
        (
            "eval_windows=N",
            "stretches of held-out text that an evaluation looks at, at most",
        ),
        init::HELP,
    ];

    fn new(config: GptConfig, data: Option<&Data>) -> Result<Self, TaskError> {
        // Before the data is read, which may take long.
        config.shape(1)?;
        let text = match data {
            Some(data) => Text::read_from(&text_file(data)?, config.vocabulary)?,
            None => Text::shipped(config.vocabulary),
        };
        let shape = config.shape(text.vocabulary().size())?;
        let mut windows = Windows::new(text, shape.context, config.stream && data.is_some())?;
        let model = || Transformer::new(&shape, 0.0, &Device::flex());
        let start = init::start(&config.init, (data, WITH_FOLDER), model)?;
        let (start, weights_file) = start.unzip();
        weights_file.iter().for_each(|file| windows.cover(file));
        Ok(Self {
            config,
            shape,
            windows,
            start,
            knows_text: true,
        })
    }

    fn inner(config: GptConfig, layout: &Layout, _data: Option<&Data>) -> Result<Self, TaskError> {
        if !config.init.is_empty() {
            let problem = "a model that starts from given weights (init=) needs its data on every member, so it cannot be \
                           split";
            return Err(problem.into());
        }
        // The embedding has a row for each token; a large one lies in several tensors.
        let tokens = layout
            .tensors
            .iter()
            .filter(|tensor| tensor.name.starts_with("tokens."));
        let rows: usize = tokens.filter_map(|tensor| tensor.shape.first()).sum();
        let shape = config.shape(rows.max(1))?;
        // Nine tenths of it are to train on.
        let text = Text::blank(config.vocabulary, 2 * shape.context + 20, shape.vocabulary);
        let windows = Windows::new(text, shape.context, false)?;
        Ok(Self {
            knows_text: config.vocabulary == Unit::Bytes,
            config,
            shape,
            windows,
            start: None,
        })
    }

    fn dataset(&self) -> &Windows {
        &self.windows
    }

    fn layers(&self) -> Vec<Layer> {
        let Shape {
            width,
            head_size: head_dim,
            ..
        } = self.shape;
        let classes = self.shape.vocabulary;
        vec![
            Layer::Embedding { width },
            Layer::Norm { width },
            Layer::Attention { head_dim },
            Layer::Linear,
            Layer::CrossEntropy { classes },
        ]
    }

    fn model(&self, device: &Device) -> Transformer {
        let model = Transformer::new(&self.shape, self.config.dropout, device);
        match &self.start {
            Some(values) => with_parameters(model, values, device),
            None => model,
        }
    }

    fn loss(&self, model: &Transformer, batch: Tokens, device: &Device) -> Tensor<1> {
        let Tokens {
            inputs,
            targets,
            windows,
        } = batch;
        let x = model.blocks(embed(model, inputs, windows, device));
        loss(model, x, targets, device)
    }

    fn have_held_out(&self, wait: Duration) -> bool {
        let (starts, rest) = self.windows.held_out(self.config.eval_windows as u64);
        let length = self.shape.context as u64 + 1;
        let whole = starts.into_iter().map(|start| start..start + length);
        let rest = rest.map(|(start, length)| start..start + length as u64 + 1);
        let ranges = whole.chain(rest);
        self.windows.text().pin(ranges.clone());
        self.windows.text().have(ranges, wait)
    }

    fn evaluate(&self, model: &Transformer, device: &Device) -> Option<Scores> {
        let mut loss = Tensor::<1>::zeros([1], device);
        let mut predicted = 0;
        for part in (0..).map_while(|number| self.held_out(number)) {
            loss = loss + self.loss(model, part.batch, device) * part.predictions as f32;
            predicted += part.predictions;
        }
        Some((loss / predicted as f32).into())
    }

    fn test<'a>(
        &'a self,
        _metadata: &BTreeMap<String, String>,
        tensors: &Tensors,
    ) -> Result<Option<TestPart<'a>>, TaskError> {
        let device = Device::flex();
        let model = with_tensors(self.model(&device), tensors, &device)?;
        let context = self.shape.context;
        let most = (TESTED_TOKENS / context).clamp(1, self.config.eval_windows);
        let (windows, rest) = self.windows.held_out(most as u64);
        let at_once = (TESTED_LOGITS / self.shape.vocabulary / context).max(1);
        let mut parts: Vec<_> = windows
            .chunks(at_once)
            .map(|part| (part.to_vec(), context))
            .collect();
        // A text may be shorter than one window.
        parts.extend(rest.map(|(start, length)| (vec![start], length)));
        let tested = move |(starts, length): (Vec<u64>, usize)| {
            let Tokens {
                inputs,
                targets,
                windows,
            } = self.windows.read(&starts, length);
            let tokens = TensorData::new(inputs, [windows, length]);
            let features = model.features(Tensor::from_data(tokens, &device));
            let features = features.reshape([windows * length, self.shape.width]);
            Ok(Tested {
                answers: floats(log_softmax(model.logits(features), 1))?,
                right: Right::Classes(targets.iter().map(|token| *token as usize).collect()),
            })
        };
        Ok(Some(Box::new(parts.into_iter().map(tested))))
    }

    fn generator(&self) -> Option<&dyn Generate<Transformer>> {
        Some(self)
    }

    fn stages(&self) -> Option<&dyn Stages<Transformer, Tokens>> {
        Some(self)
    }

    fn metadata(&self) -> Vec<(&'static str, String)> {
        let shape = &self.shape;
        let mut all = vec![
            (
                "architecture",
                "GPT-2: pre-norm blocks, exact GELU, the output layer is the token embedding".into(),
            ),
            ("layers", shape.layers.to_string()),
            ("heads", shape.heads.to_string()),
            ("head_size", shape.head_size.to_string()),
            ("hidden", shape.hidden.to_string()),
            ("width", shape.width.to_string()),
            ("context", shape.context.to_string()),
            ("bias", shape.bias.to_string()),
            ("vocabulary_size", shape.vocabulary.to_string()),
            ("linear", "y = x @ weight + bias, with weight [in, out]".into()),
        ];
        match (self.config.vocabulary, self.knows_text) {
            (Unit::Bytes, _) => all.push(("vocabulary", "bytes: a token is the value of a byte".into())),
            (Unit::Characters, true) => {
                all.push((
                    "vocabulary",
                    "characters: a token is a place in `characters`, from 0".into(),
                ));
                all.push(("characters", self.windows.text().vocabulary().characters()));
            }
            (Unit::Characters, false) => {}
        }
        all
    }

    /// Heads with their queries, keys and values, and hidden units.
    fn pruning(
        config: &GptConfig,
        _metadata: &BTreeMap<String, String>,
        keep: f64,
    ) -> Result<Option<Pruning<GptConfig>>, TaskError> {
        let shape = config.shape(1)?;
        let (smaller, units) = shape.pruned(keep);
        Ok(Some(Pruning {
            config: GptConfig {
                heads: smaller.heads,
                head_size: smaller.head_size,
                hidden: smaller.hidden,
                init: String::new(),
                ..config.clone()
            },
            metadata: vec![
                ("heads", smaller.heads.to_string()),
                ("hidden", smaller.hidden.to_string()),
            ],
            units,
        }))
    }

    fn gguf(
        metadata: &BTreeMap<String, String>,
        tensors: &[FileTensor],
        halves: bool,
    ) -> Result<Option<Vec<u8>>, TaskError> {
        gguf::file(metadata, tensors, halves).map(Some)
    }

    fn pieces(&self, samples: usize) -> usize {
        match self.draws() {
            true => 1,
            false => pieces(samples, self.shape.work()),
        }
    }

    fn draws(&self) -> bool {
        self.config.dropout > 0.0
    }

    fn recompute(&self) -> bool {
        self.config.recompute
    }
}

const WITH_FOLDER: &str = "give --data FOLDER with the text as input.txt";

/// The text among the data: its one file, or one of this name.
fn text_file(data: &Data) -> Result<DataFile, TaskError> {
    if !data.is_folder() {
        return Ok(data.single()?);
    }
    let absent = || format!("{} has no {TEXT}, the text to learn", data.path().display());
    Ok(data.file(TEXT)?.ok_or_else(absent)?)
}

/// The steps: embeddings, each block, and norm with output layer and loss. The output layer shares the embedding's
/// matrix.
impl Stages<Transformer, Tokens> for Gpt {
    fn steps(&self) -> usize {
        self.shape.layers + 2
    }

    fn input(&self, model: &Transformer, batch: Tokens, device: &Device) -> Tensor<3> {
        embed(model, batch.inputs, batch.windows, device)
    }

    fn step(&self, model: &Transformer, step: usize, x: Tensor<3>) -> Tensor<3> {
        model.block(step - 1, x)
    }

    fn head(&self, model: &Transformer, x: Tensor<3>, batch: Tokens, device: &Device) -> Tensor<1> {
        loss(model, x, batch.targets, device)
    }

    fn held_out(&self, number: usize) -> Option<HeldOut<Tokens>> {
        let (windows, rest) = self.windows.held_out(self.config.eval_windows as u64);
        let context = self.shape.context;
        let mut parts = windows.chunks((EVALUATION_TOKENS / context).max(1));
        let count = parts.len();
        let rest = rest.filter(|_| number == count);
        let (starts, length) = match (parts.nth(number), &rest) {
            (Some(starts), _) => (starts, context),
            (None, Some((start, length))) => (std::slice::from_ref(start), *length),
            (None, None) => return None,
        };
        Some(HeldOut {
            batch: self.windows.read(starts, length),
            samples: starts.len(),
            predictions: starts.len() * length,
        })
    }

    fn writer(&self) -> Option<&dyn WriteInSteps<Transformer, Tokens>> {
        Some(self)
    }
}

impl WriteInSteps<Transformer, Tokens> for Gpt {
    fn answer(&self, model: &Transformer, x: Tensor<3>) -> Tensor<1> {
        model.last_logits(x)
    }

    fn write<'a>(
        &'a self,
        model: &'a mut dyn Answers<Tokens>,
        prompt: &'a Prompt,
        emit: Emit<'a>,
    ) -> Generating<'a> {
        Box::pin(async move {
            let vocabulary = self.windows.text().vocabulary();
            let tokens = vocabulary.encode(&prompt.text).map_err(|character| {
                format!(
                    "the prompt has the character {character:?}, which does not occur in the text that the run learnt \
                     from. It knows {:?}",
                    vocabulary.characters()
                )
            })?;
            let choice = Choice {
                temperature: prompt.temperature,
                top_k: prompt.top_k,
            };
            let context = self.shape.context;
            let mut writer = Writer::new(model, vocabulary, context, choice, prompt.seed);
            writer.write(&tokens, prompt.tokens, emit).await
        })
    }
}

/// The input of the first block.
fn embed(model: &Transformer, inputs: Vec<i32>, windows: usize, device: &Device) -> Tensor<3> {
    let length = inputs.len() / windows;
    model.embed(Tensor::from_data(
        TensorData::new(inputs, [windows, length]),
        device,
    ))
}

/// The loss, from the output of the last block.
fn loss(model: &Transformer, x: Tensor<3>, targets: Vec<i32>, device: &Device) -> Tensor<1> {
    let count = targets.len();
    let targets = Tensor::from_data(TensorData::new(targets, [count]), device);
    model.loss(x, targets)
}

impl Generate<Transformer> for Gpt {
    fn generate<'a>(
        &'a self,
        model: &'a Transformer,
        prompt: &'a Prompt,
        device: &'a Device,
        emit: Emit<'a>,
    ) -> Generating<'a> {
        Box::pin(async move {
            let mut model = Whole { model, device };
            self.write(&mut model, prompt, emit).await
        })
    }

    /// Only the text tells which characters there are.
    fn needs_data(&self) -> bool {
        self.config.vocabulary == Unit::Characters
    }
}

#[cfg(test)]
mod tests;
