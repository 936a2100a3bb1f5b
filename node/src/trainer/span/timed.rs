//! No device, only its time: a span whose passes take so long and give zeros, so that what schedule and links make of a
//! pipeline can be measured with more spans than there are cores.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use super::super::worker::{Pending, WorkerError};
use super::{Activation, ModelSteps, Passed, SpanSums, SpanWorker};

/// Sleeps for each pass. Its parameters are real; its activations have the real shape, for which the first microbatch goes
/// through the real span.
pub struct TimedSpan {
    worker: Box<dyn SpanWorker>,
    forward: Duration,
    backward: Duration,
    /// Of its output.
    shape: Option<[usize; 3]>,
    /// Microbatches that have gone backward, from the first on.
    microbatches: u32,
}

impl TimedSpan {
    /// Takes so long for a microbatch; in the last span both together.
    pub fn new(worker: Box<dyn SpanWorker>, forward: Duration, backward: Duration) -> Self {
        Self {
            worker,
            forward,
            backward,
            shape: None,
            microbatches: 0,
        }
    }

    fn is_last(&self) -> bool {
        self.worker.steps().end == self.worker.model().steps()
    }
}

fn zeros(shape: [usize; 3]) -> Activation {
    Activation {
        shape,
        values: vec![0.0; shape.iter().product()],
    }
}

impl SpanWorker for TimedSpan {
    fn model(&self) -> &ModelSteps {
        self.worker.model()
    }

    fn steps(&self) -> Range<usize> {
        self.worker.steps()
    }

    fn tensors(&self) -> &[usize] {
        self.worker.tensors()
    }

    fn init(&self) -> Vec<f32> {
        self.worker.init()
    }

    fn load(&mut self, params: Vec<f32>) -> Result<(), WorkerError> {
        self.worker.load(params)
    }

    fn forward<'a>(&'a mut self, samples: &'a [u64], input: Option<Activation>) -> Pending<'a, Activation> {
        Box::pin(async move {
            thread::sleep(self.forward);
            match self.shape {
                Some(shape) => Ok(zeros(shape)),
                None => {
                    let made = self.worker.forward(samples, input).await?;
                    self.shape = Some(made.shape);
                    Ok(zeros(made.shape))
                }
            }
        })
    }

    fn backward<'a>(
        &'a mut self,
        microbatch: u32,
        _samples: &'a [u64],
        input: Option<Activation>,
        _gradient: Option<Activation>,
    ) -> Pending<'a, Passed> {
        self.microbatches = self.microbatches.max(microbatch + 1);
        thread::sleep(self.backward);
        let last = self.is_last();
        if last {
            thread::sleep(self.forward);
        }
        Box::pin(std::future::ready(Ok(Passed {
            gradient: input.map(|input| zeros(input.shape)),
            loss_sum: last.then_some(0.0),
        })))
    }

    fn put(&mut self, sums: Vec<f32>) {
        self.worker.put(sums);
    }

    fn take(&mut self) -> Result<SpanSums, WorkerError> {
        let sums = self.worker.take()?;
        let microbatches = std::mem::take(&mut self.microbatches);
        Ok(SpanSums { microbatches, ..sums })
    }
}
