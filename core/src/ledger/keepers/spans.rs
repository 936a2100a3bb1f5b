//! The holders of each span of a split model: how many there should be, and which members should take or drop which
//! span.

use crate::base::id::PeerId;
use crate::ledger::keeps::Keeper;
use crate::ledger::shifts::{Move, Recut};
use crate::ledger::spans::all_needed;
use crate::ledger::{Head, Member};
use crate::run::parts::{PartSet, Parts};
use crate::run::room::Room;
use crate::run::split::Split;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How many members should hold each span: as many as the run wants, or as the members have room for. At least one,
/// since a span without a holder would leave the holders of the others without a run.
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

/// The spans that members hold or will hold, by position among the full members.
#[derive(Clone)]
pub(super) struct Holdings<'a> {
    pub(super) able: &'a [&'a Member],
    /// The parts that each span needs.
    pub(super) spans: &'a [PartSet],
    pub(super) holds: Vec<BTreeSet<usize>>,
    /// The spans that can be learned.
    open: Vec<usize>,
}

/// A member takes a span, and drops another for it if it has no room for both.
struct Taking {
    at: usize,
    takes: usize,
    lets_go: Option<usize>,
}

impl Head {
    /// The parts that a member should learn and drop, such that all spans come to their intended holders.
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

    /// The suggestion while the cut does not change.
    fn suggest_in_this_cut(
        &self,
        (split, parts): (&Split, Parts),
        able: &[&Member],
        own: usize,
        (copies, goes_on): (usize, bool),
    ) -> (PartSet, PartSet) {
        let (spans, keeper) = (split.needs(parts), able[own].keeper);
        // A part that nobody keeps any more cannot be learned. A leaving member still hands its parts out.
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
        // A span that is still on its way here is dropped once it has come.
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
        // While the run waits, parts that are useless here after a new cut may be those that another member lacks.
        let drops = if goes_on { kept } else { now.union(&goes) };
        (stays.without(&kept.or(&learns)), drops.without(&stays).and(&kept))
    }
}

/// The suggestion during a change of the cut: a holder learns the parts of its spans in both cuts, and drops the
/// rest once the new cut is in force.
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

/// The spans that a member holds.
fn held(keeper: &Keeper, spans: &[PartSet]) -> BTreeSet<usize> {
    let all = 0..spans.len();
    all.filter(|span| keeper.holds(*span, spans)).collect()
}

