//! A worker that computes for a part of the time only, for whoever lends a machine that has other things to do.

use super::worker::{Contribution, Pending, Worker, WorkerError};
use crate::task::{Emit, Eval, Prompt};
use annulus_core::Layout;
use std::thread;
use std::time::{Duration, Instant};

/// Rests after each sum of gradients, so that the device works for no more than a part of the time. Whoever measures how
/// fast it is counts the rests in.
pub struct Resting {
    worker: Box<dyn Worker>,
    power: f64,
    worked: Duration,
}

impl Resting {
    /// With a power above 0, up to 1.
    pub fn new(worker: Box<dyn Worker>, power: f64) -> Self {
        Self {
            worker,
            power,
            worked: Duration::ZERO,
        }
    }
}

impl Worker for Resting {
    fn layout(&self) -> &Layout {
        self.worker.layout()
    }

    fn init(&self) -> Vec<f32> {
        self.worker.init()
    }

    fn load(&mut self, params: Vec<f32>) -> Result<(), WorkerError> {
        self.worker.load(params)
    }

    fn prefetch(&mut self, samples: &[u64]) {
        self.worker.prefetch(samples);
    }

    fn accumulate(&mut self, samples: &[u64]) -> Result<(), WorkerError> {
        let began = Instant::now();
        let done = self.worker.accumulate(samples);
        self.worked += began.elapsed();
        done
    }

    fn take(&mut self) -> Pending<'_, Contribution> {
        Box::pin(async move {
            let began = Instant::now();
            let taken = self.worker.take().await;
            let worked = std::mem::take(&mut self.worked) + began.elapsed();
            thread::sleep(worked.mul_f64(1.0 / self.power - 1.0));
            taken
        })
    }

    fn evaluate(&mut self) -> Pending<'_, Option<Eval>> {
        self.worker.evaluate()
    }

    fn generate<'a>(&'a mut self, prompt: &'a Prompt, emit: Emit<'a>) -> Pending<'a, ()> {
        self.worker.generate(prompt, emit)
    }

    fn deterministic(&self) -> bool {
        self.worker.deterministic()
    }

    fn device_name(&self) -> &str {
        self.worker.device_name()
    }
}
