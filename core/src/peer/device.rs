//! The device as the protocol sees it: it computes from a state, in a buffer, one task at a time.

use crate::base::id::{Digest, Round};
use crate::base::jobs::{self, Jobs};
use crate::base::time::Time;
use crate::ledger::cut::Cut;
use crate::ledger::local::LocalRound;
use crate::numeric::vector::Vector;
use crate::peer::interface::Output;
use crate::state::flow::Task;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// Least pause between two trials of a device without a share. It also computes for at most a tenth of the time.
const PAUSE: Duration = Duration::from_secs(10);
const SHARE_OF_TIME: u32 = 10;

/// Buffers that are kept: a lone peer's last contribution is also the last round's sums, while the next one is computed.
const SPARES: usize = 2;

/// The device's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A round's share, from the state with this digest, at the end of this lineage: for the round after it or,
    /// ahead, for the one after that.
    Share {
        round: Round,
        chain: Digest,
        state: Digest,
        ahead: bool,
    },
    /// One pass of one microbatch through a span, in the round after this lineage.
    Span { chain: Digest, task: Task },
    /// Loading a span's weights, before there is anything to compute.
    Weights,
    /// A trial, only to learn its speed.
    Trial,
    /// A part of a guest's share, from the state with this digest at the end of this lineage: see
    /// [`spot`](super::spot).
    Check { chain: Digest, state: Digest },
}

impl Asked {
    /// Whether it is a share of this round, computed ahead from the end of this lineage.
    pub fn is_ahead(self, wanted: Round, from: Digest) -> bool {
        matches!(self, Self::Share { round, chain, ahead: true, .. } if (round, chain) == (wanted, from))
    }
}

/// A result, with its weight.
#[derive(Debug, Default)]
pub(crate) struct Made {
    pub gradient: Vector,
    /// Samples in it: the first ones of the share.
    pub weight: u32,
    /// Sum of their losses.
    pub loss: f32,
    pub compute: Duration,
    /// Whether the weight is 0 because the data did not come in time.
    pub late: bool,
    /// Whether it was computed while the sums of the previous round travelled.
    pub ahead: bool,
    /// Whether it has none of the values that its author carries on for itself: see
    /// [`crate::ledger::Header::anew`].
    pub anew: bool,
}

/// The duration of a device's last task.
#[derive(Clone, Copy, Debug)]
struct Worked {
    /// When the task ended.
    at: Time,
    last: Duration,
    /// The duration of the task before, if there was one.
    before: Option<Duration>,
}

impl Worked {
    /// Until when it rests. If the machine slept during a task, the measured time is too long, so the shorter of
    /// two times counts.
    fn rests_until(self) -> Time {
        let took = self.before.map_or(self.last, |before| before.min(self.last));
        self.at + PAUSE.max(SHARE_OF_TIME * took)
    }
}

/// The device gets one task at a time, so that a peer in trouble does not overload it.
#[derive(Debug, Default)]
pub(crate) struct Device {
    pub asked: Option<Asked>,
    /// A share computed ahead, until its round begins, with its task.
    pub ahead: Option<(Asked, Made)>,
    worked: Option<Worked>,
    /// The lineage after which a local optimizer's moments continue: see [`crate::ledger::local`]. `None` while
    /// steps that changed them do not count yet: a share that is repeated starts from zero moments.
    moments_after: Option<Digest>,
    /// Whether they started from zero with the last task.
    pub from_zero: bool,
    /// Whether the first steps of a share that is still to come were already requested.
    led: bool,
    /// Duration of the first steps of the present share, and the sum of their losses.
    lead: Option<(Duration, f32)>,
    /// Buffers for its next tasks, oldest first. Frames under way and the last round's sums may share some.
    spares: VecDeque<Vector>,
    /// The spans whose weights it has, as of the end of this lineage.
    given: Option<(Digest, BTreeSet<usize>)>,
}

