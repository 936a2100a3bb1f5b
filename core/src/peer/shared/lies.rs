//! A peer's answer to lies: it shows contradictions to others, and cuts their authors off.

use super::{Shared, matters};
use crate::access::signature::Signed;
use crate::base::id::PeerId;
use crate::base::planted::Bug;
use crate::ledger::conviction::{Conviction, Forged};
use crate::ledger::seal::Seal;
use crate::ledger::{Header, Record};
use crate::peer::interface::{Event, Lane};
use crate::peer::reason::Reason;
use crate::wire::{Message, ViewKey};

impl Shared {
    /// A peer of the head or of the last round has contradicted itself. Returns it if that is news; then all members
    /// are told. Names are free, so a proof about any other is not even checked.
    pub fn convict(&mut self, proof: Conviction) -> Option<PeerId> {
        let matters = self.lineage.knows(proof.author());
        matters.then(|| self.convict_anybody(proof)).flatten()
    }

    /// A peer has contradicted itself, perhaps long ago, as this peer's sponsor shows.
    pub fn convict_anybody(&mut self, mut proof: Conviction) -> Option<PeerId> {
        let peer = proof.author();
        let known = self.outlaws.proof(peer).is_some() || peer == self.me();
        let proven = proof.of(self.scheme()).is_some() || self.settings.planted(Bug::TrustProofs);
        if known || !proven || self.settings.planted(Bug::Forgive) {
            return None;
        }
        let (root, scheme) = (self.root, self.scheme());
        proof.admission = proof
            .admission
            .filter(|admission| admission.is_of(peer, root, scheme))
            .or_else(|| {
                let member = self.head().members.iter().find(|m| m.peer == peer);
                member.map(|member| Box::new(member.admission.clone()))
            });
        let matters = matters(&self.links, self.head(), peer);
        if !self.outlaw(peer, Some(proof.clone())) {
            return None;
        }
        let others: Vec<PeerId> = self.links.reachable().filter(|_| matters).collect();
        for other in others {
            self.control(other, Message::Convicted(Box::new(proof.clone())));
        }
        self.differing.clear();
        Some(peer)
    }

    /// A member's headers differ from this one's. It gets this member's headers, so that it can show the
    /// contradiction.
    pub fn differs(&mut self, peer: PeerId, view: ViewKey, headers: Vec<Signed<Header>>) {
        let until = self.now + self.detector.answer();
        self.differing.entry(peer).or_insert(until);
        self.control(peer, Message::Headers { view, headers });
    }

    /// Whether a member has had its time for that: its headers do not differ, it does not want to show them, or its
    /// proof does not arrive.
    pub fn differs_for_long(&self, peer: PeerId) -> bool {
        self.differing.get(&peer).is_some_and(|until| *until <= self.now)
    }

    /// Some members' states or moments differ from this one's. This peer exchanges the owners' seals of the last
    /// round with them. It also exchanges them with the member that the record was refused for, which may differ
    /// only because of what a liar sent it.
    pub fn show_seals(&mut self, record: &Record, refused: PeerId) {
        let (digest, me) = (self.lineage.digest, self.me());
        let own = record.headers.iter().find(|h| h.peer == me);
        let differs = |h: &Header| h.digest != digest || own.is_some_and(|own| own.keeps.differs(&h.keeps));
        let last = self.lineage.last.as_ref();
        let sealed = last.and_then(|last| self.lineage.seals.of(last.view));
        let Some(sealed) = sealed.filter(|_| !self.settings.planted(Bug::CompareNoSeals)) else {
            return;
        };
        let (view, seals) = (sealed.attempt.view, sealed.seals.clone());
        let concerns =
            |h: &&Signed<Header>| h.peer != me && (refused == me || h.peer == refused || differs(h));
        for header in record.headers.iter().filter(concerns) {
            let seals = seals.clone();
            self.control(header.peer, Message::Seals { view, seals });
        }
    }

    /// A peer whose state differs shows seals. Returns the peer that is cut off now and why: an owner that has
    /// signed two seals, or the peer that shows an unsigned one.
    pub fn compare_seals(&mut self, from: PeerId, view: ViewKey, seals: &[Seal]) -> Option<(PeerId, Reason)> {
        let known = self.lineage.seals.of(view)?;
        match Conviction::find_seal(known, seals, self.scheme()) {
            Ok(proof) => Some((self.convict(proof?)?, Reason::Convicted)),
            Err(Forged) => {
                self.outlaw(from, None);
                Some((from, Reason::Forged))
            }
        }
    }

    /// Cuts a peer off: nothing from it is accepted any more. False if it was already.
    pub fn outlaw(&mut self, peer: PeerId, proof: Option<Conviction>) -> bool {
        let proven = proof.is_some();
        let (links, head) = (&self.links, &self.lineage.head);
        if !self.outlaws.add(peer, proof, |peer| matters(links, head, peer)) {
            return false;
        }
        self.hang_up(peer);
        self.tell(Event::Outlawed { peer, proven });
        true
    }

    /// Sends a peer the proofs against outlaws.
    pub fn tell_proofs(&mut self, to: PeerId) {
        for proof in self.outlaws.proofs() {
            let message = Message::Convicted(Box::new(proof.clone()));
            self.links.send(&mut self.out, to, Lane::Control, message);
        }
    }
}
