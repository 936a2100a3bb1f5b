//! Revoked tickets with their proofs. A revocation proves itself, so it may come from any lineage and is never taken
//! back. It does not know who came by a ticket.

use crate::access::invitation::{Admission, MAX_CHAIN, Revocation};
use crate::base::id::{RunId, TicketId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most revoked tickets remembered. A guess: people make them.
pub(crate) const MAX_REVOKED: usize = 256;

/// Revoked tickets. Each is a path: the names of the tickets in its chain, the run's own first. No path begins with
/// another, since a revoked ticket takes all that were made from it along.
///
/// When there are too many, the branch with most entries drops one of its own. So a member that revokes many of its
/// tickets drops only these, and never those of somebody beside or above it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Revocations(BTreeMap<Vec<TicketId>, Revocation>);

impl Revocations {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, in the order of their paths.
    pub fn iter(&self) -> impl Iterator<Item = &Revocation> {
        self.0.values()
    }

    /// The revocation of a ticket, or of one that it was made from.
    fn of(&self, path: &[TicketId]) -> Option<&Revocation> {
        (1..=path.len()).find_map(|len| self.0.get(&path[..len]))
    }

    /// Whether a revocation is known, or that of a ticket above it.
    pub fn knows(&self, revocation: &Revocation, run: RunId) -> bool {
        self.of(&revocation.chain.ids(run)).is_some()
    }

    /// The revocation of the ticket that a peer came by.
    pub fn against(&self, admission: &Admission, run: RunId) -> Option<&Revocation> {
        if self.is_empty() {
            return None;
        }
        self.of(&admission.chain.ids(run))
    }

    /// Those to say in the next header: first what puts present members out, by the tickets that they came by. Others
    /// may be many, and until they are said a revoked member goes on.
    pub(crate) fn to_say<'a>(
        &self,
        members: impl Iterator<Item = &'a Admission>,
        run: RunId,
    ) -> Vec<Revocation> {
        let urgent = members.filter_map(|admission| self.against(admission, run));
        let mut said: Vec<Revocation> = Vec::new();
        for revocation in urgent.chain(self.iter()) {
            if said.len() < Revocation::MOST && !said.contains(revocation) {
                said.push(revocation.clone());
            }
        }
        said
    }

    /// Whether a revocation would be kept that is not known.
    pub fn takes(&self, revocation: &Revocation, run: RunId) -> bool {
        if self.knows(revocation, run) {
            return false;
        }
        let mut after = self.clone();
        after.add(revocation.clone(), run);
        after.knows(revocation, run)
    }

    /// Notes a revocation, whose proof must be good.
    pub fn add(&mut self, revocation: Revocation, run: RunId) {
        self.put(revocation, run, Self::heaviest);
    }

    /// The planted mistake: when there are too many, the largest name goes, whoever revoked it.
    pub(crate) fn add_by_name(&mut self, revocation: Revocation, run: RunId) {
        let largest = |books: &Self| {
            let path = books.0.keys().max_by_key(|path| (path.len(), path.last()));
            path.cloned().unwrap_or_default()
        };
        self.put(revocation, run, largest);
    }

    fn put(&mut self, revocation: Revocation, run: RunId, dropped: fn(&Self) -> Vec<TicketId>) {
        let path = revocation.chain.ids(run);
        if path.is_empty() || self.of(&path).is_some() {
            return;
        }
        self.0.retain(|known, _| !known.starts_with(&path));
        self.0.insert(path, revocation);
        if self.0.len() > MAX_REVOKED {
            self.0.remove(&dropped(self));
        }
    }

    /// An entry of the branch that has most, and there of its branch that has most; between equals the longest path.
    fn heaviest(&self) -> Vec<TicketId> {
        let mut paths: Vec<&Vec<TicketId>> = self.0.keys().collect();
        // Paths that are the same so far are neighbours, since they are in order.
        for at in 0..MAX_CHAIN {
            let branches = paths.chunk_by(|a, b| a.get(at) == b.get(at));
            let heaviest = branches.max_by_key(|branch| (branch.len(), branch[0].len()));
            paths = heaviest.expect("there are some").to_vec();
        }
        paths[0].clone()
    }

    /// Drops those for which this does not hold.
    pub fn retain(&mut self, mut keep: impl FnMut(&Revocation) -> bool) {
        self.0.retain(|_, revocation| keep(revocation));
    }

    /// Whether records can lead to it.
    pub(crate) fn is_sound(&self) -> bool {
        let is_path = |(path, proof): (&Vec<TicketId>, &Revocation)| {
            (1..=MAX_CHAIN).contains(&path.len()) && path.len() == proof.chain.0.len()
        };
        let paths: Vec<&Vec<TicketId>> = self.0.keys().collect();
        let apart = paths.is_sorted_by(|a, b| a < b && !b.starts_with(a));
        self.0.len() <= MAX_REVOKED && apart && self.0.iter().all(is_path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::invitation::{Invitation, Role, Root};
    use crate::access::signature::Key;
    use crate::base::id::PeerId;

    const ROOT: Root = Root {
        run: RunId([9; 32]),
        key: PeerId([0; 32]),
    };

    fn of_run() -> Invitation {
        Invitation::of_run(Key::stand_in(ROOT.key))
    }

    fn made(from: &Invitation, n: usize) -> Invitation {
        let mut name = [7; 32];
        name[..8].copy_from_slice(&n.to_le_bytes());
        let key = Key::stand_in(PeerId(name));
        from.narrow(ROOT, key, Role::Member, None, None).unwrap()
    }

    fn revoke(books: &mut Revocations, by: &Invitation, what: &Invitation) {
        books.add(by.revoke(ROOT, what.chain.clone()).unwrap(), ROOT.run);
        assert!(books.is_sound());
    }

    fn knows(books: &Revocations, by: &Invitation, what: &Invitation) -> bool {
        books.knows(&by.revoke(ROOT, what.chain.clone()).unwrap(), ROOT.run)
    }

    #[test]
    fn who_revokes_much_drops_only_its_own_entries() {
        // The friend's ticket is made by the run's key, or by the one who made the liar's.
        for host in [of_run(), made(&of_run(), 1)] {
            let (friend, liar) = (made(&host, 2), made(&host, 3));
            let guest = made(&friend, 4);
            let mut books = Revocations::default();
            revoke(&mut books, &friend, &guest);
            // Half of them of tickets of its own, half of tickets made from those.
            for n in 0..2 * MAX_REVOKED {
                let own = made(&liar, 1000 + n);
                let more = made(&own, 100_000 + n);
                revoke(&mut books, &liar, if n % 2 == 0 { &own } else { &more });
            }
            assert_eq!(books.0.len(), MAX_REVOKED);
            assert!(knows(&books, &friend, &guest));
            // Those above are heard, and what they revoke takes all below along.
            revoke(&mut books, &host, &liar);
            assert_eq!(books.0.len(), 2);
            assert!(knows(&books, &host, &liar) && knows(&books, &liar, &made(&liar, 1000)));
        }
    }

    #[test]
    fn each_has_the_same_share_and_a_full_one_takes_no_more() {
        let mut books = Revocations::default();
        let each = [1, 2, 3, 4].map(|n| made(&of_run(), n));
        for (by, issuer) in each.iter().enumerate() {
            for n in 0..MAX_REVOKED {
                revoke(&mut books, issuer, &made(issuer, 1000 * by + n + 10));
            }
        }
        let of = |issuer: &Invitation| {
            let first = issuer.chain.ids(ROOT.run)[0];
            books.0.keys().filter(|path| path[0] == first).count()
        };
        assert!(
            each.iter()
                .all(|issuer| of(issuer).abs_diff(MAX_REVOKED / 4) <= 1)
        );
        // A peer that repeated what was dropped would never end.
        let dropped = |n: &usize| !knows(&books, &each[0], &made(&each[0], n + 10));
        let dropped = (0..MAX_REVOKED).find(dropped).expect("most of them");
        let again = each[0].revoke(ROOT, made(&each[0], dropped + 10).chain).unwrap();
        let mut after = books.clone();
        after.add(again.clone(), ROOT.run);
        assert_eq!(books.takes(&again, ROOT.run), after.knows(&again, ROOT.run));
    }
}