impl Device {
    /// Gives it a task on these parameters.
    pub fn ask(
        &mut self,
        asked: Asked,
        (round, local): (Round, Option<LocalRound>),
        positions: Vec<Range<u64>>,
        params: &[f32],
        jobs: &dyn Jobs,
    ) -> Output {
        self.asked = Some(asked);
        self.from_zero = local.is_some_and(|round| round.fresh);
        let mut buffer = self.buffer(params.len());
        jobs::copy(jobs, params, &mut buffer);
        Output::Compute {
            round,
            positions,
            buffer,
            local,
        }
    }

    /// Memory for numbers. New memory would cost more than to fill it.
    fn buffer(&mut self, len: usize) -> Vec<f32> {
        let is_free = |spare: &Vector| spare.is_alone() && spare.len() == len;
        let free = self.spares.iter().position(is_free);
        let spare = free.and_then(|at| self.spares.remove(at)?.into_buffer());
        spare.unwrap_or_else(|| vec![0.0; len])
    }

    /// Whether it needs a span's weights as of the end of a lineage. From then on it counts as having them.
    pub fn lacks_span(&mut self, chain: Digest, span: usize) -> bool {
        let given = self.given.take_if(|(of, _)| *of == chain);
        let (_, spans) = self.given.insert(given.unwrap_or((chain, BTreeSet::new())));
        spans.insert(span)
    }

    /// The local steps of a round's share, from the end of a lineage: all of them, or those left after the first
    /// ones, which it may have taken ahead of this lineage's last round.
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

    /// The first local steps of a share, if it has any.
    pub fn local_lead(&mut self, cut: Cut) -> Option<LocalRound> {
        let lead = LocalRound::lead(cut)?;
        self.led = true;
        Some(lead)
    }

    /// Duration and losses of the first steps of the finished share, if they were taken ahead.
    pub fn take_lead(&mut self) -> Option<(Duration, f32)> {
        self.lead.take()
    }

    /// Marks the moments that continue after a lineage as being stepped. Whether there are any.
    fn take_moments(&mut self, chain: Digest) -> bool {
        self.moments_after.take() == Some(chain)
    }

    /// A round is committed. The moments continue if the samples that stepped them counted, or if nothing stepped
    /// them.
    pub fn commit(&mut self, before: Digest, after: Digest, counted: bool) {
        let goes_on = counted || self.moments_after == Some(before);
        self.moments_after = goes_on.then_some(after);
    }

    /// It has finished its task.
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

    /// Takes back the buffer of a task whose result is not needed any more.
    pub fn take_back(&mut self, buffer: Vec<f32>) {
        self.asked = None;
        self.give_back(buffer.into());
    }

    /// The share computed ahead, if it is for this round, from the end of this lineage. Any other is of no use.
    fn take_ahead(&mut self, round: Round, chain: Digest) -> Option<Made> {
        let (asked, made) = self.ahead.take()?;
        if asked.is_ahead(round, chain) {
            return Some(made);
        }
        self.give_back(made.gradient);
        None
    }

    /// Keeps a buffer for reuse, once nobody shares it any more.
    pub fn give_back(&mut self, buffer: Vector) {
        self.spares.push_back(buffer);
        if self.spares.len() > SPARES {
            self.spares.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::jobs::InTurn;
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
        // One that really takes this long works for a tenth of the time.
        device.done(at(80_000), night);
        assert!(!device.may_try(at(120_000)));
    }

    #[test]
    fn buffers_serve_again_once_nobody_shares_them() {
        let mut device = Device::default();
        let tasks = |device: &mut Device, params: &[f32]| {
            let output = device.ask(Asked::Trial, (1, None), Vec::new(), params, &InTurn);
            let Output::Compute { buffer, .. } = output else {
                panic!("no task")
            };
            assert_eq!(buffer, params);
            (buffer.as_ptr(), Vector::from(buffer))
        };
        let (first, made) = tasks(&mut device, &[1.0; 100]);
        let shared = made.clone();
        device.give_back(made);
        let (second, made) = tasks(&mut device, &[2.0; 100]);
        assert_ne!(second, first, "the last round's sums are in it");
        device.give_back(made);
        drop(shared);
        for expected in [first, second, first] {
            let (at, made) = tasks(&mut device, &[3.0; 100]);
            assert_eq!(at, expected);
            device.give_back(made);
        }
        let (_, made) = tasks(&mut device, &[4.0; 7]);
        device.give_back(made);
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
