//! The state of tickets in a lineage: which were revoked, and who has used the limited ones. A function of the
//! records alone, so that all members agree. It does not know what a ticket is.

use crate::access::invitation::{Admission, MAX_USES, Revocation};
use crate::base::id::{PeerId, RunId, TicketId};
use serde::{Deserialize, Serialize};

/// Most revoked tickets remembered. Those nearest to the run's key are kept, so that nobody can displace others'
/// revocations by revoking tickets that they made themselves.
const MAX_REVOKED: usize = 256;

/// Most uses of limited tickets remembered, in all. Once they are full, no limited ticket admits anybody new.
const MAX_SPENT: usize = 1024;

/// Most names remembered of one ticket, so that one does not fill the books. Later names are only counted, so each
/// return is another use.
const MAX_NAMES: usize = MAX_SPENT / 4;

/// Why a peer is not admitted although its proof is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum Barred {
    /// The ticket has expired.
    #[error("the ticket has expired: ask a member of the run for a new one")]
    Expired,
    /// The ticket, or one that it was made from, was revoked.
    #[error("the ticket was revoked: ask a member of the run for a new one")]
    Revoked,
    /// The ticket has admitted all peers that it may.
    #[error("the ticket is used up: ask a member of the run for a new one")]
    UsedUp,
    /// A peer that came by it has signed two contradicting statements.
    #[error("a peer that came by this ticket has lied to the run: ask a member of the run for another")]
    Convicted,
    /// A peer of the same name takes part.
    #[error(
        "a peer with this identity takes part already, perhaps from another copy of this folder, and only one can. To take part \
         here too, join with a ticket into a new folder, so that this machine gets an identity of its own: `annulus join TICKET \
         --out FOLDER`"
    )]
    InUse,
}

/// Revoked tickets and uses, as the records tell them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tickets {
    /// Distance from the run's key, and name. Sorted.
    revoked: Vec<(u8, TicketId)>,
    /// Uses of limited tickets. Sorted.
    spent: Vec<(TicketId, PeerId)>,
    /// The further uses of those with too many. Sorted.
    counted: Vec<(TicketId, u32)>,
}

impl Tickets {
    /// Checks that a peer may come in, as far as the records tell. A peer that came before does not use the ticket
    /// again.
    ///
    /// # Errors
    ///
    /// Why it may not.
    pub fn check(&self, admission: &Admission, peer: PeerId, run: RunId) -> Result<(), Barred> {
        if self.revokes(admission, run) {
            return Err(Barred::Revoked);
        }
        let rows = self.spent.len() + self.counted.len();
        let left = |(id, uses): (TicketId, u32)| {
            let counted = self.counted(id);
            let room = counted > 0 || rows + admission.chain.0.len() <= MAX_SPENT;
            self.spent.contains(&(id, peer)) || (room && self.names(id) + counted < uses as usize)
        };
        if limited(admission, run).all(left) {
            Ok(())
        } else {
            Err(Barred::UsedUp)
        }
    }

    /// The names remembered of a ticket.
    fn names(&self, id: TicketId) -> usize {
        self.spent.iter().filter(|(spent, _)| *spent == id).count()
    }

    /// The uses of a ticket that were only counted.
    fn counted(&self, id: TicketId) -> usize {
        let row = self.counted.iter().find(|(counted, _)| *counted == id);
        row.map_or(0, |(_, uses)| *uses as usize)
    }

    /// Whether any ticket was revoked.
    pub fn has_revoked(&self) -> bool {
        !self.revoked.is_empty()
    }

    /// Whether the ticket of an admission was revoked.
    pub fn revokes(&self, admission: &Admission, run: RunId) -> bool {
        let is_revoked = |id: &TicketId| self.revoked.iter().any(|(_, revoked)| revoked == id);
        self.has_revoked() && admission.chain.ids(run).iter().any(is_revoked)
    }

