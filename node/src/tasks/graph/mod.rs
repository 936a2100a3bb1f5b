//! Trains a model that comes as a file: any PyTorch model that the Python package exports.
//!
//! The data is a folder with `model.onnx`, `weights.safetensors` and `samples.safetensors`. Members fetch all three from
//! each other, so only the founder of a run needs them. The parameters keep the names and shapes of the state_dict.

mod config;
mod file;
mod folder;
pub mod samples;

pub use config::ModelFileConfig;

use annulus_core::Digest;
use annulus_graph::{
    Graph, GraphError, GraphModel, Output, PassOptions, Role, StepInput, Stepped, Steps, Work, read_tensors,
    with_values,
};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use super::init;
use crate::task::{
    Data, HeldOut, Layer, Layout, Right, Scores, Stages, Task, TaskError, TensorRule, Tensors, TestPart,
    Tested, floats, follow, pieces,
};
use crate::trainer::with_tensors;
use file::SampleFile;
use folder::{Files, inputs, missing};
use samples::{Batch, EVALUATED, Evaluated, Samples, evaluated, said_evaluated};

/// The files of an exported folder.
const MODEL: &str = "model.onnx";
const WEIGHTS: &str = "weights.safetensors";
const SAMPLES: &str = "samples.safetensors";

/// Samples to evaluate at once: a batch that fits where training batches do, a guess.
const EVALUATION_BATCH: usize = 32;

/// Samples that a model is tried with when it is read.
const PROBED: usize = 3;

const NO_FOLDER: &str = "give --data FOLDER, a model that annulus.export has written";

/// A model from a file, and its samples.
pub struct ModelFile {
    graph: Graph,
    /// How to cut it, once somebody asks; none if it cannot be cut.
    steps: OnceLock<Option<Steps>>,
    samples: Samples,
    /// What a pass computes for a sample.
    work: Work,
}

impl ModelFile {
    /// Reads an exported folder.
    ///
    /// # Errors
    ///
    /// If a file is missing or damaged, or the model does not run on the first samples.
    pub fn read(config: &ModelFileConfig, data: &Data) -> Result<Self, TaskError> {
        if !(0.0..1.0).contains(&config.held_out) {
            return Err(format!("held_out={} is not from 0 to below 1", config.held_out).into());
        }
        let files = Files::read(config, data)?;
        if config.stream {
            return Self::streamed(config, &files, data);
        }
        let samples = init::bytes(data, SAMPLES)?.ok_or_else(|| missing(data, SAMPLES))?;
        let graph = files.graph(config)?;
        let tensors = read_tensors(&samples).map_err(|error| format!("{SAMPLES}: {error}"))?;
        let digest = files.digest(&samples);
        let classes = graph.classes().map(|classes| classes.name.clone());
        let held_out = Evaluated::of(evaluated(&samples)?, config.held_out, config.held_out_by);
        let samples = Samples::new(inputs(&graph, tensors)?, classes.as_deref(), held_out, digest)?;
        Self::of(graph, samples)
    }

    /// The same, of samples that are read when they are needed.
    fn streamed(config: &ModelFileConfig, files: &Files, data: &Data) -> Result<Self, TaskError> {
        let samples = data.file(SAMPLES)?.ok_or_else(|| missing(data, SAMPLES))?;
        let graph = files.graph(config)?;
        let (mut samples, facts) =
            SampleFile::open(&samples).map_err(|error| format!("{SAMPLES}: {error}"))?;
        let names = samples.columns().iter().map(|column| (column.name.clone(), ()));
        let names = inputs(&graph, names.collect())?;
        samples.keep(&names.into_iter().map(|(name, ())| name).collect::<Vec<_>>());
        let digest = files.digest(&samples.digest().0);
        let said = said_evaluated(facts.get(EVALUATED).map(String::as_str))?;
        let held_out = Evaluated::of(said, config.held_out, config.held_out_by);
        Self::of(graph, Samples::streamed(samples, held_out, digest)?)
    }

