//! The threads that compute: one for contributions, one for evaluations, so that neither delays the other
//! or the network. Each makes its own [`Worker`]; the second only when it is first needed.

use crate::task::Eval;
use crate::task_factory::WorkerFactory;
use crate::trainer::{Worker, WorkerError};
use annulus_core::{Input, Round};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;

/// What the threads tell the loop.
#[derive(Debug)]
pub enum ComputeResult {
    /// The device was tried out: this many samples per 1,000 seconds.
    Warm(u64),
    /// A contribution.
    Made(Input),
    /// A contribution could not be made; an empty one stands for it.
    Refused(Input, WorkerError),
    /// The device cannot go on.
    Failed(WorkerError),
    /// An evaluation of the parameters after a round.
    Evaluated(Round, Result<Option<Eval>, WorkerError>),
}

enum Job {
    Warm {
        params: Vec<f32>,
        samples: Vec<u64>,
    },
    Contribute {
        round: Round,
        samples: Vec<u64>,
        buffer: Vec<f32>,
    },
}

/// Senders of jobs. The threads end when this is dropped and their last job is done.
pub struct Workers {
    jobs: mpsc::Sender<Job>,
    evaluations: mpsc::SyncSender<(Round, Vec<f32>)>,
}

impl Workers {
    /// Starts the threads; what they find out comes through `results`, at most one result for each job.
    pub fn start(
        worker: Box<dyn Worker>,
        worker_factory: WorkerFactory,
        results: UnboundedSender<ComputeResult>,
    ) -> Self {
        let (jobs, queue) = mpsc::channel();
        let to = results.clone();
        spawn("annulus-compute", move || compute(worker, &queue, &to));
        // Two waiting evaluations hold two copies of the parameters; more are not worth their memory.
        let (evaluations, queue) = mpsc::sync_channel::<(Round, Vec<f32>)>(1);
        spawn("annulus-evaluate", move || {
            evaluate(&worker_factory, &queue, &results)
        });
        Self { jobs, evaluations }
    }

    /// Tries the device out on some samples, so that its speed is known and its kernels are built.
    pub fn warm(&self, params: Vec<f32>, samples: Vec<u64>) {
        let _ = self.jobs.send(Job::Warm { params, samples });
    }

    /// Makes a contribution.
    pub fn contribute(&self, round: Round, samples: Vec<u64>, buffer: Vec<f32>) {
        let _ = self.jobs.send(Job::Contribute {
            round,
            samples,
            buffer,
        });
    }

    /// Evaluates parameters, unless two evaluations wait already. Says whether it will.
    pub fn evaluate(&self, round: Round, params: &[f32]) -> bool {
        self.evaluations.try_send((round, params.to_vec())).is_ok()
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    thread::Builder::new()
        .name(name.into())
        .spawn(body)
        .expect("the system has no thread left");
}

fn compute(
    mut worker: Box<dyn Worker>,
    jobs: &mpsc::Receiver<Job>,
    results: &UnboundedSender<ComputeResult>,
) {
    while let Ok(job) = jobs.recv() {
        let result = match job {
            Job::Warm { params, samples } => warm(&mut *worker, params, &samples),
            Job::Contribute {
                round,
                samples,
                buffer,
            } => contribute(&mut *worker, round, &samples, buffer),
        };
        if results.send(result).is_err() {
            return;
        }
    }
}

fn warm(worker: &mut dyn Worker, mut params: Vec<f32>, samples: &[u64]) -> ComputeResult {
    // The first pass builds kernels and fills caches; the second is what rounds will be like.
    let mut took = Duration::ZERO;
    for _ in 0..2 {
        let start = Instant::now();
        match worker.contribute(params, samples) {
            Ok(made) => params = made.gradient,
            Err(WorkerError::LossNotFinite | WorkerError::GradientNotFinite { .. }) => {
                // Zeros in place of the parameters may well do that; the speed is the same.
                params = vec![0.0; worker.layout().len];
            }
            Err(error) => return ComputeResult::Failed(error),
        }
        took = start.elapsed();
        params.fill(0.0);
    }
    let speed = samples.len() as f64 * 1000.0 / took.as_secs_f64().max(1e-6);
    ComputeResult::Warm(speed as u64)
}

fn contribute(worker: &mut dyn Worker, round: Round, samples: &[u64], buffer: Vec<f32>) -> ComputeResult {
    let start = Instant::now();
    match worker.contribute(buffer, samples) {
        Ok(made) => ComputeResult::Made(Input::Contribution {
            round,
            gradient: made.gradient,
            weight: made.samples,
            loss: made.loss_sum,
            compute: start.elapsed(),
        }),
        Err(error @ (WorkerError::LossNotFinite | WorkerError::GradientNotFinite { .. })) => {
            let empty = Input::Contribution {
                round,
                gradient: Vec::new(),
                weight: 0,
                loss: 0.0,
                compute: start.elapsed(),
            };
            ComputeResult::Refused(empty, error)
        }
        Err(error) => ComputeResult::Failed(error),
    }
}

fn evaluate(
    worker_factory: &WorkerFactory,
    jobs: &mpsc::Receiver<(Round, Vec<f32>)>,
    results: &UnboundedSender<ComputeResult>,
) {
    let mut worker = None;
    while let Ok((round, params)) = jobs.recv() {
        let result = match &mut worker {
            Some(worker) => Ok(worker),
            None => worker_factory().map(|made| worker.insert(made)),
        };
        let result = result.and_then(|worker| worker.evaluate(&params));
        if results.send(ComputeResult::Evaluated(round, result)).is_err() {
            return;
        }
    }
}
