//! Whether a peer's evaluations still show a gain.

use super::NativeHost;
use crate::net::quic::QuicLink;
use crate::participant::driver::Driver;
use crate::participant::host::Host;
use crate::store::evals;
use annulus_core::{EarlyStop, Input};
use std::path::Path;

/// The evaluations so far, as far as early stopping needs them.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Gains {
    lowest: Option<f32>,
    /// Evaluations since that one.
    since: u32,
}

impl Gains {
    /// Those of an earlier process in the same folder.
    pub fn of(dir: &Path) -> Self {
        let mut gains = Self::default();
        for evaluated in evals::read(dir).unwrap_or_default() {
            gains.evaluated(evaluated.loss);
        }
        gains
    }

    /// Takes the next mean loss. One that is not finite is no gain.
    pub fn evaluated(&mut self, loss: f32) {
        if loss.is_finite() && self.lowest.is_none_or(|lowest| loss < lowest) {
            (self.lowest, self.since) = (Some(loss), 0);
        } else {
            self.since = self.since.saturating_add(1);
        }
    }

    /// Whether the last ones were all without a gain, as many as the run waits for.
    pub fn have_stalled(&self, stop: EarlyStop) -> bool {
        self.since >= stop.patience.get()
    }
}

impl NativeHost<'_> {
    /// Tells the others whether this peer's evaluations show any gain, in a run that stops early.
    pub(super) fn tell_of_gains(&mut self, driver: &mut Driver<QuicLink>) {
        if let Some(stop) = driver.peer().manifest().early_stop {
            self.feed(Input::Stalled(self.gains.have_stalled(stop)), driver);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    #[test]
    fn a_lower_loss_starts_the_count_anew() {
        let stop = EarlyStop {
            every: NonZeroU32::MIN,
            patience: 2.try_into().unwrap(),
        };
        let mut gains = Gains::default();
        let losses = [3.0, f32::NAN, 2.0, 2.0, 2.5, 1.0, 1.5];
        let stalled = losses.map(|loss| {
            gains.evaluated(loss);
            gains.have_stalled(stop)
        });
        assert_eq!(stalled, [false, false, false, false, true, false, false]);
    }
}
