//! Reasons for changes of the membership, for events.

use crate::ledger::check::Fault;
use std::fmt;

/// A change of membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is a member from the next round on.
    Joined,
    /// It announced that it leaves.
    Left,
    /// It stands aside: it holds the state, and is tried again.
    StandsAside,
    /// It is silent.
    Failed,
    /// It answers, but cannot stay.
    Evicted,
}

/// Why a peer became or ceased to be a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It has the state, and its sponsor named it.
    CaughtUp,
    /// It announced that it leaves.
    Goodbye,
    /// A guest of another ticket has its place, since its own ticket has many.
    MadeRoom,
    /// The run would be slower with it. It follows a member, and is tried again.
    StandsAside,
    /// The ticket that it came by was revoked.
    Revoked,
    /// It did not answer, or did not deliver.
    Silent,
    /// It computes for longer than its own past explains.
    TooSlow,
    /// It is there, but its messages do not arrive (one-way link failure).
    Mute,
    /// It said that it is not a member any more.
    Out,
    /// It sent something that the protocol does not allow.
    Violation,
    /// Its header is impossible, so no member may commit it.
    Header(Fault),
    /// It reported an impossible commit.
    FalseCommit,
    /// It reported a decision without valid signatures.
    FalseDecision,
    /// It sent a statement without its author's signature.
    Forged,
    /// It has signed two contradicting statements.
    Convicted,
    /// It has sent values that do not follow from its task, as this member has found.
    FalseValues,
    /// Another member suspects it.
    Suspected,
    /// It suspects most members, so it is itself cut off.
    CutOff,
    /// It started from a state that is not the majority's.
    Diverged,
}

impl Reason {
    /// The change that the reason explains.
    pub fn change(&self) -> Change {
        match self {
            Self::CaughtUp => Change::Joined,
            Self::Goodbye | Self::MadeRoom => Change::Left,
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
            | Self::FalseValues
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
            Self::MadeRoom => "made room for a guest of another ticket",
            Self::StandsAside => "stands aside",
            Self::Revoked => "its ticket was revoked",
            Self::Silent => "silent",
            Self::TooSlow => "too slow",
            Self::Mute => "its messages do not arrive, though it gets ours",
            Self::Out => "it has lost its place and comes back by itself",
            Self::Violation => "broke the protocol",
            Self::Header(fault) => return write!(f, "its header {fault}"),
            Self::FalseCommit => "reported an impossible commit",
            Self::Forged => "sent a statement with a false signature",
            Self::Convicted => "signed two contradicting statements",
            Self::FalseValues => "sent values that do not follow from its task",
            Self::FalseDecision => "reported a decision that the others did not make",
            Self::Suspected => "another member has lost contact with it",
            Self::CutOff => "it has lost contact with most of the others, and comes back by itself",
            Self::Diverged => "its state differs from the majority's",
        })
    }
}

/// Why this peer ceased to be a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutcastReason {
    /// It is not a member of the round after the head.
    NotAMember,
    /// The run would be slower with it: it follows a member, and is tried again.
    StandsAside,
    /// No full member is left, and this peer is not one.
    NoMember,
    /// The next attempt is without it.
    Excluded,
    /// Another member suspects it.
    Suspected,
    /// The others have decided without it.
    Decided,
    /// It met a lineage with most of the old members, or with more samples.
    OtherLineage,
    /// It met another part of its own lineage, which waits as it does and has precedence.
    OtherPart,
    /// Its state is not the majority's.
    Diverged,
    /// Its state does not match its digest.
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
