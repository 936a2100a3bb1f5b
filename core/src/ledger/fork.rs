//! Places in a lineage's past at which others may have left it: where members were lost.

use crate::base::id::{Digest, PeerId};
use serde::{Deserialize, Serialize};

/// Places that a head remembers at which its lineage may have parted from another, two for each time that members were
/// lost.
pub(crate) const FORKS: usize = 32;

/// A place in a lineage's past.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    /// The lineage there.
    pub chain: Digest,
    /// Samples counted there.
    pub samples: u64,
    /// The members of the next round.
    pub members: Vec<PeerId>,
    /// Those of them that were lost there.
    pub lost: Vec<PeerId>,
}

/// Members were lost at some places, the last of them where the lineage stood. What was lost at a place is added up: who is
/// lost there today may be another than who was yesterday.
pub(crate) fn lose(forks: &mut Vec<Fork>, places: impl Iterator<Item = Fork>, lost: &[PeerId]) {
    for mut fork in places {
        if let Some(known) = forks.iter().position(|other| other.chain == fork.chain) {
            fork = forks.remove(known);
        }
        for peer in lost {
            if fork.members.contains(peer) && !fork.lost.contains(peer) {
                fork.lost.push(*peer);
            }
        }
        forks.push(fork);
    }
    while forks.len() > FORKS {
        // Where nobody was a member yet is the one place that all lineages of a run may have in common.
        let oldest = forks.iter().position(|fork| !fork.members.is_empty());
        forks.remove(oldest.unwrap_or(0));
    }
}
