//! The threads that compute: one for contributions, one for evaluations, so that neither delays the other or the
//! network. Each makes its own [`Worker`], the second only when it is first needed.

use super::compute::{ComputeResult, warm_up};
use super::gpu_memory::Limit;
use super::limits::{Pace, be_nice, processor_time};
use crate::task::{Eval, Prompt};
use crate::task_factory::WorkerFactory;
use crate::trainer::span::SplitModel;
use crate::trainer::{Contributor, Share, Worker, WorkerError};
use annulus_core::interface::SpanWork;
use annulus_core::{Input, Manifest, Round};
use burn::tensor::read_sync;
use std::future::ready;
use std::pin::Pin;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;

/// The threads' results for the driver.
#[derive(Debug)]
pub enum WorkerResult {
    /// The result of a contribution, or of trying the device out.
    Computed(Box<ComputeResult>),
    /// An evaluation of the parameters after a round.
    Evaluated(Round, Result<Option<Eval>, WorkerError>),
    /// A text by the model after a round, and how long it took.
    Wrote(Round, Result<String, WorkerError>, Duration),
}

enum Job {
    Warm { samples: u64 },
    Expect { samples: Vec<u64> },
    Contribute { round: Round, share: Share },
    Span { work: Box<SpanWork>, samples: Vec<u64> },
}

/// What is wanted of the parameters after a round.
struct Look {
    round: Round,
    params: Vec<f32>,
    /// A text of this number of tokens; none: scores.
    tokens: Option<usize>,
}

/// The workers of a peer.
pub enum Engine {
    /// A whole model on this thread, and a factory of another worker for evaluations if there are any.
    Whole(Box<dyn Worker>, Option<WorkerFactory>),
    /// Spans of a split model. Nobody evaluates it, since nobody has all of it.
    Spans(Box<SplitModel>),
}

/// Limits on the machine's resources.
pub struct Limits {
    /// The share of the device's time.
    pub pace: Pace,
    /// The niceness of the threads.
    pub nice: u8,
    /// The limit on GPU memory.
    pub memory: Option<Limit>,
}

/// Senders of jobs. The threads end when this is dropped and their last job is done.
pub struct Workers {
    jobs: mpsc::Sender<Job>,
    evaluations: Option<mpsc::SyncSender<Look>>,
}

impl Workers {
    /// Starts the threads. Their results come through `results`, at most one per job.
    pub fn start(
        engine: Engine,
        manifest: &Manifest,
        limits: Limits,
        results: UnboundedSender<WorkerResult>,
    ) -> Self {
        let (jobs, queue) = mpsc::channel();
        let nice = limits.nice;
        let (worker, worker_factory) = match engine {
            Engine::Whole(worker, worker_factory) => (worker, worker_factory),
            Engine::Spans(spans) => {
                spawn("annulus-compute", move || {
                    be_nice(nice);
                    compute_spans(*spans, limits, &queue, &results)
                });
                let evaluations = None;
                return Self { jobs, evaluations };
            }
        };
        let (to, contributor) = (results.clone(), Contributor::new(manifest));
        spawn("annulus-compute", move || {
            be_nice(nice);
            compute((worker, contributor), limits, &queue, &to)
        });
        let Some(worker_factory) = worker_factory else {
            let evaluations = None;
            return Self { jobs, evaluations };
        };
        // Two waiting evaluations hold two copies of the parameters; more are not worth the memory.
        let (evaluations, queue) = mpsc::sync_channel::<Look>(1);
        spawn("annulus-evaluate", move || {
            be_nice(nice);
            evaluate(&worker_factory, &queue, &results)
        });
        let evaluations = Some(evaluations);
        Self { jobs, evaluations }
    }

    /// Tries the device out, for a task with this many samples: see [`warm_up`].
    pub fn warm(&self, samples: u64) {
        let _ = self.jobs.send(Job::Warm { samples });
    }

    /// Asks for the streamed data of these draws.
    pub fn expect(&self, samples: Vec<u64>) {
        let _ = self.jobs.send(Job::Expect { samples });
    }

    /// Makes a contribution.
    pub fn contribute(&self, round: Round, share: Share) {
        let _ = self.jobs.send(Job::Contribute { round, share });
    }

    /// Computes a pass through a span.
    pub fn compute_span(&self, work: Box<SpanWork>, samples: Vec<u64>) {
        let _ = self.jobs.send(Job::Span { work, samples });
    }

    /// Whether this peer evaluates.
    pub fn evaluates(&self) -> bool {
        self.evaluations.is_some()
    }

    /// Evaluates parameters, unless two evaluations wait already. Returns whether it will.
    pub fn evaluate(&self, round: Round, params: &[f32]) -> bool {
        self.look(round, params, None)
    }

    /// Has the model with these parameters write, likewise.
    pub fn write(&self, round: Round, params: &[f32], tokens: usize) -> bool {
        self.look(round, params, Some(tokens))
    }

