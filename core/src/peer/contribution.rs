//! A member's own values for a round: the device computes them, and they are kept for every attempt.

use crate::base::id::{Digest, Round};
use crate::base::jobs::{self, Jobs};
use crate::base::planted::Bug;
use crate::base::time::Time;
use crate::ledger::allot::Allotment;
use crate::ledger::local::{LocalRound, Part};
use crate::numeric::codec::Codec;
use crate::peer::device::{Asked, Device, Made};
use crate::peer::interface::Event;
use crate::peer::shared::Shared;
use crate::peer::spot_check;
use std::ops::Range;
use std::time::Duration;

/// A trial of the device should take this long, given its known speed.
const TRIAL: Duration = Duration::from_secs(2);

/// The bit of a float's sign.
const SIGN: u32 = 1 << 31;

#[derive(Debug)]
enum Values {
    /// The device is at work.
    Computing,
    /// Computed, but not handed in yet.
    Held { made: Made, until: Time },
    /// They wait for a reduce, or are in one; kept for another attempt.
    Ready(Made),
}

/// This member's values of one round.
#[derive(Debug)]
pub(crate) struct Contribution {
    round: Round,
    /// When the round began.
    pub began: Time,
    /// When they were handed in.
    pub made_at: Option<Time>,
    values: Values,
}

impl Contribution {
    pub fn new(round: Round, began: Time) -> Self {
        Self {
            round,
            began,
            made_at: None,
            values: Values::Computing,
        }
    }

    /// Whether the device is done with them.
    pub fn is_made(&self) -> bool {
        !matches!(self.values, Values::Computing)
    }

    /// The values, once they are handed in.
    pub fn made(&self) -> Option<&Made> {
        match &self.values {
            Values::Ready(made) => Some(made),
            _ => None,
        }
    }

    /// Samples in them.
    fn weight(&self) -> u32 {
        match &self.values {
            Values::Computing => 0,
            Values::Held { made, .. } | Values::Ready(made) => made.weight,
        }
    }

    /// Until when they are held back, if they are.
    pub fn held_until(&self) -> Option<Time> {
        match &self.values {
            Values::Held { until, .. } => Some(*until),
            _ => None,
        }
    }

    /// Asks the device for the values, unless it is busy with older ones.
    pub fn ask(&self, allotment: &Allotment, shared: &mut Shared) {
        let Some(place) = shared.head().position(shared.me()) else {
            return;
        };
        let positions = allotment.ranges(place);
        let wanted = matches!(self.values, Values::Computing) && shared.device.asked.is_none();
        if !wanted || positions.is_empty() || !shared.head().all_train(&shared.manifest) {
            return;
        }
        let asked = share(self.round, false, shared);
        let lineages = (before(shared), shared.head().chain);
        let cut = shared.head().cut(allotment, place, &shared.manifest);
        let mut local = cut.map(|cut| shared.device.local_round(self.round, lineages, cut));
        if let Some(local) = &mut local {
            local.fresh &= !shared.settings.planted(Bug::MomentsOutliveMembership);
            if shared.settings.planted(Bug::FirstStepsTwice) {
                local.part = Part::Whole;
            }
        }
        ask(asked, (self.round, local), positions, shared);
    }

    /// Lets an idle device take the first steps of the next round while this one's sums travel, if the run
    /// overlaps.
    pub fn ask_ahead(&self, shared: &mut Shared) {
        let (round, head) = (self.round + 1, shared.head());
        let done = shared.device.ahead.as_ref();
        let at_work = shared.device.asked.is_some() || matches!(self.values, Values::Computing);
        if !shared.manifest.overlap
            || at_work
            || done.is_some_and(|(asked, _)| asked.is_ahead(round, head.chain))
        {
            return;
        }
        let Some(place) = head.position(shared.me()) else {
            return;
        };
        let now = head.allot(&shared.manifest);
        let ahead = match shared.settings.planted(Bug::AheadOfNothing) {
            true => now.clone(),
            false => head.allot_ahead(&shared.manifest),
        };
        let positions = ahead.ranges(place);
        if positions.is_empty() {
            return;
        }
        // They begin where this round's ended.
        let cut = head.cuts_ahead((&now, &ahead), &shared.manifest)[place].filter(|_| self.weight() > 0);
        let Some(local) = cut.and_then(|cut| shared.device.local_lead(cut)) else {
            return;
        };
        let asked = share(round, true, shared);
        ask(asked, (round, Some(local)), positions, shared);
    }

