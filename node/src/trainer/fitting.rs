//! How much a device works on at once: shares that are too large for its buffers are cut until they fit.
//!
//! WebGPU promises bindings of 128 MiB, and a share of many samples makes larger activations than that. Nothing says in
//! advance how large they are, so a first piece of a share is tried out. What the device refuses fails without harm to
//! parameters and sums.

use super::Trainer;
use super::read::read;
use super::worker::{Worker, WorkerError};
use crate::task::Task;

impl<T: Task> Trainer<T> {
    /// Halves what the device works on at once until a piece of these samples fits. Sizes that have fitted before are not
    /// tried again.
    pub(super) async fn fit_device(&mut self, samples: &[u64]) -> Result<(), WorkerError> {
        if self.is_cpu() {
            return Ok(());
        }
        let mut at_once = match self.options.micro_batch {
            0 => samples.len(),
            size => size.min(samples.len()),
        };
        while at_once > self.fits {
            match self.try_out(&samples[..at_once]).await {
                Err(WorkerError::Device { .. }) if at_once > 1 => {
                    at_once = at_once.div_ceil(2);
                    self.work_on_at_most(at_once);
                }
                tried => {
                    tried?;
                    self.fits = at_once;
                }
            }
        }
        Ok(())
    }

    /// Computes the gradients of some samples and forgets them.
    async fn try_out(&mut self, samples: &[u64]) -> Result<(), WorkerError> {
        // Batches that wait to be taken would keep their thread from making these.
        self.ahead = None;
        let sum = std::mem::take(&mut self.sum);
        let computed = self.accumulate(samples);
        let total = self.sum.on_device.take();
        self.sum = sum;
        computed?;
        if let Some(total) = total {
            // It is made of all that was computed: if any of that failed, so does reading it.
            read(total.view(self.layout.tensors.len(), [1])).await?;
        }
        Ok(())
    }
}