impl<'a> Holdings<'a> {
    /// The present holdings of some members, all of whose spans can be learned.
    pub(super) fn of(able: &'a [&'a Member], spans: &'a [PartSet]) -> Self {
        Self {
            able,
            spans,
            holds: able.iter().map(|m| held(&m.keeper, spans)).collect(),
            open: (0..spans.len()).collect(),
        }
    }

    /// The intended holdings. Each span has as many holders as there can be, even if others must move. A shifting
    /// member has its new span in place of the old one. A member without a span takes one. If there is room, each
    /// span has as many holders as the run wants. Of surplus holders, the last one that has another span drops it.
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

    /// The holdings of the same members in another cut.
    pub(super) fn in_spans(&self, spans: &'a [PartSet]) -> Self {
        Self {
            spans,
            ..self.clone()
        }
    }

    /// The spans of each member, ordered by name.
    pub(super) fn by_name(&self) -> Vec<(PeerId, Vec<u16>)> {
        let all = self.able.iter().zip(&self.holds);
        let all = all.map(|(m, held)| (m.peer, held.iter().map(|span| *span as u16).collect()));
        all.collect::<BTreeMap<_, _>>().into_iter().collect()
    }

    /// The holders of a span.
    pub(super) fn of_span(&self, span: usize) -> Vec<usize> {
        (0..self.holds.len())
            .filter(|at| self.holds[*at].contains(&span))
            .collect()
    }

    fn count(&self, span: usize) -> usize {
        self.of_span(span).len()
    }

    /// The fewest spans whose parts include all that a member keeps. Its other spans take no room.
    fn basis(&self, at: usize) -> BTreeSet<usize> {
        self.basis_of(self.holds[at].clone())
    }

    fn basis_of(&self, mut held: BTreeSet<usize>) -> BTreeSet<usize> {
        for span in held.clone() {
            let others = self.union(held.iter().filter(|other| **other != span));
            if self.spans[span].without(&others).is_empty() {
                held.remove(&span);
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

    /// Whether a span fits in without more room, because it needs all parts of another that the member holds.
    fn fits_in(&self, at: usize, span: usize) -> bool {
        let mut held = self.holds[at].clone();
        held.insert(span);
        self.can_take(at, span) && self.basis_of(held).len() <= self.room(at)
    }

    /// Whether a member has room for the spans that it holds.
    pub(super) fn is_within(&self, at: usize) -> bool {
        self.basis(at).len() <= self.room(at)
    }

    /// Whether a member could take another span.
    pub(super) fn can_take(&self, at: usize, span: usize) -> bool {
        let takes = self.able[at].keeper.room.takes(span, self.spans);
        takes && !self.holds[at].contains(&span)
    }

    /// The spans that a member would lose with one: that, and spans that it holds only because of that one's parts.
    fn lost_with(&self, at: usize, span: usize) -> BTreeSet<usize> {
        let rest = self.basis(at).into_iter().filter(|other| *other != span);
        let rest = self.union(&rest.collect::<BTreeSet<usize>>());
        let mut lost = self.holds[at].clone();
        lost.retain(|held| !self.spans[*held].without(&rest).is_empty());
        lost
    }

    /// Fills spans with fewer than `level` holders, as long as a member can take one.
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

    /// The fewest moves that give one more holder to a span with fewer than `level`, without taking one from a span
    /// that then has too few. A member with room takes it, or a member that drops another span, which has enough
    /// holders or is taken by a third member in the same way. If there is no such member, and nobody holds the span,
    /// one that needs no more room for it takes it. The first of the moves can be made at once.
    fn moves(&self, level: usize) -> Option<Vec<Taking>> {
        let is_rich = |span: &usize| self.count(*span) > level;
        let lacking = self.open.iter().copied();
        let lacking: Vec<usize> = lacking.filter(|span| self.count(*span) < level).collect();
        // By span: the member that would drop it, and the span that it would take.
        let mut ways: BTreeMap<usize, Option<(usize, usize)>> =
            lacking.iter().map(|span| (*span, None)).collect();
        let mut open = VecDeque::from(lacking.clone());
        while let Some(span) = open.pop_front() {
            let mut able: Vec<usize> = (0..self.holds.len()).collect();
            able.retain(|at| self.can_take(*at, span));
            able.sort_by_key(|at| self.holds[*at].len());
            if let Some(at) = able.iter().find(|at| self.has_room(**at)) {
                return Some(chain((*at, span, None), &ways));
            }
            // Of the members that would have to drop another span, the last one does.
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
        let nobodys = lacking.into_iter().filter(|span| self.count(*span) == 0);
        let mut pairs = nobodys.flat_map(|span| (0..self.holds.len()).map(move |at| (at, span)));
        let (at, takes) = pairs.find(|(at, span)| self.fits_in(*at, *span))?;
        let lets_go = None;
        Some(vec![Taking { at, takes, lets_go }])
    }

    /// The only span of a member, if enough others hold it.
    pub(super) fn spares(&self, at: usize, wanted: usize) -> Option<usize> {
        let basis = self.basis(at);
        let span = *basis.first().filter(|_| basis.len() == 1)?;
        let are_enough = |lost: &usize| self.count(*lost) > wanted;
        self.lost_with(at, span).iter().all(are_enough).then_some(span)
    }

    /// A member drops a span and takes another.
    pub(super) fn exchange(&mut self, at: usize, from: usize, to: usize) {
        self.let_go(at, from);
        self.holds[at].insert(to);
    }

    /// A shifting member has its new span in place of the old one if enough others hold that, or in addition to
    /// none.
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

    /// A member without a span takes one with the fewest holders; on a tie, one whose holders have most spans.
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

    /// From spans with more than `level` holders, the last one that has another span drops it; members without room
    /// for their spans go first.
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

    /// Whether a member holds another span, and each span that it would lose with this one has enough other
    /// holders.
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

/// The moves that end with a member taking a span, from that one back to the span that lacked a holder, in the
/// order in which they are made.
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
