//! The settings of local steps: how often members exchange how far they have come, and what that does to what they share.

use super::{OptimError, Optimizer};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// How the members of a run step between exchanges.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LocalSteps {
    /// Batches between two exchanges: the steps of the member with the largest share. None: as many as exchanges ask for
    /// ([`Pace`](crate::ledger::pace::Pace)).
    pub steps: Option<NonZeroU32>,
    /// What the mean of the members' ways does to the shared parameters, as if it were a gradient. Plain averaging is SGD at
    /// a rate of 1.
    pub outer: Optimizer,
    /// Its learning rate.
    pub outer_lr: f32,
}

impl LocalSteps {
    /// Most steps between two exchanges.
    pub const MOST: u32 = 1 << 16;

    /// So many, averaged.
    pub fn averaged(steps: NonZeroU32) -> Self {
        Self {
            steps: Some(steps),
            outer: Optimizer::Sgd { weight_decay: 0.0 },
            outer_lr: 1.0,
        }
    }

    /// Whether all settings lie in their ranges. Ask this of what came from elsewhere.
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
