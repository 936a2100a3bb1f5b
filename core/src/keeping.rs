//! What a peer fetches and hands out of the moments' parts, and how long it waits for what nobody keeps.

use crate::config::Manifest;
use crate::id::{Digest, PeerId, Round};
use crate::invitation::Role;
use crate::keeps::Keeper;
use crate::lineage::Lineage;
use crate::optim::Slot;
use crate::parts::{PartSet, Parts};
use crate::time::Time;
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
    /// Who has let out an update of which part in the last round that its sum does not give here.
    pub doubted: BTreeSet<(PeerId, u16)>,
    /// Who has asked for which part.
    pub questions: VecDeque<(PeerId, u16)>,
    /// Since when some part has no keeper.
    pub lacks_since: Option<Time>,
    /// Since when this peer says goodbye.
    pub leaves_since: Option<Time>,
    /// The parts whose lack was told of.
    pub told: PartSet,
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
        learning.sum::<usize>() + self.questions.len() * size_of::<(PeerId, u16)>()
    }

    /// When a part has lacked a keeper for too long, if any does.
    pub fn wake_at(&self, now: Time) -> Option<Time> {
        let until = self.lacks_since.map(|since| since + LOST);
        until.filter(|until| *until > now)
    }
}

/// What this peer keeps where it goes on alone.
pub(crate) fn alone(lineage: &mut Lineage, role: Role, manifest: &Manifest) -> Keeper {
    if manifest.copies.is_none() || role != Role::Member {
        return Keeper::default();
    }
    let (stepped, untrained) = (lineage.head.stepped, lineage.head.untrained);
    let kept = &mut lineage.state.kept;
    if kept.stepped != stepped {
        kept.clear();
        kept.stepped = stepped;
    }
    kept.begin(manifest, &untrained);
    Keeper {
        kept: kept.set(),
        ..Keeper::default()
    }
}
