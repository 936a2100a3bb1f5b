//! The device as the protocol sees it: a state to compute from, and a buffer.

use crate::base::id::{Digest, Round};
use crate::base::time::Time;
use crate::ledger::cut::Cut;
use crate::ledger::local::LocalRound;
use crate::numeric::vector::Vector;
use crate::peer::interface::Output;
use crate::state::flow::Task;
use std::collections::BTreeSet;
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
    /// One pass of one microbatch through a span, in the round after this lineage.
    Span { chain: Digest, task: Task },
    /// To take a span's weights in, before there is anything to compute.
    Weights,
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
    pub gradient: Vector,
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

/// How long a device has worked for what it was asked.
#[derive(Clone, Copy, Debug)]
struct Worked {
    /// When it was last done.
    at: Time,
    last: Duration,
    /// The time before that, if there was one.
    before: Option<Duration>,
}

impl Worked {
    /// Until when it rests. A machine that slept while its device was at work has not worked for as long as that: the
    /// shorter of two times is believed.
    fn rests_until(self) -> Time {
        let took = self.before.map_or(self.last, |before| before.min(self.last));
        self.at + PAUSE.max(SHARE_OF_TIME * took)
    }
}

/// The device gets one thing at a time, so that a peer in trouble does not bury it.
#[derive(Debug, Default)]
pub(crate) struct Device {
    pub asked: Option<Asked>,
    /// What it has made ahead, until its round begins, and for whom.
    pub ahead: Option<(Asked, Made)>,
    worked: Option<Worked>,
    /// The lineage after which a local optimizer's moments go on: see [`crate::ledger::local`]. None from when they are stepped
    /// until that counts: a share that is done once more begins at zero.
    moments_after: Option<Digest>,
    /// Whether they began at zero with what it was last asked for.
    pub from_zero: bool,
    /// Whether the first steps of a share that is not asked for yet were asked for.
    led: bool,
    /// How long the first steps of the share at work have taken, and the sum of their losses.
    lead: Option<(Duration, f32)>,
    /// A buffer as long as the parameters that nobody computes in now.
    spare: Vector,
    /// The spans of which it was given the weights, as they are at the end of this lineage.
    given: Option<(Digest, BTreeSet<usize>)>,
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
        // Some of it may still be on its way to others.
        let spare = std::mem::take(&mut self.spare);
        let mut buffer = spare.into_buffer().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(params);
        Output::Compute {
            round,
            positions,
            buffer,
            local,
        }
    }

    /// Whether it is to be given a span's weights as they are at the end of a lineage. It was, from here on.
    pub fn lacks_span(&mut self, chain: Digest, span: usize) -> bool {
        let given = self.given.take_if(|(of, _)| *of == chain);
        let (_, spans) = self.given.insert(given.unwrap_or((chain, BTreeSet::new())));
        spans.insert(span)
    }

    /// What is to be asked of it for a round's share that is cut so, from the end of a lineage: the whole of it, or what is
    /// left after the first steps, which it may have taken ahead of this lineage's last round.
    pub fn local_round(
        &mut self,
        round: Round,
        (before, chain): (Option<Digest>, Digest),
        cut: Cut,
    ) -> LocalRound {
        let ahead = before.and_then(|before| self.take_ahead(round, before));
        let lead = ahead.map(|made| {
            self.give_back(made.gradient);
            let first = LocalRound::lead(cut).map(|lead| lead.counted(usize::MAX));
            (Some(made.weight) == first).then_some((made.compute, made.loss))
        });
        let (led, goes_on) = (std::mem::take(&mut self.led), self.take_moments(chain));
        self.lead = lead.flatten().filter(|_| goes_on);
        match self.lead {
            Some(_) => LocalRound::rest(cut),
            // Steps that came to nothing have moved the moments.
            None => LocalRound::whole(cut, led || !goes_on),
        }
    }

    /// What is to be asked of it for the first steps of a share that is cut so, if there are any.
    pub fn local_lead(&mut self, cut: Cut) -> Option<LocalRound> {
        let lead = LocalRound::lead(cut)?;
        self.led = true;
        Some(lead)
    }

    /// How long the first steps of the share that it is done with have taken, and the sum of their losses, if they were taken
    /// ahead.
    pub fn take_lead(&mut self) -> Option<(Duration, f32)> {
        self.lead.take()
    }

    /// The moments that go on after a lineage are to be stepped. Whether there are any.
    fn take_moments(&mut self, chain: Digest) -> bool {
        self.moments_after.take() == Some(chain)
    }

    /// A round is committed. Moments go on with the samples that they were stepped for, or if nothing has stepped them.
    pub fn commit(&mut self, before: Digest, after: Digest, counted: bool) {
        let goes_on = counted || self.moments_after == Some(before);
        self.moments_after = goes_on.then_some(after);
    }

    /// It is done with what it was asked for.
    pub fn done(&mut self, now: Time, took: Duration) -> Option<Asked> {
        self.worked = Some(Worked {
            at: now,
            last: took,
            before: self.worked.map(|worked| worked.last),
        });
        self.asked.take()
    }

    /// Whether it may be tried out.
    pub fn may_try(&self, now: Time) -> bool {
        self.asked.is_none() && self.worked.is_none_or(|worked| now >= worked.rests_until())
    }

    /// It has finished with what is no longer wanted.
    pub fn take_back(&mut self, buffer: Vec<f32>) {
        self.asked = None;
        self.give_back(buffer.into());
    }

    /// What it has made ahead, if it is for this round, from the end of this lineage. Anything else is of no use.
    fn take_ahead(&mut self, round: Round, chain: Digest) -> Option<Made> {
        let (asked, made) = self.ahead.take()?;
        if asked.is_ahead(round, chain) {
            return Some(made);
        }
        self.give_back(made.gradient);
        None
    }

    /// A buffer that may serve again, once nothing of it is on its way to others.
    pub fn give_back(&mut self, buffer: Vector) {
        self.spare = buffer;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    #[test]
    fn who_slept_while_at_work_is_tried_out_soon() {
        let (second, night) = (Duration::from_secs(1), Duration::from_secs(8 * 3600));
        let mut device = Device::default();
        let at = |seconds: u64| Time(seconds * 1_000_000);
        device.done(at(1), second);
        assert!(!device.may_try(at(10)));
        device.done(at(40_000), night);
        assert!(!device.may_try(at(40_009)));
        assert!(device.may_try(at(40_010)));
        // One that really takes so long works for a tenth of the time.
        device.done(at(80_000), night);
        assert!(!device.may_try(at(120_000)));
    }

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

    #[test]
    fn first_steps_count_once_and_in_vain_they_take_the_moments_with_them() {
        let [first, second, third] = [1, 2, 3].map(|n| Digest([n; 32]));
        let cut = Cut::new(&[8, 8], 0, NonZeroU32::new(4).unwrap(), 0);
        let lead = |device: &mut Device, weight| {
            let asked = Asked::Share {
                round: 2,
                chain: first,
                state: first,
                ahead: true,
            };
            assert_eq!(device.local_lead(cut), LocalRound::lead(cut));
            let compute = Duration::from_secs(1);
            let made = Made {
                weight,
                compute,
                loss: 3.0,
                ..Made::default()
            };
            device.ahead = Some((asked, made));
        };
        let committed = || {
            let mut device = Device::default();
            device.commit(first, second, true);
            device
        };
        let asked = |device: &mut Device| device.local_round(2, (Some(first), second), cut);

        let mut device = committed();
        assert_eq!(
            asked(&mut device),
            LocalRound::whole(cut, false),
            "there are none"
        );
        let mut device = committed();
        lead(&mut device, 2);
        assert_eq!(asked(&mut device), LocalRound::rest(cut));
        assert_eq!(device.take_lead(), Some((Duration::from_secs(1), 3.0)));
        device.commit(second, third, true);
        let next = device.local_round(3, (Some(second), third), cut);
        assert_eq!((next, device.take_lead()), (LocalRound::whole(cut, false), None));

        // The device has failed at them, the round before did not count, or they are of another lineage.
        let mut device = committed();
        lead(&mut device, 1);
        assert_eq!(asked(&mut device), LocalRound::whole(cut, true));
        let mut device = Device::default();
        lead(&mut device, 2);
        assert_eq!(asked(&mut device), LocalRound::whole(cut, true));
        let mut device = committed();
        lead(&mut device, 2);
        let other = device.local_round(2, (Some(third), second), cut);
        assert_eq!((other, device.take_lead()), (LocalRound::whole(cut, true), None));
    }
}
