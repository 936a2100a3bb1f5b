//! What a task offers whose model is larger than a machine: [`Stages`], its loss in steps.

use std::pin::Pin;

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::error::TaskError;
use super::generate::{Emit, Generating, Prompt};
use super::scores::Scores;

/// A model's loss in steps that can be computed on different machines, for pipeline parallelism: the
/// [`input`](Self::input) makes activations of a batch, [`step`](Self::step)s make activations of activations, the
/// [`head`](Self::head) makes the loss of them. One after the other they are the task's
/// [`loss`](crate::task::Task::loss), operation for operation.
///
/// Activations are `[samples, positions, features]`; a model without positions has one. A step uses the parameters that it
/// looks at and no others: which these are is found out by running it, and only they are ever in memory where it is
/// computed. Two steps may use the same (a tied embedding). Parameters should be made lazily, as Burn's initializers do.
///
/// A step is computed again on the way back, so it must be a function of the model and what it is given alone, but for random
/// numbers of the device, which is seeded before each step.
///
/// With [`held_out`](Self::held_out) and [`writer`](Self::writer) a model is evaluated and writes, too, on a machine that has
/// no room for it: a few steps at a time. Without them that takes all of it.
pub trait Stages<M: Module, B>: Send + Sync {
    /// How many steps there are, input and head included: at least two.
    fn steps(&self) -> usize;

    /// The first step: activations `[samples, positions, features]` of a batch that goes to `device`, where `model` is.
    fn input(&self, model: &M, batch: B, device: &Device) -> Tensor<3>;

    /// A step between the first and the last, `1..steps() - 1`: activations to activations. Their shape may change.
    fn step(&self, model: &M, step: usize, x: Tensor<3>) -> Tensor<3>;

    /// The last step: the mean loss over the batch that the activations were made of, one element.
    fn head(&self, model: &M, x: Tensor<3>, batch: B, device: &Device) -> Tensor<1>;

    /// A batch of held-out data, numbered from 0: what the task's [`evaluate`](crate::task::Task::evaluate) looks at. None behind
    /// the last.
    fn held_out(&self, number: usize) -> Option<HeldOut<B>> {
        let _ = number;
        None
    }

    /// The last step where a model is evaluated: means over the predictions of a held-out batch.
    fn scores(&self, model: &M, x: Tensor<3>, batch: B, device: &Device) -> Scores {
        self.head(model, x, batch, device).into()
    }

    /// What writes by the steps, if the model can: `Some(self)` for a task that implements [`WriteInSteps`].
    fn writer(&self) -> Option<&dyn WriteInSteps<M, B>> {
        None
    }
}

/// A batch that a model is evaluated on.
#[derive(Clone, Debug)]
pub struct HeldOut<B> {
    /// What goes through the steps.
    pub batch: B,
    /// Samples in it: by these it is known beforehand what memory it takes.
    pub samples: usize,
    /// For how many predictions its scores stand.
    pub predictions: usize,
}

/// Writes with a model of which no more than some steps are in memory at a time.
pub trait WriteInSteps<M: Module, B>: Send + Sync {
    /// The last step where a model writes: what it says of the batch of one sample that the activations were made of.
    fn answer(&self, model: &M, x: Tensor<3>) -> Tensor<1>;

    /// Goes on after a prompt, as [`generate`](crate::task::Generate::generate) does, by what the model answers.
    ///
    /// # Errors
    ///
    /// If the prompt makes no sense or the model cannot be asked.
    fn write<'a>(
        &'a self,
        model: &'a mut dyn Answers<B>,
        prompt: &'a Prompt,
        emit: Emit<'a>,
    ) -> Generating<'a>;
}

/// A model that is asked, wherever it is.
pub trait Answers<B> {
    /// What the model says of a batch of one sample: the numbers of [`answer`](WriteInSteps::answer).
    fn answer(&mut self, batch: B) -> Answering<'_>;
}

/// What [`Answers::answer`] is at.
pub type Answering<'a> = Pin<Box<dyn Future<Output = Result<Vec<f32>, TaskError>> + 'a>>;
