//! Whether a peer has a reason to stop the run early: its evaluations show no gain any more, or the time is over.

use super::NativeHost;
use crate::net::quic::QuicLink;
use crate::options::Local;
use crate::participant::budget::BY_TIME_ALONE;
use crate::participant::driver::Driver;
use crate::participant::host::Host;
use crate::store::evals;
use annulus_core::{EarlyStop, Input, Manifest};
use std::path::Path;
use std::time::{Duration, Instant};

/// Has a peer evaluate and keep its best state as a run asks that may stop early.
pub(super) fn evaluate_for(manifest: &Manifest, local: &mut Local) {
    let Some(stop) = manifest.early_stop else {
        return;
    };
    if stop.patience != BY_TIME_ALONE || local.eval_every == 0 {
        local.eval_every = stop.every.get().into();
    }
    local.keep_best = true;
}

/// The evaluations so far, as far as early stopping needs them.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Gains {
    lowest: Option<f32>,
    /// Evaluations since that one.
    since: u32,
}

impl Gains {
    /// Those of an earlier process in the same folder, of a run that may stop early.
    pub fn of(dir: &Path, stops: bool) -> Self {
        let mut gains = Self::default();
        let earlier = if stops { evals::read(dir) } else { Ok(Vec::new()) };
        for evaluated in earlier.unwrap_or_default() {
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

/// The time of a run that has a budget.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// What all samples may take from when this peer began; none: as long as they take.
    time: Option<Duration>,
    over_at: Option<Instant>,
    /// Whether this peer has seen the end of its time.
    pub is_over: bool,
}

impl Clock {
    pub fn of(time: Option<Duration>) -> Self {
        Self {
            time,
            ..Self::default()
        }
    }

    /// Whether the time has just come to its end, for a member of a run with this part of its samples left. A peer that comes later,
    /// or comes back, has as much of the time left.
    fn ends(&mut self, left: f64, now: Instant) -> bool {
        let Some(time) = self.time.filter(|_| !self.is_over) else {
            return false;
        };
        let over_at = *self
            .over_at
            .get_or_insert_with(|| now + time.mul_f64(left.clamp(0.0, 1.0)));
        self.is_over = now >= over_at;
        self.is_over
    }
}

impl NativeHost<'_> {
    /// Tells the others whether this peer has a reason to stop, in a run that stops early: its evaluations show no gain, or its time
    /// is over.
    pub(super) fn tell_of_gains(&mut self, driver: &mut Driver<QuicLink>) {
        if let Some(stop) = driver.peer().manifest().early_stop {
            let stalled = self.clock.is_over || self.gains.have_stalled(stop);
            self.feed(Input::Stalled(stalled), driver);
        }
    }

    /// Looks at the clock, if the run has a time budget.
    pub(super) fn look_at_the_clock(&mut self, driver: &mut Driver<QuicLink>) {
        let peer = driver.peer();
        let left = 1.0 - peer.head().samples as f64 / peer.manifest().target.get() as f64;
        if peer.is_member() && self.clock.ends(left, Instant::now()) {
            self.tell_of_gains(driver);
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

    #[test]
    fn who_comes_later_has_as_much_of_the_time_as_of_the_samples() {
        let (begun, hour) = (Instant::now(), Duration::from_secs(3600));
        for (left, over_after) in [(1.0, 3600), (0.25, 900), (0.0, 0), (-0.1, 0)] {
            let mut clock = Clock::of(Some(hour));
            let mut ends = |after: u64| clock.ends(left, begun + Duration::from_secs(after));
            // When it begins, once before the end, and at the end, which is told once.
            let told = [0, over_after.max(1) - 1, over_after, over_after + 1].map(&mut ends);
            assert_eq!(told, [over_after == 0, false, over_after > 0, false], "{left}");
        }
        let mut without = Clock::of(None);
        assert!(!without.ends(0.0, begun + hour) && !without.is_over);
    }
}
