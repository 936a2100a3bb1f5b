//! All that the rest of a peer knows of training: [`Worker`], in steps that may later be put together otherwise.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

#[cfg(not(target_family = "wasm"))]
use burn::tensor::read_sync;

use crate::task::{Emit, Eval, Prompt};
use annulus_core::Layout;
use annulus_core::optim::Optimizer;

/// What a worker is at.
///
/// Natively it is done as soon as it is first waited for; in a browser, where no thread may wait, a GPU is at work meanwhile.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, WorkerError>> + 'a>>;

/// Trains on one device. A peer has one, on a thread of its own where there are threads.
///
/// Parameters are [loaded](Self::load) and stay on the device; gradients are [summed up](Self::accumulate) there, over as
/// many calls as it takes; the sum is [taken out](Self::take). [`gradient`](Self::gradient) is all three.
pub trait Worker: Send {
    /// Where each tensor lies in the flat vector.
    fn layout(&self) -> &Layout;

    /// Initial parameters, from the run's seed: the same on every call and every device.
    fn init(&self) -> Vec<f32>;

    /// Puts parameters on the device, where they stay until others are loaded. What was summed up before is forgotten. The
    /// next sum comes in the same allocation.
    ///
    /// # Errors
    ///
    /// If they do not fit the model.
    fn load(&mut self, params: Vec<f32>) -> Result<(), WorkerError>;

    /// Has the device work on at most so many samples at once from now on; 0: on as many as it is given.
    fn work_on_at_most(&mut self, samples: usize);

    /// Finds out how many of these samples the device can work on at once, with the parameters that are loaded, and has it
    /// work on no more from now on. The sum stays as it is.
    ///
    /// # Errors
    ///
    /// If not even one sample fits, or the device fails.
    fn fit<'a>(&'a mut self, samples: &'a [u64]) -> Pending<'a, ()> {
        let _ = samples;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Has the samples that are to be summed up next read and made ready, beside whatever else goes on. It need not be
    /// called, and promises nothing.
    fn prefetch(&mut self, samples: &[u64]);

    /// Adds the gradients over `samples` to the sum, and their losses. On a GPU it does not wait for them.
    ///
    /// # Errors
    ///
    /// If the task has no such sample or no proper loss, or the device fails. The sum is then of no use: load parameters.
    fn accumulate(&mut self, samples: &[u64]) -> Result<(), WorkerError>;

    /// Takes the sum out and begins a new one. No samples make a sum of zeros.
    ///
    /// # Errors
    ///
    /// If the sum is not finite or the device fails.
    fn take(&mut self) -> Pending<'_, Contribution>;

    /// What takes the steps of an optimizer on the device itself, where parameters and moments then stay; nothing where they
    /// had better be taken from the sums that are [taken out](Self::take).
    fn stepper(&mut self, optimizer: &Optimizer) -> Option<&mut dyn Stepper> {
        let _ = optimizer;
        None
    }

    /// How good the loaded parameters are on held-out data; nothing if the task holds none out.
    ///
    /// # Errors
    ///
    /// If the device fails.
    fn evaluate(&mut self) -> Pending<'_, Option<Eval>>;

    /// Goes on after a prompt with the loaded parameters, for tasks that can.
    ///
    /// # Errors
    ///
    /// If the task cannot, not from this prompt, or the device fails.
    fn generate<'a>(&'a mut self, prompt: &'a Prompt, emit: Emit<'a>) -> Pending<'a, ()>;

    /// Whether equal parameters and samples make equal bits, unless the model draws random numbers
    /// while another worker of the process does so too.
    fn deterministic(&self) -> bool;

    /// What computes, for people to read.
    fn device_name(&self) -> &str;

    /// Counts the samples that the device is given, for whoever wants to know how far it is. At 0 for good where it does not.
    fn given(&self) -> Arc<AtomicU64> {
        Arc::default()
    }

