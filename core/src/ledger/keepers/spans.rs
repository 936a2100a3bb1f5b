//! Who holds which spans of a model that is split over the members: how many are to hold each, and who had better take or let
//! go of which.

use crate::base::id::PeerId;
use crate::ledger::keeps::Keeper;
use crate::ledger::shifts::{Move, Recut};
use crate::ledger::spans::all_needed;
use crate::ledger::{Head, Member};
use crate::run::parts::{PartSet, Parts};
use crate::run::room::Room;
use crate::run::split::Split;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How many of some members with such room each are to hold each of so many spans: as many as the run wants, or as there can
/// be; one at least, or those that have the others would go without anybody to follow them.
pub(super) fn holders(copies: usize, spans: usize, rooms: impl Iterator<Item = Room>) -> usize {
    let ends = spans.min(2);
    let (mut members, mut all, mut at_ends) = (0, 0, 0);
    for room in rooms {
        let places = usize::from(room.spans);
        members += 1;
        all += places;
        at_ends += if room.inner { 0 } else { places.min(ends) };
    }
    let most = (all / spans.max(1)).min(at_ends / ends.max(1));
    copies.min(members).min(most.max(1))
}

/// What members hold or will hold, by their places among those that can.
#[derive(Clone)]
pub(super) struct Holdings<'a> {
    pub(super) able: &'a [&'a Member],
    /// The parts that each span needs.
    pub(super) spans: &'a [PartSet],
    pub(super) holds: Vec<BTreeSet<usize>>,
    /// The spans that can be learnt.
    open: Vec<usize>,
}

/// Who takes a span, and lets go of another for it if it has no room for both.
struct Taking {
    at: usize,
    takes: usize,
    lets_go: Option<usize>,
}

impl Head {
    /// What one of some members had better learn and drop: what brings all to who is to hold what.
    pub(super) fn suggest_spans(
        &self,
        (split, parts): (&Split, Parts),
        able: &[&Member],
        own: usize,
        (copies, goes_on): (usize, bool),
    ) -> (PartSet, PartSet) {
        let recut = self.shifts.recut();
        match recut.and_then(|recut| Some((recut, recut.of(able[own].peer)?))) {
            Some((recut, held)) => suggest_in_both_cuts((split, parts), recut, (held, &able[own].keeper)),
            None => self.suggest_in_this_cut((split, parts), able, own, (copies, goes_on)),
        }
    }

    /// As long as the spans are these.
    fn suggest_in_this_cut(
        &self,
        (split, parts): (&Split, Parts),
        able: &[&Member],
        own: usize,
        (copies, goes_on): (usize, bool),
    ) -> (PartSet, PartSet) {
        let (spans, keeper) = (split.needs(parts), able[own].keeper);
        // Of what nobody keeps any more there is nobody to learn it from. Who leaves still hands out.
        let kept = self
            .members
            .iter()
            .fold(PartSet::default(), |all, m| all.or(&m.keeper.kept));
        let lost = parts.all().without(&kept).without(&self.untrained);
        let recut = self.shifts.recut();
        let will = |m: &&Member| {
            if let Some(held) = recut.and_then(|recut| recut.of(m.peer)) {
                return held.iter().map(|span| usize::from(*span)).collect();
            }
            let kept = m.keeper.kept.or(&m.keeper.learns);
            held(&Keeper { kept, ..m.keeper }, &spans)
        };
        let mut now = Holdings {
            able,
            spans: &spans,
            holds: able.iter().map(will).collect(),
            open: (0..spans.len())
                .filter(|span| spans[*span].and(&lost).is_empty())
                .collect(),
        };
        let then = now.settled(copies, self.shifts.next_move());
        let goal = &then.holds[own];
        // What is still on its way here is let go of once it has come.
        let mut goes = held(&keeper, &spans);
        goes.retain(|span| !goal.contains(span));
        for span in goal {
            if now.holds[own].insert(*span) && !now.is_within(own) {
                now.holds[own].remove(span);
            }
        }
        let rest = now.holds[own].difference(&goes);
        let stays = now.union(rest);
        let Keeper { kept, learns, .. } = keeper;
        // What is of no use here since the spans are others may be what somebody lacks, as long as the run waits.
        let drops = if goes_on { kept } else { now.union(&goes) };
        (stays.without(&kept.or(&learns)), drops.without(&stays).and(&kept))
    }
}

/// While the model is cut anew: who holds spans in both cuts learns what either needs, and lets go of the rest once the new one
/// is in force.
fn suggest_in_both_cuts(
    (split, parts): (&Split, Parts),
    recut: &Recut,
    (held, keeper): (&[u16], &Keeper),
) -> (PartSet, PartSet) {
    let (now, then) = (split.needs(parts), split.cut(&recut.spans).needs(parts));
    let needed = |spans: &[PartSet]| all_needed(spans, held.iter().map(|span| usize::from(*span)));
    let stays = needed(&now).or(&needed(&then));
    let drops = if recut.in_force {
        keeper.kept.without(&stays)
    } else {
        PartSet::default()
    };
    (stays.without(&keeper.kept.or(&keeper.learns)), drops)
}

