//! The task that computes, one job after the other, while this thread does other things: a GPU works beside it, and so
//! does the processor in a worker of its own.

use crate::inner_worker::InnerWorkerHandle;
use crate::js;
use crate::page::Page;
use crate::queue::Queue;
use annulus::events::Event;
use annulus::task::Prompt;
use annulus::task_factory::WorkerFactory;
use annulus::trainer::{Contribution, Worker, WorkerError};
use annulus_core::{Input, Round};
use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;
use wasm_bindgen_futures::spawn_local;

/// A pass that takes longer says enough of the device's speed.
const WARM_SECONDS: f64 = 0.3;

/// Longest pause for the sake of a power limit.
const LONGEST_REST_MS: f64 = 10_000.0;

/// What there is to do.
pub enum Job {
    /// Try the device out on some samples, so that its speed is known and its kernels are built.
    Warm {
        /// The samples, of which a slow device does only the first.
        samples: Vec<u64>,
    },
    /// Make a contribution.
    Contribute {
        /// Its round.
        round: Round,
        /// The samples.
        samples: Vec<u64>,
        /// The parameters.
        buffer: Vec<f32>,
    },
}

/// What came of it.
pub enum ComputeResult {
    /// The protocol is to be told.
    Made(Input),
    /// A contribution could not be made; an empty one stands for it.
    Refused(Input, WorkerError),
    /// The device cannot go on.
    Failed(WorkerError),
}

/// What computes.
pub enum ComputeBackend {
    /// A GPU, from this thread.
    Here(Box<dyn Worker>),
    /// The processor, in the inner worker.
    Processor(InnerWorkerHandle),
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
    /// Starts it, for a model of so many parameters.
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
                    Job::Warm { samples } => device.warm(&samples).await,
                    Job::Contribute {
                        round,
                        samples,
                        buffer,
                    } => device.contribute(round, samples, buffer, &power).await,
                };
                results.push(result);
            }
        });
        compute
    }
}

/// Writes samples of text, beside the contributions and with a worker of its own: a text takes longer than a round.
pub struct TextGenerator {
    jobs: Queue<(Vec<f32>, Prompt)>,
    busy: Rc<Cell<bool>>,
}

impl TextGenerator {
    /// `worker_factory` makes the worker when it is first needed.
    pub fn start(worker_factory: WorkerFactory, page: Rc<Page>) -> Self {
        let text_generator = Self {
            jobs: Queue::default(),
            busy: Rc::default(),
        };
        let (jobs, busy) = (text_generator.jobs.clone(), text_generator.busy.clone());
        spawn_local(async move {
            let mut worker = None;
            loop {
                let (params, prompt) = jobs.next().await;
                let made = match worker.take() {
                    Some(worker) => Ok(worker),
                    None => worker_factory(),
                };
                let mut text = String::new();
                let failure = match made {
                    Ok(mut made) => {
                        let mut emit = |piece: &str| -> Pin<Box<dyn Future<Output = ()>>> {
                            text.push_str(piece);
                            page.text(&prompt.text, &text, false);
                            // On the CPU each token holds the thread.
                            Box::pin(js::next_task())
                        };
                        let written = made.write(&params, &prompt, &mut emit).await;
                        worker = Some(made);
                        written.err()
                    }
                    Err(error) => Some(error),
                };
                if let Some(error) = failure {
                    let message = format!("no text could be written: {error}");
                    page.event(&Event::Warning { message });
                }
                page.text(&prompt.text, &text, true);
                busy.set(false);
            }
        });
        text_generator
    }

    /// Writes, unless it does already.
    pub fn write(&self, params: &[f32], prompt: Prompt) {
        if !self.busy.replace(true) {
            self.jobs.push((params.to_vec(), prompt));
        }
    }
}

struct Device {
    backend: ComputeBackend,
    parameters: usize,
}

impl Device {
    /// The first pass builds kernels and fills caches. Then ever more samples, as long as they take no time to speak of: of
    /// a large model one sample may take seconds.
    async fn warm(&mut self, samples: &[u64]) -> ComputeResult {
        // What the parameters are makes no difference to the speed.
        let mut params = vec![0.0; self.parameters];
        let mut count = 1;
        let mut first = true;
        loop {
            let start = js::now();
            match self.gradient(params, &samples[..count]).await {
                Ok(made) => params = made.gradient,
                // Zeros in place of the parameters may well do that.
                Err(WorkerError::LossNotFinite | WorkerError::GradientNotFinite { .. }) => {
                    params = vec![0.0; self.parameters];
                }
                Err(error) => return ComputeResult::Failed(error),
            }
            let took = seconds(start);
            params.fill(0.0);
            if !std::mem::take(&mut first) && (count == samples.len() || took > WARM_SECONDS) {
                let speed = (count as f64 * 1000.0 / took.max(1e-6)) as u64;
                return ComputeResult::Made(Input::Warm { speed });
            }
            if took < WARM_SECONDS {
                count = (2 * count).min(samples.len());
            }
        }
    }

    async fn contribute(
        &mut self,
        round: Round,
        samples: Vec<u64>,
        buffer: Vec<f32>,
        power: &Cell<f64>,
    ) -> ComputeResult {
        let start = js::now();
        let made = self.gradient(buffer, &samples).await;
        let busy_ms = seconds(start) * 1000.0;
        // The rest is part of the time that the share took, so that the share becomes smaller.
        let rest = (busy_ms * (1.0 / power.get().clamp(0.01, 1.0) - 1.0)).min(LONGEST_REST_MS);
        if rest >= 1.0 {
            js::sleep(rest).await;
        }
        let compute = Duration::from_secs_f64(seconds(start));
        match made {
            Ok(made) => ComputeResult::Made(Input::Contribution {
                round,
                gradient: made.gradient,
                weight: made.samples,
                loss: made.loss_sum,
                compute,
            }),
            Err(error @ (WorkerError::LossNotFinite | WorkerError::GradientNotFinite { .. })) => {
                let empty = Input::Contribution {
                    round,
                    gradient: Vec::new(),
                    weight: 0,
                    loss: 0.0,
                    compute,
                };
                ComputeResult::Refused(empty, error)
            }
            Err(error) => ComputeResult::Failed(error),
        }
    }

    async fn gradient(&mut self, params: Vec<f32>, samples: &[u64]) -> Result<Contribution, WorkerError> {
        match &mut self.backend {
            ComputeBackend::Here(worker) => worker.gradient(params, samples).await,
            ComputeBackend::Processor(processor) => processor.gradient(params, samples).await,
        }
    }
}

fn seconds(since: u64) -> f64 {
    (js::now() - since) as f64 / 1e6
}
