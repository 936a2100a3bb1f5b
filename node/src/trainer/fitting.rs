//! Fits work to a GPU: what is too large for its buffers is halved until it fits, and no launch takes long. Sums with
//! numbers that are too large for its matrix units are made again.
//!
//! WebGPU promises bindings of 128 MiB, and many samples make larger activations than that. Nothing says in advance how
//! large they are. A launch that the device refuses is skipped, as is everything that depends on it, so parameters
//! stay as they are and the sum can be made again.

use super::on_device::read_total;
use super::worker::{Worker, WorkerError};
use super::{Sum, Trainer};
use crate::task::Task;
use annulus_shaders::matrices::{self, Within};

/// How long a device may work on samples at once, in seconds. Windows and browsers reset a GPU whose launch takes two
/// seconds. One launch is at most a third of the work, even where the model is a single product: its result and the
/// gradients of both factors are as large. So no launch takes more than a fifth of a second.
const LONGEST: f64 = 0.6;

/// Numbers of samples that a GPU takes at once.
pub(super) struct Fitting {
    /// It has taken as many.
    pub(super) proven: usize,
    /// It has refused more, or would take too long for them.
    pub(super) most: usize,
    /// Whether a sum is being made without the matrix units, to see whether they were why it was not finite.
    pub(super) without_units: bool,
}

impl Fitting {
    /// Allows so few samples at once that a device of this speed takes no long launches.
    pub(super) fn keep_launches_short(&mut self, samples_per_second: f64) {
        let most = (LONGEST * samples_per_second).max(1.0) as usize;
        self.most = self.most.min(most);
    }
}

impl Default for Fitting {
    fn default() -> Self {
        Self {
            proven: 0,
            most: usize::MAX,
            without_units: false,
        }
    }
}

impl<T: Task> Trainer<T> {
    /// Makes sure that the device has taken what the sum was made of, before anything depends on the sum. Waits for the
    /// device only if it has not taken as many samples at once before.
    pub(super) async fn settle(&mut self) -> Result<(), WorkerError> {
        while self.sum.at_once > self.fitting.proven {
            let Some(total) = self.sum.on_device.clone() else {
                return Ok(());
            };
            let at_once = self.sum.at_once;
            self.sum.gradient.resize(self.layout.len, 0.0);
            match read_total(&total, &mut self.sum.gradient).await {
                Ok(_) => self.fitting.proven = at_once,
                Err(WorkerError::Device { .. }) if at_once > 1 => {
                    self.fitting.most = at_once.div_ceil(2);
                    tracing::warn!(
                        "{} has no room for {at_once} samples at once, and works on {} from now on",
                        self.device_name,
                        self.fitting.most,
                    );
                    // Gives its memory back before another sum is made.
                    drop(total);
                    self.sum_again()?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes the sum again if it is not finite and that may be the fault of halves in the device's matrix units. Returns
    /// whether it did.
    pub(super) fn without_overflow(&mut self, is_finite: bool) -> Result<bool, WorkerError> {
        if self.is_cpu() {
            return Ok(false);
        }
        let without_units = std::mem::take(&mut self.fitting.without_units);
        if is_finite {
            if self.sum.by_units {
                matrices::was_finite();
            }
            if without_units {
                matrices::set_aside();
                tracing::warn!(
                    "{}: some numbers are too large for halves; it computes on without its matrix units, more slowly",
                    self.device_name
                );
            }
            return Ok(false);
        }
        if !self.sum.by_units {
            return Ok(false);
        }
        if !matrices::lower_scale() {
            self.fitting.without_units = true;
            // Weights are packed then, which takes more memory.
            self.fitting.proven = 0;
        }
        self.sum_again()?;
        Ok(true)
    }

    /// Lets products take the device's matrix units, unless it is to be seen how it goes without.
    pub(super) fn units(&self) -> Option<Within> {
        (!self.fitting.without_units).then(matrices::within)
    }

    fn sum_again(&mut self) -> Result<(), WorkerError> {
        let Sum {
            gradient, samples, ..
        } = std::mem::take(&mut self.sum);
        self.sum.gradient = gradient;
        // With another size the parts would differ.
        self.ahead = None;
        self.accumulate(&samples)
    }
}
