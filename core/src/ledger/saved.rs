//! What members have on their disks, where a model is split over them: parts as they were after some round, and what the ledger
//! knows of it.

use crate::base::id::{Digest, PeerId, Round};
use crate::ledger::cut::SampleRange;
use crate::run::parts::PartSet;
use serde::{Deserialize, Serialize};

/// Rounds that a head remembers since members have saved what they had after them. A guess: more than a member keeps
/// checkpoints, even if some save at other rounds.
pub(crate) const POINTS: usize = 16;

/// Parts as one peer has them on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// The lineage after the round that has stepped them last.
    pub stepped: Digest,
    /// Which they are.
    pub parts: PartSet,
}

/// What a member says of its disk while parts are lost, as the head knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// Its name.
    pub peer: PeerId,
    /// It has waited long enough for who has them.
    pub waits: bool,
    /// What it has of rounds that the head remembers.
    pub saved: Vec<Saved>,
}

/// A round after which members have saved what they had: all of the ledger's head that goes back with the state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The lineage after it.
    pub stepped: Digest,
    /// Its number.
    pub round: Round,
    /// Optimizer steps up to there ...
    pub steps: u64,
    /// ... samples that counted, but for those of rounds that were undone, ...
    pub counted: u64,
    /// ... that were given up, ...
    pub skipped: u64,
    /// ... and that had been handed out.
    pub cursor: u64,
    /// Those of them that did not count.
    pub holes: Vec<SampleRange>,
    /// Whether fewer than half of the members have saved it: it is forgotten before others.
    pub is_weak: bool,
}
