//! The interface between training and the rest of a peer: [`Worker`], in separate calls that a caller can combine.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

#[cfg(not(target_family = "wasm"))]
use burn::tensor::read_sync;

use crate::task::{Emit, Eval, Prompt};
use annulus_core::optim::Optimizer;
use annulus_core::{Layout, TensorSpec};

/// A computation in progress.
///
/// Natively it completes when it is first polled. In a browser, where no thread may block, a GPU works meanwhile.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, WorkerError>> + 'a>>;

/// Trains on one device. Each peer has one, on its own thread where there are threads.
///
/// [Load](Self::load) parameters, which then stay on the device. [Accumulate](Self::accumulate) gradients there over as
/// many calls as you like. [Take](Self::take) the sum out. [`gradient`](Self::gradient) does all three.
pub trait Worker: Send {
    /// Where each tensor lies in the flat vector.
    fn layout(&self) -> &Layout;

    /// Initial parameters, from the run's seed: the same on every call and every device.
    fn init(&self) -> Vec<f32>;

    /// Puts parameters on the device, where they stay until others are loaded, and discards earlier sums. The next sum
    /// comes in the same allocation.
    ///
    /// # Errors
    ///
    /// If they do not fit the model.
    fn load(&mut self, params: Vec<f32>) -> Result<(), WorkerError>;

    /// Limits the samples that the device processes at once from now on; 0 means no limit.
    fn work_on_at_most(&mut self, samples: usize);

    /// Makes a GPU of this speed work on so few samples at once that no launch takes long: drivers end those that do.
    fn keep_launches_short(&mut self, samples_per_second: f64) {
        let _ = samples_per_second;
    }

    /// Asks for the streamed data of these draws, which this round or a later one will probably need. It waits for nothing.
    fn expect(&mut self, samples: &[u64]) {
        let _ = samples;
    }

    /// How long batches have waited for streamed data since this was last asked. It says nothing about the device's speed.
    fn waited(&mut self) -> Duration {
        Duration::ZERO
    }

    /// Starts to read and prepare the samples that will be summed next. Calling it is optional, and it promises
    /// nothing.
    fn prefetch(&mut self, samples: &[u64]);

    /// Adds the gradients and losses of `samples` to the sum: draws, as [`Shuffle::draws`](annulus_core::shuffle::Shuffle::draws)
    /// numbers them. On a GPU it returns before they are computed.
    ///
    /// # Errors
    ///
    /// If the task has no valid loss, or the device fails. The sum is unusable then: load parameters
    /// again.
    fn accumulate(&mut self, samples: &[u64]) -> Result<(), WorkerError>;

    /// Takes the sum out and starts a new one. Without samples it is a sum of zeros.
    ///
    /// # Errors
    ///
    /// If the sum is not finite or the device fails.
    fn take(&mut self) -> Pending<'_, Contribution>;

    /// Takes an optimizer's steps on the device itself, where parameters and moments then stay. None if it is faster to
    /// step on the host with the sums that [`take`](Self::take) returns.
    fn stepper(&mut self, optimizer: &Optimizer) -> Option<&mut dyn Stepper> {
        let _ = optimizer;
        None
    }

    /// Evaluates the loaded parameters on held-out data; none if the task holds none out.
    ///
    /// # Errors
    ///
    /// If the device fails.
    fn evaluate(&mut self) -> Pending<'_, Option<Eval>>;

    /// Continues a prompt with the loaded parameters, for tasks that can. Several prompts may be continued at the same time.
    ///
    /// # Errors
    ///
    /// If the task cannot generate, cannot use this prompt, or the device fails.
    fn generate<'a>(&'a self, prompt: &'a Prompt, emit: Emit<'a>) -> Pending<'a, ()>;

    /// Whether equal parameters and samples give equal bits. This does not hold if the model and another worker of the
    /// process draw random numbers at the same time.
    fn deterministic(&self) -> bool;

    /// Whether a sum depends on random numbers, as dropout draws them.
    fn draws(&self) -> bool {
        false
    }

    /// The name of the device, for people.
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
            self.accumulate(samples)?;
            self.take().await
        })
    }

    /// Like [`gradient`](Self::gradient), but blocks.
    ///
    /// # Errors
    ///
    /// As there.
    #[cfg(not(target_family = "wasm"))]
    fn contribute(&mut self, params: Vec<f32>, samples: &[u64]) -> Result<Contribution, WorkerError> {
        read_sync(self.gradient(params, samples))
    }

    /// [Loads](Self::load) and [evaluates](Self::evaluate) these parameters, and blocks.
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

/// Steps parameters and moments on the device, for steps that a peer takes alone between exchanges. It uses the
/// formulas of the run's optimizers, with the rounding of its device.
pub trait Stepper {
    /// Sets the moments to zero.
    fn begin_anew(&mut self);

    /// Steps the loaded parameters by the sum of the gradients since the last load or step, and returns the sum of the
    /// losses.
    ///
    /// # Errors
    ///
    /// As [`Worker::take`]. Parameters and moments are unusable then.
    fn step<'a>(&'a mut self, step: &LocalStep) -> Pending<'a, f32>;

    /// The parameters after the steps so far.
    ///
    /// # Errors
    ///
    /// If the device fails.
    fn stepped(&mut self) -> Pending<'_, Vec<f32>>;
}

/// What differs from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalStep {
    /// Its number since the moments were zero; the first is 1.
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

/// Fails if a gradient is NaN or infinite.
pub(super) fn check_finite(layout: &Layout, gradient: &[f32]) -> Result<(), WorkerError> {
    if largest_magnitude(gradient) < INFINITE {
        return Ok(());
    }
    let values = |tensor: &TensorSpec| &gradient[tensor.offset..tensor.offset + tensor.len()];
    let mut tensors = layout.tensors.iter();
    let tensor = tensors.find(|tensor| largest_magnitude(values(tensor)) >= INFINITE);
    tensor.map_or(Ok(()), |tensor| {
        Err(WorkerError::GradientNotFinite {
            tensor: tensor.name.clone(),
        })
    })
}

/// The bits of an infinite magnitude. Those of NaN are larger.
pub(super) const INFINITE: u32 = f32::INFINITY.to_bits();

/// The bits of the largest magnitude, which are in the order of the magnitudes. This loop vectorizes.
pub(super) fn largest_magnitude(values: &[f32]) -> u32 {
    values.iter().map(|v| v.abs().to_bits()).max().unwrap_or(0)
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
    /// Only an outside process computes the model.
    #[error("{0}")]
    Elsewhere(&'static str),
    /// A vector of parameters of the wrong length.
    #[error("{found} parameters for a model of {expected}: the peers' models differ")]
    WrongLength {
        /// Length of the model's flat vector.
        expected: usize,
        /// Length of what was given.
        found: usize,
    },
    /// The task's loss is not one element with gradients.
    #[error("the task's loss {problem}")]
    BadLoss {
        /// What is wrong with it.
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
    /// Streamed data did not come in time.
    #[error("its data did not come from other peers in time")]
    Late,
    /// Nothing could be generated.
    #[error("{reason}")]
    NotGenerated {
        /// The task's reason.
        reason: String,
    },
    /// The device failed.
    #[error("the device failed: {reason}")]
    Device {
        /// The device's message.
        reason: String,
    },
}
