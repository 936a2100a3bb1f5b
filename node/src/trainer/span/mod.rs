//! Computes a *span*: some consecutive steps of a model on one device, which is what a pipeline stage computes.
//!
//! A [`SpanWorker`] takes activations and gradients as plain numbers and returns the same. It does not know which
//! member made them or needs them. Between the forward and the backward pass of a microbatch it keeps nothing but the
//! parameters.

#[cfg(not(target_family = "wasm"))]
mod inference;
mod model_steps;
mod pass;
mod place;
mod split_model;
#[cfg(not(target_family = "wasm"))]
mod timed;
mod worker;

use std::ops::Range;

use super::worker::{Pending, WorkerError};

#[cfg(not(target_family = "wasm"))]
pub use inference::{InSteps, Inference, InferenceError, Inferring, Space, Weights};
pub use model_steps::{Look, ModelSteps, draw};
pub use pass::pass;
pub use split_model::{Cut, MakeSpan, SplitModel, is_of};
#[cfg(not(target_family = "wasm"))]
pub use timed::TimedSpan;
pub use worker::SpanTrainer;

/// What one step passes to the next, or the gradient of the loss with regard to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Activation {
    /// Samples, positions, features.
    pub shape: [usize; 3],
    /// As many numbers; those of the last dimension are adjacent.
    pub values: Vec<f32>,
}

/// The result of a backward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Passed {
    /// The gradient at the span's input; none in the first span.
    pub gradient: Option<Activation>,
    /// The sum of the losses over the microbatch's samples; none but in the last span.
    pub loss_sum: Option<f32>,
    /// The sums of gradients with this microbatch added: those of each step, one after the other.
    pub sums: Vec<f32>,
}

/// Computes a span: a run of consecutive steps, forward and backward, one microbatch at a time.
///
/// A pass is a function of the loaded parameters, the microbatch and its input, so any holder of the span can repeat it.
/// On a processor the bits do not depend on how steps are grouped into spans. For steps that draw random numbers (dropout)
/// this holds only while nothing else in the process draws or seeds: Burn's processor backend has one generator for all.
pub trait SpanWorker: Send {
    /// All steps of the model, and what they use.
    fn model(&self) -> &ModelSteps;

    /// Which steps these are.
    fn steps(&self) -> Range<usize>;

    /// Puts the values of the tensors that the steps use on the device, in the layout's order. They stay there until others
    /// are loaded.
    ///
    /// # Errors
    ///
    /// If there are not as many as the tensors take.
    fn load(&mut self, params: Vec<f32>) -> Result<(), WorkerError>;

    /// The output of the span for a microbatch. The first span reads the samples, the others take activations.
    ///
    /// # Panics
    ///
    /// In the last span, where [`backward`](Self::backward) does both passes. If activations are missing or not
    /// expected. If nothing was loaded.
    fn forward<'a>(&'a mut self, samples: &'a [u64], input: Option<Activation>) -> Pending<'a, Activation>;

    /// Computes the forward pass again and then backward, from the gradient at the span's output, or in the last span from
    /// the loss. Adds the gradients to `sums`, which holds those of each step one after the other. `samples` count in the
    /// first and the last span, which make a batch of them.
    ///
    /// # Errors
    ///
    /// If the device fails, or a loss or a sum is not finite.
    ///
    /// # Panics
    ///
    /// If an input or a gradient is missing, or given where there is none; if `sums` has another length; or if nothing was
    /// loaded.
    fn backward<'a>(
        &'a mut self,
        samples: &'a [u64],
        input: Option<Activation>,
        gradient: Option<Activation>,
        sums: Vec<f32>,
    ) -> Pending<'a, Passed>;
}