    fn look(&self, round: Round, params: &[f32], tokens: Option<usize>) -> bool {
        let look = |to: &mpsc::SyncSender<Look>| {
            let params = params.to_vec();
            to.try_send(Look {
                round,
                params,
                tokens,
            })
            .is_ok()
        };
        self.evaluations.as_ref().is_some_and(look)
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    thread::Builder::new()
        .name(name.into())
        .spawn(body)
        .expect("the system has no thread left");
}

fn compute(
    (mut worker, mut contributor): (Box<dyn Worker>, Contributor),
    Limits { mut pace, memory, .. }: Limits,
    jobs: &mpsc::Receiver<Job>,
    results: &UnboundedSender<WorkerResult>,
) {
    let start = Instant::now();
    let parameters = worker.layout().len;
    while let Ok(job) = jobs.recv() {
        let result = match job {
            Job::Warm { samples } => {
                let gradient = async |params, samples: &[u64]| worker.gradient(params, samples).await;
                match read_sync(warm_up(gradient, || start.elapsed(), parameters, samples)) {
                    ComputeResult::Made(Input::Warm { speed }) => {
                        worker.keep_launches_short(speed as f64 / 1000.0);
                        let speed = pace.speed(speed);
                        ComputeResult::Made(Input::Warm { speed })
                    }
                    other => other,
                }
            }
            Job::Contribute { round, share } => {
                let start = Instant::now();
                thread::sleep(pace.rest(start));
                let awake = Instant::now();
                let made = read_sync(contributor.contribute(&mut *worker, share));
                pace.worked(awake, Instant::now(), processor_time);
                // The time for the rest delays others too, so shares must account for both.
                ComputeResult::of(round, made, start.elapsed().saturating_sub(worker.waited()))
            }
            Job::Expect { samples } => {
                worker.expect(&samples);
                continue;
            }
            Job::Span { .. } => unreachable!("the model is not split"),
        };
        if let Some(memory) = &memory {
            memory.keep();
        }
        if results.send(WorkerResult::Computed(Box::new(result))).is_err() {
            return;
        }
    }
}

fn compute_spans(
    mut spans: SplitModel,
    Limits { mut pace, .. }: Limits,
    jobs: &mpsc::Receiver<Job>,
    results: &UnboundedSender<WorkerResult>,
) {
    while let Ok(job) = jobs.recv() {
        let start = Instant::now();
        let result = match job {
            Job::Warm { .. } => match read_sync(spans.try_out()) {
                Ok(samples) => {
                    let speed = 1000.0 * samples / start.elapsed().as_secs_f64().max(1e-6);
                    let speed = pace.speed(speed as u64);
                    ComputeResult::Made(Input::Warm { speed })
                }
                Err(error) => ComputeResult::Failed(None, error),
            },
            Job::Span { work, samples } => {
                thread::sleep(pace.rest(start));
                let awake = Instant::now();
                let done = read_sync(spans.pass(*work, &samples));
                pace.worked(awake, Instant::now(), processor_time);
                ComputeResult::of_span(done, start.elapsed())
            }
            // Their data is never streamed.
            Job::Expect { .. } => continue,
            Job::Contribute { .. } => unreachable!("the model is split"),
        };
        if results.send(WorkerResult::Computed(Box::new(result))).is_err() {
            return;
        }
    }
}

fn evaluate(
    worker_factory: &WorkerFactory,
    jobs: &mpsc::Receiver<Look>,
    results: &UnboundedSender<WorkerResult>,
) {
    let mut worker = None;
    while let Ok(Look {
        round,
        params,
        tokens,
    }) = jobs.recv()
    {
        let begun = Instant::now();
        let made = match &mut worker {
            Some(worker) => Ok(worker),
            None => worker_factory().map(|made| worker.insert(made)),
        };
        let result = match tokens {
            None => WorkerResult::Evaluated(round, made.and_then(|worker| worker.score(params))),
            Some(tokens) => {
                let text = made.and_then(|worker| write(&mut **worker, params, (round, tokens)));
                WorkerResult::Wrote(round, text, begun.elapsed())
            }
        };
        if results.send(result).is_err() {
            return;
        }
    }
}

/// A text without a prompt, another one after each round.
fn write(
    worker: &mut dyn Worker,
    params: Vec<f32>,
    (round, tokens): (Round, usize),
) -> Result<String, WorkerError> {
    worker.load(params)?;
    let prompt = Prompt {
        text: String::new(),
        tokens,
        temperature: 0.8,
        top_k: 200,
        seed: round,
    };
    let mut text = String::new();
    let mut emit = |piece: &str| -> Pin<Box<dyn Future<Output = ()>>> {
        text.push_str(piece);
        Box::pin(ready(()))
    };
    read_sync(worker.generate(&prompt, &mut emit))?;
    Ok(text)
}