    /// Tries the device out if it was idle for long: it may be fast enough for a share by now.
    pub fn try_out(&self, shared: &mut Shared) {
        let members = shared.head().members.len();
        let equal = u64::from(shared.manifest.batch.get()) / members as u64;
        // With fewer samples than members, being without a share is no sign of slowness.
        if equal == 0 || !shared.device.may_try(shared.now) || !shared.head().all_train(&shared.manifest) {
            return;
        }
        // As many samples as in an equal share, since devices are faster with more; but no more than it can do
        // soon.
        let soon = shared.speed.told().unwrap_or(1) * TRIAL.as_secs() / 1000;
        let count = equal.min(soon).max(1);
        // Where data is fetched while it is used, what lies there is most likely here.
        let from = shared.head().cursor;
        let positions = std::iter::once(from..from + count).collect();
        ask(Asked::Trial, (self.round, None), positions, shared);
    }

    /// Values of a member without a share: only the rounding errors of its earlier sums.
    pub fn make_empty(&mut self, shared: &Shared) {
        let mut gradient = vec![0.0; shared.manifest.layout.len];
        let anew = !shared.feedback.goes_on(shared.head().chain);
        if !anew {
            shared.feedback.add_to(&mut gradient);
        }
        let made = Made {
            gradient: gradient.into(),
            anew,
            ..Made::default()
        };
        self.hand_in(made, shared.now);
    }

    /// Opens the values for another attempt, which may need others. Returns the old ones, if any.
    pub fn reopen(&mut self) -> Option<Vec<f32>> {
        match std::mem::replace(&mut self.values, Values::Computing) {
            Values::Computing => None,
            Values::Held { made, .. } | Values::Ready(made) => Some(made.gradient.into_vec()),
        }
    }

    fn hand_in(&mut self, made: Made, now: Time) {
        self.values = Values::Ready(made);
        self.made_at = Some(now);
    }

    /// The device is done. Returns values to hand in; `None` if they were for a round since given up.
    pub fn take(
        &self,
        round: Round,
        given: Made,
        allotment: &Allotment,
        shared: &mut Shared,
    ) -> Option<Made> {
        let asked = shared.device.done(shared.now, given.compute);
        if asked == Some(Asked::Trial)
            && is_usable(&given, shared.manifest.layout.len, &*shared.settings.jobs)
        {
            shared.speed.tried(given.weight.into(), given.compute);
        }
        if let Some(Asked::Check { .. }) = asked {
            spot_check::took(&given, shared);
            return self.no_use(given, allotment, shared);
        }
        let Some(asked) = asked.filter(|asked| *asked != Asked::Trial) else {
            return self.no_use(given, allotment, shared);
        };
        if asked.is_ahead(self.round + 1, shared.head().chain) {
            shared.device.ahead = Some((asked, given));
            return None;
        }
        if before(shared).is_some_and(|chain| asked.is_ahead(self.round, chain)) {
            shared.device.ahead = Some((asked, given));
            self.ask(allotment, shared);
            return None;
        }
        let current = asked == share(self.round, false, shared) && self.round == round;
        if !current || !matches!(self.values, Values::Computing) {
            return self.no_use(given, allotment, shared);
        }
        Some(accept(self.round, given, allotment, shared))
    }

    /// The device has computed something that was since given up.
    fn no_use(&self, given: Made, allotment: &Allotment, shared: &mut Shared) -> Option<Made> {
        shared.device.give_back(given.gradient);
        self.ask(allotment, shared);
        None
    }

