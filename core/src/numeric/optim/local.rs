//! The settings of local steps: how often members exchange their parameter deltas, and how the shared parameters
//! follow.

use super::{OptimError, Optimizer};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// How the members of a run step between two exchanges.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LocalSteps {
    /// Batches between two exchanges: the steps of the member with the largest share. `None` lets
    /// [`Pace`](crate::ledger::pace::Pace) choose.
    pub steps: Option<NonZeroU32>,
    /// The outer optimizer. It applies the mean of the members' parameter deltas to the shared parameters, as if
    /// that were a gradient. SGD at a rate of 1 is plain averaging.
    pub outer: Optimizer,
    /// Its learning rate.
    pub outer_lr: f32,
}

impl LocalSteps {
    /// Most steps between two exchanges.
    pub const MOST: u32 = 1 << 16;

    /// This number of steps, with plain averaging.
    pub fn averaged(steps: NonZeroU32) -> Self {
        Self {
            steps: Some(steps),
            outer: Optimizer::Sgd { weight_decay: 0.0 },
            outer_lr: 1.0,
        }
    }

    /// Whether all settings are in range. Ask this of settings that came from elsewhere.
    pub fn check(&self) -> Result<(), OptimError> {
        let out_of_range = |name, value, range| Err(OptimError::OutOfRange { name, value, range });
        if !(self.outer_lr.is_finite() && self.outer_lr > 0.0) {
            return out_of_range("outer_lr", self.outer_lr, "positive");
        }
        if let Some(steps) = self.steps.filter(|steps| steps.get() > Self::MOST) {
            return out_of_range("local_steps", steps.get() as f32, "at most 65536");
        }
        self.outer.check()
    }
}
