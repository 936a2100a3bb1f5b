//! A member's share of a round, and what its device makes of it: the sum of gradients, or the way that local steps lead.

use super::worker::{Contribution, Worker, WorkerError};
use annulus_core::Manifest;
use annulus_core::local::{LocalOptimizer, LocalRound};

/// What there is to do for a round.
#[derive(Clone, Debug)]
pub struct Share {
    /// Samples of the data set, in the order in which they count.
    pub samples: Vec<u64>,
    /// The parameters. What comes of them comes in the same allocation.
    pub params: Vec<f32>,
    /// How to step, if not only gradients are to be summed.
    pub local: Option<LocalRound>,
}

/// Makes contributions to the rounds of one run. Holds what goes on from one round to the next: the local optimizer.
pub struct Contributor {
    manifest: Manifest,
    optimizer: Option<LocalOptimizer>,
}

impl Contributor {
    /// For a run.
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
            params,
            local,
        } = share;
        match local {
            None => worker.gradient(params, &samples).await,
            Some(round) => {
                let manifest = &self.manifest;
                let optimizer = self
                    .optimizer
                    .get_or_insert_with(|| LocalOptimizer::new(manifest));
                local_steps(worker, manifest, (&round, optimizer), params, &samples).await
            }
        }
    }
}

/// The way that the local steps of a round lead from the parameters: the samples, as many of the share as are there, times
/// the parameters now less those at the end. What comes of the first steps of a share alone is kept by the optimizer.
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
    let mut now = optimizer.begin(round, &params);
    let mut contribution = params;
    let (mut buffer, mut loss_sum) = (Vec::with_capacity(now.len()), 0.0);
    let mut steps = round.steps(samples.len()).peekable();
    if let Some((_, first)) = steps.peek() {
        worker.prefetch(&samples[first.clone()]);
    }
    while let Some((step, range)) = steps.next() {
        buffer.clear();
        buffer.extend_from_slice(&now);
        worker.load(buffer)?;
        worker.accumulate(&samples[range])?;
        // Read while this step is taken out.
        if let Some((_, next)) = steps.peek() {
            worker.prefetch(&samples[next.clone()]);
        }
        let made = worker.take().await?;
        optimizer.step(manifest, (round, step), &mut now, (&made.gradient, made.samples));
        loss_sum += made.loss_sum;
        buffer = made.gradient;
    }
    let samples = round.counted(samples.len());
    optimizer.end(round, &mut contribution, now, samples);
    Ok(Contribution {
        gradient: contribution,
        loss_sum,
        samples,
    })
}
