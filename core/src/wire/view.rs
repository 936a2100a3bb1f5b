//! The members of one attempt, and the name of the attempt. How they sum is decided elsewhere.

use crate::access::signature::Attempt;
use crate::base::id::{Digest, PeerId, ViewKey};
use crate::ledger::Head;

/// The members of one attempt.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub key: ViewKey,
    /// Hash of the head that the attempt continues.
    pub head: Digest,
    /// In ring order.
    pub members: Vec<PeerId>,
    /// This peer's position.
    pub me: usize,
}

impl View {
    /// `None` if this peer is not among the members.
    pub fn new(head: &Head, attempt: u32, members: Vec<PeerId>, me: PeerId) -> Option<Self> {
        let me = members.iter().position(|m| *m == me)?;
        let (hash, round) = (head.hash(), head.round + 1);
        Some(Self {
            key: ViewKey::of(hash, round, attempt, &members),
            head: hash,
            members,
            me,
        })
    }

    /// The attempt that its members sign for, given that head.
    pub fn attempt(&self, head: &Head) -> Attempt {
        Attempt {
            chain: head.chain,
            view: self.key,
        }
    }

    /// A member's position.
    pub fn position(&self, peer: PeerId) -> Option<usize> {
        self.members.iter().position(|m| *m == peer)
    }

    pub fn contains(&self, peer: PeerId) -> bool {
        self.members.contains(&peer)
    }

    pub fn others(&self) -> impl Iterator<Item = PeerId> {
        let me = self.me;
        let others = self.members.iter().enumerate().filter(move |(i, _)| *i != me);
        others.map(|(_, member)| *member)
    }

    /// Whether a key is of a later attempt or round than this one.
    pub fn is_before(&self, key: &ViewKey) -> bool {
        (self.key.round, self.key.attempt) < (key.round, key.attempt)
    }
}
