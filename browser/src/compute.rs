//! The task that computes, one job after the other, and lets the network have its turn.
//!
//! A GPU works while this thread does other things. Burn's CPU backend works on this thread, so its samples are taken a few
//! at a time: members of the ring ask each other whether they are there, and a second of silence is a long one.

use crate::js;
use crate::queue::Queue;
use crate::report::Page;
use annulus::events::Event;
use annulus::recipe::Maker;
use annulus::task::Prompt;
use annulus::trainer::{Contribution, Worker, WorkerError};
use annulus_core::{Input, Round};
use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;
use wasm_bindgen_futures::spawn_local;

/// How long the CPU backend may hold the thread, about: far below the second after which others wonder.
const HOLD_MS: f64 = 150.0;

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
pub enum Report {
    /// The protocol is to be told.
    Made(Input),
    /// A contribution could not be made; an empty one stands for it.
    Refused(Input, WorkerError),
    /// The device cannot go on.
    Failed(WorkerError),
}

/// The task that computes, as others see it.
pub struct Compute {
    /// Jobs for it.
    pub jobs: Queue<Job>,
    /// One for each job.
    pub reports: Queue<Report>,
    /// Share of the time that the device may be busy, above 0 and at most 1.
    pub power: Rc<Cell<f64>>,
    /// To be counted up with all that the network has to do.
    pub network: Rc<Cell<u64>>,
}

impl Compute {
    /// Starts it.
    pub fn start(worker: Box<dyn Worker>, holds_thread: bool, power: f64) -> Self {
        let compute = Self {
            jobs: Queue::default(),
            reports: Queue::default(),
            power: Rc::new(Cell::new(power)),
            network: Rc::default(),
        };
        let (jobs, reports, power) = (
            compute.jobs.clone(),
            compute.reports.clone(),
            compute.power.clone(),
        );
        let mut machine = Machine {
            worker,
            holds_thread,
            at_once: 1,
            network: compute.network.clone(),
        };
        spawn_local(async move {
            loop {
                let report = match jobs.next().await {
                    Job::Warm { samples } => machine.warm(&samples).await,
                    Job::Contribute {
                        round,
                        samples,
                        buffer,
                    } => machine.contribute(round, samples, buffer, &power).await,
                };
                reports.push(report);
            }
        });
        compute
    }
}

/// Writes samples of text, beside the contributions and with a worker of its own: a text takes longer than a round.
pub struct Author {
    jobs: Queue<(Vec<f32>, Prompt)>,
    busy: Rc<Cell<bool>>,
}

impl Author {
    /// `maker` makes the worker when it is first needed.
    pub fn start(maker: Maker, page: Rc<Page>) -> Self {
        let author = Self {
            jobs: Queue::default(),
            busy: Rc::default(),
        };
        let (jobs, busy) = (author.jobs.clone(), author.busy.clone());
        spawn_local(async move {
            let mut worker = None;
            loop {
                let (params, prompt) = jobs.next().await;
                let made = match worker.take() {
                    Some(worker) => Ok(worker),
                    None => maker(),
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
        author
    }

    /// Writes, unless it does already.
    pub fn write(&self, params: &[f32], prompt: Prompt) {
        if !self.busy.replace(true) {
            self.jobs.push((params.to_vec(), prompt));
        }
    }
}

struct Machine {
    worker: Box<dyn Worker>,
    holds_thread: bool,
    /// Samples that the CPU backend does in about [`HOLD_MS`]. Found by doubling and halving: a large model takes most of
    /// the time whatever the number of samples.
    at_once: usize,
    /// Counts what the network had to do.
    network: Rc<Cell<u64>>,
}

impl Machine {
    /// The first pass builds kernels and fills caches. Then ever more samples, as long as they take no time to speak of: of
    /// a large model one sample may take seconds.
    async fn warm(&mut self, samples: &[u64]) -> Report {
        // What the parameters are makes no difference to the speed.
        let mut params = vec![0.0; self.worker.layout().len];
        let mut count = 1;
        let mut first = true;
        loop {
            let start = js::now();
            match self.gradient(params, &samples[..count]).await {
                Ok(made) => params = made.gradient,
                // Zeros in place of the parameters may well do that.
                Err(WorkerError::LossNotFinite | WorkerError::GradientNotFinite { .. }) => {
                    params = vec![0.0; self.worker.layout().len];
                }
                Err(error) => return Report::Failed(error),
            }
            let took = seconds(start);
            params.fill(0.0);
            if !std::mem::take(&mut first) && (count == samples.len() || took > WARM_SECONDS) {
                let speed = (count as f64 * 1000.0 / took.max(1e-6)) as u64;
                return Report::Made(Input::Warm { speed });
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
    ) -> Report {
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
            Ok(made) => Report::Made(Input::Contribution {
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
                Report::Refused(empty, error)
            }
            Err(error) => Report::Failed(error),
        }
    }

    /// Lets the network do what it has to, for as long as the thread was held.
    async fn give_way(&self, held_ms: f64) {
        let start = js::now();
        loop {
            let before = self.network.get();
            js::next_task().await;
            if self.network.get() == before || seconds(start) * 1000.0 > held_ms {
                return;
            }
        }
    }

    async fn gradient(&mut self, params: Vec<f32>, samples: &[u64]) -> Result<Contribution, WorkerError> {
        if !self.holds_thread || samples.is_empty() {
            return self.worker.gradient(params, samples).await;
        }
        let mut sum: Option<Contribution> = None;
        let mut rest = samples;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(self.at_once.min(rest.len()));
            rest = later;
            let start = js::now();
            let made = self.worker.gradient(params.clone(), now).await?;
            let held_ms = seconds(start) * 1000.0;
            if held_ms < HOLD_MS && now.len() == self.at_once {
                self.at_once = (2 * self.at_once).min(1 << 16);
            } else if held_ms > 2.0 * HOLD_MS {
                self.at_once = (self.at_once / 2).max(1);
            }
            match &mut sum {
                None => sum = Some(made),
                Some(sum) => {
                    sum.gradient
                        .iter_mut()
                        .zip(&made.gradient)
                        .for_each(|(a, b)| *a += b);
                    sum.loss_sum += made.loss_sum;
                    sum.samples += made.samples;
                }
            }
            self.give_way(held_ms).await;
        }
        Ok(sum.expect("there are samples"))
    }
}

fn seconds(since: u64) -> f64 {
    (js::now() - since) as f64 / 1e6
}
