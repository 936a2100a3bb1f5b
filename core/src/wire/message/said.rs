//! The direction of a piece, and the answer to a probe.

use serde::{Deserialize, Serialize};

/// The direction of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Leg {
    /// A partial sum, on its way to the chunk's owner.
    Partial,
    /// The finished sum, on its way to all, verbatim. If members keep parts of the moments, the update of the
    /// weights instead.
    Finished,
    /// The finished sum, on its way along the part's keepers.
    Sum,
    /// One lane's share of a sum, in a split run, on its way to the member that adds up. Its number is its place in
    /// the order of addition.
    Lane(u16),
}

/// The activity of a peer: its answer to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Doing {
    /// Computing its contribution.
    Computing {
        /// Microseconds since it began.
        elapsed_us: u64,
    },
    /// Waiting for pieces or for an agreement.
    Waiting {
        /// Pieces of the attempt that it has sent to the peer that asks.
        sent: u32,
        /// Pieces that it has received from that peer ...
        came: u32,
        /// ... and from all.
        of_all: u32,
        /// Other data that it has received from any peer: tensors, and parts that it learns.
        beside: u32,
    },
    /// Idle, since the run waits for more peers.
    Idle,
    /// Not a member yet.
    Syncing,
    /// Holding its contribution back, so that a newcomer that it sponsors gets the state.
    Pausing,
}

/// A newcomer's line, in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slow {
    /// What it carries.
    pub carries: u64,
    /// What the run's rounds take.
    pub takes: u64,
}
