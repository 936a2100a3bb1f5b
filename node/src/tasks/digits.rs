//! Which digit is this? Small grey images, ten classes: the classic first model.
//!
//! Trains on digits that the program draws itself, or on MNIST (or another set of 28 x 28 images in
//! the same files) from a folder. The default model is a multi-layer perceptron 784-128-10 as in
//! most first examples; `model=cnn` is a small convolutional network, `model=linear` no more than
//! multinomial logistic regression.

use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use annulus_shaders::nn::{Activation, CrossEntropy, Linear, LinearConfig};

use crate::data::{Images, Split, idx, strokes};
use crate::task::{Data, Scores, Task, TaskError};
use annulus_core::Digest;

const SIDE: usize = strokes::SIDE;
const PIXELS: usize = SIDE * SIDE;
const CLASSES: usize = 10;

/// Seed of the digits that are drawn: part of the data set, not of the run.
const STROKES_SEED: u64 = 1;

/// The most digits that are drawn: 0.8 GB of pixels.
const MAX_DRAWN: usize = 1_000_000;

/// Images evaluated at once: enough to keep any device busy, and 3 MB of input.
const EVALUATION_BATCH: usize = 1_000;

/// Settings of [`Digits`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DigitsConfig {
    /// The kind of model.
    pub model: ModelKind,
    /// Hidden units of the `mlp` and the `cnn`.
    pub hidden: usize,
    /// Digits drawn to train on; not for data from a folder.
    pub train: usize,
    /// Digits drawn and held out; not for data from a folder.
    pub test: usize,
}

impl Default for DigitsConfig {
    fn default() -> Self {
        Self {
            model: ModelKind::Mlp,
            hidden: 128,
            train: 20_000,
            test: 2_000,
        }
    }
}

/// The models to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// Pixels to classes, nothing between.
    Linear,
    /// One hidden layer.
    Mlp,
    /// Two convolutions, then as the MLP.
    Cnn,
}

/// The data set, and how the model is built.
#[derive(Debug)]
pub struct Digits {
    config: DigitsConfig,
    data: Split,
    digest: Digest,
}

impl Task for Digits {
    type Model = Classifier;
    type Config = DigitsConfig;

    const NAME: &'static str = "digits";
    const ABOUT: &'static str = "which digit is this? drawn by the program, or MNIST with --data FOLDER";

    fn new(config: DigitsConfig, data: Option<&Data>) -> Result<Self, TaskError> {
        for (key, value) in [("train", config.train), ("test", config.test)] {
            if !(1..=MAX_DRAWN).contains(&value) {
                return Err(format!("{key}={value} is not between 1 and {MAX_DRAWN}").into());
            }
        }
        if !(1..=65_536).contains(&config.hidden) {
            return Err(format!("hidden={} is not between 1 and 65536", config.hidden).into());
        }
        let data = match data {
            Some(folder) => {
                let split = idx::read_folder(folder)?;
                check(&split.train)
                    .and_then(|()| check(&split.test))
                    .map_err(|problem| {
                        format!(
                            "{} holds {problem}; use MNIST or a set like it",
                            folder.path().display()
                        )
                    })?;
                split
            }
            None => strokes::draw(STROKES_SEED, config.train, config.test),
        };
        let mut hasher = blake3::Hasher::new();
        for part in [&data.train, &data.test] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(&part.labels).update(&part.pixels);
        }
        let digest = Digest(*hasher.finalize().as_bytes());
        Ok(Self { config, data, digest })
    }

    fn samples(&self) -> u64 {
        self.data.train.len() as u64
    }

    fn digest(&self) -> Digest {
        self.digest
    }

    fn model(&self, device: &Device) -> Classifier {
        Classifier::new(self.config.model, self.config.hidden, device)
    }

    fn loss(&self, model: &Classifier, samples: &[u64], device: &Device) -> Tensor<1> {
        let (images, labels) = self.training(samples, device);
        CrossEntropy::new().forward(model.forward(images), labels)
    }

    fn evaluate(&self, model: &Classifier, device: &Device) -> Option<Scores> {
        let test = &self.data.test;
        let cross_entropy = CrossEntropy::new();
        let mut loss = Tensor::<1>::zeros([1], device);
        let mut right = Tensor::<1>::zeros([1], device);
        for start in (0..test.len()).step_by(EVALUATION_BATCH) {
            let end = (start + EVALUATION_BATCH).min(test.len());
            let (images, labels) = batch(test, start..end, device);
            let logits = model.forward(images);
            let answers = logits.clone().argmax(1).squeeze_dim::<1>(1);
            right = right + answers.equal(labels.clone()).float().sum();
            loss = loss + cross_entropy.forward(logits, labels) * (end - start) as f32;
        }
        let count = test.len() as f32;
        Some(Scores {
            loss: loss / count,
            accuracy: Some(right / count),
        })
    }
}

