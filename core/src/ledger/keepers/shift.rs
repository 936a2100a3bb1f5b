//! When a model's spans had better be held otherwise: a round takes as long as the slowest member's work. A holder that another
//! span can spare makes it shorter where the others are slow, and so does another cut, with fewer steps for who is slow.
//!
//! A function of the head, so that all members say the same in the same round. As with all that moves parts it is a suggestion:
//! whom it concerns learns what it lacks, as headers say. It is made for a gain that is worth it alone ([`GAIN`]), that several
//! rounds running have agreed on, that wins back soon what is fetched for it, and not soon after another: measured speeds are
//! noisy.
//!
//! Another cut is in force from the round on before which all who hold a span have the parts that it needs then: until then they
//! hold those of both, and nothing waits.

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

/// What has not come to be after so many rounds is not waited for: a guess, far more than it takes over any line on which rounds
/// are worth the while.
const PATIENCE: Round = 256;

impl Head {
    /// Takes the last round in: what has come to be, or cannot any more, is not on its way; and if all have held what they do for
    /// long enough, something may be asked for. `at_once` is the planted bug of a cut that waits for nobody.
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
            // Who is left may have room for none of these spans. For those of the founder's cut all who came in had some.
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

    /// Comes nearer to another cut, whose spans need these parts: it is in force once all who hold one have what it needs, and at
    /// rest once they have nothing else. Whether it is.
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

    /// What makes the slowest member's work shortest, of what is worth it.
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

/// How spans could be held, how long the slowest member's work takes then, and what each member has to learn for it.
struct Candidate {
    goal: Goal,
    time: Time,
    learns: Vec<PartSet>,
}

/// The members that so many do without where they are, each gone to a span of the slowest one.
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
