//! Decides by the ledger who is let in, before anything is sent. Knows no transport.

use annulus_core::invitation::Admission;
use annulus_core::ledger::Head;
use annulus_core::tickets::{Barred, Tickets};
use annulus_core::{PeerId, RunId};
use std::collections::BTreeSet;

/// What the ledger's head says about those who knock.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    tickets: Tickets,
    members: BTreeSet<PeerId>,
}

impl Gate {
    /// At the end of a ledger.
    pub fn at(head: &Head) -> Self {
        Self {
            tickets: head.tickets.clone(),
            members: head.members.iter().map(|m| m.peer).collect(),
        }
    }

    /// Whether a peer is a member.
    pub fn has(&self, peer: PeerId) -> bool {
        self.members.contains(&peer)
    }

    /// Whether a peer with a valid admission may come in. A member stays one when its ticket expires.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn check(&self, peer: PeerId, admission: &Admission, run: RunId, now_s: u64) -> Result<(), Barred> {
        if !self.members.contains(&peer) && admission.chain.has_expired(now_s) {
            return Err(Barred::Expired);
        }
        self.tickets.check(admission, peer, run)
    }
}