impl Digits {
    /// Training images `[n, 784]` with values from 0 to 1, and their labels `[n]`.
    pub fn training(&self, samples: &[u64], device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
        let indices = samples.iter().map(|sample| *sample as usize);
        batch(&self.data.train, indices, device)
    }

    /// All images that are held out, and their labels, as [`training`](Self::training).
    pub fn held_out(&self, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
        batch(&self.data.test, 0..self.data.test.len(), device)
    }
}

/// Whether images are as the models want them; if not, what is wrong.
fn check(images: &Images) -> Result<(), String> {
    if (images.rows, images.columns) != (SIDE, SIDE) {
        let (rows, columns) = (images.rows, images.columns);
        return Err(format!("images of {rows} x {columns} pixels, not 28 x 28"));
    }
    match images.labels.iter().find(|label| usize::from(**label) >= CLASSES) {
        Some(label) => Err(format!("the label {label}, which is no digit")),
        None => Ok(()),
    }
}

/// Images as `[n, 784]` with values from 0 to 1, and their labels as `[n]`.
fn batch(
    images: &Images,
    indices: impl ExactSizeIterator<Item = usize>,
    device: &Device,
) -> (Tensor<2>, Tensor<1, Int>) {
    let count = indices.len();
    let mut pixels = Vec::with_capacity(count * PIXELS);
    let mut labels = Vec::with_capacity(count);
    for index in indices {
        let image = images.pixels_of(index);
        pixels.extend(image.iter().map(|pixel| f32::from(*pixel) / 255.0));
        labels.push(i32::from(images.labels[index]));
    }
    (
        Tensor::from_data(TensorData::new(pixels, [count, PIXELS]), device),
        Tensor::from_data(TensorData::new(labels, [count]), device),
    )
}

/// All three models: what a kind does not have is left out.
#[derive(Module, Debug)]
pub struct Classifier {
    features: Option<Features>,
    hidden: Option<Linear>,
    output: Linear,
}

impl Classifier {
    /// A model with random parameters.
    pub fn new(kind: ModelKind, hidden: usize, device: &Device) -> Self {
        let inputs = match kind {
            ModelKind::Cnn => Features::OUTPUTS,
            ModelKind::Linear | ModelKind::Mlp => PIXELS,
        };
        let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        Self {
            features: (kind == ModelKind::Cnn).then(|| Features::new(device)),
            hidden: (kind != ModelKind::Linear).then(|| layer(inputs, hidden)),
            output: match kind {
                ModelKind::Linear => layer(inputs, CLASSES),
                ModelKind::Mlp | ModelKind::Cnn => layer(hidden, CLASSES),
            },
        }
    }

    /// Images `[n, 784]` to logits `[n, 10]`.
    pub fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        let mut x = images;
        if let Some(features) = &self.features {
            x = features.forward(x);
        }
        match &self.hidden {
            Some(hidden) => hidden.forward_then(x, Activation::Relu, &self.output, None),
            None => self.output.forward(x),
        }
    }
}

/// Two convolutions of 3 x 3, each followed by a ReLU and a max-pooling that halves the image.
///
/// The convolutions are Burn's own. With 64 images on lavapipe, forward and backward, they and what is around them
/// take 140 ms of processor time, 43 launches and 1.1 s at first; as copies and our matrix products (im2col) 246 ms,
/// 111 launches and 2.5 s. The transposed convolution, by which Burn makes the gradient for the input, as a plain one
/// with turned weights: 122 ms, too little to gain for an operation of our own. On the CPU backend all takes 17 ms.
#[derive(Module, Debug)]
pub struct Features {
    first: Conv2d,
    second: Conv2d,
    pool: MaxPool2d,
}

impl Features {
    const CHANNELS: [usize; 2] = [8, 16];
    const OUTPUTS: usize = Self::CHANNELS[1] * (SIDE / 4) * (SIDE / 4);

    fn new(device: &Device) -> Self {
        let convolution = |inputs, outputs| {
            Conv2dConfig::new([inputs, outputs], [3, 3])
                .with_padding(PaddingConfig2d::Same)
                .init(device)
        };
        Self {
            first: convolution(1, Self::CHANNELS[0]),
            second: convolution(Self::CHANNELS[0], Self::CHANNELS[1]),
            pool: MaxPool2dConfig::new([2, 2]).init(),
        }
    }

    /// Images `[n, 784]` to features `[n, 784]`: a quarter of the height and width, 16 channels.
    fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        let [count, _] = images.dims();
        let x = images.reshape([count, 1, SIDE, SIDE]);
        let x = self.pool.forward(relu(self.first.forward(x)));
        let x = self.pool.forward(relu(self.second.forward(x)));
        x.reshape([count, Self::OUTPUTS])
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use super::*;
    use crate::device::OpenDevice;
    use crate::task::Eval;
    use crate::trainer::{Trainer, TrainerOptions, Worker};

