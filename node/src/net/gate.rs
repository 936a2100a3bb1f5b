//! Who is let in by what the ledger tells: before anything is said or handed out. It must know no transport.

use annulus_core::invitation::Admission;
use annulus_core::ledger::Head;
use annulus_core::tickets::{Barred, Tickets};
use annulus_core::{PeerId, RunId};
use std::collections::BTreeSet;

/// What the ledger's end says of those who knock.
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

    /// Whether a peer may come in whose admission is in order. Who is a member stays one when its ticket's time is over.
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
