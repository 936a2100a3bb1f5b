//! The device as the protocol sees it: a state to compute from, and a buffer.

use crate::id::{Digest, Round};
use crate::interface::Output;
use crate::local::LocalRound;
use crate::time::Time;
use std::ops::Range;
use std::time::Duration;

/// A device without a share is tried out no more often than this, and is at work for a tenth of the time at most.
const PAUSE: Duration = Duration::from_secs(10);
const SHARE_OF_TIME: u32 = 10;

/// What the device is at work for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A round's share, from the state with this digest, at the end of this lineage: of the round after it, or ahead of the
    /// one after that.
    Share {
        round: Round,
        chain: Digest,
        state: Digest,
        ahead: bool,
    },
    /// Nothing but to learn its speed.
    Trial,
}

impl Asked {
    /// Whether it is a share of this round, computed ahead from the end of this lineage.
    pub fn is_ahead(self, wanted: Round, from: Digest) -> bool {
        matches!(self, Self::Share { round, chain, ahead: true, .. } if (round, chain) == (wanted, from))
    }
}

/// What it gave, with its weight.
#[derive(Debug, Default)]
pub(crate) struct Made {
    pub gradient: Vec<f32>,
    /// Samples in it, from the front of the share.
    pub weight: u32,
    /// Sum of their losses.
    pub loss: f32,
    pub compute: Duration,
    /// Whether it was made while the sums of the round before travelled.
    pub ahead: bool,
    /// Whether nothing that its author carries on for itself is in it: see [`crate::ledger::Header::anew`].
    pub anew: bool,
}

/// The device gets one thing at a time, so that a peer in trouble does not bury it.
#[derive(Debug, Default)]
pub(crate) struct Device {
    pub asked: Option<Asked>,
    /// What it has made ahead, until its round begins, and for whom.
    pub ahead: Option<(Asked, Made)>,
    /// When it was last done, and how long it had worked.
    worked: Option<(Time, Duration)>,
    /// The lineage after which a local optimizer's moments go on: see [`crate::local`]. None from when they are stepped
    /// until that counts: a share that is done once more begins at zero.
    moments_after: Option<Digest>,
    /// Whether they began at zero with what it was last asked for.
    pub from_zero: bool,
    /// A buffer as long as the parameters that nobody uses now.
    pub spare: Vec<f32>,
}

impl Device {
    /// Puts it to work on these parameters.
    pub fn ask(
        &mut self,
        asked: Asked,
        (round, local): (Round, Option<LocalRound>),
        positions: Vec<Range<u64>>,
        params: &[f32],
    ) -> Output {
        self.asked = Some(asked);
        self.from_zero = local.is_some_and(|round| round.fresh);
        let mut buffer = std::mem::take(&mut self.spare);
        buffer.clear();
        buffer.extend_from_slice(params);
        Output::Compute {
            round,
            positions,
            buffer,
            local,
        }
    }

    /// The moments that go on after a lineage are to be stepped. Whether there are any.
    pub fn take_moments(&mut self, chain: Digest) -> bool {
        self.moments_after.take() == Some(chain)
    }

    /// A round is committed. Moments go on with the samples that they were stepped for, or if nothing has stepped them.
    pub fn commit(&mut self, before: Digest, after: Digest, counted: bool) {
        let goes_on = counted || self.moments_after == Some(before);
        self.moments_after = goes_on.then_some(after);
    }

    /// It is done with what it was asked for.
    pub fn done(&mut self, now: Time, took: Duration) -> Option<Asked> {
        self.worked = Some((now, took));
        self.asked.take()
    }

    /// Whether it may be tried out.
    pub fn may_try(&self, now: Time) -> bool {
        let rested = |(at, took): (Time, Duration)| now - at >= PAUSE.max(SHARE_OF_TIME * took);
        self.asked.is_none() && self.worked.is_none_or(rested)
    }

    /// It has finished with what is no longer wanted.
    pub fn take_back(&mut self, buffer: Vec<f32>) {
        self.asked = None;
        self.give_back(buffer);
    }

    /// What it has made ahead, if it is for this round, from the end of this lineage. Anything else is of no use.
    pub fn take_ahead(&mut self, round: Round, chain: Digest) -> Option<Made> {
        let (asked, made) = self.ahead.take()?;
        if asked.is_ahead(round, chain) {
            return Some(made);
        }
        self.give_back(made.gradient);
        None
    }

    /// A buffer that may serve again.
    pub fn give_back(&mut self, buffer: Vec<f32>) {
        self.spare = buffer;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_go_on_with_what_counts_and_begin_at_zero_with_what_is_done_once_more() {
        let [first, second, third] = [1, 2, 3].map(|n| Digest([n; 32]));
        let mut device = Device::default();
        assert!(!device.take_moments(first), "a membership begins without");
        device.commit(first, second, true);
        assert!(!device.take_moments(first), "they are of another lineage");
        device.commit(first, second, true);
        assert!(device.take_moments(second));
        assert!(!device.take_moments(second), "they have been stepped");
        device.commit(second, third, false);
        assert!(!device.take_moments(third), "nothing came of its share");
        device.commit(first, second, true);
        device.commit(second, third, false);
        assert!(
            device.take_moments(third),
            "it had no share, and nothing has changed"
        );
    }
}
