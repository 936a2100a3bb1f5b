//! Stands in for a device: a span whose passes sleep and return zeros. This measures what schedule and links do to a
//! pipeline with more spans than there are cores.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use super::super::worker::{Pending, WorkerError};
use super::{Activation, ModelSteps, Passed, SpanWorker};

/// Sleeps for each pass. The parameters are real. The first microbatch goes through the real span, to learn the shape
/// of the output.
pub struct TimedSpan {
    worker: Box<dyn SpanWorker>,
    forward: Duration,
    backward: Duration,
    /// The shape of its output.
    shape: Option<[usize; 3]>,
}

impl TimedSpan {
    /// A span that takes this long for a microbatch; the last span takes both times together.
    pub fn new(worker: Box<dyn SpanWorker>, forward: Duration, backward: Duration) -> Self {
        Self {
            worker,
            forward,
            backward,
            shape: None,
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
        _samples: &'a [u64],
        input: Option<Activation>,
        _gradient: Option<Activation>,
        sums: Vec<f32>,
    ) -> Pending<'a, Passed> {
        thread::sleep(self.backward);
        let last = self.is_last();
        if last {
            thread::sleep(self.forward);
        }
        Box::pin(std::future::ready(Ok(Passed {
            gradient: input.map(|input| zeros(input.shape)),
            loss_sum: last.then_some(0.0),
            sums,
        })))
    }
}