/// The spans that one holds.
fn held(keeper: &Keeper, spans: &[PartSet]) -> BTreeSet<usize> {
    let all = 0..spans.len();
    all.filter(|span| keeper.holds(*span, spans)).collect()
}

impl<'a> Holdings<'a> {
    /// What some members hold now, all of which can be learnt.
    pub(super) fn of(able: &'a [&'a Member], spans: &'a [PartSet]) -> Self {
        Self {
            able,
            spans,
            holds: able.iter().map(|m| held(&m.keeper, spans)).collect(),
            open: (0..spans.len()).collect(),
        }
    }

    /// Who is to hold what: each span has as many holders as there can be of all, whoever has to move for it; who goes to another
    /// span has that in place of its own; who has none takes one; where there is room each has as many as the run wants; and of
    /// what more have than that the last lets go that has another.
    fn settled(&self, copies: usize, shift: Option<Move>) -> Self {
        let rooms = self.able.iter().map(|m| m.keeper.room);
        let wanted = copies.min(self.able.len());
        let mut then = self.clone();
        then.fill(holders(copies, self.spans.len(), rooms));
        if let Some(shift) = shift {
            then.shift(shift, wanted);
        }
        then.occupy();
        then.fill(wanted);
        then.thin(wanted);
        then
    }

    fn union<'b>(&self, spans: impl IntoIterator<Item = &'b usize>) -> PartSet {
        all_needed(self.spans, spans.into_iter().copied())
    }

    /// What these members hold, where spans need other parts.
    pub(super) fn in_spans(&self, spans: &'a [PartSet]) -> Self {
        Self {
            spans,
            ..self.clone()
        }
    }

    /// What each holds, by names in their order.
    pub(super) fn by_name(&self) -> Vec<(PeerId, Vec<u16>)> {
        let all = self.able.iter().zip(&self.holds);
        let all = all.map(|(m, held)| (m.peer, held.iter().map(|span| *span as u16).collect()));
        all.collect::<BTreeMap<_, _>>().into_iter().collect()
    }

    /// Who holds a span.
    pub(super) fn of_span(&self, span: usize) -> Vec<usize> {
        (0..self.holds.len())
            .filter(|at| self.holds[*at].contains(&span))
            .collect()
    }

    fn count(&self, span: usize) -> usize {
        self.of_span(span).len()
    }

    /// The fewest spans that need all that one keeps for spans: what else it holds takes no room.
    fn basis(&self, at: usize) -> BTreeSet<usize> {
        let mut held = self.holds[at].clone();
        for span in &self.holds[at] {
            let others = self.union(held.iter().filter(|other| *other != span));
            if self.spans[*span].without(&others).is_empty() {
                held.remove(span);
            }
        }
        held
    }

    fn room(&self, at: usize) -> usize {
        self.able[at].keeper.room.spans.into()
    }

    fn has_room(&self, at: usize) -> bool {
        self.basis(at).len() < self.room(at)
    }

    /// Whether one has room for what it holds.
    pub(super) fn is_within(&self, at: usize) -> bool {
        self.basis(at).len() <= self.room(at)
    }

    /// Whether one could hold a span that it does not.
    pub(super) fn can_take(&self, at: usize, span: usize) -> bool {
        let takes = self.able[at].keeper.room.takes(span, self.spans);
        takes && !self.holds[at].contains(&span)
    }

    /// What one would lose with one of its spans: that, and what it holds only because that needs all of its parts.
    fn lost_with(&self, at: usize, span: usize) -> BTreeSet<usize> {
        let rest = self.basis(at).into_iter().filter(|other| *other != span);
        let rest = self.union(&rest.collect::<BTreeSet<usize>>());
        let mut lost = self.holds[at].clone();
        lost.retain(|held| !self.spans[*held].without(&rest).is_empty());
        lost
    }

    /// Has what fewer hold than so many taken, as long as anybody can.
    fn fill(&mut self, level: usize) {
        for _ in 0..level * self.spans.len() {
            let Some(moves) = self.moves(level) else { return };
            for Taking { at, takes, lets_go } in moves {
                if let Some(span) = lets_go {
                    self.let_go(at, span);
                }
                self.holds[at].insert(takes);
            }
        }
    }

    /// The fewest moves after which one more holds a span that fewer hold than so many, and each that more do is held by as many
    /// still: somebody with room takes it, or somebody who lets go of another that enough hold, or that somebody else takes in
    /// the same way. The first of them can be made at once.
    fn moves(&self, level: usize) -> Option<Vec<Taking>> {
        let is_rich = |span: &usize| self.count(*span) > level;
        let lacking = self.open.iter().copied();
        let lacking: Vec<usize> = lacking.filter(|span| self.count(*span) < level).collect();
        // Who would let go of a span, and for which other.
        let mut ways: BTreeMap<usize, Option<(usize, usize)>> =
            lacking.iter().map(|span| (*span, None)).collect();
        let mut open = VecDeque::from(lacking);
        while let Some(span) = open.pop_front() {
            let mut able: Vec<usize> = (0..self.holds.len()).collect();
            able.retain(|at| self.can_take(*at, span));
            able.sort_by_key(|at| self.holds[*at].len());
            if let Some(at) = able.iter().find(|at| self.has_room(**at)) {
                return Some(chain((*at, span, None), &ways));
            }
            // Of those that would have to let go of another the last does.
            for at in able.into_iter().rev().filter(|at| self.is_within(*at)) {
                for other in self.basis(at) {
                    let mut lost = self.lost_with(at, other);
                    if lost.iter().all(is_rich) {
                        return Some(chain((at, span, Some(other)), &ways));
                    }
                    lost.remove(&other);
                    let may = lost.iter().all(is_rich) && self.open.contains(&other);
                    if may && !ways.contains_key(&other) {
                        ways.insert(other, Some((at, span)));
                        open.push_back(other);
                    }
                }
            }
        }
        None
    }

    /// The only span that one holds, if so many do without it.
    pub(super) fn spares(&self, at: usize, wanted: usize) -> Option<usize> {
        let basis = self.basis(at);
        let span = *basis.first().filter(|_| basis.len() == 1)?;
        let are_enough = |lost: &usize| self.count(*lost) > wanted;
        self.lost_with(at, span).iter().all(are_enough).then_some(span)
    }

    /// One lets go of a span, and takes another.
    pub(super) fn exchange(&mut self, at: usize, from: usize, to: usize) {
        self.let_go(at, from);
        self.holds[at].insert(to);
    }

    /// Who goes to another span has that in place of its own, which so many others hold still, or of none.
    fn shift(&mut self, Move { peer, from, to }: Move, wanted: usize) {
        let (from, to) = (from.into(), to.into());
        let Some(at) = self.able.iter().position(|m| m.peer == peer) else {
            return;
        };
        let may = self.holds[at].is_empty() || self.spares(at, wanted) == Some(from);
        if may && self.open.contains(&to) && self.can_take(at, to) {
            self.exchange(at, from, to);
        }
    }

    /// Who has none takes the one that fewest hold, among these one of those that hold most.
    fn occupy(&mut self) {
        for at in 0..self.holds.len() {
            let load = |span: usize| {
                let holders = self.holds.iter().filter(|holds| holds.contains(&span));
                holders.map(BTreeSet::len).max()
            };
            let can = self.open.iter().copied().filter(|span| self.can_take(at, *span));
            let least = can.min_by_key(|span| (self.count(*span), std::cmp::Reverse(load(*span))));
            let may = self.holds[at].is_empty() && self.has_room(at);
            if let Some(span) = least.filter(|_| may) {
                self.holds[at].insert(span);
            }
        }
    }

    /// Of what more hold than so many the last lets go that has another; before those who have room for what they have, those
    /// who have not.
    fn thin(&mut self, level: usize) {
        for span in 0..self.spans.len() {
            let spare = |all: &Self, beyond: bool| {
                let is_one = |at: &usize| !(beyond && all.is_within(*at)) && all.is_spare(*at, span, level);
                (0..all.holds.len()).rfind(is_one)
            };
            while let Some(at) = spare(self, true).or_else(|| spare(self, false)) {
                self.let_go(at, span);
            }
        }
    }

    /// Whether one holds another span, and so many hold each that it would lose with this one.
    fn is_spare(&self, at: usize, span: usize, level: usize) -> bool {
        let basis = self.basis(at);
        let has_others = basis.len() > 1 && basis.contains(&span);
        has_others
            && self
                .lost_with(at, span)
                .iter()
                .all(|lost| self.count(*lost) > level)
    }

    fn let_go(&mut self, at: usize, span: usize) {
        for lost in self.lost_with(at, span) {
            self.holds[at].remove(&lost);
        }
    }
}

/// The moves that end with somebody taking a span: from it back to what lacked a holder, as they have to be made.
fn chain(last: (usize, usize, Option<usize>), ways: &BTreeMap<usize, Option<(usize, usize)>>) -> Vec<Taking> {
    let (at, mut takes, lets_go) = last;
    let mut moves = vec![Taking { at, takes, lets_go }];
    while let Some((at, other)) = ways.get(&takes).copied().flatten() {
        moves.push(Taking {
            at,
            takes: other,
            lets_go: Some(takes),
        });
        takes = other;
    }
    moves
}
