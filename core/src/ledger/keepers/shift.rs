//! When the spans of a model should be held differently, because a round takes as long as the slowest member's
//! work. Rounds become shorter if a member whose span does not need it moves to a slow span, or with a new cut in
//! which slow members have fewer steps.
//!
//! This is a function of the head, so that all members ask for the same change in the same round. Like every move
//! of parts it is a suggestion: members that take a span learn what they lack, as their headers say. A change must
//! be worth it ([`GAIN`]), several rounds in a row must ask for it, it must soon win back the time for fetching,
//! and it must not follow another change soon: measured speeds are noisy.
//!
//! A new cut takes effect in the first round before which all its holders have the parts that it needs. Until then
//! they hold the parts of both cuts, and nothing waits.

mod cost;
mod recut;
#[cfg(test)]
mod tests;

use self::cost::{Fetching, Time, Work};
use self::recut::best_cut;
use super::spans::Holdings;
use crate::base::id::{PeerId, Round};
use crate::ledger::shifts::{GAIN, Goal, Move, ROUNDS, Recut, Shift, Shifts};
use crate::ledger::spans::all_needed;
use crate::ledger::{Head, Member};
use crate::run::config::Manifest;
use crate::run::parts::{PartSet, Parts};
use crate::run::split::Split;

/// A change that is not done after this many rounds is given up. A guess, far longer than it takes over any line on
/// which rounds are worthwhile.
const PATIENCE: Round = 256;

impl Head {
    /// Applies the last round: ends a change that is done or cannot be done any more, and asks for one if the
    /// holdings have been stable for long enough. `at_once` is the planted bug of a cut that waits for nobody.
    pub(crate) fn take_shift(&mut self, manifest: &Manifest, at_once: bool) {
        let (Some(split), Some(parts), Some(copies)) =
            (self.split(manifest), Parts::of(manifest), manifest.copies)
        else {
            return;
        };
        let round = self.round;
        if let Some(mut shift) = self.shifts.under_way.take() {
            let is_over = match &mut shift.goal {
                Goal::Move(goes) => {
                    let spans = split.needs(parts);
                    let member = self.members.iter().find(|m| m.peer == goes.peer);
                    member.is_none_or(|m| m.keeper.holds(goes.to.into(), &spans))
                }
                Goal::Cut(recut) => {
                    let needs = split.cut(&recut.spans).needs(parts);
                    !self.covers(manifest, |_| true) || self.takes_cut(recut, &needs, at_once)
                }
            };
            match is_over || round - self.shifts.since >= PATIENCE {
                true => self.shifts = Shifts::none(round),
                false => self.shifts.under_way = Some(shift),
            }
            return;
        }
        let first = manifest.split.as_ref().map(|split| &split.spans);
        let waits = |first: &&Vec<_>| **first != self.spans && !self.covers(manifest, |_| true);
        if let Some(first) = first.filter(waits) {
            // The members left may have room for none of these spans. They all had room for some of the founder's
            // cut.
            if self.shifts.waited() {
                self.spans = first.clone();
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
        let shift = self.best_shift(manifest, (&split, parts), copies.get().into());
        self.shifts.asked(shift, round);
    }

    /// Moves towards a new cut, given the parts that its spans need. It takes effect once all its holders have
    /// these parts, and is at rest once they hold nothing else. Whether it is.
    fn takes_cut(&mut self, recut: &mut Recut, needs: &[PartSet], at_once: bool) -> bool {
        let kept = |peer: PeerId| {
            let member = self.members.iter().find(|m| m.peer == peer && m.is_full());
            member.map(|m| m.keeper.kept)
        };
        recut.holders.retain(|(peer, _)| kept(*peer).is_some());
        let needed = |held: &[u16]| all_needed(needs, held.iter().map(|span| usize::from(*span)));
        let mut holders = recut
            .holders
            .iter()
            .map(|(peer, held)| (kept(*peer).unwrap_or_default(), needed(held)));
        if recut.in_force {
            return holders.all(|(kept, needed)| kept.without(&needed).is_empty());
        }
        if at_once || holders.all(|(kept, needed)| needed.without(&kept).is_empty()) {
            self.spans.clone_from(&recut.spans);
            recut.in_force = true;
        }
        false
    }

    /// The worthwhile change after which the slowest member's work is shortest.
    fn best_shift(
        &self,
        manifest: &Manifest,
        (split, parts): (&Split, Parts),
        copies: usize,
    ) -> Option<Shift> {
        let able: Vec<&Member> = self.members.iter().filter(|m| m.is_full()).collect();
        let (spans, wanted) = (split.needs(parts), copies.min(able.len()));
        let now = Holdings::of(&able, &spans);
        let work = Work::of(split, &able);
        let before = work.slowest(&now)?;
        let fetching = Fetching {
            manifest,
            parts,
            able: &able,
        };
        let is_worth_it = |option: &Candidate| {
            let gain = u128::from(GAIN);
            let seconds = before.seconds(manifest) - option.time.seconds(manifest);
            option.time.is_below(&before, gain, gain - 1)
                && fetching.seconds(&option.learns) < seconds * ROUNDS as f64
        };
        let moves = moves(&now, &work, (wanted, before.at));
        let cut = best_cut(manifest, (split, parts), &now, &work);
        let options = moves.into_iter().chain(cut).filter(is_worth_it);
        let best = options.reduce(|best, other| match other.time.is_below(&best.time, 1, 1) {
            true => other,
            false => best,
        })?;
        Some(Shift {
            shorter: best.time.percent_below(&before),
            goal: best.goal,
        })
    }
}

/// Possible holdings, the slowest member's work with them, and what each member has to learn.
struct Candidate {
    goal: Goal,
    time: Time,
    learns: Vec<PartSet>,
}

/// All moves of members that `wanted` others can replace, each to a span of the slowest member.
fn moves(now: &Holdings, work: &Work, (wanted, slowest): (usize, usize)) -> Vec<Candidate> {
    let members = now.holds.len();
    let slow = now.holds[slowest].iter().copied();
    let ways = slow.flat_map(|to| (0..members).map(move |at| (to, at)));
    let go = |(to, at): (usize, usize)| {
        let from = now.spares(at, wanted).filter(|_| now.can_take(at, to))?;
        let mut then = now.clone();
        then.exchange(at, from, to);
        let time = work.slowest(&then)?;
        let goes = Move {
            peer: now.able[at].peer,
            from: from as u16,
            to: to as u16,
        };
        let mut learns = vec![PartSet::default(); members];
        learns[at] = now.spans[to].without(&now.able[at].keeper.kept);
        Some(Candidate {
            goal: Goal::Move(goes),
            time,
            learns,
        })
    };
    ways.filter_map(go).collect()
}