    /// Notes a revocation.
    pub fn revoke(&mut self, revocation: &Revocation, run: RunId) {
        let Some(ticket) = revocation.ticket(run) else {
            return;
        };
        if let Err(place) = self.revoked.binary_search(&ticket) {
            self.revoked.insert(place, ticket);
            self.revoked.truncate(MAX_REVOKED);
        }
    }

    /// Whether this very revocation is known.
    pub fn knows(&self, revocation: &Revocation, run: RunId) -> bool {
        let ticket = revocation.ticket(run);
        ticket.is_none_or(|ticket| self.revoked.binary_search(&ticket).is_ok())
    }

    /// Notes that a peer has come in.
    pub fn spend(&mut self, admission: &Admission, peer: PeerId, run: RunId) {
        for (id, _) in limited(admission, run) {
            let Err(place) = self.spent.binary_search(&(id, peer)) else {
                continue;
            };
            if self.names(id) < MAX_NAMES {
                self.spent.insert(place, (id, peer));
                continue;
            }
            match self.counted.binary_search_by_key(&id, |(counted, _)| *counted) {
                Ok(place) => self.counted[place].1 += 1,
                Err(place) => self.counted.insert(place, (id, 1)),
            }
        }
    }

    /// Whether records can lead to it.
    pub(crate) fn is_sound(&self) -> bool {
        let is_row = |ordered: bool, len: usize, most: usize| ordered && len <= most;
        is_row(
            self.revoked.is_sorted_by(|a, b| a < b),
            self.revoked.len(),
            MAX_REVOKED,
        ) && is_row(
            self.spent.is_sorted_by(|a, b| a < b),
            self.spent.len() + self.counted.len(),
            MAX_SPENT,
        ) && self.counted.is_sorted_by(|a, b| a.0 < b.0)
            && self.counted.iter().all(|(_, uses)| *uses <= MAX_USES)
    }
}