    /// Takes parameters and gives back the sum of the gradients over `samples`, in the same allocation.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load), [`accumulate`](Self::accumulate) and [`take`](Self::take). The worker stays usable.
    fn gradient<'a>(&'a mut self, params: Vec<f32>, samples: &'a [u64]) -> Pending<'a, Contribution> {
        Box::pin(async move {
            self.prefetch(samples);
            self.load(params)?;
            self.fit(samples).await?;
            self.accumulate(samples)?;
            self.take().await
        })
    }

    /// [`gradient`](Self::gradient), waited for.
    ///
    /// # Errors
    ///
    /// As there.
    #[cfg(not(target_family = "wasm"))]
    fn contribute(&mut self, params: Vec<f32>, samples: &[u64]) -> Result<Contribution, WorkerError> {
        read_sync(self.gradient(params, samples))
    }

    /// How good these parameters are: [`load`](Self::load) and [`evaluate`](Self::evaluate), waited for.
    ///
    /// # Errors
    ///
    /// As there.
    #[cfg(not(target_family = "wasm"))]
    fn score(&mut self, params: Vec<f32>) -> Result<Option<Eval>, WorkerError> {
        self.load(params)?;
        read_sync(self.evaluate())
    }
}

/// Steps parameters where they are, with moments that stay there: for steps that a peer takes alone between exchanges. It has
/// the formulas of the run's optimizers, but its device's rounding.
pub trait Stepper {
    /// Has moments begin at zero.
    fn begin_anew(&mut self);

    /// Changes the loaded parameters by the sum of the gradients since they were loaded or last stepped, and gives its losses.
    ///
    /// # Errors
    ///
    /// As [`Worker::take`]. Parameters and moments are then of no use.
    fn step<'a>(&'a mut self, step: &LocalStep) -> Pending<'a, f32>;

    /// The parameters, as steps have left them.
    ///
    /// # Errors
    ///
    /// If the device fails.
    fn stepped(&mut self) -> Pending<'_, Vec<f32>>;
}

/// What differs from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalStep {
    /// Its number since the moments began at zero; the first is 1.
    pub number: u64,
    /// Learning rate.
    pub rate: f32,
    /// Largest norm of the mean gradient.
    pub clip: Option<f32>,
}

/// A peer's part of a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Contribution {
    /// Sum over the samples of the loss's gradients.
    pub gradient: Vec<f32>,
    /// Sum of the losses over the samples.
    pub loss_sum: f32,
    /// How many samples.
    pub samples: u32,
}

/// Why a worker cannot do what was asked. Its state is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// The model has parts that cannot be trained by summing gradients.
    #[error("this model cannot be trained: {problem}")]
    Unsupported {
        /// Which part, and what to do.
        problem: String,
    },
    /// A vector of parameters of the wrong length.
    #[error("{found} parameters for a model of {expected}: the peers' models differ")]
    WrongLength {
        /// Length of the model's flat vector.
        expected: usize,
        /// Length of what was given.
        found: usize,
    },
    /// A sample that the task does not have.
    #[error("no sample {sample}: the task has {samples}")]
    NoSuchSample {
        /// Its number.
        sample: u64,
        /// How many samples there are.
        samples: u64,
    },
    /// The task's loss is not one element with gradients.
    #[error("the task's loss {problem}")]
    BadLoss {
        /// What it is.
        problem: String,
    },
    /// The loss is NaN or infinite.
    #[error(
        "the loss is not finite: lower the learning rate, clip the gradient, or look for \
         bad data"
    )]
    LossNotFinite,
    /// The loss is finite, but a gradient is NaN or infinite.
    #[error(
        "the gradient of {tensor} is not finite: lower the learning rate, clip the \
         gradient, or look for a division or logarithm of 0"
    )]
    GradientNotFinite {
        /// The first tensor with such an element.
        tensor: String,
    },
    /// The data changed during the run.
    #[error("{reason}")]
    Data {
        /// What the task says.
        reason: String,
    },
    /// Nothing could be generated.
    #[error("{reason}")]
    NotGenerated {
        /// What the task says.
        reason: String,
    },
    /// The device gave up.
    #[error("the device failed: {reason}")]
    Device {
        /// What it said.
        reason: String,
    },
}
