//! Headers and records of peers that are only names, for tests and the simulation.

#[cfg(test)]
pub(crate) mod spans;

#[cfg(test)]
use crate::access::signature::{Key, Signed};
use crate::base::id::{Digest, PeerId};
use crate::ledger::Header;
#[cfg(test)]
use crate::ledger::{Head, Record};

impl Header {
    /// The header of a member that adds nothing to a first round.
    pub fn stand_in(peer: PeerId) -> Self {
        Self {
            peer,
            weight: 0,
            loss: 0.0,
            speed: 1,
            compute_us: 1,
            exchange_us: 0,
            round_us: 0,
            digest: Digest([0; 32]),
            ahead: false,
            anew: false,
            ready: Vec::new(),
            revoked: Vec::new(),
            stalled: false,
            late: false,
            leaving: false,
            keeps: Default::default(),
        }
    }
}

#[cfg(test)]
impl Record {
    /// A first attempt with these headers after a head.
    pub(crate) fn signed_by_stand_ins(head: &Head, headers: Vec<Header>) -> Self {
        let unsigned = |content: Header| Signed {
            signature: Key::stand_in(content.peer).sign_bytes(b""),
            content,
        };
        let mut record = Self {
            round: head.round + 1,
            attempt: 0,
            headers: headers.into_iter().map(unsigned).collect(),
        };
        record.sign_by_stand_ins(head);
        record
    }

    /// Lets all authors sign their headers.
    pub(crate) fn sign_by_stand_ins(&mut self, head: &Head) {
        let attempt = head.attempt_of(self);
        for header in &mut self.headers {
            header.signature = Key::stand_in(header.peer).sign(&attempt, &header.content);
        }
    }
}
