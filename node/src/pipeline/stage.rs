//! One pipeline stage: its span, its stashes, and what it does next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, TryRecvError};

use annulus_core::codec::Codec;
use annulus_core::stages::{Work, in_flight_limit, next_work};
use burn::tensor::read_sync;

use super::message::{Answer, Boundary, Order, SharedSum, StageReport, from_bytes, to_bytes};
use super::span_state::SpanState;
use crate::trainer::WorkerError;
use crate::trainer::span::{SpanSums, SpanWorker};

/// Where a stage stands and how its neighbours hear from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageSettings {
    /// Its number, from 0.
    pub span: usize,
    /// How many there are.
    pub spans: usize,
    /// How activations and gradients travel.
    pub boundary: Codec,
    /// Microbatches that may be under way beyond those of 1F1B, for links that take time.
    pub more: u32,
}

/// Why a stage cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// It cannot compute.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// It was told what makes no sense now.
    #[error("a stage was told what it cannot do: {0}")]
    Order(&'static str),
}

/// One pipeline stage as a state machine: [`handle`](Self::handle) what it is told, then [`work`](Self::work) until there
/// is nothing to do.
pub struct Stage {
    worker: Box<dyn SpanWorker>,
    state: SpanState,
    settings: StageSettings,
    limit: u32,
    /// What has come and is not begun.
    inputs: BTreeMap<u32, Job>,
    /// What waits for its backward pass: the span's input alone, as it came.
    stash: BTreeMap<u32, Job>,
    gradients: BTreeMap<u32, Boundary>,
    /// Microbatches of this round, until they are summed up.
    round: Option<u32>,
    /// Those whose backward pass is done.
    done: BTreeSet<u32>,
    /// The round's sums, and what has come of them.
    sums: Option<SpanSums>,
    gradient: Vec<f32>,
    report: StageReport,
}

/// A microbatch.
struct Job {
    samples: Vec<u64>,
    input: Option<Boundary>,
}

impl Job {
    fn bytes(&self) -> usize {
        let input = self.input.as_ref().map_or(0, |input| input.bytes.len());
        input + 8 * self.samples.len()
    }
}

impl Stage {
    /// With the span's parameters as they are in `state`.
    ///
    /// # Errors
    ///
    /// If they do not fit the worker.
    pub fn new(
        mut worker: Box<dyn SpanWorker>,
        state: SpanState,
        settings: StageSettings,
    ) -> Result<Self, StageError> {
        worker.load(state.params().to_vec())?;
        Ok(Self {
            worker,
            state,
            limit: in_flight_limit(settings.span, settings.spans, settings.more),
            settings,
            inputs: BTreeMap::new(),
            stash: BTreeMap::new(),
            gradients: BTreeMap::new(),
            round: None,
            done: BTreeSet::new(),
            sums: None,
            gradient: Vec::new(),
            report: StageReport::default(),
        })
    }

    fn is_last(&self) -> bool {
        self.settings.span + 1 == self.settings.spans
    }

    /// Takes what it is told; what that is answered with, if at once.
    ///
    /// # Errors
    ///
    /// If it makes no sense now, or the parameters cannot be loaded.
    pub fn handle(&mut self, order: Order) -> Result<Option<Answer>, StageError> {
        match order {
            Order::Begin { microbatches } => self.round = Some(microbatches),
            Order::Forward {
                microbatch,
                samples,
                input,
            } => {
                if input.is_none() != (self.settings.span == 0) {
                    return Err(StageError::Order(
                        "an input for the first span, or none for another",
                    ));
                }
                self.inputs.insert(microbatch, Job { samples, input });
            }
            Order::Backward { microbatch, gradient } => {
                if !self.stash.contains_key(&microbatch) {
                    return Err(StageError::Order("a gradient of what is not stashed"));
                }
                self.gradients.insert(microbatch, gradient);
            }
            Order::Combine { shared } => return self.combine(shared).map(Some),
            Order::Apply { lr, step, scale } => {
                let gradient = std::mem::take(&mut self.gradient);
                if gradient.len() != self.state.params().len() {
                    return Err(StageError::Order("to step without a gradient"));
                }
                self.state.apply(lr, step, scale, &gradient);
                self.worker.load(self.state.params().to_vec())?;
                return Ok(Some(Answer::Applied));
            }
            Order::Export { gradient } => {
                let values = if gradient {
                    &self.gradient
                } else {
                    self.state.params()
                };
                let bytes = to_bytes(values);
                return Ok(Some(Answer::Exported { bytes }));
            }
            Order::Report => return Ok(Some(Answer::Report(std::mem::take(&mut self.report)))),
        }
        Ok(None)
    }

