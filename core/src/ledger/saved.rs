//! Parts that members of a split run have saved on disk, and what the ledger knows of them.

use crate::base::id::{Digest, PeerId, Round};
use crate::ledger::cut::SampleRange;
use crate::run::parts::PartSet;
use serde::{Deserialize, Serialize};

/// Most saved rounds that a head remembers. A guess: more than the checkpoints that a member keeps, even if members
/// save at different rounds.
pub(crate) const POINTS: usize = 16;

/// Parts that one peer has on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// The lineage after the round that stepped them last.
    pub stepped: Digest,
    /// The parts.
    pub parts: PartSet,
}

/// A member's statement about its disk while parts are lost, as the head knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// Its name.
    pub peer: PeerId,
    /// It has waited long enough for the lost parts.
    pub waits: bool,
    /// Its saved parts of rounds that the head remembers.
    pub saved: Vec<Saved>,
}

/// A round after which members saved their parts. It has everything of the head that goes back with the state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The lineage after it.
    pub stepped: Digest,
    /// Its number.
    pub round: Round,
    /// Optimizer steps up to there ...
    pub steps: u64,
    /// ... samples counted, without those of rounds that were undone, ...
    pub counted: u64,
    /// ... samples given up, ...
    pub skipped: u64,
    /// ... and positions allotted.
    pub cursor: u64,
    /// The allotted positions that did not count.
    pub holes: Vec<SampleRange>,
    /// Whether fewer than half of the members have saved it. Such points are forgotten first.
    pub is_weak: bool,
}
