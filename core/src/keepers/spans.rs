//! Who holds which spans of a model that is split over the members: how many are to hold each, and who had better take or let
//! go of which.

use crate::ledger::{Head, Member};
use crate::parts::{PartSet, Parts};
use crate::split::Split;
use std::collections::BTreeSet;

/// The parts that each span needs.
pub(super) fn whole(split: &Split, parts: Parts) -> Vec<PartSet> {
    (0..split.spans.len())
        .map(|span| split.parts(parts, span))
        .collect()
}

/// Whether who keeps these parts has all that a span needs.
pub(super) fn holds_all(kept: &PartSet, needs: &PartSet) -> bool {
    needs.without(kept).is_empty()
}

/// How many of some members with room for so many spans each are to hold each span: as many as the run wants, or as there can
/// be; one at least, or those that have the others would go without anybody to follow them.
pub(super) fn holders(copies: usize, spans: usize, rooms: impl Iterator<Item = u16>) -> usize {
    // Who has not said what it has room for has room for one.
    let rooms: Vec<usize> = rooms.map(|room| usize::from(room).min(spans).max(1)).collect();
    let most = rooms.iter().sum::<usize>() / spans.max(1);
    copies.min(rooms.len()).min(most.max(1))
}

/// What members hold or will hold, by their places among those that can.
struct Holdings<'a> {
    able: &'a [&'a Member],
    /// The parts that each span needs.
    spans: &'a [PartSet],
    holds: Vec<BTreeSet<usize>>,
    /// The spans that can be learnt.
    open: Vec<usize>,
    /// As many are to hold each, whoever has to move for it ...
    needed: usize,
    /// ... and as many the run wants, where there is room.
    wanted: usize,
}

impl Head {
    /// What one of some members had better learn and drop. Who has no span takes the one that fewest hold; who has room for more
    /// takes what lacks holders; and of one that more have than are to the last lets go: one that has another, or anyone who can
    /// take one then that lacks holders.
    pub(super) fn suggest_spans(
        &self,
        (split, parts): (&Split, Parts),
        able: &[&Member],
        own: usize,
        copies: usize,
    ) -> (PartSet, PartSet) {
        let spans = whole(split, parts);
        // Of what nobody keeps any more there is nobody to learn it from. Who leaves still hands out.
        let kept = self
            .members
            .iter()
            .fold(PartSet::default(), |all, m| all.or(&m.keeper.kept));
        let lost = parts.all().without(&kept).without(&self.untrained);
        let is_open = |span: &usize| spans[*span].and(&lost).is_empty();
        let of = |m: &&Member| {
            let has = m.keeper.kept.or(&m.keeper.learns);
            let held = (0..spans.len()).filter(|span| holds_all(&has, &spans[*span]));
            held.collect::<BTreeSet<usize>>()
        };
        let mut holdings = Holdings {
            able,
            spans: &spans,
            holds: able.iter().map(of).collect(),
            open: (0..spans.len()).filter(is_open).collect(),
            needed: holders(copies, spans.len(), able.iter().map(|m| m.keeper.spans)),
            wanted: copies.min(able.len()),
        };
        let before = holdings.holds[own].clone();
        holdings.fill();
        let mut goes = (0..spans.len()).filter(|span| holdings.lets_go(*span) == Some(own));
        let lets_go: Option<usize> = goes.find(|span| before.contains(span));
        let union = |of: &mut dyn Iterator<Item = &usize>| {
            of.fold(PartSet::default(), |all, span| all.or(&spans[*span]))
        };
        let has = able[own].keeper.kept.or(&able[own].keeper.learns);
        let stays = |span: &&usize| Some(**span) != lets_go;
        let stays = union(&mut holdings.holds[own].iter().filter(stays));
        let drops = union(&mut lets_go.iter()).without(&stays);
        (stays.without(&has), drops.and(&able[own].keeper.kept))
    }
}

