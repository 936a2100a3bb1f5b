//! The spans of a model that is split over the members of a run, on one device: computes what the protocol asks for.

use std::num::{NonZeroU16, NonZeroU32};
use std::ops::Range;
use std::sync::Arc;

use annulus_core::Round;
use annulus_core::codec::Codec;
use annulus_core::interface::{SpanDone, SpanWork};
use annulus_core::split::{Split, Step};

use super::super::worker::WorkerError;
use super::pass::{activation, pass};
use super::{ModelSteps, SpanWorker};

/// Makes what computes some steps.
pub type MakeSpan = dyn Fn(Range<usize>) -> Result<Box<dyn SpanWorker>, WorkerError> + Send;

/// What a peer computes of a model that is split: the spans that it is asked for, each with a worker of its own from then on.
pub struct SplitModel {
    model: Arc<ModelSteps>,
    split: Split,
    make: Box<MakeSpan>,
    workers: Vec<AtWork>,
    #[cfg(not(target_family = "wasm"))]
    acted: acted::Acted,
}

/// A span on the device.
struct AtWork {
    steps: Range<usize>,
    /// The last round that it has computed something of.
    round: Round,
    worker: Box<dyn SpanWorker>,
}

/// How a run's founder cuts a model.
#[derive(Clone, Copy, Debug)]
pub struct Cut<'a> {
    /// Where each span begins and ends.
    pub spans: &'a [Range<usize>],
    /// How long each step takes beside others.
    pub costs: &'a [u32],
    /// Samples of a microbatch.
    pub micro_batch: NonZeroU32,
    /// How activations travel.
    pub boundary: Codec,
    /// Lanes of a round.
    pub lanes: NonZeroU16,
}

impl Cut<'_> {
    /// What a manifest says of it.
    pub fn of(&self, model: &ModelSteps) -> Split {
        let step = |step: usize| Step {
            ranges: model.ranges(step),
            cost: self.costs[step],
            boundary: boundary(model, step),
        };
        let len = |span: &Range<usize>| NonZeroU16::new(span.len() as u16);
        Split {
            steps: (0..model.steps()).map(step).collect(),
            spans: self.spans.iter().filter_map(len).collect(),
            micro_batch: self.micro_batch,
            boundary: self.boundary,
            lanes: self.lanes,
        }
    }
}

/// Numbers that a step hands on for each sample.
fn boundary(model: &ModelSteps, step: usize) -> u32 {
    let shape = model.shapes.get(step);
    shape.map_or(0, |[positions, features]| (positions * features) as u32)
}

/// Whether the steps of a run's manifest are those of this model.
pub fn is_of(split: &Split, model: &ModelSteps) -> bool {
    let same = |(at, step): (usize, &Step)| {
        (&step.ranges, step.boundary) == (&model.ranges(at), boundary(model, at))
    };
    split.steps.len() == model.steps() && split.steps.iter().enumerate().all(same)
}

impl SplitModel {
    /// Before anything was asked for.
    pub fn new(model: Arc<ModelSteps>, split: Split, make: Box<MakeSpan>) -> Self {
        Self {
            model,
            split,
            make,
            workers: Vec::new(),
            #[cfg(not(target_family = "wasm"))]
            acted: acted::Acted::default(),
        }
    }

    /// Does one pass of a microbatch. `samples` are those at the positions of the work: without any it takes in the weights alone,
    /// ahead of the first.
    ///
    /// # Errors
    ///
    /// If the device fails, or what came of it is no number.
    pub async fn pass(&mut self, mut work: SpanWork, samples: &[u64]) -> Result<SpanDone, WorkerError> {
        let worker = self.worker(work.steps, work.round)?;
        if let Some(weights) = work.pass.weights.take() {
            worker.load(weights)?;
        }
        if samples.is_empty() {
            return Ok(SpanDone::default());
        }
        pass(worker, work.pass, samples).await
    }

    /// What computes some steps. As it is made, the parameters of all spans leave the device that have computed nothing since the
    /// round before: another member has them, or the model is cut otherwise by now.
    fn worker(&mut self, steps: Range<usize>, round: Round) -> Result<&mut dyn SpanWorker, WorkerError> {
        let at = match self.workers.iter().position(|at_work| at_work.steps == steps) {
            Some(at) => at,
            None => {
                self.workers.retain(|at_work| {
                    let apart = at_work.steps.end <= steps.start || steps.end <= at_work.steps.start;
                    apart && at_work.round + 1 >= round
                });
                let worker = (self.make)(steps.clone())?;
                #[cfg(not(target_family = "wasm"))]
                let worker = self.acted.instead_of(worker, &self.split, steps.clone());
                self.workers.push(AtWork { steps, round, worker });
                self.workers.len() - 1
            }
        };
        self.workers[at].round = round;
        Ok(&mut *self.workers[at].worker)
    }

    /// Does a forward and a backward pass of the step that takes most of the time, on nothing and with parameters of zero, so
    /// that the device's speed is known and its kernels are built. As how many samples in one span that counts, which is what
    /// speeds are in where a model is split.
    ///
    /// # Errors
    ///
    /// If the device fails.
    pub async fn try_out(&mut self) -> Result<f64, WorkerError> {
        let inner = 1..self.model.steps() - 1;
        let spans = self.split.spans.len() as f64;
        let Some(step) = inner.max_by_key(|step| self.split.steps[*step].cost) else {
            return Ok(spans);
        };
        let mut worker = (self.make)(step..step + 1)?;
        let len = self.split.steps[step].len();
        let share = self.split.share(step..step + 1);
        let zeros = |of: usize| {
            let [positions, features] = self.model.shapes[of];
            activation(&self.model, of, vec![0.0; positions * features])
        };
        worker.load(vec![0.0; len])?;
        worker
            .backward(0, &[], Some(zeros(step - 1)?), Some(zeros(step)?))
            .await?;
        Ok(share * spans)
    }
}

/// How fast a device is to seem that is another.
#[cfg(not(target_family = "wasm"))]
mod acted {
    use super::super::TimedSpan;
    use super::{Range, SpanWorker, Split, SplitModel};
    use std::time::Duration;

    #[derive(Debug, Default)]
    pub(super) struct Acted {
        /// A sample through the whole model, forward and backward, on a device that computes nothing.
        sample_takes: Option<Duration>,
    }

    impl SplitModel {
        /// Has it compute nothing from here on, and take so long for each sample that goes through all of the model, forward and
        /// backward: a span takes its part of that.
        pub fn act(&mut self, sample_takes: Option<Duration>) {
            self.acted = Acted { sample_takes };
        }
    }

    impl Acted {
        /// A span's worker, or one that takes its time.
        pub fn instead_of(
            &self,
            worker: Box<dyn SpanWorker>,
            split: &Split,
            span: Range<usize>,
        ) -> Box<dyn SpanWorker> {
            let Some(sample) = self.sample_takes else {
                return worker;
            };
            let takes = sample.mul_f64(split.share(span) * f64::from(split.micro_batch.get()));
            // Backward takes twice as long, and begins with the forward pass.
            Box::new(TimedSpan::new(worker, takes / 4, takes / 4 * 3))
        }
    }
}