    fn of(mut graph: Graph, samples: Samples) -> Result<Self, TaskError> {
        // Also tells of an operation that does not fit before training begins.
        let work = graph.fuse(&samples.first(PROBED).inputs)?;
        Ok(Self {
            graph,
            steps: OnceLock::new(),
            samples,
            work,
        })
    }

    /// The model.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The first samples, at most this many.
    pub fn first(&self, count: usize) -> Batch {
        self.samples.first(count)
    }

    /// How many of a batch's samples have the right class as the likeliest; none if the model is no classifier.
    fn right(&self, output: &Output, batch: &Batch, device: &Device) -> Option<Tensor<1>> {
        let logits = output.logits.clone()?.into_tensor::<2>()?;
        let classes: Vec<i32> = self
            .classes_of(batch)?
            .iter()
            .map(|class| *class as i32)
            .collect();
        let count = classes.len();
        let classes = Tensor::<1, Int>::from_data(TensorData::new(classes, [count]), device);
        let answers = logits.argmax(1).squeeze_dim::<1>(1);
        Some(answers.equal(classes).float().sum())
    }

    /// The right classes of a batch's samples; none if the model is no classifier.
    fn classes_of<'a>(&self, batch: &'a Batch) -> Option<&'a [i64]> {
        let classes = self.graph.classes()?;
        let (_, classes) = batch.inputs.iter().find(|(name, _)| *name == classes.name)?;
        match classes.numbers() {
            annulus_graph::Numbers::Integers(classes) => Some(classes),
            _ => None,
        }
    }
}

impl Task for ModelFile {
    type Model = GraphModel;
    type Dataset = Samples;
    type Config = ModelFileConfig;

