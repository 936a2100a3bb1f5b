//! How the learning rate changes over the steps.

use serde::{Deserialize, Serialize};

use super::OptimError;

/// A learning-rate schedule. Steps count from 1; the shapes are nanoGPT's (`get_lr`), and the cosine without warm-up
/// is also `torch.optim.lr_scheduler.CosineAnnealingLR`.
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
}

impl Schedule {
    /// Whether the floor is a share. Ask this of a schedule that came from elsewhere.
    pub fn check(&self) -> Result<(), OptimError> {
        match *self {
            Self::Cosine { floor, .. } if !(0.0..=1.0).contains(&floor) => Err(OptimError::OutOfRange {
                name: "floor",
                value: floor,
                range: "0 to 1",
            }),
            _ => Ok(()),
        }
    }

    /// The learning rate of step number `step`, the first being 1.
    pub fn rate(&self, base_lr: f32, step: u64) -> f32 {
        let done = step.saturating_sub(1);
        let share = match *self {
            Self::Constant => 1.0,
            Self::Warmup { steps } => rise(done, steps),
            Self::Cosine { warmup, .. } if done < warmup => rise(done, warmup),
            Self::Cosine { warmup, total, floor } => {
                let floor = f64::from(floor);
                let left = if done < total {
                    let progress = (done - warmup) as f64 / (total - warmup) as f64;
                    0.5 * (1.0 + libm::cos(std::f64::consts::PI * progress))
                } else {
                    0.0
                };
                floor + left * (1.0 - floor)
            }
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
