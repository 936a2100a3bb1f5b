//! Jobs for a device and their results for the protocol, whether the device works on a thread or in a browser.

use crate::trainer::{Contribution, WorkerError};
use annulus_core::interface::SpanDone;
use annulus_core::{Input, Round};
use std::time::Duration;

/// Most samples for trying a device out: enough to even out the clock, few enough to be quick.
pub const WARM_SAMPLES: u64 = 32;

/// A pass that takes longer shows the device's speed well enough.
const WARM_TIME: Duration = Duration::from_millis(300);

/// The result of a job.
#[derive(Debug)]
pub enum ComputeResult {
    /// An input for the protocol.
    Made(Input),
    /// A contribution could not be made; an empty one stands in for it.
    Refused(Input, WorkerError),
    /// This peer cannot go on. If the protocol waits for a contribution, an empty one ends the round.
    Failed(Option<Input>, WorkerError),
}

impl ComputeResult {
    /// The protocol's input for a contribution that took this long.
    pub fn of(round: Round, made: Result<Contribution, WorkerError>, compute: Duration) -> Self {
        let late = matches!(made, Err(WorkerError::Late));
        let contribution = |made: Contribution| Input::Contribution {
            round,
            gradient: made.gradient,
            weight: made.samples,
            loss: made.loss_sum,
            compute,
            late,
        };
        let empty = Contribution {
            gradient: Vec::new(),
            loss_sum: 0.0,
            samples: 0,
        };
        match made {
            Ok(made) => Self::Made(contribution(made)),
            Err(error) => Self::without(contribution(empty), error),
        }
    }
}

impl ComputeResult {
    /// The protocol's input for a pass through a span that took this long; an unusable one if a value is not finite.
    pub fn of_span(done: Result<SpanDone, WorkerError>, compute: Duration) -> Self {
        let span = |done: SpanDone| Input::Span(Box::new(SpanDone { compute, ..done }));
        match done {
            Ok(done) => Self::Made(span(done)),
            Err(error) => Self::without(span(SpanDone::default()), error),
        }
    }

    /// Tells the protocol that there is no contribution.
    fn without(empty: Input, error: WorkerError) -> Self {
        match is_of_share(&error) {
            true => Self::Refused(empty, error),
            false => Self::Failed(Some(empty), error),
        }
    }
}

/// Whether the error is only about these samples, so that the device can continue.
fn is_of_share(error: &WorkerError) -> bool {
    matches!(
        error,
        WorkerError::LossNotFinite | WorkerError::GradientNotFinite { .. } | WorkerError::Late
    )
}

/// Tries a device out on the first of these samples, to measure its speed and build its kernels. `clock` returns the
/// time since some fixed moment.
///
/// The first pass builds kernels and fills caches. Then it takes more and more samples while that takes little time.
/// For a large model one sample may take seconds.
pub async fn warm_up(
    mut gradient: impl AsyncFnMut(Vec<f32>, &[u64]) -> Result<Contribution, WorkerError>,
    clock: impl Fn() -> Duration,
    parameters: usize,
    samples: u64,
) -> ComputeResult {
    let samples: Vec<u64> = (0..samples.min(WARM_SAMPLES)).collect();
    // The parameters' values make no difference to the speed.
    let mut params = vec![0.0; parameters];
    let (mut count, mut first) = (1, true);
    loop {
        let start = clock();
        match gradient(params, &samples[..count]).await {
            Ok(made) => params = made.gradient,
            // Zeros as parameters may well lead to this.
            Err(error) if is_of_share(&error) => params = vec![0.0; parameters],
            Err(error) => return ComputeResult::Failed(None, error),
        }
        let took = clock() - start;
        params.fill(0.0);
        if !std::mem::take(&mut first) && (count == samples.len() || took > WARM_TIME) {
            let speed = count as f64 * 1000.0 / took.as_secs_f64().max(1e-6);
            return ComputeResult::Made(Input::Warm { speed: speed as u64 });
        }
        if took < WARM_TIME {
            count = (2 * count).min(samples.len());
        }
    }
}
