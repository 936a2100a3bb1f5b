//! Slows a worker down, so that you can see on one machine how a run of slow machines behaves.

use super::worker::{Contribution, Pending, Worker, WorkerError};
use crate::options::ActedSpeed;
use crate::task::{Emit, Eval, Prompt};
use annulus_core::Layout;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

/// Sleeps after each sum of gradients, to take as long as a slower device would. A real slow device has the same speed
/// whatever else the processor does. The sleep counts in measured speeds.
pub struct Slowed {
    worker: Box<dyn Worker>,
    speed: ActedSpeed,
    worked: Duration,
    samples: usize,
    /// The fastest time of a sample so far, in seconds.
    least: f64,
}

impl Slowed {
    /// Wraps a worker that is to seem this slow.
    pub fn new(worker: Box<dyn Worker>, speed: ActedSpeed) -> Self {
        Self {
            worker,
            speed,
            worked: Duration::ZERO,
            samples: 0,
            least: f64::INFINITY,
        }
    }
}

impl Worker for Slowed {
    fn layout(&self) -> &Layout {
        self.worker.layout()
    }

    fn init(&self) -> Vec<f32> {
        self.worker.init()
    }

    fn load(&mut self, params: Vec<f32>) -> Result<(), WorkerError> {
        self.worker.load(params)
    }

    fn work_on_at_most(&mut self, samples: usize) {
        self.worker.work_on_at_most(samples);
    }

    fn keep_launches_short(&mut self, samples_per_second: f64) {
        self.worker.keep_launches_short(samples_per_second);
    }

    fn expect(&mut self, samples: &[u64]) {
        self.worker.expect(samples);
    }

    fn waited(&mut self) -> Duration {
        self.worker.waited()
    }

    fn prefetch(&mut self, samples: &[u64]) {
        self.worker.prefetch(samples);
    }

    fn accumulate(&mut self, samples: &[u64]) -> Result<(), WorkerError> {
        let began = Instant::now();
        let done = self.worker.accumulate(samples);
        self.worked += began.elapsed();
        self.samples += samples.len();
        done
    }

    fn take(&mut self) -> Pending<'_, Contribution> {
        Box::pin(async move {
            let began = Instant::now();
            let taken = self.worker.take().await;
            let worked = std::mem::take(&mut self.worked) + began.elapsed();
            let samples = std::mem::take(&mut self.samples) as f64;
            if samples > 0.0 {
                self.least = self.least.min(worked.as_secs_f64() / samples);
                let sample = match self.speed {
                    ActedSpeed::Times(times) => self.least * times,
                    ActedSpeed::Sample(takes) => takes.as_secs_f64(),
                };
                let wanted = Duration::from_secs_f64(sample * samples);
                thread::sleep(wanted.saturating_sub(worked));
            }
            taken
        })
    }

    fn evaluate(&mut self) -> Pending<'_, Option<Eval>> {
        self.worker.evaluate()
    }

    fn generate<'a>(&'a self, prompt: &'a Prompt, emit: Emit<'a>) -> Pending<'a, ()> {
        self.worker.generate(prompt, emit)
    }

    fn deterministic(&self) -> bool {
        self.worker.deterministic()
    }

    fn draws(&self) -> bool {
        self.worker.draws()
    }

    fn given(&self) -> Arc<AtomicU64> {
        self.worker.given()
    }

    fn device_name(&self) -> &str {
        self.worker.device_name()
    }
}
