//! The kinds of faults in a world.

use std::fmt;

/// Kinds of faults, and of other events at any moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A peer is gone for good.
    Crash,
    /// A peer is gone and restarts under its old name, by joining or from its checkpoint.
    Restart,
    /// A peer is gone in the middle of the messages with which it reacts to an input.
    CrashMidway,
    /// A peer does nothing for a while; its inputs wait.
    Freeze,
    /// Two peers do not hear each other for a while.
    Cut,
    /// One of two peers does not hear the other for a while.
    CutOneWay,
    /// Two groups of peers do not hear each other for a while.
    Partition,
    /// A link breaks and loses all frames under way; it can be redialled at once.
    Break,
    /// A peer becomes ten times slower.
    Slow,
    /// A link becomes slow for a while.
    Delay,
    /// A bit of a peer's state flips.
    Flip,
    /// A contribution is not finite, or has only part of its share.
    Spoil,
    /// A peer leaves properly.
    Leave,
    /// A peer joins.
    Join,
    /// A ticket is taken back. Drawn apart from the others.
    Revoke,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 14] = [
        Self::Crash,
        Self::Restart,
        Self::CrashMidway,
        Self::Freeze,
        Self::Cut,
        Self::CutOneWay,
        Self::Partition,
        Self::Break,
        Self::Slow,
        Self::Delay,
        Self::Flip,
        Self::Spoil,
        Self::Leave,
        Self::Join,
    ];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
