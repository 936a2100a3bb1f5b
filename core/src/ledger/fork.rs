//! Places in a lineage's past where members were lost, and where another lineage may have begun.

use crate::base::id::{Digest, PeerId};
use serde::{Deserialize, Serialize};

/// Most places that a head remembers, two for each time that members were lost.
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

/// Notes that members were lost at these places, the last of which is where the lineage stands. Losses at one place
/// add up, since different peers may be lost there at different times.
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
        // The place without members is kept: it may be the only one that all lineages of a run have in common.
        let oldest = forks.iter().position(|fork| !fork.members.is_empty());
        forks.remove(oldest.unwrap_or(0));
    }
}