    /// Does the next piece of work, if there is one. `now_us` is asked before and after.
    ///
    /// # Errors
    ///
    /// If what came is no activation, or the worker fails.
    pub fn work(&mut self, now_us: &dyn Fn() -> u64) -> Result<Option<Answer>, StageError> {
        if self.round == Some(self.done.len() as u32) {
            return self.sum_up().map(Some);
        }
        let first = |map: &BTreeMap<u32, Job>| map.keys().next().copied();
        let backward = self.gradients.keys().next().copied();
        let in_flight = self.stash.len() as u32;
        let begin = now_us();
        let answer = match next_work(first(&self.inputs), backward, in_flight, self.limit) {
            None => return Ok(None),
            Some(Work::Forward(microbatch)) => {
                let job = self.inputs.remove(&microbatch).expect("it has come");
                if self.is_last() {
                    let answer = self.backward(microbatch, &job, None)?;
                    self.report.stashed = self.report.stashed.max(1);
                    self.report.stash_bytes = self.report.stash_bytes.max(job.bytes());
                    self.report.backward_us.push(now_us() - begin);
                    return Ok(Some(answer));
                }
                let answer = self.forward(microbatch, &job)?;
                self.report.forward_us.push(now_us() - begin);
                self.stash.insert(microbatch, job);
                self.report.stashed = self.report.stashed.max(self.stash.len());
                let bytes = self.stash.values().map(Job::bytes).sum();
                self.report.stash_bytes = self.report.stash_bytes.max(bytes);
                answer
            }
            Some(Work::Backward(microbatch)) => {
                let job = self.stash.remove(&microbatch).expect("it is stashed");
                let gradient = self.gradients.remove(&microbatch);
                let answer = self.backward(microbatch, &job, gradient)?;
                self.report.backward_us.push(now_us() - begin);
                answer
            }
        };
        Ok(Some(answer))
    }

    fn decode(&self, boundary: &Boundary) -> Result<crate::trainer::span::Activation, StageError> {
        let decoded = boundary.decode(self.settings.boundary);
        decoded.ok_or(StageError::Order("activations that are none"))
    }

    fn forward(&mut self, microbatch: u32, job: &Job) -> Result<Answer, StageError> {
        let input = job.input.as_ref().map(|input| self.decode(input)).transpose()?;
        let made = read_sync(self.worker.forward(&job.samples, input))?;
        let activation = Boundary::encode(&made, self.settings.boundary);
        Ok(Answer::Forth {
            microbatch,
            activation,
        })
    }

    fn backward(
        &mut self,
        microbatch: u32,
        job: &Job,
        gradient: Option<Boundary>,
    ) -> Result<Answer, StageError> {
        let input = job.input.as_ref().map(|input| self.decode(input)).transpose()?;
        let gradient = gradient.map(|gradient| self.decode(&gradient)).transpose()?;
        let passed = read_sync(self.worker.backward(microbatch, &job.samples, input, gradient))?;
        self.done.insert(microbatch);
        let gradient = passed
            .gradient
            .map(|gradient| Boundary::encode(&gradient, self.settings.boundary));
        Ok(Answer::Back { microbatch, gradient })
    }

    /// The round's sums, of which others get what they need: the gradients of tensors that their spans use, too.
    fn sum_up(&mut self) -> Result<Answer, StageError> {
        self.done.clear();
        let (round, sums) = (self.round.take(), self.worker.take()?);
        if round != Some(sums.microbatches) {
            return Err(StageError::Order("microbatches that are not numbered from 0"));
        }
        let steps = self.worker.steps();
        let model = self.worker.model();
        let mut shared = Vec::new();
        for (of, place) in &sums.uses {
            if model.users(of.tensor).any(|step| !steps.contains(&step)) {
                let bytes = to_bytes(&sums.values[place.clone()]);
                shared.push(SharedSum { of: *of, bytes });
            }
        }
        let loss_sum = sums.loss_sum;
        self.sums = Some(sums);
        Ok(Answer::Summed { loss_sum, shared })
    }

    fn combine(&mut self, shared: Vec<SharedSum>) -> Result<Answer, StageError> {
        let sums = self.sums.take().ok_or(StageError::Order("to combine no sums"))?;
        let mut others = Vec::new();
        for SharedSum { of, bytes } in shared {
            let place = self.state.place(of.tensor);
            let values = place.and_then(|place| from_bytes(&bytes, place.len()));
            others.push((of, values.ok_or(StageError::Order("a sum of another tensor"))?));
        }
        self.gradient = self.state.combine(&sums, &others);
        let squares = self.state.squares(&self.gradient);
        Ok(Answer::Norms { squares })
    }

    /// Goes on until nobody tells it anything any more, or nobody listens. An error is its last answer.
    pub fn serve(
        mut self,
        orders: &Receiver<Order>,
        now_us: &dyn Fn() -> u64,
        tell: impl Fn(Answer) -> bool,
    ) {
        loop {
            match self.turn(orders, now_us) {
                Ok(Turn::Took) => {}
                Ok(Turn::Said(answer)) => {
                    if !tell(answer) {
                        return;
                    }
                }
                Ok(Turn::Ended) => return,
                Err(error) => {
                    tell(Answer::Failed(error.to_string()));
                    return;
                }
            }
        }
    }

    /// Takes what has come before it works, and waits only if there is nothing to do.
    fn turn(&mut self, orders: &Receiver<Order>, now_us: &dyn Fn() -> u64) -> Result<Turn, StageError> {
        let order = match orders.try_recv() {
            Ok(order) => order,
            Err(TryRecvError::Disconnected) => return Ok(Turn::Ended),
            Err(TryRecvError::Empty) => match self.work(now_us)? {
                Some(answer) => return Ok(Turn::Said(answer)),
                None => match orders.recv() {
                    Ok(order) => order,
                    Err(_) => return Ok(Turn::Ended),
                },
            },
        };
        Ok(self.handle(order)?.map_or(Turn::Took, Turn::Said))
    }
}

enum Turn {
    Said(Answer),
    Took,
    Ended,
}
