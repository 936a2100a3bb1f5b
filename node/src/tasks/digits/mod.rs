//! Recognizes digits in small grey images, with ten classes: the classic first model.
//!
//! It trains on digits that the program draws, or on MNIST (or another set of 28 x 28 images in the same files) from a
//! folder. The default model is a multi-layer perceptron 784-128-10, as in most first examples. `model=cnn` is a small
//! convolutional network, and `model=linear` a multinomial logistic regression.

#[cfg(not(target_family = "wasm"))]
mod answers;
pub mod model;
pub mod pictures;

use annulus_shaders::nn::CrossEntropy;
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::init;
#[cfg(not(target_family = "wasm"))]
use crate::task::Predict;
use crate::task::{
    Data, HeldOut, Layer, Place, Pruning, Right, Scores, Stages, Task, TaskError, Tensors, TestPart, Tested,
    Units, floats, kept,
};
use crate::trainer::{with_parameters, with_tensors};
use model::Classifier;
use pictures::{CLASSES, Labelled, Pictures};

pub use model::ModelKind;

/// Most digits to draw: 0.8 GB of pixels.
const MAX_DRAWN: usize = 1_000_000;

/// Images to evaluate at once: enough to keep any device busy, and 3 MB of input.
const EVALUATION_BATCH: usize = 1_000;

/// Settings of [`Digits`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DigitsConfig {
    /// The kind of model.
    pub model: ModelKind,
    /// Hidden units of the `mlp` and the `cnn`.
    pub hidden: usize,
    /// Digits drawn to train on; unused with data from a folder.
    pub train: usize,
    /// Digits drawn and held out; unused with data from a folder.
    pub test: usize,
    /// The file of the data folder whose weights the run starts from; empty: random ones.
    pub init: String,
}

impl Default for DigitsConfig {
    fn default() -> Self {
        Self {
            model: ModelKind::Mlp,
            hidden: 128,
            train: 20_000,
            test: 2_000,
            init: String::new(),
        }
    }
}

/// The data set, and the settings of the model.
#[derive(Debug)]
pub struct Digits {
    config: DigitsConfig,
    pictures: Pictures,
    /// The parameters to start from, in the model's order, if the settings name some.
    start: Option<Vec<f32>>,
}

impl Task for Digits {
    type Model = Classifier;
    type Dataset = Pictures;
    type Config = DigitsConfig;

    const NAME: &'static str = "digits";
    const ABOUT: &'static str = "which digit is this? drawn by the program, or MNIST with --data FOLDER";

