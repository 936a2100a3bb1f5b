//! The task that computes, one job after the other, while this thread does other things: a GPU works beside it, and so
//! does the processor in a worker of its own.

use crate::inner_worker::InnerWorkerHandle;
use crate::js;
use crate::queue::Queue;
use annulus::participant::compute::{ComputeResult, warm_up};
use annulus::trainer::{Contribution, Contributor, Share, Worker, WorkerError};
use annulus_core::interface::SpanWork;
use annulus_core::{Input, Round};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use wasm_bindgen_futures::spawn_local;

/// Longest pause for the sake of a power limit.
const LONGEST_REST: Duration = Duration::from_secs(10);

/// A job for the device.
pub enum Job {
    /// Try the device out on some samples, so that its speed is known and its kernels are built.
    Warm {
        /// How many there are.
        samples: u64,
    },
    /// Make a contribution.
    Contribute {
        /// Its round.
        round: Round,
        /// The share.
        share: Share,
    },
    /// Compute a pass through a span of a model that is split.
    Span {
        /// What is to be computed.
        work: Box<SpanWork>,
        /// The microbatch's samples.
        samples: Vec<u64>,
    },
}

/// What computes.
pub enum ComputeBackend {
    /// A GPU, from this thread.
    Here(Box<dyn Worker>, Contributor),
    /// The processor, in the inner worker.
    InnerWorker(InnerWorkerHandle),
    /// The same, with spans of a model that is split.
    Spans(InnerWorkerHandle),
}

/// The task that computes, as others see it.
pub struct Compute {
    /// Jobs for it.
    pub jobs: Queue<Job>,
    /// One for each job.
    pub results: Queue<ComputeResult>,
    /// Share of the time that the device may be busy, above 0 and at most 1.
    pub power: Rc<Cell<f64>>,
}

impl Compute {
    /// Starts it, for a model with this number of parameters.
    pub fn start(backend: ComputeBackend, parameters: usize, power: f64) -> Self {
        let compute = Self {
            jobs: Queue::default(),
            results: Queue::default(),
            power: Rc::new(Cell::new(power)),
        };
        let (jobs, results, power) = (
            compute.jobs.clone(),
            compute.results.clone(),
            compute.power.clone(),
        );
        let mut device = Device { backend, parameters };
        spawn_local(async move {
            loop {
                let result = match jobs.next().await {
                    Job::Warm { samples } => device.warm(samples).await,
                    Job::Contribute { round, share } => device.contribute(round, share, &power).await,
                    Job::Span { work, samples } => device.pass(*work, &samples, &power).await,
                };
                results.push(result);
            }
        });
        compute
    }
}

struct Device {
    backend: ComputeBackend,
    parameters: usize,
}

impl Device {
    async fn warm(&mut self, samples: u64) -> ComputeResult {
        if let ComputeBackend::Spans(worker) = &self.backend {
            let start = clock();
            return match worker.try_out().await {
                Ok(samples) => {
                    let speed = 1000.0 * samples / (clock() - start).as_secs_f64().max(1e-6);
                    ComputeResult::Made(Input::Warm { speed: speed as u64 })
                }
                Err(error) => ComputeResult::Failed(None, error),
            };
        }
        let parameters = self.parameters;
        let gradient = async |params, samples: &[u64]| {
            let samples = samples.to_vec();
            let local = None;
            self.make(Share {
                samples,
                ahead: Vec::new(),
                params,
                local,
            })
            .await
        };
        let result = warm_up(gradient, clock, parameters, samples).await;
        if let (ComputeBackend::Here(worker, _), ComputeResult::Made(Input::Warm { speed })) =
            (&mut self.backend, &result)
        {
            worker.keep_launches_short(*speed as f64 / 1000.0);
        }
        result
    }

    async fn contribute(&mut self, round: Round, share: Share, power: &Cell<f64>) -> ComputeResult {
        let start = clock();
        let made = self.make(share).await;
        // The rest is part of the time that the share took, so that the share becomes smaller.
        rest(start, power).await;
        ComputeResult::of(round, made, clock() - start)
    }

    async fn pass(&mut self, work: SpanWork, samples: &[u64], power: &Cell<f64>) -> ComputeResult {
        let start = clock();
        let ComputeBackend::Spans(worker) = &self.backend else {
            unreachable!("the model is not split");
        };
        let done = worker.pass(work, samples).await;
        rest(start, power).await;
        ComputeResult::of_span(done, clock() - start)
    }

    async fn make(&mut self, share: Share) -> Result<Contribution, WorkerError> {
        match &mut self.backend {
            ComputeBackend::Here(worker, contributor) => contributor.contribute(&mut **worker, share).await,
            ComputeBackend::InnerWorker(worker) => worker.contribute(share).await,
            ComputeBackend::Spans(_) => unreachable!("the model is split"),
        }
    }
}

/// After work that began then, as long as the limit of power asks for.
async fn rest(start: Duration, power: &Cell<f64>) {
    let rest = (clock() - start).mul_f64(1.0 / power.get().clamp(0.01, 1.0) - 1.0);
    if rest >= Duration::from_millis(1) {
        js::sleep(1000.0 * rest.min(LONGEST_REST).as_secs_f64()).await;
    }
}

/// The time since the worker began.
fn clock() -> Duration {
    Duration::from_micros(js::now())
}
