//! Why members come and go, as a peer tells the world.

use crate::ledger::check::Fault;
use std::fmt;

/// A change of membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is a member from the next round on.
    Joined,
    /// It said that it leaves.
    Left,
    /// It stands aside: it holds the state, and is tried again.
    StandsAside,
    /// It is silent.
    Failed,
    /// It answers but cannot stay.
    Evicted,
}

/// Why somebody became a member or ceased to be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It holds the state and has been named by its sponsor.
    CaughtUp,
    /// It said that it leaves.
    Goodbye,
    /// The run would be slower with it. It follows a member, and is tried again.
    StandsAside,
    /// The ticket that it came by was revoked.
    Revoked,
    /// It did not answer, or not deliver.
    Silent,
    /// It computes for longer than its own past says.
    TooSlow,
    /// It is there, but what it sends does not come.
    Mute,
    /// It said that it is no member any more.
    Out,
    /// It sent what the protocol does not allow.
    Violation,
    /// What it said of itself cannot be: no member may commit it.
    Header(Fault),
    /// It told of a commit that cannot be.
    FalseCommit,
    /// It told of a decision that others have not signed.
    FalseDecision,
    /// It sent what somebody else should have signed, and has not.
    Forged,
    /// It has said two things at once, and signed both.
    Convicted,
    /// Another member suspects it.
    Suspected,
    /// It suspects so many that it is itself the one that is cut off.
    CutOff,
    /// The state that it started from is not the majority's.
    Diverged,
}

impl Reason {
    /// The change that it is the reason of.
    pub fn change(&self) -> Change {
        match self {
            Self::CaughtUp => Change::Joined,
            Self::Goodbye => Change::Left,
            Self::StandsAside => Change::StandsAside,
            Self::Revoked | Self::TooSlow | Self::Diverged => Change::Evicted,
            Self::Silent
            | Self::Mute
            | Self::Out
            | Self::Violation
            | Self::Header(_)
            | Self::FalseCommit
            | Self::FalseDecision
            | Self::Forged
            | Self::Convicted
            | Self::Suspected
            | Self::CutOff => Change::Failed,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CaughtUp => "caught up",
            Self::Goodbye => "said goodbye",
            Self::StandsAside => "stands aside",
            Self::Revoked => "its ticket was revoked",
            Self::Silent => "silent",
            Self::TooSlow => "too slow",
            Self::Mute => "its messages do not arrive, though it gets ours",
            Self::Out => "it has lost its place and comes back by itself",
            Self::Violation => "broke the protocol",
            Self::Header(fault) => return write!(f, "its header {fault}"),
            Self::FalseCommit => "told of a commit that cannot be",
            Self::Forged => "sent what is falsely signed",
            Self::Convicted => "has signed two things that contradict each other",
            Self::FalseDecision => "told of a decision that there was not",
            Self::Suspected => "another member has lost contact with it",
            Self::CutOff => "it has lost contact with most of the others, and comes back by itself",
            Self::Diverged => "its state differs from the majority's",
        })
    }
}

/// Why this peer ceased to be a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutcastReason {
    /// The round after the head is not one of its.
    NotAMember,
    /// The run would be slower with it: it follows a member, and is tried again.
    StandsAside,
    /// No full member is left, and this peer is none.
    NoMember,
    /// The next attempt is without it.
    Excluded,
    /// Another member suspects it.
    Suspected,
    /// The others have decided without it.
    Decided,
    /// A lineage that it has met has most of the members of old, or counts more samples than this one.
    OtherLineage,
    /// A part of its own lineage, which waits as it does, goes before.
    OtherPart,
    /// Its state is not the majority's.
    Diverged,
    /// Its state is not what its digest says.
    Damaged,
    /// It lacks moments that it should keep.
    Behind,
    /// A peer of the same name takes part.
    InUse,
}

impl fmt::Display for OutcastReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAMember | Self::Excluded => "the others have gone on without this peer. It joins them again by itself",
            Self::StandsAside => "the run would be slower with this peer, so it stands aside and is tried again later",
            Self::NoMember => "no full member is there. This peer waits for one",
            Self::Suspected | Self::Decided => {
                "the others have lost contact with this peer: perhaps this machine slept, or was too slow. It joins them again by \
                 itself"
            }
            Self::OtherLineage => {
                "most members have gone on without this peer: perhaps this machine slept, or was cut off from them. It joins \
                 them again by itself"
            }
            Self::OtherPart => "this peer and others wait apart from each other. It joins them by itself",
            Self::Diverged => "its state differs from the majority's. It fetches theirs",
            Self::Damaged => "its state was damaged in memory. It fetches the others'",
            Self::Behind => "it lacks optimizer state that it should hold. It fetches the others'",
            Self::InUse => "a peer with this identity takes part already",
        })
    }
}
