//! The table of rights: which peer may send which message when. Messages that it does not allow are dropped before
//! any phase sees them, and counted. Their sender is not suspected: honest peers also send messages too late or to
//! the wrong peer.
//!
//! A right is a pure function of four things: the kind of message, the phase of its receiver, how the message's
//! round relates to the receiver's, and what the sender is to the receiver. The effect of an accepted message is
//! not decided here.

use crate::wire::{Message, ViewKey};
use std::collections::BTreeMap;

/// The kind of a message, without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names of the messages")]
pub enum Kind {
    Piece,
    Probe,
    Alive,
    Flush,
    Decision,
    Committed,
    Repair,
    Out,
    Status,
    Follow,
    Following,
    NotMember,
    Followed,
    Ready,
    Fetch,
    Block,
    Doubt,
    Digests,
    Acquaintances,
    Relay,
    Unreachable,
    Headers,
    Seals,
    Convicted,
    Revoked,
    Barred,
    NoPlace,
    Introduce,
    Introduced,
    Learn,
    Moments,
    Want,
    Tensor,
    Held,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 34] = [
        Self::Piece,
        Self::Probe,
        Self::Alive,
        Self::Flush,
        Self::Decision,
        Self::Committed,
        Self::Repair,
        Self::Out,
        Self::Status,
        Self::Follow,
        Self::Following,
        Self::NotMember,
        Self::Followed,
        Self::Ready,
        Self::Fetch,
        Self::Block,
        Self::Doubt,
        Self::Digests,
        Self::Acquaintances,
        Self::Relay,
        Self::Unreachable,
        Self::Headers,
        Self::Seals,
        Self::Convicted,
        Self::Revoked,
        Self::Barred,
        Self::NoPlace,
        Self::Introduce,
        Self::Introduced,
        Self::Learn,
        Self::Moments,
        Self::Want,
        Self::Tensor,
        Self::Held,
    ];

    /// The kind of a message, and the attempt that it belongs to, if any.
    pub(crate) fn of(message: &Message) -> (Self, Option<ViewKey>) {
        match message {
            Message::Piece { view, .. } => (Self::Piece, Some(*view)),
            Message::Probe { view, .. } => (Self::Probe, Some(*view)),
            Message::Flush { view, .. } => (Self::Flush, Some(*view)),
            Message::Decision { view, .. } => (Self::Decision, Some(*view)),
            Message::Committed { view, .. } => (Self::Committed, Some(*view)),
            Message::Repair { view, .. } => (Self::Repair, Some(*view)),
            Message::Headers { view, .. } => (Self::Headers, Some(*view)),
            Message::Seals { view, .. } => (Self::Seals, Some(*view)),
            Message::Convicted(_) => (Self::Convicted, None),
            Message::Revoked(_) => (Self::Revoked, None),
            Message::Barred { .. } => (Self::Barred, None),
            Message::NoPlace { .. } => (Self::NoPlace, None),
            Message::Out { view } => (Self::Out, Some(*view)),
            Message::Alive { .. } => (Self::Alive, None),
            Message::Status { .. } => (Self::Status, None),
            Message::Follow { .. } => (Self::Follow, None),
            Message::Following { .. } => (Self::Following, None),
            Message::NotMember { .. } => (Self::NotMember, None),
            Message::Followed { .. } => (Self::Followed, None),
            Message::Ready { .. } => (Self::Ready, None),
            Message::Fetch { .. } => (Self::Fetch, None),
            Message::Block { .. } => (Self::Block, None),
            Message::Doubt => (Self::Doubt, None),
            Message::Digests { .. } => (Self::Digests, None),
            Message::Acquaintances { .. } => (Self::Acquaintances, None),
            Message::Relay { .. } => (Self::Relay, None),
            Message::Unreachable { .. } => (Self::Unreachable, None),
            Message::Introduce { .. } => (Self::Introduce, None),
            Message::Introduced { .. } => (Self::Introduced, None),
            Message::Learn { .. } => (Self::Learn, None),
            Message::Moments { .. } => (Self::Moments, None),
            Message::Want { view, .. } => (Self::Want, Some(*view)),
            Message::Tensor { .. } => (Self::Tensor, None),
            Message::Held { view } => (Self::Held, Some(*view)),
        }
    }
}

/// How a message's attempt relates to the receiver's. A receiver without an attempt is in the round after its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// The message belongs to no attempt.
    Always,
    /// The attempt is over here, or differs from the one in work.
    Past,
    /// The attempt in work.
    Now,
    /// A later attempt at the round, or one at the next round: the sender is ahead.
    Soon,
    /// Further ahead than any member can be.
    Far,
}

