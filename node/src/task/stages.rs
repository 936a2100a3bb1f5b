//! What a task offers whose model is larger than a machine: [`Stages`], its loss in steps.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

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
pub trait Stages<M: Module, B>: Send + Sync {
    /// How many steps there are, input and head included: at least two.
    fn steps(&self) -> usize;

    /// The first step: activations `[samples, positions, features]` of a batch that goes to `device`, where `model` is.
    fn input(&self, model: &M, batch: B, device: &Device) -> Tensor<3>;

    /// A step between the first and the last, `1..steps() - 1`: activations to activations. Their shape may change.
    fn step(&self, model: &M, step: usize, x: Tensor<3>) -> Tensor<3>;

    /// The last step: the mean loss over the batch that the activations were made of, one element.
    fn head(&self, model: &M, x: Tensor<3>, batch: B, device: &Device) -> Tensor<1>;
}
