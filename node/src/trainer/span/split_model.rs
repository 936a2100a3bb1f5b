//! The spans of a model that is split over the members of a run, on one device: computes what the protocol asks for.

use std::collections::BTreeMap;
use std::num::{NonZeroU16, NonZeroU32};
use std::ops::Range;
use std::sync::Arc;

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
    workers: BTreeMap<usize, Box<dyn SpanWorker>>,
    #[cfg(not(target_family = "wasm"))]
    acted: acted::Acted,
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
            workers: BTreeMap::new(),
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
        if !self.workers.contains_key(&work.span) {
            let span = self.split.span(work.span);
            let worker = (self.make)(span.clone())?;
            #[cfg(not(target_family = "wasm"))]
            let worker = self.acted.instead_of(worker, &self.split, span);
            self.workers.insert(work.span, worker);
        }
        let worker = self.workers.get_mut(&work.span).expect("it was just made");
        if let Some(weights) = work.pass.weights.take() {
            worker.load(weights)?;
        }
        if samples.is_empty() {
            return Ok(SpanDone::default());
        }
        pass(&mut **worker, work.pass, samples).await
    }

    /// Forgets the spans that are not among these: their parameters leave the device.
    pub fn retain(&mut self, spans: &[usize]) {
        self.workers.retain(|span, _| spans.contains(span));
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