impl When {
    #[cfg(test)]
    pub const ALL: [Self; 5] = [Self::Always, Self::Past, Self::Now, Self::Soon, Self::Far];

    /// As seen by a member in an attempt.
    pub fn in_attempt(of: ViewKey, here: ViewKey) -> Self {
        match (of.round, of.attempt) {
            _ if of == here => Self::Now,
            (round, _) if round > here.round.saturating_add(1) => Self::Far,
            later if later > (here.round, here.attempt) => Self::Soon,
            _ => Self::Past,
        }
    }

    /// As seen by a peer without an attempt, from the round after its head.
    pub fn in_round(of: ViewKey, next: u64) -> Self {
        match of.round {
            round if round < next => Self::Past,
            round if round == next => Self::Now,
            round if round == next.saturating_add(1) => Self::Soon,
            _ => Self::Far,
        }
    }
}

/// The phases as columns of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Newcomer,
    Member,
    Lingering,
}

/// The roles of a peer towards another; several may apply at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Roles(u8);

impl Roles {
    /// Nobody has this right.
    pub const NOBODY: Self = Self(0);
    /// Every peer, also through a relay.
    pub const ANYBODY: Self = Self(1);
    /// A peer with a link of its own.
    pub const LINKED: Self = Self(1 << 1);
    /// A follower of this peer.
    pub const FOLLOWER: Self = Self(1 << 2);
    /// A peer that was asked to be this peer's sponsor.
    pub const SPONSOR: Self = Self(1 << 3);
    /// A member of the head, or a peer that took part in the last round.
    pub const KNOWN: Self = Self(1 << 4);
    /// A member of the attempt in work.
    pub const MEMBER: Self = Self(1 << 5);

    /// Peers that may relay frames of others to this one.
    pub const BEARER: Self = Self::KNOWN.or(Self::MEMBER).or(Self::SPONSOR);

    #[cfg(test)]
    pub const EACH: [Self; 6] = [
        Self::ANYBODY,
        Self::LINKED,
        Self::FOLLOWER,
        Self::SPONSOR,
        Self::KNOWN,
        Self::MEMBER,
    ];

    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These roles if a condition holds, else none.
    pub fn when(self, holds: bool) -> Self {
        if holds { self } else { Self::NOBODY }
    }

