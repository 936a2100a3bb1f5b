//! A run of a model's steps on one device: what a pipeline stage computes.
//!
//! A [`SpanWorker`] is given activations and gradients as plain numbers and gives such back; it knows neither who has
//! made them nor who wants them, and keeps nothing of a microbatch between its forward and its backward pass. All that
//! it has are the span's parameters and the sums of their gradients.

#[cfg(not(target_family = "wasm"))]
mod inference;
mod model_steps;
mod pass;
mod place;
mod split_model;
mod sums;
#[cfg(not(target_family = "wasm"))]
mod timed;
mod worker;

use std::ops::Range;

use annulus_core::TensorSpec;

use super::worker::{Pending, WorkerError};

#[cfg(not(target_family = "wasm"))]
pub use inference::{InSteps, Inference, InferenceError, Inferring, Space, Weights};
pub use model_steps::{Look, ModelSteps, draw};
pub use pass::pass;
pub use split_model::{Cut, MakeSpan, SplitModel, is_of};
pub use sums::{SpanSums, Use};
#[cfg(not(target_family = "wasm"))]
pub use timed::TimedSpan;
pub use worker::SpanTrainer;

/// What one step hands to the next, or the gradient of the loss with regard to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Activation {
    /// Samples, positions, features.
    pub shape: [usize; 3],
    /// As many numbers, the last dimension's next to each other.
    pub values: Vec<f32>,
}

/// What a backward pass gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Passed {
    /// The gradient at the span's input; none in the first span.
    pub gradient: Option<Activation>,
    /// The sum of the losses over the microbatch's samples; none but in the last span.
    pub loss_sum: Option<f32>,
}

/// Computes a span: a run of consecutive steps, forward and backward, one microbatch at a time.
///
/// A pass is a function of the loaded parameters, the microbatch and what comes in; so whoever holds the span may do it again,
/// here or elsewhere. Gradients are summed for each step by microbatch number, whatever the order in which backward passes
/// are done: on a processor the bits depend neither on that nor on how steps are grouped into spans. Where steps draw random
/// numbers (dropout) that holds as long as nothing else in the process draws or seeds: Burn's processor backend has one
/// generator for all.
pub trait SpanWorker: Send {
    /// All steps of the model, and what they use.
    fn model(&self) -> &ModelSteps;

    /// Which steps these are.
    fn steps(&self) -> Range<usize>;

    /// The parameter tensors that they use: numbers in the model's layout, ascending.
    fn tensors(&self) -> &[usize];

    /// These tensors' initial values one after the other, as the run's seed makes them for the whole model. No more
    /// than one of the others is in memory at a time.
    fn init(&self) -> Vec<f32>;

    /// Puts these tensors' values on the device, where they stay until others are loaded. Sums begin anew.
    ///
    /// # Errors
    ///
    /// If there are not as many as the tensors take.
    fn load(&mut self, params: Vec<f32>) -> Result<(), WorkerError>;

    /// What the span makes of a microbatch: of its samples in the first span, of activations in others.
    ///
    /// # Panics
    ///
    /// In the last span, which gives no activations: [`backward`](Self::backward) is both. If activations are missing or
    /// too many. If nothing was loaded.
    fn forward<'a>(&'a mut self, samples: &'a [u64], input: Option<Activation>) -> Pending<'a, Activation>;

    /// Computes the forward pass again and then backward, from the gradient at the span's output, or in the last span from
    /// the loss; adds the gradients to the sums. A microbatch that was added before is not added again. `samples` count
    /// in the first and the last span, which make a batch of them.
    ///
    /// # Errors
    ///
    /// If the device fails or the loss is none.
    ///
    /// # Panics
    ///
    /// If an input or a gradient is missing, or given where there is none, or nothing was loaded.
    fn backward<'a>(
        &'a mut self,
        microbatch: u32,
        samples: &'a [u64],
        input: Option<Activation>,
        gradient: Option<Activation>,
    ) -> Pending<'a, Passed>;

    /// Has sums go on from these: those of each step, one after the other. The next microbatch that is added is number 0.
    ///
    /// # Panics
    ///
    /// If they are not as many as the steps have.
    fn put(&mut self, sums: Vec<f32>);

    /// Takes the sums out and begins new ones.
    ///
    /// # Errors
    ///
    /// If a loss or a gradient is not finite.
    fn take(&mut self) -> Result<SpanSums, WorkerError>;

    /// Where its tensors lie in the vector of [`init`](Self::init) and [`load`](Self::load), in their order.
    fn layout(&self) -> Vec<TensorSpec> {
        let mut offset = 0;
        let specs = self.tensors().iter().map(|tensor| {
            let mut spec = self.model().layout.tensors[*tensor].clone();
            spec.offset = offset;
            offset += spec.len();
            spec
        });
        specs.collect()
    }
}
