//! The revocations that a peer of a world has heard of.

use crate::access::invitation::Revocation;
use crate::base::id::TicketId;
use std::collections::BTreeMap;

/// The revocations that a peer has heard of, and in how many rounds it may have said them since it came to others.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub revoked: BTreeMap<TicketId, Revocation>,
    pub rounds: u64,
}

impl Heard {
    /// It comes to others, who may not have heard of all.
    pub fn comes_in(&mut self) {
        self.rounds = 0;
    }
}