    const NAME: &'static str = "graph";
    const ABOUT: &'static str = "a PyTorch model that the Python package has exported to --data FOLDER";
    const HELP: &'static [(&'static str, &'static str)] = &[
        (
            "held_out=X",
            "share of the samples that only evaluate, unless the folder has others for that",
        ),
        (
            "held_out_by=draw|last",
            "which samples these are: some of each class, drawn by their numbers, or the last ones",
        ),
        (
            "stream=true|false",
            "each peer reads and fetches only the samples that it trains on, while it trains",
        ),
        (
            "as_is=true|false",
            "take an ONNX file that was made for inference as it is",
        ),
        init::HELP,
    ];
    /// The model without the samples.
    const INNER: Option<fn(&str) -> bool> = Some(|file| file != SAMPLES);

    fn new(config: ModelFileConfig, data: Option<&Data>) -> Result<Self, TaskError> {
        Self::read(&config, data.ok_or(NO_FOLDER)?)
    }

    fn inner(config: ModelFileConfig, _layout: &Layout, data: Option<&Data>) -> Result<Self, TaskError> {
        let graph = Files::read(&config, data.ok_or(NO_FOLDER)?)?.graph(&config)?;
        let samples = Samples::new(graph.blank(PROBED)?, None, Evaluated::Given(0), Digest([0; 32]))?;
        Self::of(graph, samples)
    }

    fn description(&self) -> String {
        self.samples.describe()
    }

    fn dataset(&self) -> &Samples {
        &self.samples
    }

    fn layers(&self) -> Vec<Layer> {
        self.graph.layers()
    }

    fn model(&self, device: &Device) -> GraphModel {
        // The same was made when the task was read.
        self.graph
            .model(device)
            .expect("parameters that a module can have")
    }

    fn loss(&self, model: &GraphModel, batch: Batch, device: &Device) -> Tensor<1> {
        let options = PassOptions {
            training: true,
            dropout: Some(batch.seed),
        };
        match self.graph.run(model, &batch.inputs, device, options) {
            Ok(output) => output
                .statistics
                .into_iter()
                .fold(output.loss, |loss, own| follow(loss, &own.buffer, own.value)),
            Err(error) => not_a_number(model, &error),
        }
    }

    fn stages(&self) -> Option<&dyn Stages<GraphModel, Batch>> {
        let cut = || {
            if self.graph.depends_on_batch() {
                tracing::error!("a model with dropout or batch norm cannot be split");
                return None;
            }
            let steps = self.graph.steps(&self.samples.first(1).inputs);
            let steps = steps.inspect_err(|error| tracing::error!("the model cannot be split: {error}"));
            steps.ok().flatten()
        };
        let steps = self.steps.get_or_init(cut).as_ref();
        steps.map(|_| self as &dyn Stages<GraphModel, Batch>)
    }

    fn rule(&self, name: &str) -> Option<TensorRule> {
        let mut parameters = self.graph.parameters().iter();
        let parameter = parameters.find(|parameter| parameter.name == name)?;
        Some(match parameter.role {
            Role::Statistic { rate } => TensorRule::Mean { rate: rate as f32 },
            Role::Trained if parameter.decays => TensorRule::StepAndDecay,
            Role::Trained => TensorRule::Step,
        })
    }

    fn have_held_out(&self, wait: Duration) -> bool {
        self.samples.have_held_out(wait)
    }

    fn evaluate(&self, model: &GraphModel, device: &Device) -> Option<Scores> {
        let count = self.samples.evaluated();
        if count == 0 {
            return None;
        }
        let mut loss = Tensor::<1>::zeros([1], device);
        let mut right = Some(Tensor::<1>::zeros([1], device));
        for part in (0..).map_while(|number| self.held_out(number)) {
            let output = match self
                .graph
                .run(model, &part.batch.inputs, device, PassOptions::default())
            {
                Ok(output) => output,
                Err(error) => return Some(not_a_number(model, &error).into()),
            };
            let own = self.right(&output, &part.batch, device);
            right = right.zip(own).map(|(sum, own)| sum + own);
            loss = loss + output.loss * part.samples as f32;
        }
        let scores = Scores::from(loss / count as f32);
        Some(match right {
            Some(right) => scores.with("accuracy", right / count as f32),
            None => scores,
        })
    }

    fn test<'a>(
        &'a self,
        _metadata: &BTreeMap<String, String>,
        tensors: &Tensors,
    ) -> Result<Option<TestPart<'a>>, TaskError> {
        if self.graph.classes().is_none() {
            return Ok(None);
        }
        let device = Device::flex();
        let model = with_tensors(self.model(&device), tensors, &device)?;
        let tested = move |part: HeldOut<Batch>| {
            let inputs = &part.batch.inputs;
            let output = self.graph.run(&model, inputs, &device, PassOptions::default())?;
            let logits = output.logits.and_then(|logits| logits.into_tensor::<2>());
            let classes = self.classes_of(&part.batch);
            let (Some(logits), Some(classes)) = (logits, classes) else {
                return Err("the model gives no logits of classes".into());
            };
            Ok(Tested {
                answers: floats(log_softmax(logits, 1))?,
                right: Right::Classes(classes.iter().map(|class| *class as usize).collect()),
            })
        };
        let parts = (0..).map_while(|number| self.held_out(number));
        Ok(Some(Box::new(parts.map(tested))))
    }

    fn metadata(&self) -> Vec<(&'static str, String)> {
        vec![
            (
                "architecture",
                "a PyTorch model, by the names and shapes of its state_dict".into(),
            ),
            ("linear", "y = x @ weight.T + bias, with weight [out, in]".into()),
        ]
    }

    fn onnx(data: &Data, tensors: &Tensors) -> Result<Option<Vec<u8>>, TaskError> {
        let model = init::bytes(data, MODEL)?.ok_or_else(|| missing(data, MODEL))?;
        let weights = init::bytes(data, WEIGHTS)?;
        let file = with_values(&model, weights.as_deref(), |name| tensors.get(name))?;
        Ok(Some(file))
    }

    fn pieces(&self, samples: usize) -> usize {
        if self.graph.depends_on_batch() {
            return 1;
        }
        pieces(samples, self.work)
    }

    fn pass_bytes(&self, samples: u32) -> u64 {
        let pieces = self.pieces(samples as usize).max(1);
        self.work
            .bytes
            .saturating_mul((samples as usize).div_ceil(pieces) as u64)
    }

    fn draws(&self) -> bool {
        self.graph.draws()
    }
}

