//! The parts of the moments that a peer fetches and hands out, and how long it waits for parts that nobody keeps.

use crate::access::invitation::Role;
use crate::base::id::{Digest, PeerId, Round};
use crate::base::time::Time;
use crate::collective::Held;
use crate::ledger::keeps::Keeper;
use crate::ledger::spans::first_spans;
use crate::numeric::optim::{Slot, Step};
use crate::run::config::Manifest;
use crate::run::parts::{PartSet, Parts};
use crate::run::room::Room;
use crate::run::waits::Waits;
use crate::state::lineage::Lineage;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// How long to wait for parts that no member keeps: then the run resets them or, if it is split, goes back.
pub(crate) fn patience(manifest: &Manifest, waits: &Waits) -> Duration {
    match manifest.split {
        None => waits.lost_moments,
        Some(_) => waits.lost_weights,
    }
}

/// Parts that one member hands out to another at a time; at least two. A round's frames wait behind them, so they
/// are at most a sixteenth of the moments, and a newcomer has its share after a few rounds.
pub(crate) fn window(parts: Parts) -> usize {
    (parts.count() / 16).max(2)
}

/// Rounds after which a requested part counts as lost.
pub(crate) const ROUNDS: Round = 4;

/// Most requests that wait for the end of a round.
pub(crate) const QUESTIONS: usize = 256;

/// A part on its way here.
#[derive(Debug)]
pub(crate) struct Learning {
    pub from: PeerId,
    pub asked_at: Round,
    /// The lineage after the round that stepped it last, once some of it is here.
    pub stepped: Option<Digest>,
    pub slots: Vec<Slot>,
    /// Pieces that have come.
    pub here: BTreeSet<u32>,
    pub is_whole: bool,
}

/// The parts that a peer fetches, hands out and waits for.
#[derive(Debug, Default)]
pub(crate) struct Keeping {
    pub learning: BTreeMap<u16, Learning>,
    /// Parts that have come, but were not compared with their keepers' digests yet.
    pub unproven: PartSet,
    /// The round in which updates did not follow from their sums here, with their publishers and parts.
    pub doubted: (Round, BTreeSet<(PeerId, u16)>),
    /// Requests: the peer and the part.
    pub questions: VecDeque<(PeerId, u16)>,
    /// Since when some part has no keeper.
    pub lacks_since: Option<Time>,
    /// Since when this peer wants to leave.
    pub leaves_since: Option<Time>,
    /// Measured rate of this peer's line in kilobytes per second; 0 if unknown.
    pub line: u32,
    /// The parts that this peer's driver is reading from disk, as of the round of this lineage.
    pub restoring: Option<Digest>,
    /// The parts whose lack was reported.
    pub told: PartSet,
    /// In a split run: a requested part has changed by itself, and others have it intact.
    pub is_damaged: bool,
    /// In a split run: attempts at a round that others may have committed, at most [`MOST_PENDING`].
    pub pending: VecDeque<Pending>,
}

/// Attempts whose sums a peer keeps after it gave them up. A round rarely has more that came so far.
pub(crate) const MOST_PENDING: usize = 4;

/// A round whose sums this peer holds for all its parts, which it has not committed but others may have.
#[derive(Debug)]
pub(crate) struct Pending {
    /// The lineage after it.
    pub stepped: Digest,
    pub step: Step,
    pub held: Held,
}

/// Brings kept parts to `stepped`, the last lineage of the ledger that has stepped parts. That works if they are
/// there already, or if a round that leads there is pending. Parts that changed by themselves stay marked as
/// changed if `others` have them. Whether the parts match the ledger now.
pub(crate) fn go_along(
    lineage: &mut Lineage,
    pending: &mut VecDeque<Pending>,
    others: &PartSet,
    manifest: &Manifest,
) -> bool {
    let (stepped, kept) = (lineage.head.stepped, &mut lineage.state.kept);
    if kept.stepped == stepped {
        return true;
    }
    let at = pending.iter().position(|round| round.stepped == stepped);
    let Some(round) = at.and_then(|at| pending.remove(at)) else {
        return false;
    };
    let damaged = kept.damaged(&kept.set());
    kept.take_as_they_are(&damaged.without(others));
    kept.step_weights(manifest, &round.step, &round.held);
    kept.doubt(&damaged.and(others));
    kept.stepped = stepped;
    true
}

