//! The state of tickets in a lineage: which were revoked, and who has used the limited ones. A function of the
//! records alone, so that all members agree. It does not know what a ticket is.

use crate::access::invitation::{Admission, MAX_USES, Revocation};
use crate::base::id::{PeerId, RunId, TicketId};
use crate::ledger::record::Member;
use crate::ledger::revocations::Revocations;
use crate::run::config::MAX_PEERS;
use serde::{Deserialize, Serialize};

/// Most uses of limited tickets remembered, in all. Once they are full, no limited ticket admits anybody new.
const MAX_SPENT: usize = 1024;

/// Most former full members remembered: a side of a parted run has no more than a view.
const MAX_FORMER: usize = MAX_PEERS;
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tickets {
    /// Revoked tickets.
    pub revoked: Revocations,
    /// Uses of limited tickets. Sorted.
    spent: Vec<(TicketId, PeerId)>,
    /// Full members that are no members any more, and what they came by, the last at the end. Where lineages meet,
    /// they speak for another.
    former: Vec<(PeerId, Admission)>,
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

    /// Whether the ticket of an admission was revoked.
    pub fn revokes(&self, admission: &Admission, run: RunId) -> bool {
        self.revoked.against(admission, run).is_some()
    }

    /// Whether a revocation is known, or that of a ticket above it.
    pub fn knows(&self, revocation: &Revocation, run: RunId) -> bool {
        self.revoked.knows(revocation, run)
    }

    /// The revocation of what a former full member came by.
    pub fn against(&self, peer: PeerId, run: RunId) -> Option<&Revocation> {
        let mut former = self.former.iter().filter(|(former, _)| *former == peer);
        former.find_map(|(_, admission)| self.revoked.against(admission, run))
    }

    /// Notes who the next members are, and so which full members of these are none any more.
    pub(crate) fn part(&mut self, before: &[Member], next: &[Member]) {
        let stays = |peer: PeerId| next.iter().any(|m| m.peer == peer);
        let gone = before.iter().filter(|m| m.is_full() && !stays(m.peer));
        let gone: Vec<(PeerId, Admission)> = gone.map(|m| (m.peer, m.admission.clone())).collect();
        let is_gone = |peer: PeerId| gone.iter().any(|(other, _)| *other == peer);
        self.former.retain(|(peer, _)| !stays(*peer) && !is_gone(*peer));
        self.former.extend(gone);
        let too_many = self.former.len().saturating_sub(MAX_FORMER);
        self.former.drain(..too_many);
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
        let spent = self.spent.is_sorted_by(|a, b| a < b) && self.counted.is_sorted_by(|a, b| a.0 < b.0);
        let counted = self.counted.iter().all(|(_, uses)| *uses <= MAX_USES);
        let bounded = self.spent.len() + self.counted.len() <= MAX_SPENT;
        let former = self.former.len() <= MAX_FORMER && self.former.iter().all(|(_, a)| a.chain.is_bounded());
        spent && counted && bounded && former && self.revoked.is_sound()
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
        tickets.revoked.add(revocation.clone(), ROOT.run);
        assert!(tickets.knows(&revocation, ROOT.run));
        let peer = key(9).peer();
        let check = |by: &Invitation| tickets.check(&by.admit(peer, ROOT.run), peer, ROOT.run);
        assert_eq!(check(&first), Err(Barred::Revoked));
        assert_eq!(check(&second), Err(Barred::Revoked));
        assert_eq!(check(&beside), Ok(()));
    }

    #[test]
    fn no_more_uses_are_remembered_than_there_is_room_for() {
        let mut tickets = Tickets::default();
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
