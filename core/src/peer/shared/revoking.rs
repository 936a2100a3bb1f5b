//! Revocations only grow: what a peer has heard from an issuer, it says in every lineage that it comes into.

use super::Shared;
use crate::access::invitation::{Admission, Revocation};
use crate::base::id::PeerId;
use crate::base::planted::Bug;
use crate::ledger::Head;
use crate::peer::meeting::Shown;
use crate::wire::Message;
use crate::wire::rights::Kind;

/// What it costs to check a revocation, as bytes of an answer: at most five signatures.
const CHECK_BYTES: usize = 4096;

impl Shared {
    /// Revokes a ticket with the next header, unless the run knows.
    pub fn revoke(&mut self, revocation: Revocation) {
        let run = self.root.run;
        let news = self.head().tickets.revoked.takes(&revocation, run);
        if news && !self.revocations.knows(&revocation, run) && revocation.is_good(self.root, self.scheme()) {
            self.revocations.add(revocation, run);
        }
    }

    /// Whether this peer knows that its own ticket is revoked, and the run does not yet.
    pub fn is_revoked(&self) -> bool {
        let own = &self.settings.admission;
        self.revocations.against(own, self.root.run).is_some()
    }

    /// What the next header says of that.
    pub fn revocations_to_say(&self) -> Vec<Revocation> {
        let members = self.head().members.iter().map(|m| &m.admission);
        self.revocations.to_say(members, self.root.run)
    }

    /// A peer in another lineage has heard of a revocation.
    pub fn hear_revocation(&mut self, from: PeerId, revocation: Revocation) {
        let known = self.head().tickets.knows(&revocation, self.root.run);
        if !known && self.allow(from, CHECK_BYTES, Kind::Revoked) {
            self.revoke(revocation);
        }
    }

    /// Has no more to say of what the head knows by now, or has no room for.
    pub fn keep_unsaid(&mut self) {
        let (run, revoked) = (self.root.run, &self.lineage.head.tickets.revoked);
        self.revocations.retain(|said| revoked.takes(said, run));
    }

    /// Goes over to another lineage, and takes along what its own knew.
    pub fn go_over(&mut self, head: Head) {
        let before = std::mem::replace(&mut self.lineage.head, head);
        if !self.settings.planted(Bug::MergeForgetsRevocations) {
            let known = before.tickets.revoked.iter().cloned();
            known.for_each(|revocation| self.revoke(revocation));
        }
        self.keep_unsaid();
    }

    /// A peer may not come in by a revoked ticket, and is shown why.
    pub fn show_revocation(&mut self, to: PeerId, admission: &Admission) {
        let run = self.root.run;
        let said = self.head().tickets.revoked.against(admission, run);
        if let Some(revocation) = said.or(self.revocations.against(admission, run)).cloned() {
            self.control(to, Message::Revoked(Box::new(revocation)));
        }
    }

    /// Another lineage shows signatures of former members whose tickets were revoked here. It hears of that, and then
    /// both sides know who does not count.
    pub fn tell_revoked(&mut self, to: PeerId, shown: &Shown<'_>) {
        let (root, scheme) = (self.root, self.scheme());
        let tickets = &self.lineage.head.tickets;
        let against = shown
            .voices(to)
            .filter_map(|peer| tickets.against(peer, root.run));
        let mut said: Vec<Revocation> = Vec::new();
        for revocation in against {
            if said.len() < Revocation::MOST && !said.contains(revocation) {
                said.push(revocation.clone());
            }
        }
        for revocation in said {
            // A head that somebody else has made up may hold what nobody has signed.
            if self.allow(to, CHECK_BYTES, Kind::Status) && revocation.is_good(root, scheme) {
                self.control(to, Message::Revoked(Box::new(revocation)));
            }
        }
    }
}
