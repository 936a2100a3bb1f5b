//! Proof of where a lineage stands.
//!
//! Any peer can claim a number of samples, but no peer can fake its members' signatures. So a member shows the last
//! round of its lineage. The round's headers are signed for the lineage before it, and the claim opens that
//! lineage's hash far enough to show the samples that it counts.

use crate::access::signature::{Attempt, Scheme};
use crate::base::id::{Digest, PeerId, Round, ViewKey};
use crate::ledger::{Head, Record, lineage};
use crate::run::config::Manifest;
use serde::{Deserialize, Serialize};

/// Where a peer's lineage stands. Compared when lineages meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Samples counted.
    pub samples: u64,
    /// Committed rounds.
    pub round: Round,
    /// The lineage.
    pub chain: Digest,
}

impl Standing {
    /// The standing of a ledger's head.
    pub fn of(head: &Head) -> Self {
        Self {
            samples: head.samples,
            round: head.round,
            chain: head.chain,
        }
    }

    /// Whether this lineage wins over another: more samples, then more rounds, then the larger hash.
    pub fn beats(&self, other: &Self) -> bool {
        (self.samples, self.round, self.chain) > (other.samples, other.round, other.chain)
    }
}

/// A member's proof of its lineage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// Together with the samples, the preimage of the lineage that the last round's headers are signed for.
    pub trail: Digest,
    /// Samples counted before the last round.
    pub samples: u64,
    /// Hash of the head before the last round, which the name of its view includes.
    pub head: Digest,
    /// The last round.
    pub record: Record,
}

impl Claim {
    /// The lineage before the last round.
    pub(crate) fn before(&self) -> Digest {
        lineage(&self.trail, self.samples)
    }

    /// Where its lineage stands.
    pub fn standing(&self) -> Standing {
        let samples = self.samples.saturating_add(self.record.weight());
        Standing {
            samples,
            round: self.record.round,
            chain: lineage(&self.record.trail_after(&self.attempt()), samples),
        }
    }

    /// The attempt that made the last round.
    pub(crate) fn attempt(&self) -> Attempt {
        let Record { round, attempt, .. } = self.record;
        let members: Vec<PeerId> = self.record.headers.iter().map(|h| h.peer).collect();
        Attempt {
            chain: self.before(),
            view: ViewKey::of(self.head, round, attempt, &members),
        }
    }

    /// Whether all authors in the last round have signed for it.
    pub(crate) fn is_signed(&self, scheme: Scheme) -> bool {
        let attempt = self.attempt();
        self.record
            .headers
            .iter()
            .all(|h| h.is_by(h.peer, &attempt, scheme))
    }

    /// Whether it can be the proof of this standing: one round adds no more samples than a round has.
    pub(crate) fn is_of(&self, standing: &Standing, manifest: &Manifest) -> bool {
        self.record.weight() <= manifest.most_samples() && self.standing() == *standing
    }
}
