//! Computes a member's share of a round: the sum of gradients, or the delta of its local steps.

use super::worker::{Contribution, LocalStep, Stepper, Worker, WorkerError};
use annulus_core::Manifest;
use annulus_core::local::{LocalOptimizer, LocalRound};
use std::ops::Range;

/// The work of a member in a round.
#[derive(Clone, Debug)]
pub struct Share {
    /// Samples of the data set, in the order in which they count.
    pub samples: Vec<u64>,
    /// Those that a later share will probably have, if the data is streamed.
    pub ahead: Vec<u64>,
    /// The parameters. The result comes in the same allocation.
    pub params: Vec<f32>,
    /// How to take local steps; none: only sum gradients.
    pub local: Option<LocalRound>,
}

/// Makes the contributions to one run's rounds. Holds what survives from one round to the next: the local optimizer.
pub struct Contributor {
    manifest: Manifest,
    optimizer: Option<LocalOptimizer>,
}

impl Contributor {
    /// A contributor to this run.
    pub fn new(manifest: &Manifest) -> Self {
        Self {
            manifest: manifest.clone(),
            optimizer: None,
        }
    }

    /// Makes a contribution.
    ///
    /// # Errors
    ///
    /// As [`Worker::gradient`].
    pub async fn contribute(
        &mut self,
        worker: &mut dyn Worker,
        share: Share,
    ) -> Result<Contribution, WorkerError> {
        let Share {
            samples,
            ahead,
            params,
            local,
        } = share;
        // All at once, so that their data comes together.
        worker.expect(&samples);
        let made = match local {
            None => worker.gradient(params, &samples).await,
            Some(round) => {
                let manifest = &self.manifest;
                let optimizer = self
                    .optimizer
                    .get_or_insert_with(|| LocalOptimizer::new(manifest));
                local_steps(worker, manifest, (&round, optimizer), params, &samples).await
            }
        };
        // Later, since this share's data comes first.
        worker.expect(&ahead);
        made
    }
}

/// The delta of a round's local steps: (parameters before minus parameters after) times the samples of the share that
/// were computed. After the first part of a share alone the result stays in the optimizer.
///
/// # Errors
///
/// As [`Worker::gradient`].
pub async fn local_steps(
    worker: &mut dyn Worker,
    manifest: &Manifest,
    (round, optimizer): (&LocalRound, &mut LocalOptimizer),
    params: Vec<f32>,
    samples: &[u64],
) -> Result<Contribution, WorkerError> {
    let start = optimizer.begin(round, &params);
    let mut contribution = params;
    let steps: Vec<_> = round.steps(samples.len()).collect();
    if let Some((_, first)) = steps.first() {
        worker.prefetch(&samples[first.clone()]);
    }
    let walk = Walk {
        manifest,
        round,
        steps: &steps,
        samples,
    };
    let walked = match worker.stepper(&manifest.optimizer) {
        Some(_) => Some(walk.on_device(worker, optimizer, start).await?),
        None => walk.on_host(worker, optimizer, start).await?,
    };
    let Some((now, loss_sum)) = walked else {
        contribution.fill(0.0);
        return Ok(Contribution {
            gradient: contribution,
            loss_sum: 0.0,
            samples: 0,
        });
    };
    let samples = round.counted(samples.len());
    optimizer.end(round, &mut contribution, now, samples);
    Ok(Contribution {
        gradient: contribution,
        loss_sum,
        samples,
    })
}

/// The local steps to take, and where they start.
struct Walk<'a> {
    manifest: &'a Manifest,
    round: &'a LocalRound,
    /// Each step's number, and its range of the samples.
    steps: &'a [(u32, Range<usize>)],
    samples: &'a [u64],
}

impl Walk<'_> {
    /// Sums the gradients of a step on the device, while the samples of the next step are read.
    fn accumulate(&self, worker: &mut dyn Worker, index: usize) -> Result<(), WorkerError> {
        worker.accumulate(&self.samples[self.steps[index].1.clone()])?;
        if let Some((_, next)) = self.steps.get(index + 1) {
            worker.prefetch(&self.samples[next.clone()]);
        }
        Ok(())
    }

    /// Takes steps on the processor: for each, parameters go to the device and gradients come back. Returns the
    /// parameters reached and the sum of the losses; nothing if the worker left samples of a step out, as one does that is
    /// about to end.
    async fn on_host(
        &self,
        worker: &mut dyn Worker,
        optimizer: &mut LocalOptimizer,
        start: Vec<f32>,
    ) -> Result<Option<(Vec<f32>, f32)>, WorkerError> {
        let (mut now, mut loss_sum) = (start, 0.0);
        let mut buffer = Vec::with_capacity(now.len());
        for (index, (step, asked)) in self.steps.iter().enumerate() {
            buffer.clear();
            buffer.extend_from_slice(&now);
            worker.load(buffer)?;
            self.accumulate(worker, index)?;
            let made = worker.take().await?;
            if (made.samples as usize) < asked.len() {
                return Ok(None);
            }
            let sum = (&made.gradient[..], made.samples);
            optimizer.step(self.manifest, (self.round, *step), &mut now, sum);
            loss_sum += made.loss_sum;
            buffer = made.gradient;
        }
        Ok(Some((now, loss_sum)))
    }

    /// Takes steps on the device: parameters go there once and come back once, and moments stay.
    async fn on_device(
        &self,
        worker: &mut dyn Worker,
        optimizer: &mut LocalOptimizer,
        start: Vec<f32>,
    ) -> Result<(Vec<f32>, f32), WorkerError> {
        worker.load(start)?;
        if self.round.fresh {
            stepper(worker, self.manifest).begin_anew();
        }
        let mut loss_sum = 0.0;
        for (index, (step, _)) in self.steps.iter().enumerate() {
            self.accumulate(worker, index)?;
            let (number, rate) = optimizer.next(self.manifest, (self.round, *step));
            let clip = self.manifest.clip;
            let step = LocalStep { number, rate, clip };
            loss_sum += stepper(worker, self.manifest).step(&step).await?;
        }
        let now = stepper(worker, self.manifest).stepped().await?;
        Ok((now, loss_sum))
    }
}

fn stepper<'a>(worker: &'a mut dyn Worker, manifest: &Manifest) -> &'a mut dyn Stepper {
    let stepper = worker.stepper(&manifest.optimizer);
    stepper.expect("a device that takes steps itself does so always")
}
