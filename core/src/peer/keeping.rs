//! What a peer fetches and hands out of the moments' parts, and how long it waits for what nobody keeps.

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
use crate::state::lineage::Lineage;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// A part without a keeper is waited for so long; then it begins anew with moments of zero. A guess: time for somebody to start
/// a machine again.
pub const LOST: Duration = Duration::from_secs(30);

/// Who leaves waits so long for others to keep what it does.
pub(crate) const GOODBYE: Duration = Duration::from_secs(30);

/// Parts that one member hands out to another at a time: a round's frames wait behind them, so no more than a sixteenth of the
/// moments, and whoever comes has its share after a few rounds; two where there are few.
pub(crate) fn window(parts: Parts) -> usize {
    (parts.count() / 16).max(2)
}

/// After so many rounds a part that was asked for does not come.
pub(crate) const ROUNDS: Round = 4;

/// Most questions that wait for the end of a round.
pub(crate) const QUESTIONS: usize = 256;

/// A part on its way here.
#[derive(Debug)]
pub(crate) struct Learning {
    pub from: PeerId,
    pub asked_at: Round,
    /// The lineage after the round that it was stepped by last, once some of it is here.
    pub stepped: Option<Digest>,
    pub slots: Vec<Slot>,
    /// Pieces that are here.
    pub here: BTreeSet<u32>,
    pub is_whole: bool,
}

/// What a peer fetches, hands out and waits for.
#[derive(Debug, Default)]
pub(crate) struct Keeping {
    pub learning: BTreeMap<u16, Learning>,
    /// Parts that are here and have not been compared with those of their keepers.
    pub unproven: PartSet,
    /// Who has let out an update of which part that its sum does not give here, in which round.
    pub doubted: (Round, BTreeSet<(PeerId, u16)>),
    /// Who has asked for which part.
    pub questions: VecDeque<(PeerId, u16)>,
    /// Since when some part has no keeper.
    pub lacks_since: Option<Time>,
    /// Since when this peer says goodbye.
    pub leaves_since: Option<Time>,
    /// Kilobytes per second that this peer's line carries, as far as that has shown; else 0.
    pub line: u32,
    /// What this peer's driver reads from its disk: as it was after this round.
    pub restoring: Option<Digest>,
    /// The parts whose lack was told of.
    pub told: PartSet,
    /// Where a model is split: something that was to be handed out has changed, and others have it as it was.
    pub is_damaged: bool,
    /// Likewise: a round that others may have committed.
    pub pending: Option<Box<Pending>>,
}

/// A round of which this peer holds all sums of its parts, which it has not committed, and others may have.
#[derive(Debug)]
pub(crate) struct Pending {
    /// The lineage after it.
    pub stepped: Digest,
    pub step: Step,
    pub held: Held,
}

/// The ledger has come to where `stepped` is the last lineage that has stepped parts. What is kept goes along if the round that
/// leads there is at hand. What has changed by itself stays what has changed if `others` have it. Whether it is now, or was
/// already, what the ledger says.
pub(crate) fn go_along(
    lineage: &mut Lineage,
    pending: &mut Option<Box<Pending>>,
    others: &PartSet,
    manifest: &Manifest,
) -> bool {
    let (stepped, kept) = (lineage.head.stepped, &mut lineage.state.kept);
    if kept.stepped == stepped {
        return true;
    }
    let Some(round) = pending.take_if(|pending| pending.stepped == stepped) else {
        return false;
    };
    let damaged = kept.damaged(&kept.set());
    kept.take_as_they_are(&damaged.without(others));
    kept.step_weights(manifest, &round.step, &round.held);
    kept.doubt(&damaged.and(others));
    kept.stepped = stepped;
    true
}

/// Likewise of a member: what does not go along is of no use any more.
pub(crate) fn go_along_or_drop(
    lineage: &mut Lineage,
    pending: &mut Option<Box<Pending>>,
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
    /// Bytes that others have had it hold.
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

    /// When a part has lacked a keeper for too long, if any does.
    pub fn wake_at(&self, now: Time) -> Option<Time> {
        let until = self.lacks_since.map(|since| since + LOST);
        until.filter(|until| *until > now)
    }
}

/// What this peer keeps where it goes on alone.
pub(crate) fn alone(
    lineage: &mut Lineage,
    (role, room): (Role, Room),
    pending: &mut Option<Box<Pending>>,
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
        assert!(!go_along(&mut lineage, &mut None, &others, &manifest));
        lineage.head.stepped = before;
        assert!(go_along(&mut lineage, &mut None, &others, &manifest));
        assert_eq!(lineage.state.kept.set(), all, "it has come back");
        lineage.head.stepped = elsewhere;
        go_along_or_drop(&mut lineage, &mut None, &others, &manifest);
        assert_eq!(lineage.state.kept.set(), others);
        assert_eq!(lineage.state.kept.stepped, elsewhere);
    }
}