    /// Hands in the values, or holds them back until then for a slow newcomer.
    pub fn put(&mut self, made: Made, hold: Option<Time>, now: Time) {
        match hold {
            Some(until) => self.values = Values::Held { made, until },
            None => self.hand_in(made, now),
        }
    }

    /// Hands in values that were held back.
    pub fn release(&mut self, now: Time) {
        match std::mem::replace(&mut self.values, Values::Computing) {
            Values::Held { made, .. } => self.hand_in(made, now),
            other => self.values = other,
        }
    }

    /// A planted bug: errors are added for each attempt.
    pub fn feed_again(&mut self, shared: &Shared) {
        if let Values::Ready(made) = &mut self.values
            && !made.anew
        {
            shared.feedback.add_to(made.gradient.to_mut());
        }
    }

    /// The round is over: its buffer may be reused.
    pub fn end(&mut self, device: &mut Device) {
        if let Values::Ready(made) = std::mem::replace(&mut self.values, Values::Computing) {
            device.give_back(made.gradient);
        }
    }
}

/// Gives the device a task on the state's parameters.
fn ask(asked: Asked, task: (Round, Option<LocalRound>), positions: Vec<Range<u64>>, shared: &mut Shared) {
    let (params, jobs) = (&shared.lineage.state.params, &*shared.settings.jobs);
    let output = shared.device.ask(asked, task, positions, params, jobs);
    shared.out.push_back(output);
}

/// The request to the device for a round's share, from the head.
fn share(round: Round, ahead: bool, shared: &Shared) -> Asked {
    Asked::Share {
        round,
        ahead,
        chain: shared.head().chain,
        state: shared.lineage.digest,
    }
}

/// The lineage before the last round.
fn before(shared: &Shared) -> Option<Digest> {
    shared.head().before.as_ref().map(|fork| fork.chain)
}

/// Turns the device's result into values to hand in.
fn accept(round: Round, given: Made, allotment: &Allotment, shared: &mut Shared) -> Made {
    let mut made = given;
    if let Some((compute, loss)) = shared.device.take_lead() {
        made.ahead = true;
        made.compute += compute;
        made.loss += loss;
    }
    if !made.late && is_usable(&made, shared.manifest.layout.len, &*shared.settings.jobs) {
        // The share is that of the place in the head, not in the attempt's view.
        let place = shared.head().position(shared.me());
        let share = place.map_or(0, |place| allotment.len(place));
        made.weight = made.weight.min(share.min(u64::from(u32::MAX)) as u32);
        let equal = shared.head().equal_share(&shared.manifest);
        shared.speed.saw(made.weight.into(), made.compute, equal);
    } else {
        if !made.late {
            shared.tell(Event::NotFinite { round });
        }
        made.gradient = vec![0.0; shared.manifest.layout.len].into();
        (made.weight, made.loss) = (0, 0.0);
    }
    // Lost moments imply lost errors: the header has one flag for both.
    made.anew = shared.device.from_zero || !shared.feedback.goes_on(shared.head().chain);
    if !made.anew {
        shared.feedback.add_to(made.gradient.to_mut());
    }
    made
}

/// Whether the device's result may enter a sum.
fn is_usable(given: &Made, elements: usize, jobs: &dyn Jobs) -> bool {
    let summable = given.loss.is_finite() && are_summable(&given.gradient, jobs);
    given.weight > 0 && given.gradient.len() == elements && summable
}

/// Whether every element is finite, and small enough that the sum over all members is too ([`Codec::LARGEST`]).
/// Without a branch per element, at the speed of memory.
fn are_summable(values: &[f32], jobs: &dyn Jobs) -> bool {
    let largest = Codec::LARGEST.to_bits();
    let block = |values: &[f32]| {
        values
            .iter()
            .fold(false, |bad, x| bad | (x.to_bits() & !SIGN > largest))
    };
    !jobs::any(jobs, values, |part| part.chunks(4096).any(block))
}
