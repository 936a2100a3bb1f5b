//! Evaluates a model, or writes with it, on a machine that need not have room for all of it. It loads a few steps,
//! computes everything that they can compute, and drops them before it loads the next.
//!
//! It does not know where the weights come from.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};

use super::super::prefetch::intact;
use super::super::read::{read, read_scores};
use super::super::worker::WorkerError;
use super::ModelSteps;
use super::model_steps::{Made, run_step, stages_of};
use super::place::plain;
use crate::device::OpenDevice;
use crate::task::{Answering, Answers, Batch, Emit, Eval, Metrics, Prompt, Task, TaskError};

/// Reads the weights of some elements of the flat vector.
pub type Weights = Box<dyn Fn(Range<usize>) -> Result<Vec<f32>, TaskError>>;

/// Memory that inference may use.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Bytes that the process must not exceed. None: it may exceed `likes` if a single step needs more.
    pub limit: Option<u64>,
    /// Bytes that it should stay within.
    pub likes: u64,
    /// Bytes that it needs without any step.
    pub base: u64,
}

/// Why a model could not be evaluated, or does not write.
#[derive(Debug, thiserror::Error)]
pub enum InferenceError {
    /// The device failed, or the task offers no steps.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The weights cannot be read.
    #[error(transparent)]
    Weights(TaskError),
    /// The task refuses.
    #[error(transparent)]
    Task(TaskError),
    /// Not even one step fits.
    #[error(
        "step {step} of this model's {steps} takes about {:.0} MB of memory by itself, and this process may take {:.0} (by \
         --memory, or the limits that it was started with: `ulimit -d`): allow more",
        .need.div_ceil(1_000_000), .limit / 1_000_000
    )]
    NoRoom {
        /// The step's number, from 1 on.
        step: usize,
        /// How many there are.
        steps: usize,
        /// Bytes that it needs.
        need: u64,
        /// Bytes that may be taken.
        limit: u64,
    },
}

/// An inference in progress.
pub type Inferring<'a, T> = Pin<Box<dyn Future<Output = Result<T, InferenceError>> + 'a>>;

/// A model that is in memory only as far as there is room.
pub trait Inference {
    /// Prepares for an evaluation, and returns how many times steps are loaded in a pass. None if the task has no
    /// held-out data that can be computed in steps.
    ///
    /// # Errors
    ///
    /// If a step has no room.
    fn to_evaluate(&mut self) -> Result<Option<usize>, InferenceError>;

    /// Evaluates the model on held-out data.
    ///
    /// # Errors
    ///
    /// If the device fails or weights cannot be read.
    ///
    /// # Panics
    ///
    /// Without [`to_evaluate`](Self::to_evaluate).
    fn evaluate(&mut self) -> Inferring<'_, Eval>;

    /// Prepares to write, and returns how many times steps are loaded for each token. None if the task does not write
    /// in steps.
    ///
    /// # Errors
    ///
    /// If a step has no room.
    fn to_write(&mut self) -> Result<Option<usize>, InferenceError>;

    /// Continues a prompt.
    ///
    /// # Errors
    ///
    /// If the prompt makes no sense, the device fails or weights cannot be read.
    ///
    /// # Panics
    ///
    /// Without [`to_write`](Self::to_write).
    fn write<'a>(&'a mut self, prompt: &'a Prompt, emit: Emit<'a>) -> Inferring<'a, ()>;
}

/// A task's model on one device.
pub struct InSteps<T: Task> {
    task: Arc<T>,
    model: Arc<ModelSteps>,
    /// Without autodiff, so that there is no dropout.
    device: Device,
    space: Space,
    weights: Weights,
    plan: Plan,
    /// The steps whose parameters are on the device.
    loaded: Option<(Range<usize>, T::Model)>,
}

/// In which order steps are computed.
#[derive(Clone, Debug, Default, PartialEq)]
struct Plan {
    /// The steps that are in memory together.
    runs: Vec<Range<usize>>,
    /// The number of held-out batches, and how many of them are computed before other steps are loaded.
    batches: (usize, usize),
}

impl<T: Task> InSteps<T> {
    /// Loads nothing yet. `model` is the result of [`ModelSteps::of`] for the task.
    pub fn new(
        task: Arc<T>,
        device: &OpenDevice,
        model: Arc<ModelSteps>,
        space: Space,
        weights: Weights,
    ) -> Self {
        Self {
            task,
            model,
            device: device.device.clone(),
            space,
            weights,
            plan: Plan::default(),
            loaded: None,
        }
    }