/// Like [`go_along`](Self::go_along), for a member: parts that cannot be brought along are dropped.
pub(crate) fn go_along_or_drop(
    lineage: &mut Lineage,
    pending: &mut VecDeque<Pending>,
    others: &PartSet,
    manifest: &Manifest,
) {
    if !go_along(lineage, pending, others, manifest) {
        let kept = &mut lineage.state.kept;
        kept.clear();
        kept.stepped = lineage.head.stepped;
    }
}

impl Keeping {
    /// Bytes that it holds on behalf of others.
    pub fn bytes(&self) -> usize {
        let learning = self.learning.values().map(|learning| {
            let slots = learning.slots.iter();
            slots
                .map(|slot| 4 * slot.floats(0..slot.len()).len() + slot.codes(0..slot.len()).len())
                .sum::<usize>()
        });
        let pending = self.pending.iter().flat_map(|pending| pending.held.values());
        learning.sum::<usize>()
            + pending.map(Bytes::len).sum::<usize>()
            + self.questions.len() * size_of::<(PeerId, u16)>()
    }

    /// When some part will have been without a keeper for too long.
    pub fn wake_at(&self, patience: Duration, now: Time) -> Option<Time> {
        let until = self.lacks_since.map(|since| since + patience);
        until.filter(|until| *until > now)
    }
}

/// The parts that this peer keeps when it continues alone.
pub(crate) fn alone(
    lineage: &mut Lineage,
    (role, room): (Role, Room),
    pending: &mut VecDeque<Pending>,
    manifest: &Manifest,
) -> Keeper {
    if manifest.copies.is_none() || role != Role::Member {
        return Keeper::default();
    }
    let untrained = lineage.head.untrained;
    go_along_or_drop(lineage, pending, &PartSet::default(), manifest);
    let kept = &mut lineage.state.kept;
    match lineage.head.split(manifest).zip(Parts::of(manifest)) {
        None => kept.begin(manifest, &untrained),
        Some((split, parts)) if kept.set().is_empty() => {
            let first = first_spans(&split, parts, room).and(&untrained);
            kept.begin(manifest, &first);
        }
        Some(_) => {
            let damaged = kept.restore(manifest, &kept.damaged(&kept.set()), &untrained);
            kept.take_as_they_are(&damaged);
        }
    }
    Keeper {
        kept: kept.set(),
        room,
        ..Keeper::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Head;
    use crate::run::config::Layout;
    use crate::state::State;

    #[test]
    fn a_newcomer_keeps_what_is_of_another_lineage_and_a_member_drops_it() {
        let manifest = Manifest {
            copies: std::num::NonZeroU16::new(1),
            ..Manifest::new(Layout::flat(20_000))
        };
        let state = State::new(vec![0.0; 20_000], &manifest);
        let mut lineage = Lineage::new(Head::unfounded(&manifest), state);
        let (all, others) = (Parts::of_len(20_000).all(), PartSet::default());
        lineage.state.kept.begin(&manifest, &all);
        let (before, elsewhere) = (lineage.head.stepped, Digest([1; 32]));
        lineage.head.stepped = elsewhere;
        assert!(!go_along(&mut lineage, &mut VecDeque::new(), &others, &manifest));
        lineage.head.stepped = before;
        assert!(go_along(&mut lineage, &mut VecDeque::new(), &others, &manifest));
        assert_eq!(lineage.state.kept.set(), all, "it has come back");
        lineage.head.stepped = elsewhere;
        go_along_or_drop(&mut lineage, &mut VecDeque::new(), &others, &manifest);
        assert_eq!(lineage.state.kept.set(), others);
        assert_eq!(lineage.state.kept.stepped, elsewhere);
    }
}