impl ModelFile {
    fn step_of(
        &self,
        model: &GraphModel,
        step: usize,
        input: StepInput,
        device: &Device,
    ) -> Result<Stepped, GraphError> {
        let options = PassOptions {
            training: true,
            dropout: None,
        };
        self.graph.step((self.cut(), step), model, input, device, options)
    }

    /// Only asked for when [`stages`](Task::stages) has made it.
    fn cut(&self) -> &Steps {
        let steps = self.steps.get().and_then(Option::as_ref);
        steps.expect("a model that offers its steps")
    }

    /// A step before the last. `samples` counts those of the batch, for a result that the trainer refuses.
    fn crossing(
        &self,
        model: &GraphModel,
        step: usize,
        input: StepInput,
        (samples, device): (usize, &Device),
    ) -> Tensor<3> {
        match self.step_of(model, step, input, device) {
            Ok(Stepped::Crossing(made)) => made,
            Ok(Stepped::Output(_)) => unreachable!("the last step is the head"),
            Err(error) => {
                tracing::error!("a batch does not fit the model: {error}");
                Tensor::full([samples, 1, self.cut().numbers(step)], f32::NAN, device)
            }
        }
    }

    fn last(
        &self,
        model: &GraphModel,
        x: Tensor<3>,
        batch: &Batch,
        device: &Device,
    ) -> Result<Output, GraphError> {
        let input = StepInput {
            crossing: Some(x),
            batch: Some(&batch.inputs),
        };
        match self.step_of(model, self.cut().count() - 1, input, device)? {
            Stepped::Output(output) => Ok(output),
            Stepped::Crossing(_) => unreachable!("the last step gives the loss"),
        }
    }
}

impl Stages<GraphModel, Batch> for ModelFile {
    fn steps(&self) -> usize {
        self.cut().count()
    }

    fn input(&self, model: &GraphModel, batch: Batch, device: &Device) -> Tensor<3> {
        let samples = batch.inputs[0].1.shape()[0];
        let input = StepInput {
            crossing: None,
            batch: Some(&batch.inputs),
        };
        self.crossing(model, 0, input, (samples, device))
    }

    fn step(&self, model: &GraphModel, step: usize, x: Tensor<3>) -> Tensor<3> {
        let (samples, device) = (x.dims()[0], x.device());
        let input = StepInput {
            crossing: Some(x),
            batch: None,
        };
        self.crossing(model, step, input, (samples, &device))
    }

    fn head(&self, model: &GraphModel, x: Tensor<3>, batch: Batch, device: &Device) -> Tensor<1> {
        match self.last(model, x, &batch, device) {
            Ok(output) => output.loss,
            Err(error) => not_a_number(model, &error),
        }
    }

    fn held_out(&self, number: usize) -> Option<HeldOut<Batch>> {
        let count = self.samples.evaluated();
        let start = number * EVALUATION_BATCH;
        let end = count.min(start + EVALUATION_BATCH);
        (start < end).then(|| HeldOut {
            batch: self.samples.test(start..end),
            samples: end - start,
            predictions: end - start,
        })
    }

    fn scores(&self, model: &GraphModel, x: Tensor<3>, batch: Batch, device: &Device) -> Scores {
        let output = match self.last(model, x, &batch, device) {
            Ok(output) => output,
            Err(error) => return not_a_number(model, &error).into(),
        };
        let right = self.right(&output, &batch, device);
        let scores = Scores::from(output.loss);
        match right {
            Some(right) => scores.with("accuracy", right / batch.inputs[0].1.shape()[0] as f32),
            None => scores,
        }
    }
}

/// A loss that the trainer refuses: a sample does not fit the model, which no other sample has shown.
fn not_a_number(model: &GraphModel, error: &GraphError) -> Tensor<1> {
    struct First(Option<Tensor<1>>);

    impl ModuleVisitor for First {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.get_or_insert_with(|| param.val().sum());
        }
    }

    tracing::error!("a batch does not fit the model: {error}");
    let mut first = First(None);
    model.visit(&mut first);
    first.0.expect("a model has parameters") * f32::NAN
}

#[cfg(test)]
mod tests;