    /// Puts the parameters of these steps on the device, unless they are there. Drops the others first.
    fn load(&mut self, run: &Range<usize>) -> Result<(), InferenceError> {
        if self.loaded.as_ref().is_some_and(|(loaded, _)| loaded == run) {
            return Ok(());
        }
        self.loaded = None;
        let mut tensors = vec![None; self.model.layout.tensors.len()];
        for tensor in self.model.tensors_of(run.clone()) {
            let spec = &self.model.layout.tensors[tensor];
            let (start, len) = (spec.offset, spec.len());
            let values = (self.weights)(start..start + len).map_err(InferenceError::Weights)?;
            let data = TensorData::new(values, [len]);
            tensors[tensor] = Some(Tensor::<1>::from_data(data, &self.device));
        }
        let model = plain(self.task.model(&self.device), &tensors);
        self.loaded = Some((run.clone(), model));
        Ok(())
    }

    /// Computes the loaded steps, except the model's last one, from a batch or from the output of earlier steps.
    fn forward(
        &self,
        mut x: Option<Tensor<3>>,
        batch: impl FnOnce() -> Batch<T>,
    ) -> Result<Tensor<3>, InferenceError> {
        let (run, model) = self.loaded.as_ref().expect("steps were loaded");
        let stages = stages_of(&*self.task)?;
        let mut batch = Some(batch);
        for step in run.start..run.end.min(self.model.steps() - 1) {
            let of_batch = || (batch.take().expect("one step alone takes it"))();
            match run_step::<T>(stages, model, step, x.take(), of_batch, &self.device) {
                Made::Activation(y) => x = Some(y),
                Made::Loss(_) => unreachable!("the last step is not among them"),
            }
        }
        // The last step may be loaded alone.
        Ok(x.expect("a step before the last, or what it has made"))
    }

    /// Which steps are loaded together for batches of this many samples, and how many batches fit beside them.
    fn plan(&self, samples: usize, batches: usize) -> Result<Plan, InferenceError> {
        let sizes = Sizes::of(&self.model, samples);
        let mut runs = sizes.runs(self.space)?;
        if runs.len() > 1 && batches > 1 {
            // If each batch were computed alone, all steps would be loaded for each.
            let Space { likes, base, .. } = self.space;
            let likes = likes - likes.saturating_sub(base) / 4;
            runs = sizes.runs(Space { likes, ..self.space })?;
        }
        let largest = runs.iter().map(|run| sizes.need(run, self.space.base)).max();
        let spare = self.space.likes.saturating_sub(largest.unwrap_or(0));
        let at_once = match (runs.len(), spare.checked_div(sizes.boundary)) {
            (1, _) => 1,
            (_, at_once) => usize::try_from(at_once.unwrap_or(1)).unwrap_or(batches),
        };
        Ok(Plan {
            runs,
            batches: (batches, at_once.clamp(1, batches.max(1))),
        })
    }

    /// The scores of some held-out batches, in order.
    async fn scores(&mut self, batches: Range<usize>) -> Result<Vec<(Eval, usize)>, InferenceError> {
        let task = self.task.clone();
        let stages = stages_of(&*task)?;
        let held_out = |number| stages.held_out(number).expect("it was there before");
        let mut on_their_way: Vec<Option<Tensor<3>>> = vec![None; batches.len()];
        let mut scores = Vec::with_capacity(batches.len());
        for run in self.plan.runs.clone() {
            self.load(&run)?;
            for (number, x) in batches.clone().zip(&mut on_their_way) {
                let y = self.forward(x.take(), || held_out(number).batch)?;
                if run.end < self.model.steps() {
                    *x = Some(y);
                    continue;
                }
                let held = held_out(number);
                let (_, model) = self.loaded.as_ref().expect("it was just loaded");
                let found = stages.scores(model, y, held.batch, &self.device);
                scores.push((read_scores(found).await?, held.predictions));
            }
        }
        intact(&*task)?;
        Ok(scores)
    }
}

impl<T: Task> Inference for InSteps<T> {
    fn to_evaluate(&mut self) -> Result<Option<usize>, InferenceError> {
        let stages = stages_of(&*self.task)?;
        let sizes = (0..).map_while(|number| Some(stages.held_out(number)?.samples));
        let (count, largest) = sizes.fold((0, 0), |(count, most), samples| (count + 1, samples.max(most)));
        if count == 0 {
            return Ok(None);
        }
        self.plan = self.plan(largest, count)?;
        Ok(Some(self.plan.runs.len()))
    }

    fn evaluate(&mut self) -> Inferring<'_, Eval> {
        Box::pin(async move {
            let (count, at_once) = self.plan.batches;
            assert!(count > 0, "it is ready to be evaluated");
            // Adds in the same order and way as tasks do.
            let (mut loss, mut metrics, mut predicted) = (0.0f32, Metrics::new(), 0);
            for start in (0..count).step_by(at_once) {
                let of_some = self.scores(start..count.min(start + at_once)).await?;
                for (eval, predictions) in of_some {
                    loss += eval.loss * predictions as f32;
                    for (name, mean) in eval.metrics {
                        *metrics.entry(name).or_default() += mean * predictions as f32;
                    }
                    predicted += predictions;
                }
            }
            metrics.values_mut().for_each(|sum| *sum /= predicted as f32);
            let loss = loss / predicted as f32;
            Ok(Eval { loss, metrics })
        })
    }

    fn to_write(&mut self) -> Result<Option<usize>, InferenceError> {
        if stages_of(&*self.task)?.writer().is_none() {
            return Ok(None);
        }
        self.plan = self.plan(1, 0)?;
        Ok(Some(self.plan.runs.len()))
    }

    fn write<'a>(&'a mut self, prompt: &'a Prompt, emit: Emit<'a>) -> Inferring<'a, ()> {
        Box::pin(async move {
            let task = self.task.clone();
            let writer = stages_of(&*task)?.writer().expect("it is ready to write");
            let written = writer.write(self, prompt, emit).await;
            written.map_err(InferenceError::Task)
        })
    }
}

