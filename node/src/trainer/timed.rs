//! Stands in for a device: sleeps for each sample and returns zeros. This measures what links do to a run even for
//! models that no machine here could train.

use super::worker::{Contribution, Pending, Worker, WorkerError};
use crate::task::{Emit, Eval, Prompt};
use annulus_core::Layout;
use std::thread;
use std::time::Duration;

/// Sleeps for each sample. Layout, initial parameters and evaluation come from the real worker.
pub struct Timed {
    worker: Box<dyn Worker>,
    sample: Duration,
    sum: Vec<f32>,
    samples: u32,
}

impl Timed {
    /// A worker that takes this long for each sample.
    pub fn new(worker: Box<dyn Worker>, sample: Duration) -> Self {
        Self {
            worker,
            sample,
            sum: Vec::new(),
            samples: 0,
        }
    }
}

impl Worker for Timed {
    fn layout(&self) -> &Layout {
        self.worker.layout()
    }

    fn init(&self) -> Vec<f32> {
        self.worker.init()
    }

    fn load(&mut self, params: Vec<f32>) -> Result<(), WorkerError> {
        self.sum = params;
        self.samples = 0;
        Ok(())
    }

    /// It computes nothing.
    fn work_on_at_most(&mut self, _samples: usize) {}

    fn prefetch(&mut self, _samples: &[u64]) {}

    fn accumulate(&mut self, samples: &[u64]) -> Result<(), WorkerError> {
        self.samples += samples.len() as u32;
        thread::sleep(self.sample * samples.len() as u32);
        Ok(())
    }

    fn take(&mut self) -> Pending<'_, Contribution> {
        let mut gradient = std::mem::take(&mut self.sum);
        gradient.resize(self.worker.layout().len, 0.0);
        gradient.fill(0.0);
        let samples = std::mem::take(&mut self.samples);
        Box::pin(std::future::ready(Ok(Contribution {
            gradient,
            loss_sum: 0.0,
            samples,
        })))
    }

    fn evaluate(&mut self) -> Pending<'_, Option<Eval>> {
        self.worker.evaluate()
    }

    fn generate<'a>(&'a self, prompt: &'a Prompt, emit: Emit<'a>) -> Pending<'a, ()> {
        self.worker.generate(prompt, emit)
    }

    fn deterministic(&self) -> bool {
        true
    }

    fn device_name(&self) -> &str {
        "none, only its time"
    }
}