    /// Whether both share a role.
    pub fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// The roles that may send this to a peer in that phase.
pub(crate) fn who(kind: Kind, when: When, column: Column) -> Roles {
    row(kind, when)[column as usize]
}

/// The table. `Always` is for messages that belong to no attempt; messages that belong to one have no row for it.
#[rustfmt::skip] // a table
fn row(kind: Kind, when: When) -> [Roles; 3] {
    use Kind::*;
    use When::*;
    const NOBODY: Roles = Roles::NOBODY;
    const ANYBODY: Roles = Roles::ANYBODY;
    const LINKED: Roles = Roles::LINKED;
    const FOLLOWER: Roles = Roles::FOLLOWER;
    const SPONSOR: Roles = Roles::SPONSOR;
    const KNOWN: Roles = Roles::KNOWN.or(Roles::MEMBER);
    const MEMBER: Roles = Roles::MEMBER;
    const GUEST: Roles = LINKED.or(FOLLOWER);
    const GIVER: Roles = KNOWN.or(SPONSOR);
    match (kind, when) {
        //                            newcomer  member    lingering
        // Of an attempt. A newcomer may be in one that it has not heard of, with members that it does not know. A peer in
        // an attempt that is over is told so. An early message waits, and is then accepted only from members.
        (Piece,       Past)        => [ANYBODY, ANYBODY,  NOBODY],
        (Piece,       Now)         => [ANYBODY, MEMBER,   NOBODY],
        (Piece,       Soon)        => [ANYBODY, ANYBODY,  NOBODY],
        (Piece,       Far)         => [ANYBODY, NOBODY,   NOBODY],
        (Probe,       _)           => [ANYBODY, ANYBODY,  ANYBODY],
        (Flush,       Past)        => [ANYBODY, ANYBODY,  ANYBODY],
        (Flush,       Now | Soon)  => [ANYBODY, MEMBER,   ANYBODY],
        (Flush,       _)           => [ANYBODY, NOBODY,   ANYBODY],
        // Also from peers that were excluded from this round, or that ceased to be members with the last.
        (Decision,    Far)         => [NOBODY,  NOBODY,   NOBODY],
        (Decision,    _)           => [NOBODY,  KNOWN,    NOBODY],
        (Committed,   Now)         => [SPONSOR, MEMBER,   NOBODY],
        (Committed,   _)           => [SPONSOR, NOBODY,   NOBODY],
        // From members that compare headers, in this attempt or in the last round's.
        (Headers,     Now)         => [NOBODY,  MEMBER,   NOBODY],
        (Headers,     Past)        => [NOBODY,  KNOWN,    KNOWN],
        (Headers,     _)           => [NOBODY,  NOBODY,   NOBODY],
        // From peers that compare the sums of the last round, including those that ceased to be members because of
        // it.
        (Seals,       Past)        => [KNOWN,   KNOWN,    KNOWN],
        (Seals,       _)           => [NOBODY,  NOBODY,   NOBODY],
        // These carry their own proof.
        (Convicted,   _)           => [ANYBODY, ANYBODY,  ANYBODY],
        (Revoked,     _)           => [ANYBODY, ANYBODY,  ANYBODY],
        // A peer that may not have the pieces is told where this lineage stands.
        (Repair,      _)           => [ANYBODY, ANYBODY,  ANYBODY],
        (Out,         Far)         => [ANYBODY, NOBODY,   NOBODY],
        (Out,         _)           => [ANYBODY, MEMBER,   NOBODY],
        // Answers come from peers that were asked, perhaps late.
        (Alive,       _)           => [SPONSOR, KNOWN,    NOBODY],
        // Lineages that meet.
        (Status,      _)           => [ANYBODY, ANYBODY,  ANYBODY],
        // Newcomers.
        (Follow,      _)           => [LINKED,  LINKED,   LINKED],
        (Following,   _)           => [SPONSOR, NOBODY,   NOBODY],
        (NotMember,   _)           => [ANYBODY, NOBODY,   NOBODY],
        // A sponsor hears of an expired ticket from the members to which it has named the newcomer.
        (Barred,      _)           => [SPONSOR, MEMBER,   NOBODY],
        (NoPlace,     _)           => [SPONSOR, NOBODY,   NOBODY],
        (Followed,    _)           => [NOBODY,  FOLLOWER, FOLLOWER],
        (Ready,       _)           => [NOBODY,  FOLLOWER, FOLLOWER],
        (Fetch,       _)           => [GUEST,   GUEST,    GUEST],
        (Block,       _)           => [GIVER,   NOBODY,   NOBODY],
        (Doubt,       _)           => [NOBODY,  FOLLOWER, FOLLOWER],
        (Digests,     _)           => [SPONSOR, NOBODY,   NOBODY],
        // Members that keep parts of the moments.
        (Learn,       _)           => [NOBODY,  KNOWN,    NOBODY],
        (Moments,     _)           => [NOBODY,  KNOWN,    NOBODY],
        // Members that hold spans of a model. A request for the next attempt waits, as pieces do.
        (Want,        Now)         => [NOBODY,  MEMBER,   NOBODY],
        (Want,        Soon)        => [ANYBODY, ANYBODY,  NOBODY],
        (Want,        _)           => [NOBODY,  NOBODY,   NOBODY],
        (Tensor,      _)           => [NOBODY,  MEMBER,   NOBODY],
        (Held,        Now)         => [NOBODY,  MEMBER,   NOBODY],
        (Held,        _)           => [NOBODY,  NOBODY,   NOBODY],
        // Introductions to peers that another knew: see `shared.rs`.
        (Acquaintances, _)           => [LINKED,  LINKED,   LINKED],
        // A peer relays frames for others that have a link to it. A frame for this peer must come from a BEARER, or
        // from its author.
        (Relay,       _)           => [LINKED,  LINKED,   LINKED],
        (Unreachable, _)           => [LINKED,  LINKED,   LINKED],
        // Messages that make a peer dial: never from strangers.
        (Introduce,   _)           => [NOBODY,  KNOWN,    KNOWN],
        (Introduced,  _)           => [GIVER,   KNOWN,    KNOWN],
        // Messages that always belong to an attempt.
        (Piece, Always)            => [NOBODY,  NOBODY,   NOBODY],
    }
}

/// Number of messages that were dropped because the sender had no right to send them, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused(BTreeMap<Kind, u64>);

impl Refused {
    pub(crate) fn count(&mut self, kind: Kind) {
        *self.0.entry(kind).or_default() += 1;
    }

    /// The number of one kind.
    pub fn of(&self, kind: Kind) -> u64 {
        self.0.get(&kind).copied().unwrap_or(0)
    }

    /// All kinds with their numbers, if not zero.
    pub fn iter(&self) -> impl Iterator<Item = (Kind, u64)> {
        self.0.iter().map(|(kind, count)| (*kind, *count))
    }

    /// The total number.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

#[cfg(test)]
mod tests;
