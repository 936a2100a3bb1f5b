//! What a piece is, and what a peer says that it does.

use serde::{Deserialize, Serialize};

/// Which of a piece's two ways this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Leg {
    /// A partial sum, on its way to the chunk's owner.
    Partial,
    /// The finished sum, on its way to all, verbatim; or, where members keep parts of the moments, what weights become by it.
    Finished,
    /// The finished sum, on its way along those who keep its part.
    Sum,
    /// What one lane gives to a sum, on its way to who adds it up, where a model is split over the members: which of those that
    /// are added, in their order.
    Lane(u16),
}

/// What a peer is doing, told to those who wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Doing {
    /// Making its contribution, for so many microseconds.
    Computing {
        /// Since it began.
        elapsed_us: u64,
    },
    /// Waiting for pieces or for an agreement.
    Waiting {
        /// Pieces of the attempt asked about that it has sent to who asks.
        sent: u32,
        /// Those that have come from there ...
        came: u32,
        /// ... and from all.
        of_all: u32,
        /// What has come from anybody beside pieces: tensors, and parts that it learns.
        beside: u32,
    },
    /// It has no reason to do anything: the run waits for more peers.
    Idle,
    /// Not a member yet.
    Syncing,
}
