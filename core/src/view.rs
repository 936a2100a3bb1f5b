//! The members of one attempt, and what tells it from all others. Who sums what with whom is not its concern.

use crate::id::PeerId;
use crate::ledger::Head;
use crate::wire::ViewKey;

/// The members of one attempt.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub key: ViewKey,
    /// In ring order.
    pub members: Vec<PeerId>,
    /// This peer's position.
    pub me: usize,
}

impl View {
    /// `None` if this peer is not among the members.
    pub fn new(head: &Head, attempt: u32, members: Vec<PeerId>, me: PeerId) -> Option<Self> {
        let me = members.iter().position(|m| *m == me)?;
        let key = ViewKey {
            round: head.round + 1,
            attempt,
            id: view_id(head, attempt, &members),
        };
        Some(Self { key, members, me })
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

/// Hash of lineage, attempt and members.
pub(crate) fn view_id(head: &Head, attempt: u32, members: &[PeerId]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&head.chain.0).update(&attempt.to_le_bytes());
    for member in members {
        hasher.update(&member.0);
    }
    u64::from_le_bytes(hasher.finalize().as_bytes()[..8].try_into().expect("eight bytes"))
}
