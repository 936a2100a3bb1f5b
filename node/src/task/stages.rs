//! Splits models that are larger than a machine: [`Stages`], the loss in steps.

use std::pin::Pin;

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::error::TaskError;
use super::generate::{Emit, Generating, Prompt};
use super::scores::Scores;

/// A model's loss in steps that different machines can compute, for pipeline parallelism. The [`input`](Self::input)
/// turns a batch into activations, [`step`](Self::step)s turn activations into activations, and the
/// [`head`](Self::head) turns them into the loss. One after the other they must be the task's
/// [`loss`](crate::task::Task::loss), operation for operation.
///
/// Activations are `[samples, positions, features]`; a model without positions has one. A step uses the parameters that
/// it reads, and no others. Annulus finds them by running the step, and only these are ever in memory where it is
/// computed. Two steps may use the same parameter (a tied embedding). Create parameters lazily, as Burn's initializers
/// do.
///
/// The backward pass computes a step again. So a step must depend only on the model and its input, and on random
/// numbers of the device, which is seeded before each step.
///
/// With [`held_out`](Self::held_out) and [`writer`](Self::writer) a machine without room for the whole model can also
/// evaluate it and generate text, a few steps at a time.
pub trait Stages<M: Module, B>: Send + Sync {
    /// The number of steps, input and head included: at least two.
    fn steps(&self) -> usize;

    /// The first step: activations `[samples, positions, features]` of a batch. Put the batch on `device`, where
    /// `model` is.
    fn input(&self, model: &M, batch: B, device: &Device) -> Tensor<3>;

    /// A step between the first and the last, `1..steps() - 1`: activations to activations. It may change their shape.
    fn step(&self, model: &M, step: usize, x: Tensor<3>) -> Tensor<3>;

    /// The last step: the mean loss over the batch from which the activations were computed, one element.
    fn head(&self, model: &M, x: Tensor<3>, batch: B, device: &Device) -> Tensor<1>;

    /// A batch of held-out data, numbered from 0: the data of the task's [`evaluate`](crate::task::Task::evaluate).
    /// None after the last.
    fn held_out(&self, number: usize) -> Option<HeldOut<B>> {
        let _ = number;
        None
    }

    /// The last step of an evaluation: means over the predictions of a held-out batch.
    fn scores(&self, model: &M, x: Tensor<3>, batch: B, device: &Device) -> Scores {
        self.head(model, x, batch, device).into()
    }

    /// The generator in steps, if the model has one: return `Some(self)` if the task implements [`WriteInSteps`].
    fn writer(&self) -> Option<&dyn WriteInSteps<M, B>> {
        None
    }
}

/// A batch for an evaluation.
#[derive(Clone, Debug)]
pub struct HeldOut<B> {
    /// The input of the steps.
    pub batch: B,
    /// Its number of samples, from which its memory is estimated.
    pub samples: usize,
    /// How many predictions its scores cover.
    pub predictions: usize,
}

/// Generates text with a model of which only a few steps are in memory at a time.
pub trait WriteInSteps<M: Module, B>: Send + Sync {
    /// The last step of generation: the logits for a batch of one sample, from its activations.
    fn answer(&self, model: &M, x: Tensor<3>) -> Tensor<1>;

    /// Continues a prompt, as [`generate`](crate::task::Generate::generate) does, with the model's answers.
    ///
    /// # Errors
    ///
    /// If the prompt makes no sense or the model cannot be computed.
    fn write<'a>(
        &'a self,
        model: &'a mut dyn Answers<B>,
        prompt: &'a Prompt,
        emit: Emit<'a>,
    ) -> Generating<'a>;
}

/// A model that can be asked, wherever it is.
pub trait Answers<B> {
    /// The model's logits for a batch of one sample: the numbers of [`answer`](WriteInSteps::answer).
    fn answer(&mut self, batch: B) -> Answering<'_>;
}

/// An [`Answers::answer`] in progress.
pub type Answering<'a> = Pin<Box<dyn Future<Output = Result<Vec<f32>, TaskError>> + 'a>>;