    const HELP: &'static [(&'static str, &'static str)] = &[
        (
            "model=mlp|cnn|linear",
            "multi-layer perceptron, small convolutional network, or logistic regression",
        ),
        ("hidden=N", "hidden units of the mlp and the cnn"),
        ("train=N", "digits drawn to train on, without --data"),
        ("test=N", "digits drawn and held out, without --data"),
        init::HELP,
    ];

    fn new(config: DigitsConfig, data: Option<&Data>) -> Result<Self, TaskError> {
        for (key, value) in [("train", config.train), ("test", config.test)] {
            if !(1..=MAX_DRAWN).contains(&value) {
                return Err(format!("{key}={value} is not between 1 and {MAX_DRAWN}").into());
            }
        }
        if !(1..=65_536).contains(&config.hidden) {
            return Err(format!("hidden={} is not between 1 and 65536", config.hidden).into());
        }
        let mut pictures = match data {
            Some(folder) => Pictures::read_from(folder)?,
            None => Pictures::drawn(config.train, config.test),
        };
        let model = || Classifier::new(config.model, config.hidden, &Device::flex());
        let start = init::start(&config.init, (data, "give --data FOLDER with the images"), model)?;
        let (start, weights_file) = start.unzip();
        weights_file.iter().for_each(|file| pictures.cover(file));
        Ok(Self {
            config,
            pictures,
            start,
        })
    }

    fn dataset(&self) -> &Pictures {
        &self.pictures
    }

    fn layers(&self) -> Vec<Layer> {
        let mut layers = vec![Layer::Linear, Layer::CrossEntropy { classes: CLASSES }];
        if self.config.model == ModelKind::Cnn {
            layers.extend([Layer::Convolution, Layer::Pool]);
        }
        layers
    }

    fn model(&self, device: &Device) -> Classifier {
        let model = Classifier::new(self.config.model, self.config.hidden, device);
        match &self.start {
            Some(values) => with_parameters(model, values, device),
            None => model,
        }
    }

    fn loss(&self, model: &Classifier, batch: Labelled, device: &Device) -> Tensor<1> {
        let (images, labels) = batch.into_tensors(device);
        CrossEntropy::new().forward(model.forward(images), labels)
    }

    fn metadata(&self) -> Vec<(&'static str, String)> {
        let kind = serde_json::to_value(self.config.model).ok();
        let kind = kind.as_ref().and_then(|kind| kind.as_str()).unwrap_or_default();
        vec![
            ("architecture", kind.to_owned()),
            ("hidden", self.config.hidden.to_string()),
            ("input", "28 x 28 grey values from 0 to 1, row by row".into()),
            ("output", "logits of the digits 0 to 9".into()),
            ("linear", "y = x @ weight + bias, with weight [in, out]".into()),
        ]
    }

    #[cfg(not(target_family = "wasm"))]
    fn predictor(
        metadata: &BTreeMap<String, String>,
        tensors: &Tensors,
    ) -> Result<Option<Box<dyn Predict>>, TaskError> {
        let of = |key| metadata.get(key).map_or("", String::as_str);
        let kind = serde_json::from_value(of("architecture").into())?;
        let answers = answers::Answers::new(kind, of("hidden").parse()?, tensors)?;
        Ok(Some(Box::new(answers)))
    }

    fn pruning(
        config: &DigitsConfig,
        _metadata: &BTreeMap<String, String>,
        keep: f64,
    ) -> Result<Option<Pruning<DigitsConfig>>, TaskError> {
        if config.model == ModelKind::Linear {
            return Ok(None);
        }
        let (count, kept) = (config.hidden, kept(config.hidden, keep, 1));
        let places = [("hidden.weight", 1), ("hidden.bias", 0), ("output.weight", 0)];
        Ok(Some(Pruning {
            config: DigitsConfig {
                hidden: kept,
                init: String::new(),
                ..config.clone()
            },
            metadata: vec![("hidden", kept.to_string())],
            units: vec![Units {
                count,
                kept,
                places: places.map(|(tensor, axis)| Place::of(tensor, axis)).into(),
            }],
        }))
    }

    fn stages(&self) -> Option<&dyn Stages<Classifier, Labelled>> {
        Some(self)
    }

    fn evaluate(&self, model: &Classifier, device: &Device) -> Option<Scores> {
        let mut loss = Tensor::<1>::zeros([1], device);
        let mut right = Tensor::<1>::zeros([1], device);
        for part in (0..).map_while(|number| self.held_out(number)) {
            let (images, labels) = part.batch.into_tensors(device);
            let logits = model.forward(images);
            right = right + right_answers(logits.clone(), labels.clone());
            loss = loss + CrossEntropy::new().forward(logits, labels) * part.predictions as f32;
        }
        let count = self.pictures.held_out() as f32;
        Some(Scores::from(loss / count).with("accuracy", right / count))
    }

    fn test<'a>(
        &'a self,
        _metadata: &BTreeMap<String, String>,
        tensors: &Tensors,
    ) -> Result<Option<TestPart<'a>>, TaskError> {
        let device = Device::flex();
        let model = with_tensors(self.model(&device), tensors, &device)?;
        let tested = move |part: HeldOut<Labelled>| {
            let right = part.batch.labels.iter().map(|label| *label as usize).collect();
            let (images, _) = part.batch.into_tensors(&device);
            Ok(Tested {
                answers: floats(log_softmax(model.forward(images), 1))?,
                right: Right::Classes(right),
            })
        };
        let parts = (0..).map_while(|number| self.held_out(number));
        Ok(Some(Box::new(parts.map(tested))))
    }
}

/// How many of the logits' most likely classes are right.
fn right_answers(logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
    let answers = logits.argmax(1).squeeze_dim::<1>(1);
    answers.equal(labels).float().sum()
}

/// Two steps: everything but the output layer, then the output layer with the loss. Nobody needs to split a model this
/// small; this shows the least code that a task needs for it.
impl Stages<Classifier, Labelled> for Digits {
    fn steps(&self) -> usize {
        2
    }

    fn input(&self, model: &Classifier, batch: Labelled, device: &Device) -> Tensor<3> {
        let (images, _) = batch.into_tensors(device);
        model.hidden(images).unsqueeze_dim(1)
    }

    fn step(&self, _model: &Classifier, _step: usize, x: Tensor<3>) -> Tensor<3> {
        // There is no inner step.
        x
    }

    fn head(&self, model: &Classifier, x: Tensor<3>, batch: Labelled, device: &Device) -> Tensor<1> {
        let (_, labels) = batch.into_tensors(device);
        CrossEntropy::new().forward(model.output(x.squeeze_dim(1)), labels)
    }

    fn held_out(&self, number: usize) -> Option<HeldOut<Labelled>> {
        let count = self.pictures.held_out();
        let start = number * EVALUATION_BATCH;
        let end = count.min(start + EVALUATION_BATCH);
        (start < end).then(|| HeldOut {
            batch: self.pictures.test(start..end),
            samples: end - start,
            predictions: end - start,
        })
    }

    fn scores(&self, model: &Classifier, x: Tensor<3>, batch: Labelled, device: &Device) -> Scores {
        let (_, labels) = batch.into_tensors(device);
        let (logits, count) = (model.output(x.squeeze_dim(1)), labels.dims()[0]);
        let accuracy = right_answers(logits.clone(), labels.clone()) / count as f32;
        Scores::from(CrossEntropy::new().forward(logits, labels)).with("accuracy", accuracy)
    }
}

#[cfg(test)]
mod tests;