/// The limited tickets of a chain, and how many peers each admits.
fn limited(admission: &Admission, run: RunId) -> impl Iterator<Item = (TicketId, u32)> {
    let grants = admission.chain.0.iter().zip(admission.chain.ids(run));
    grants.filter_map(|(grant, id)| Some((id, grant.uses?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::invitation::{Invitation, Role, Root};
    use crate::access::signature::Key;

    const ROOT: Root = Root {
        run: RunId([9; 32]),
        key: PeerId([0; 32]),
    };

    fn key(n: usize) -> Key {
        let mut name = [7; 32];
        name[..8].copy_from_slice(&n.to_le_bytes());
        Key::stand_in(PeerId(name))
    }

    fn made(from: &Invitation, n: usize, uses: Option<u32>) -> Invitation {
        from.narrow(ROOT, key(n), Role::Member, None, uses).unwrap()
    }

    fn of_run() -> Invitation {
        Invitation::of_run(Key::stand_in(ROOT.key))
    }

    fn come(tickets: &mut Tickets, by: &Invitation, peer: PeerId) -> Option<()> {
        let admission = by.admit(peer, ROOT.run);
        tickets.check(&admission, peer, ROOT.run).ok()?;
        tickets.spend(&admission, peer, ROOT.run);
        Some(())
    }

    #[test]
    fn one_ticket_does_not_use_up_the_others() {
        let mut tickets = Tickets::default();
        let (any, many) = (made(&of_run(), 1, None), made(&of_run(), 2, Some(MAX_USES)));
        let names = || (0..1100).map(|n| key(10 + n).peer());
        assert_eq!(
            names().filter_map(|peer| come(&mut tickets, &any, peer)).count(),
            1100
        );
        assert_eq!(tickets, Tickets::default(), "an unlimited ticket needs no books");
        let by_many = names().filter_map(|peer| come(&mut tickets, &many, peer)).count();
        assert_eq!(by_many, MAX_USES as usize);
        assert!(
            names()
                .take(MAX_NAMES)
                .all(|peer| come(&mut tickets, &many, peer).is_some()),
            "they are known"
        );
        for n in 0..500 {
            let own = made(&of_run(), 5000 + n, Some(1));
            assert_eq!(come(&mut tickets, &own, key(9000 + n).peer()), Some(()));
            assert_eq!(come(&mut tickets, &own, key(9999).peer()), None, "it is used up");
        }
        assert!(tickets.is_sound());
    }

    #[test]
    fn a_limited_ticket_lets_in_so_many_whatever_is_made_from_it_and_nobody_twice() {
        let mut tickets = Tickets::default();
        let three = made(&of_run(), 1, Some(3));
        let (one, other) = (made(&three, 2, Some(1)), made(&three, 3, Some(3)));
        let mut come = |by: &Invitation, n: usize| {
            let (peer, admission) = (key(n).peer(), by.admit(key(n).peer(), ROOT.run));
            tickets.check(&admission, peer, ROOT.run)?;
            tickets.spend(&admission, peer, ROOT.run);
            Ok(())
        };
        assert_eq!(come(&one, 10), Ok(()));
        assert_eq!(come(&one, 11), Err(Barred::UsedUp));
        assert_eq!(come(&one, 10), Ok(()), "it has come before");
        assert_eq!(come(&other, 11), Ok(()));
        assert_eq!(come(&three, 12), Ok(()));
        assert_eq!(
            come(&other, 13),
            Err(Barred::UsedUp),
            "what it was made from is used up"
        );
        assert_eq!(come(&other, 11), Ok(()));
        assert_eq!(come(&of_run(), 14), Ok(()));
        assert!(tickets.is_sound());
    }

    #[test]
    fn what_was_made_from_a_revoked_ticket_is_revoked() {
        let mut tickets = Tickets::default();
        let (first, beside) = (made(&of_run(), 1, None), made(&of_run(), 2, None));
        let second = made(&first, 3, None);
        let revocation = of_run().revoke(ROOT, first.chain.clone()).unwrap();
        assert!(!tickets.knows(&revocation, ROOT.run));
        tickets.revoke(&revocation, ROOT.run);
        assert!(tickets.knows(&revocation, ROOT.run));
        let peer = key(9).peer();
        let check = |by: &Invitation| tickets.check(&by.admit(peer, ROOT.run), peer, ROOT.run);
        assert_eq!(check(&first), Err(Barred::Revoked));
        assert_eq!(check(&second), Err(Barred::Revoked));
        assert_eq!(check(&beside), Ok(()));
    }

    #[test]
    fn the_books_are_bounded_and_those_above_are_heard() {
        let mut tickets = Tickets::default();
        let first = made(&of_run(), 1, None);
        for n in 0..2 * MAX_REVOKED {
            let own = made(&first, 1000 + n, None);
            tickets.revoke(&first.revoke(ROOT, own.chain).unwrap(), ROOT.run);
        }
        let above = of_run().revoke(ROOT, first.chain.clone()).unwrap();
        tickets.revoke(&above, ROOT.run);
        assert!(tickets.knows(&above, ROOT.run) && tickets.is_sound());
        assert_eq!(tickets.revoked.len(), MAX_REVOKED);
        // Nested tickets, as only members make them.
        for n in 0..5 {
            let mut many = made(&of_run(), 10 + n, Some(MAX_USES));
            for inner in 0..3 {
                many = made(&many, 100 + 10 * n + inner, Some(MAX_USES));
            }
            let names = (0..=MAX_USES as usize).map(|name| key(10_000 * (n + 1) + name).peer());
            let come = names.map_while(|peer| come(&mut tickets, &many, peer)).count();
            assert_eq!(come, if n == 0 { MAX_NAMES } else { 0 });
        }
        assert!(tickets.spent.len() + tickets.counted.len() <= MAX_SPENT);
        let late = made(&of_run(), 3, Some(1));
        assert_eq!(come(&mut tickets, &late, key(5000).peer()), None);
        assert!(tickets.is_sound());
    }
}