impl Holdings<'_> {
    fn count(&self, span: usize) -> usize {
        self.holds.iter().filter(|holds| holds.contains(&span)).count()
    }

    /// The spans that fewer hold than so many, though they could be learnt.
    fn lacking(&self, holders: usize) -> Vec<usize> {
        let lacks = |span: &usize| self.count(*span) < holders;
        self.open.iter().copied().filter(lacks).collect()
    }

    fn without(&self, span: usize) -> impl Iterator<Item = usize> {
        (0..self.holds.len()).filter(move |at| !self.holds[*at].contains(&span))
    }

    /// Whether one would keep fewer parts without a span: else it holds that because its others need all of its parts.
    fn is_dear(&self, held: &BTreeSet<usize>, span: usize) -> bool {
        let others = held.iter().filter(|other| **other != span);
        let parts = others.fold(PartSet::default(), |all, other| all.or(&self.spans[*other]));
        !holds_all(&parts, &self.spans[span])
    }

    /// How much of one's room is taken: by the fewest spans that need all that it keeps for spans.
    fn taken(&self, at: usize) -> usize {
        let mut held = self.holds[at].clone();
        for span in &self.holds[at] {
            if !self.is_dear(&held, *span) {
                held.remove(span);
            }
        }
        held.len()
    }

    fn has_room(&self, at: usize) -> bool {
        self.taken(at) < usize::from(self.able[at].keeper.spans)
    }

    /// Who has none takes one, and who has room what lacks holders.
    fn fill(&mut self) {
        for at in 0..self.holds.len() {
            let least = self.open.iter().min_by_key(|span| (self.count(**span), **span));
            if let Some(span) = least.copied().filter(|_| self.holds[at].is_empty()) {
                self.holds[at].insert(span);
            }
        }
        for holders in [self.needed, self.wanted] {
            for span in self.lacking(holders) {
                while self.count(span) < holders {
                    let able = self.without(span).filter(|at| self.has_room(*at));
                    let Some(at) = able.min_by_key(|at| (self.holds[*at].len(), *at)) else {
                        break;
                    };
                    self.holds[at].insert(span);
                }
            }
        }
        for span in self.lacking(self.needed) {
            self.make_room(span);
        }
    }

    /// All that have room hold a span that lacks holders: one of them takes another one, of somebody who can let go of it then,
    /// and take this one.
    fn make_room(&mut self, span: usize) {
        let theirs: BTreeSet<usize> = self.without(span).flat_map(|at| self.holds[at].clone()).collect();
        let takes = |at: usize| {
            let other = theirs.iter().find(|other| !self.holds[at].contains(other))?;
            Some((at, *other)).filter(|_| self.open.contains(other))
        };
        let mut able = (0..self.holds.len()).filter(|at| self.has_room(*at));
        if let Some((at, other)) = able.find_map(takes) {
            self.holds[at].insert(other);
        }
    }

    /// Who lets go of a span, if more hold it than are to: somebody who can take one that lacks holders then, or who has others.
    fn lets_go(&self, span: usize) -> Option<usize> {
        let holders: Vec<usize> = (0..self.holds.len())
            .filter(|at| self.holds[*at].contains(&span))
            .collect();
        let is_rich = holders.len() > self.wanted;
        let lacking = self.lacking(if is_rich { self.wanted } else { self.needed });
        let several = |at: &&usize| self.holds[**at].len() > 1;
        let is_of_use = |at: &&usize| lacking.iter().any(|span| !self.holds[**at].contains(span));
        let can = holders
            .iter()
            .rev()
            .filter(|at| self.is_dear(&self.holds[**at], span));
        let of_use = can.clone().filter(is_of_use);
        let goes = of_use.clone().find(several).or_else(|| of_use.clone().next());
        let spare = || can.clone().find(several).filter(|_| is_rich);
        goes.or_else(spare)
            .copied()
            .filter(|_| holders.len() > self.needed)
    }
}
