//! When a member had better hold another span of a model than the one it holds: a round takes as long as the span whose holders
//! are slowest, and a holder that another span can spare makes it shorter there.
//!
//! A function of the head, so that all members say the same of the same member in the same round. As with all that moves
//! parts it is a suggestion: whom it names lets go of its span and learns the other, as headers say. It is made for a gain that
//! is worth it alone ([`GAIN`]), that several rounds running have agreed on, and not soon after another: measured speeds
//! are noisy, and what is fetched and not computed meanwhile has to be won back.

use super::spans::Holdings;
use crate::config::Manifest;
use crate::id::Round;
use crate::ledger::{Head, Member};
use crate::parts::Parts;
use crate::route::share_lanes;
use crate::shifts::{Shift, Shifts};
use crate::split::Split;
use crate::stages::plan::{GAIN, ROUNDS};
use std::collections::BTreeSet;
use std::ops::Range;

/// Who has not come to hold the other span after so many rounds is not waited for: a guess, far more than it takes over any
/// line on which rounds are worth the while.
const PATIENCE: Round = 256;

impl Head {
    /// Takes the last round in: whoever has come to its other span, or is gone, is not on the way any more; and if all have held
    /// what they do for long enough, somebody may be asked to go.
    pub(crate) fn take_shift(&mut self, manifest: &Manifest) {
        let (Some(split), Some(parts), Some(copies)) =
            (&manifest.split, Parts::of(manifest), manifest.copies)
        else {
            return;
        };
        let round = self.round;
        if let Some(shift) = self.shifts.under_way {
            let spans = split.needs(parts);
            let member = self.members.iter().find(|m| m.peer == shift.peer);
            let has_come = |m: &Member| m.keeper.holds(shift.to.into(), &spans);
            if member.is_none_or(has_come) || round - self.shifts.since >= PATIENCE {
                self.shifts = Shifts::none(round);
            }
            return;
        }
        let before = self.before.iter().flat_map(|before| &before.members);
        let are_same = self.full_members().eq(before.copied());
        let moves = |m: &Member| m.keeper.leaves || !m.keeper.learns.is_empty();
        if !are_same || self.members.iter().any(moves) {
            self.shifts = Shifts::none(round);
            return;
        }
        if round - self.shifts.since < ROUNDS || !self.all_train(manifest) {
            return;
        }
        let shift = self.best_shift((split, parts), copies.get().into());
        self.shifts.asked(shift, round);
    }

    /// The one that makes the slowest member's work shortest, if that is worth it.
    fn best_shift(&self, (split, parts): (&Split, Parts), copies: usize) -> Option<Shift> {
        let able: Vec<&Member> = self.members.iter().filter(|m| m.is_full()).collect();
        let (spans, wanted) = (split.needs(parts), copies.min(able.len()));
        let now = Holdings::of(&able, &spans);
        let work = Work::of(split, &now, &able);
        let before = work.slowest(&now)?;
        let mut best: Option<(Time, Shift)> = None;
        let slow = now.holds[before.at].iter().copied();
        for (to, at) in slow.flat_map(|to| (0..able.len()).map(move |at| (to, at))) {
            let Some(from) = now.spares(at, wanted).filter(|_| now.can_take(at, to)) else {
                continue;
            };
            let mut then = now.clone();
            then.exchange(at, from, to);
            let Some(time) = work.slowest(&then) else { continue };
            if best.as_ref().is_none_or(|(least, _)| time.is_below(least, 1, 1)) {
                let shift = Shift {
                    peer: able[at].peer,
                    from: from as u16,
                    to: to as u16,
                    shorter: time.percent_below(&before),
                };
                best = Some((time, shift));
            }
        }
        let gain = u128::from(GAIN);
        best.filter(|(time, _)| time.is_below(&before, gain, gain - 1))
            .map(|(_, shift)| shift)
    }
}

/// How long some member's work of a round takes: so much at such a speed.
struct Time {
    at: usize,
    work: u128,
    speed: u128,
}

impl Time {
    /// Whether so many times this is less than so many times another.
    fn is_below(&self, other: &Self, own: u128, others: u128) -> bool {
        own * self.work * other.speed < others * other.work * self.speed
    }

    /// By how many hundredths it is less than another.
    fn percent_below(&self, other: &Self) -> u8 {
        let (this, all) = (self.work * other.speed, other.work * self.speed);
        (all.saturating_sub(this) * 100 / all.max(1)) as u8
    }
}

/// What a round's lanes cost in each span, and how fast members are, whatever they compute.
struct Work {
    costs: Vec<u64>,
    speeds: Vec<u64>,
    lanes: usize,
}

impl Work {
    /// A member's speed is that in samples of the spans that it holds.
    fn of(split: &Split, now: &Holdings, able: &[&Member]) -> Self {
        let cost = |steps: Range<usize>| -> u64 {
            let cost = split.steps[steps].iter().map(|step| u64::from(step.cost));
            cost.sum::<u64>().max(1)
        };
        let costs: Vec<u64> = split.spans().map(cost).collect();
        let speed = |(held, member): (&BTreeSet<usize>, &&Member)| {
            let all: u64 = held.iter().map(|span| costs[*span]).sum();
            member.speed.max(1).saturating_mul(all) / (held.len() as u64).max(1)
        };
        let speeds = now.holds.iter().zip(able).map(speed).collect();
        Self {
            costs,
            speeds,
            lanes: split.lanes.get().into(),
        }
    }

    /// Whose work takes longest, where lanes are shared out as they are in a round; none if a span has no holder.
    fn slowest(&self, holdings: &Holdings) -> Option<Time> {
        let mut load = vec![0; self.speeds.len()];
        for (span, cost) in self.costs.iter().enumerate() {
            let holders: Vec<usize> = (0..load.len())
                .filter(|at| holdings.holds[*at].contains(&span))
                .collect();
            if holders.is_empty() {
                return None;
            }
            share_lanes(&holders, (self.lanes, 0, *cost), &self.speeds, &mut load);
        }
        let time = |at: usize| Time {
            at,
            work: load[at].into(),
            speed: self.speeds[at].max(1).into(),
        };
        (0..load.len()).map(time).reduce(|longest, other| {
            if longest.is_below(&other, 1, 1) {
                other
            } else {
                longest
            }
        })
    }
}

#[cfg(test)]
#[path = "shift/tests.rs"]
mod tests;
