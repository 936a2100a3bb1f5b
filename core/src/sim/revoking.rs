//! Tickets that are taken back: by the run's key, also that of a member which others do not hear, and by a member that
//! takes back many of its own. No peer may forget a revocation that it has heard of, whatever lineage it goes on in.

use super::faults::SLOW;
use super::rng::Rng;
use super::world::{World, tell};
use crate::access::invitation::{Invitation, Revocation, Role};
use crate::base::id::PeerId;
use crate::ledger::Record;
use crate::ledger::revocations::MAX_REVOKED;
use crate::peer::{Input, Peer};
use crate::wire::Message;

/// Rounds in which a peer has said all that it knows.
const ROUNDS: u64 = (MAX_REVOKED / Revocation::MOST) as u64 + 2;

impl World {
    /// A ticket is taken back. Returns whether somebody could.
    pub(super) fn revoke(&mut self) -> Option<()> {
        match self.chaos.index(6) {
            0 => self.revoke_many(),
            1..=3 => self.revoke_member(),
            _ => {
                if self.has_run_revoked_many() {
                    return None;
                }
                let unused = self.ticket(None);
                let by = self.full_member(&[])?;
                tell!(self, "FAULT {} takes a ticket back", self.nodes[by].name);
                self.has_revoked(by, None, &unused);
                Some(())
            }
        }
    }

    fn full_member(&mut self, but: &[usize]) -> Option<usize> {
        let fits = |i: &usize| {
            let node = &self.nodes[*i];
            node.is_member() && !node.is_guest && !node.leaving && !node.is_revoked && !but.contains(i)
        };
        let fair: Vec<usize> = (0..self.nodes.len()).filter(fits).collect();
        self.chaos.pick(&fair)
    }

    /// The right of a peer, or of the run's key.
    fn right(&self, of: Option<usize>) -> Invitation {
        match of {
            Some(i) => Invitation {
                chain: self.admission(i).chain,
                key: self.nodes[i].key.clone(),
            },
            None => Invitation::of_run(self.run_key.clone()),
        }
    }

    /// A ticket that nobody has come by, made by a peer or by the run's key.
    fn ticket(&mut self, of: Option<usize>) -> Invitation {
        let key = super::lie::invented_key(self.scheme, self.chaos.next());
        let made = self
            .right(of)
            .narrow(self.manifest.root(), key, Role::Contribute, None, None);
        made.expect("a member may grant that")
    }

    /// Whether the run's key would soon push its own revocations out.
    pub(super) fn has_run_revoked_many(&self) -> bool {
        self.revoked_by_run >= MAX_REVOKED / 2
    }

    fn has_revoked(&mut self, at: usize, by: Option<usize>, what: &Invitation) {
        self.revoked_by_run += usize::from(by.is_none());
        let revocation = self.right(by).revoke(self.manifest.root(), what.chain.clone());
        let revocation = revocation.expect("it is above that");
        self.give(at, Input::Revoke(Box::new(revocation)));
    }

    /// A member's ticket is taken back, perhaps while those who say so do not hear it.
    fn revoke_member(&mut self) -> Option<()> {
        let out = self
            .mortal()
            .filter(|i| self.nodes[*i].is_member() && !self.nodes[*i].is_guest)?;
        let by = self.full_member(&[out])?;
        tell!(self, "FAULT the ticket of {} is taken back", self.nodes[out].name);
        if self.chaos.chance(0.7) {
            let with_it = |rng: &mut Rng, i: usize| i == out || i != by && rng.chance(0.2);
            let all = 0..self.nodes.len();
            let (there, here): (Vec<usize>, Vec<usize>) = all.partition(|i| with_it(&mut self.chaos, *i));
            let pairs = here
                .iter()
                .flat_map(|a| there.iter().flat_map(move |b| [(*a, *b), (*b, *a)]));
            let long = self.plan.longest_us * (0.5 + self.chaos.unit());
            self.cut_until(pairs.collect(), self.now + long as u64);
            // Then the side that must not be followed counts more.
            let slow = if self.chaos.chance(0.7) { SLOW } else { 1.0 };
            here.iter().for_each(|i| self.nodes[*i].slow *= slow);
        }
        self.nodes[out].is_revoked = true;
        let what = self.right(Some(out));
        self.has_revoked(by, None, &what);
        Some(())
    }

    /// A member takes back one ticket, and another far more than there is room for, all at members that say so.
    fn revoke_many(&mut self) -> Option<()> {
        if self.is_full_of_revocations.is_some() {
            return None;
        }
        let friend = self.full_member(&[])?;
        let many = self.full_member(&[friend])?;
        self.is_full_of_revocations = Some(self.nodes[many].id);
        let few = (0..16).map(|_| self.ticket(Some(friend))).collect::<Vec<_>>();
        let last = few
            .iter()
            .max_by_key(|ticket| ticket.chain.ids(self.manifest.root().run).pop())?;
        self.has_revoked(friend, Some(friend), last);
        let full: Vec<usize> = (0..self.nodes.len())
            .filter(|i| self.nodes[*i].is_member() && !self.nodes[*i].is_guest)
            .collect();
        tell!(self, "FAULT {} takes many tickets back", self.nodes[many].name);
        for n in 0..MAX_REVOKED + 40 {
            let own = self.ticket(Some(many));
            self.has_revoked(full[n % full.len()], Some(many), &own);
        }
        Some(())
    }

    /// A peer has committed a round: what it has heard before the run knows, or it will say so; and it remembers what
    /// was said in this one.
    pub(super) fn check_revocations(&mut self, i: usize, record: &Record) {
        let run = self.manifest.root().run;
        let node = &mut self.nodes[i];
        let (Some(peer), heard) = (&node.peer, &mut node.heard) else {
            return;
        };
        heard.rounds += 1;
        let (tickets, unsaid) = (&peer.head().tickets, &peer.shared.revocations);
        let lost = |said: &Revocation| {
            let is_late = heard.rounds > ROUNDS || !unsaid.knows(said, run);
            is_late && !tickets.knows(said, run)
        };
        let forgets = heard.revoked.values().any(lost);
        // A member that takes back more than its share has some of its own forgotten.
        let many = self.is_full_of_revocations;
        let by_many = |said: &Revocation| said.chain.0.len() > 1 && Some(said.chain.0[0].to) == many;
        for said in record.headers.iter().flat_map(|h| &h.revoked) {
            if let Some((_, id)) = said.ticket(run).filter(|_| !by_many(said)) {
                heard.revoked.insert(id, said.clone());
            }
        }
        if forgets {
            let name = &self.nodes[i].name;
            self.fail(format!("{name} has forgotten that a ticket was taken back"));
        }
    }
}

/// Whether a message shows a lineage whose members were all revoked where its receiver is.
pub(super) fn is_of_revoked(peer: &Peer, from: PeerId, message: &Message) -> bool {
    let Message::Status { claim, .. } = message else {
        return false;
    };
    let (tickets, run) = (&peer.head().tickets, peer.manifest().run_id());
    let headers = claim.iter().flat_map(|claim| &claim.record.headers);
    let mut voices = headers.map(|h| h.peer).chain([from]);
    !tickets.revoked.is_empty()
        && voices.all(|voice| voice == peer.me() || tickets.against(voice, run).is_some())
}
