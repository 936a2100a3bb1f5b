//! Computes a peer's spans of a split model on one device, as the protocol asks for it.

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

/// Makes the worker of some steps.
pub type MakeSpan = dyn Fn(Range<usize>) -> Result<Box<dyn SpanWorker>, WorkerError> + Send;

/// The workers of the spans that this peer was asked to compute.
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
    /// The last round in which it has computed something.
    round: Round,
    worker: Box<dyn SpanWorker>,
}

/// How a run's founder cuts a model.
#[derive(Clone, Copy, Debug)]
pub struct Cut<'a> {
    /// Where each span begins and ends.
    pub spans: &'a [Range<usize>],
    /// The relative cost of each step.
    pub costs: &'a [u32],
    /// Samples of a microbatch.
    pub micro_batch: NonZeroU32,
    /// The codec of activations.
    pub boundary: Codec,
    /// Lanes in a round.
    pub lanes: NonZeroU16,
}

impl Cut<'_> {
    /// The cut as the manifest has it.
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

/// How many numbers a step passes on for each sample.
fn boundary(model: &ModelSteps, step: usize) -> u32 {
    let shape = model.shapes.get(step);
    shape.map_or(0, |[positions, features]| (positions * features) as u32)
}

/// Whether the steps in a run's manifest are those of this model.
pub fn is_of(split: &Split, model: &ModelSteps) -> bool {
    let same = |(at, step): (usize, &Step)| {
        (&step.ranges, step.boundary) == (&model.ranges(at), boundary(model, at))
    };
    split.steps.len() == model.steps() && split.steps.iter().enumerate().all(same)
}

impl SplitModel {
    /// Without any worker yet.
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

    /// Does one pass of a microbatch. `samples` are those at the positions of the work. Without samples it only loads
    /// the weights, so that the first microbatch finds them there.
    ///
    /// # Errors
    ///
    /// If the device fails, or a loss or a sum is not finite.
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

    /// The worker of some steps. Making a new one drops the spans that overlap with it, or that have computed nothing
    /// since the round before: another member has them, or the model was cut anew.
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

    /// Runs the most costly inner step forward and backward on zeros, to measure the device and to build its kernels.
    /// Returns how many samples that counts as, in the unit of speeds of a split model: samples of a span of average
    /// cost.
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
            .backward(&[], Some(zeros(step - 1)?), Some(zeros(step)?), vec![0.0; len])
            .await?;
        Ok(share * spans)
    }
}

/// Makes the device seem to have another speed.
#[cfg(not(target_family = "wasm"))]
mod acted {
    use super::super::TimedSpan;
    use super::{Range, SpanWorker, Split, SplitModel};
    use std::time::Duration;

    #[derive(Debug, Default)]
    pub(super) struct Acted {
        /// How long a sample takes through the whole model, forward and backward; none: the device really computes.
        sample_takes: Option<Duration>,
    }

    impl SplitModel {
        /// From here on computes nothing and sleeps instead: this long for a sample through the whole model, of which
        /// each span takes its part.
        pub fn act(&mut self, sample_takes: Option<Duration>) {
            self.acted = Acted { sample_takes };
        }
    }

    impl Acted {
        /// The span's worker, or one that sleeps in its place.
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
            // Backward takes twice as long as forward, and begins with a forward pass.
            Box::new(TimedSpan::new(worker, takes / 4, takes / 4 * 3))
        }
    }
}