    /// The folder of real data for tests, if this machine has it.
    fn data_folder(name: &str) -> Option<PathBuf> {
        let root = std::env::var_os("ANNULUS_DATA").map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"),
            PathBuf::from,
        );
        let folder = root.join(name);
        if !folder.is_dir() {
            println!("skipped: no {} (set ANNULUS_DATA)", folder.display());
            return None;
        }
        Some(folder)
    }

    fn digits(config: DigitsConfig, data: Option<&Path>) -> Arc<Digits> {
        let data = data.map(|path| Data::open(path).unwrap());
        Arc::new(Digits::new(config, data.as_ref()).unwrap())
    }

    /// Trains by Adam with its usual settings, batch 64, on samples in their order.
    fn train(task: &Arc<Digits>, epochs: u64) -> Eval {
        let device = OpenDevice::cpu();
        let options = TrainerOptions::default();
        let mut worker = Trainer::new(Arc::clone(task), &device, options).unwrap();
        let mut params = worker.init();
        let (mut mean, mut square) = (vec![0.0; params.len()], vec![0.0; params.len()]);
        let (mut decay1, mut decay2) = (1.0f32, 1.0f32);
        let order: Vec<u64> = (0..task.samples()).collect();
        for batch in (0..epochs).flat_map(|_| order.chunks(64)) {
            let result = worker.contribute(params.clone(), batch).unwrap();
            decay1 *= 0.9;
            decay2 *= 0.999;
            for (index, sum) in result.gradient.iter().enumerate() {
                let gradient = sum / batch.len() as f32;
                mean[index] = 0.9 * mean[index] + 0.1 * gradient;
                square[index] = 0.999 * square[index] + 0.001 * gradient * gradient;
                let deviation = (square[index] / (1.0 - decay2)).sqrt() + 1e-8;
                params[index] -= 1e-3 * mean[index] / (1.0 - decay1) / deviation;
            }
        }
        worker.evaluate(&params).unwrap().unwrap()
    }

    fn accuracy(model: ModelKind, epochs: u64, data: Option<&Path>) -> f32 {
        let config = DigitsConfig {
            model,
            ..DigitsConfig::default()
        };
        let eval = train(&digits(config, data), epochs);
        println!("{model:?}, {epochs} epochs: {eval:?}");
        eval.accuracy.unwrap()
    }

    #[test]
    fn drawn_digits_need_more_than_a_linear_model() {
        let linear = accuracy(ModelKind::Linear, 5, None);
        let mlp = accuracy(ModelKind::Mlp, 5, None);
        assert!((0.80..=0.88).contains(&linear));
        assert!(mlp >= 0.95);
    }

    #[test]
    fn the_cnn_learns() {
        assert!(accuracy(ModelKind::Cnn, 1, None) >= 0.90);
    }

    #[test]
    fn mnist_is_learnt_as_well_as_elsewhere() {
        let Some(folder) = data_folder("mnist") else {
            return;
        };
        // A run with the same settings in PyTorch gives 94.5 %.
        let mlp = accuracy(ModelKind::Mlp, 5, Some(&folder));
        assert!((0.935..0.97).contains(&mlp));
    }

    #[test]
    fn the_digest_tells_data_sets_apart() {
        let small = DigitsConfig {
            train: 100,
            test: 10,
            ..DigitsConfig::default()
        };
        let digest = |config| digits(config, None).digest();
        let first = digest(small.clone());
        assert_eq!(digest(small.clone()), first);
        let linear = DigitsConfig {
            model: ModelKind::Linear,
            ..small.clone()
        };
        assert_eq!(digest(linear), first);
        // Moving the border between training and test data changes what is trained on.
        let shifted = DigitsConfig {
            train: 99,
            test: 11,
            ..small
        };
        assert_ne!(digest(shifted), first);
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let default = DigitsConfig::default;
        let configs = [
            DigitsConfig {
                train: 0,
                ..default()
            },
            DigitsConfig {
                test: usize::MAX,
                ..default()
            },
            DigitsConfig {
                hidden: 0,
                ..default()
            },
        ];
        for config in configs {
            let error = Digits::new(config, None).unwrap_err().to_string();
            assert!(error.contains("is not between 1 and"), "{error}");
        }
    }

    #[test]
    fn images_that_are_no_digits_are_refused() {
        let images = |rows, label| Images {
            pixels: vec![0; rows * 28],
            labels: vec![label],
            rows,
            columns: 28,
        };
        assert_eq!(check(&images(28, 9)), Ok(()));
        assert!(check(&images(27, 9)).unwrap_err().contains("27 x 28"));
        assert!(check(&images(28, 10)).unwrap_err().contains("label 10"));
    }
}
