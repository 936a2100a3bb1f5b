//! How the learning rate changes over the steps.

use serde::{Deserialize, Serialize};

use std::num::NonZeroU64;

use super::OptimError;
use super::adam::power;

/// A learning-rate schedule. Steps count from 1. Warm-up and cosine are nanoGPT's (`get_lr`). Without warm-up, cosine,
/// line and stairs are PyTorch's `CosineAnnealingLR`, `LinearLR` from 1 and `StepLR`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Schedule {
    /// The base rate throughout.
    Constant,
    /// A linear rise over the first `steps` steps; the base rate from step `steps + 1` on.
    Warmup {
        /// Steps below the base rate.
        steps: u64,
    },
    /// The same rise over `warmup` steps, then half a cosine down to `floor` times the base rate, which is reached at
    /// step `total + 1` and kept.
    Cosine {
        /// Steps below the base rate at the start.
        warmup: u64,
        /// Steps until the floor.
        total: u64,
        /// The last rate as a share of the base rate.
        floor: f32,
    },
    /// A rise as for a cosine, then a line down to the floor.
    Linear {
        /// Steps below the base rate at the start.
        warmup: u64,
        /// Steps until the floor.
        total: u64,
        /// The last rate as a share of the base rate.
        floor: f32,
    },
    /// The same rise, then the base rate times `gamma` once for each `size` steps.
    Step {
        /// Steps below the base rate at the start.
        warmup: u64,
        /// Steps at one rate.
        size: NonZeroU64,
        /// Factor from one rate to the next.
        gamma: f32,
    },
    /// Half a cosine up to the base rate, then half a cosine down: `OneCycleLR` with PyTorch's defaults, but without a
    /// cycle of the momentum.
    #[serde(rename = "one-cycle")]
    OneCycle {
        /// Steps of the cycle.
        total: u64,
        /// Share of them that rises; `pct_start` in PyTorch.
        rise: f32,
    },
}

/// The first rate of a cycle, and the last one, as shares of the base rate.
const CYCLE: (f64, f64) = (1.0 / 25.0, 1.0 / 25.0 / 1e4);

impl Schedule {
    /// Whether its shares are shares. Ask this of a schedule that came from elsewhere.
    pub fn check(&self) -> Result<(), OptimError> {
        let (name, value) = match *self {
            Self::Constant | Self::Warmup { .. } => return Ok(()),
            Self::Cosine { floor, .. } | Self::Linear { floor, .. } => ("floor", floor),
            Self::Step { gamma, .. } => ("gamma", gamma),
            Self::OneCycle { rise, .. } => ("pct_start", rise),
        };
        let range = "0 to 1";
        let fits = (0.0..=1.0).contains(&value);
        fits.then_some(())
            .ok_or(OptimError::OutOfRange { name, value, range })
    }

    /// The same shape over a run of `steps`, of which a warm-up takes `most` at most.
    pub fn over(mut self, steps: u64, most: u64) -> Self {
        match &mut self {
            Self::Constant => {}
            Self::Warmup { steps: warmup } | Self::Step { warmup, .. } => *warmup = most.min(*warmup),
            Self::Cosine { warmup, total, .. } | Self::Linear { warmup, total, .. } => {
                (*warmup, *total) = (most.min(*warmup), steps);
            }
            Self::OneCycle { total, .. } => *total = steps,
        }
        self
    }

    /// The learning rate of step number `step`, the first being 1.
    pub fn rate(&self, base_lr: f32, step: u64) -> f32 {
        let done = step.saturating_sub(1);
        let share = match *self {
            Self::Constant => 1.0,
            Self::Warmup { steps } => rise(done, steps),
            Self::Cosine { warmup, .. } | Self::Linear { warmup, .. } | Self::Step { warmup, .. }
                if done < warmup =>
            {
                rise(done, warmup)
            }
            Self::Cosine { warmup, total, floor } => {
                between(floor, half_cosine(progress(done, warmup, total)))
            }
            Self::Linear { warmup, total, floor } => between(floor, 1.0 - progress(done, warmup, total)),
            Self::Step { warmup, size, gamma } => power(f64::from(gamma), (done - warmup) / size),
            Self::OneCycle { total, rise } => cycle(done as f64, total as f64, f64::from(rise)),
        };
        (f64::from(base_lr) * share) as f32
    }
}

/// Share of the base rate after `done` of `steps` steps of warm-up.
fn rise(done: u64, steps: u64) -> f64 {
    if done < steps {
        (done as f64 + 1.0) / (steps as f64 + 1.0)
    } else {
        1.0
    }
}

/// Share of the way from step `warmup` to step `total`.
fn progress(done: u64, warmup: u64, total: u64) -> f64 {
    if done < total {
        (done - warmup) as f64 / (total - warmup) as f64
    } else {
        1.0
    }
}

/// From 1 at 0 to 0 at 1.
fn half_cosine(progress: f64) -> f64 {
    0.5 * (1.0 + libm::cos(std::f64::consts::PI * progress))
}

/// From `floor` at 0 to 1 at 1.
fn between(floor: f32, left: f64) -> f64 {
    let floor = f64::from(floor);
    floor + left * (1.0 - floor)
}

/// Share of the base rate after `done` steps of a cycle.
fn cycle(done: f64, total: f64, rise: f64) -> f64 {
    let (first, last) = CYCLE;
    let (peak, end) = ((rise * total - 1.0).max(0.0), total - 1.0);
    if done < peak {
        1.0 + (first - 1.0) * half_cosine(done / peak)
    } else if done > end {
        last
    } else if peak < end {
        last + (1.0 - last) * half_cosine((done - peak) / (end - peak))
    } else {
        1.0
    }
}