impl<T: Task> Answers<Batch<T>> for InSteps<T> {
    fn answer(&mut self, batch: Batch<T>) -> Answering<'_> {
        Box::pin(async move {
            let task = self.task.clone();
            let writer = stages_of(&*task)?.writer().expect("it is ready to write");
            let (mut x, mut batch) = (None, Some(batch));
            for run in self.plan.runs.clone() {
                self.load(&run)?;
                let first = || batch.take().expect("the first step alone takes it");
                x = Some(self.forward(x.take(), first)?);
            }
            let (_, model) = self.loaded.as_ref().expect("it was just loaded");
            let answer = writer.answer(model, x.expect("there are steps"));
            Ok(read(answer).await?.iter::<f32>().collect())
        })
    }
}

/// Memory that steps need for the forward pass alone.
struct Sizes {
    /// For each step, the tensors that it uses with their lengths ...
    tensors: Vec<Vec<(usize, u64)>>,
    /// ... and an estimate of the bytes of its intermediate values.
    working: Vec<u64>,
    /// Bytes of the most that goes from step to step.
    boundary: u64,
}

/// Times of what the first step gives that it is taken to have in memory meanwhile: a guess.
const OF_FIRST: u64 = 4;

/// Times of what a step is given that it has beside what its layers give: for the language model the branch that is added to,
/// its norm, and what two layers hand on.
const OF_GIVEN: u64 = 4;

impl Sizes {
    fn of(model: &ModelSteps, samples: usize) -> Self {
        let samples = samples as u64;
        let length = |tensor: &usize| (*tensor, model.layout.tensors[*tensor].len() as u64);
        let tensors: Vec<Vec<(usize, u64)>> = model
            .uses
            .iter()
            .map(|own| own.iter().map(length).collect())
            .collect();
        let given = model
            .shapes
            .iter()
            .map(|[positions, features]| (samples * *positions as u64, *features as u64));
        let given: Vec<(u64, u64)> = given.collect();
        let working = |(step, own): (usize, &Vec<(usize, u64)>)| match step.checked_sub(1) {
            None => 4 * OF_FIRST * given[0].0 * given[0].1,
            Some(before) => {
                let (rows, features) = given[before];
                // A layer that makes so many features of so many has their product of parameters: so together they give this many.
                let parameters: u64 = own.iter().map(|(_, len)| len).sum();
                4 * rows * (parameters / features.max(1) + OF_GIVEN * features)
            }
        };
        Self {
            working: tensors.iter().enumerate().map(working).collect(),
            boundary: given
                .iter()
                .map(|(rows, features)| 4 * rows * features)
                .max()
                .unwrap_or(0),
            tensors,
        }
    }

    /// Bytes of a process that has these steps in memory: their weights, one tensor once more on its way, what the largest of
    /// them computes, and what comes and goes.
    fn need(&self, run: &Range<usize>, base: u64) -> u64 {
        let mut own: Vec<(usize, u64)> = self.tensors[run.clone()].concat();
        own.sort_unstable();
        own.dedup();
        let (all, largest) = own
            .iter()
            .fold((0, 0), |(all, most), (_, len)| (all + len, most.max(*len)));
        let working = self.working[run.clone()].iter().max().copied().unwrap_or(0);
        base + 4 * (all + largest) + working + 2 * self.boundary
    }

    /// As few runs of steps as fit.
    fn runs(&self, space: Space) -> Result<Vec<Range<usize>>, InferenceError> {
        let steps = self.tensors.len();
        let (mut runs, mut start) = (Vec::new(), 0);
        while start < steps {
            let need = self.need(&(start..start + 1), space.base);
            if let Some(limit) = space.limit.filter(|limit| need > *limit) {
                return Err(InferenceError::NoRoom {
                    step: start + 1,
                    steps,
                    need,
                    limit,
                });
            }
            let fits = |end: &usize| self.need(&(start..*end), space.base) <= space.likes;
            let end = (start + 1..=steps).take_while(fits).last().unwrap_or(start + 1);
            runs.push(start..end);
            start = end;
        }
        Ok(runs)
    }
}

#[cfg(test)]
#[path = "inference/tests.rs"]
mod tests;
