//! The right to take part: what the run's key grants, and what the holder of a grant may grant further.
//!
//! Each [`Grant`] is made to a key of its own. That key signs the next grant, or the name of the peer that comes in
//! by it. So anybody who knows the run's public key can check a grant, without a shared secret and long after. A
//! grant is signed together with all grants before it, so it cannot be moved to another chain. No grant is wider
//! than the one before.

use crate::access::signature::{Key, Scheme, Signature, Signed, Statement};
use crate::base::id::{PeerId, RunId, TicketId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Most grants in a chain.
pub const MAX_CHAIN: usize = 4;

/// The largest number of peers that a limited grant may let in. The ledger stores their names.
pub const MAX_USES: u32 = 1024;

/// What a peer may do, from the least on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Follows: it gets the state and the rounds, and never becomes a member.
    Watch,
    /// Becomes a member that computes and sums. It neither sponsors nor invites, and does not count where members
    /// are counted.
    Contribute,
    /// Becomes a full member.
    Member,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Watch, Self::Contribute, Self::Member];
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Watch => "watch",
            Self::Contribute => "contribute",
            Self::Member => "member",
        })
    }
}

/// This name is not a role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no role is called \"{0}\": use one of watch, contribute, member")]
pub struct UnknownRole(pub String);

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(name: &str) -> Result<Self, UnknownRole> {
        let found = Self::ALL.into_iter().find(|role| role.to_string() == name);
        found.ok_or_else(|| UnknownRole(name.to_owned()))
    }
}

/// A grant, signed by the key before it in its chain; the first by the run's key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The public half of the ticket's key.
    pub to: PeerId,
    /// The role that it grants.
    pub role: Role,
    /// When it stops admitting peers, in seconds since 1970.
    pub until_s: Option<u64>,
    /// The number of peers that it lets in.
    pub uses: Option<u32>,
}

impl Statement for Grant {
    const KIND: &'static str = "grant";
    type Bound = TicketId;
}

/// The root of every right in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// The run.
    pub run: RunId,
    /// The run's public key, which its manifest names.
    pub key: PeerId,
}

/// What is wrong with a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// It is longer than [`MAX_CHAIN`].
    #[error("a ticket can be handed on {} times, and this one was: ask the person who gave it to you for another", MAX_CHAIN - 1)]
    TooLong,
    /// One of its grants is not signed by the key before it.
    #[error("the ticket does not lead back to the run's key: ask for a new one")]
    Unsigned,
    /// A grant was made by a role that may not grant.
    #[error("only a ticket with the role member can be handed on, and this one has the role {0}")]
    NotAMember(Role),
    /// A grant expires later than the one before it.
    #[error("a ticket cannot last longer than the one that it is made from")]
    Later,
    /// A grant lets in more peers than the one before it.
    #[error("a ticket cannot let in more than the one that it is made from, which lets in {0}")]
    More(u32),
    /// A grant lets in nobody, or more than [`MAX_USES`].
    #[error("the uses of a ticket must be from 1 to {MAX_USES}")]
    Uses,
}

/// Grants, each signed by the key that the one before it was made to, the first by the run's key. A chain without
/// grants is the run's key itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Chain(pub Vec<Signed<Grant>>);

impl Chain {
    /// The name of each ticket in the chain: the hash of all grants up to it.
    pub fn ids(&self, run: RunId) -> Vec<TicketId> {
        let next = |before: &mut TicketId, grant: &Signed<Grant>| {
            let said =
                postcard::to_allocvec(&(&*before, &grant.content)).expect("a grant has only plain data");
            *before = TicketId(*blake3::hash(&said).as_bytes());
            Some(*before)
        };
        self.0.iter().scan(origin(run), next).collect()
    }

    /// The role that it grants.
    pub fn role(&self) -> Role {
        self.0.last().map_or(Role::Member, |grant| grant.role)
    }

    /// When it expires, in seconds since 1970.
    pub fn until_s(&self) -> Option<u64> {
        self.0.last().and_then(|grant| grant.until_s)
    }

    /// Whether it has expired at a time in seconds since 1970, so that it lets in nobody new.
    pub fn has_expired(&self, now_s: u64) -> bool {
        self.until_s().is_some_and(|until_s| until_s < now_s)
    }

    /// Whether it is within the limits. A chain that is not is never examined.
    pub fn is_bounded(&self) -> bool {
        self.0.len() <= MAX_CHAIN
    }

    /// Checks that each grant was made by the one before it.
    ///
    /// # Errors
    ///
    /// The first fault found.
    pub fn check(&self, root: Root, scheme: Scheme) -> Result<(), ChainError> {
        if !self.is_bounded() {
            return Err(ChainError::TooLong);
        }
        let (mut by, mut above, mut before) = (root.key, origin(root.run), None::<&Grant>);
        for (grant, id) in self.0.iter().zip(self.ids(root.run)) {
            if let Some(before) = before {
                before.covers(grant)?;
            }
            if grant.uses.is_some_and(|uses| !(1..=MAX_USES).contains(&uses)) {
                return Err(ChainError::Uses);
            }
            if !grant.is_by(by, &above, scheme) {
                return Err(ChainError::Unsigned);
            }
            (by, above, before) = (grant.to, id, Some(&grant.content));
        }
        Ok(())
    }

    /// The keys whose owners may revoke the last grant: those above it.
    fn issuers(&self, root: Root) -> impl Iterator<Item = PeerId> {
        let grants = self.0.iter().map(|grant| grant.to);
        std::iter::once(root.key).chain(grants).take(self.0.len())
    }

    /// Bytes that it holds in memory.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.0[..])
    }
}

impl Grant {
    /// Whether the next grant is no wider.
    fn covers(&self, next: &Self) -> Result<(), ChainError> {
        if self.role != Role::Member {
            return Err(ChainError::NotAMember(self.role));
        }
        if let Some(until_s) = self.until_s
            && next.until_s.is_none_or(|next| next > until_s)
        {
            return Err(ChainError::Later);
        }
        if let Some(uses) = self.uses
            && next.uses.is_none_or(|next| next > uses)
        {
            return Err(ChainError::More(uses));
        }
        Ok(())
    }
}

/// The value that the first grant of a run is bound to.
fn origin(run: RunId) -> TicketId {
    TicketId(run.0)
}

/// "This peer comes by my ticket": the statement that a ticket's key signs.
#[derive(Serialize)]
struct Bearer(PeerId);

impl Statement for Bearer {
    const KIND: &'static str = "bearer";
    type Bound = TicketId;
}

/// A peer's proof that it may take part. Anybody can check it, and it is of no use under another name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Admission {
    /// What was granted.
    pub chain: Chain,
    /// The last grant's key signs the peer's name.
    signature: Signature,
}

impl Admission {
    /// The role that it grants.
    pub fn role(&self) -> Role {
        self.chain.role()
    }

    /// Whether any number of guests may come by the same ticket.
    pub fn is_shared(&self) -> bool {
        let last = self.chain.0.last();
        self.role() < Role::Member && last.is_some_and(|grant| grant.uses.is_none())
    }

    /// The ticket that the peer came by.
    pub fn ticket(&self, run: RunId) -> Option<TicketId> {
        self.chain.ids(run).last().copied()
    }

    /// Whether it admits this peer.
    pub fn is_of(&self, peer: PeerId, root: Root, scheme: Scheme) -> bool {
        let (last, id) = (self.chain.0.last(), self.ticket(root.run));
        let signed = |(last, id): (&Signed<Grant>, TicketId)| {
            scheme.holds(last.to, &id, &Bearer(peer), &self.signature)
        };
        self.chain.check(root, scheme).is_ok() && last.zip(id).is_some_and(signed)
    }

    /// The admission of a peer with a stand-in key: a ticket of its own, as a member, without expiry.
    #[cfg(any(test, feature = "sim"))]
    pub fn stand_in(peer: PeerId, root: Root) -> Self {
        let of_run = Invitation::of_run(Key::stand_in(root.key));
        let own = of_run.narrow(root, Key::stand_in(peer), Role::Member, None, None);
        own.expect("the run's key grants all").admit(peer, root.run)
    }
}

/// A chain with the key that its last grant was made to. The holder may come in, and may grant further.
#[derive(Clone, Debug)]
pub struct Invitation {
    /// What was granted.
    pub chain: Chain,
    /// The key that the last grant was made to, or the run's own key.
    pub key: Key,
}

impl Invitation {
    /// The invitation of the run's own key, which may do everything.
    pub fn of_run(key: Key) -> Self {
        let chain = Chain::default();
        Self { chain, key }
    }

    /// Checks the chain and that the key belongs to it.
    ///
    /// # Errors
    ///
    /// The first fault found.
    pub fn check(&self, root: Root) -> Result<(), ChainError> {
        let key = self.chain.0.last().map_or(root.key, |grant| grant.to);
        self.chain.check(root, self.key.scheme())?;
        if self.key.peer() == key {
            Ok(())
        } else {
            Err(ChainError::Unsigned)
        }
    }

    /// Makes a narrower invitation with a key of its own, to hand on.
    ///
    /// # Errors
    ///
    /// If it would be wider than this one.
    pub fn narrow(
        &self,
        root: Root,
        to: Key,
        role: Role,
        until_s: Option<u64>,
        uses: Option<u32>,
    ) -> Result<Self, ChainError> {
        let chain = self.granted(root.run, &to, role, until_s, uses);
        chain.check(root, to.scheme())?;
        Ok(Self { chain, key: to })
    }

    /// Its chain with one more grant.
    fn granted(&self, run: RunId, to: &Key, role: Role, until_s: Option<u64>, uses: Option<u32>) -> Chain {
        let above = self.chain.ids(run).last().copied().unwrap_or(origin(run));
        let grant = Grant {
            to: to.peer(),
            role,
            until_s,
            uses,
        };
        let mut chain = self.chain.clone();
        chain.0.push(self.key.signed(&above, grant));
        chain
    }

    /// The admission of a peer that comes in by this invitation. The holder of the run's own key admits itself as a
    /// member, without expiry.
    pub fn admit(&self, peer: PeerId, run: RunId) -> Admission {
        let chain = match self.chain.0.is_empty() {
            true => self.granted(run, &self.key, Role::Member, None, None),
            false => self.chain.clone(),
        };
        let id = chain.ids(run).last().copied().unwrap_or(origin(run));
        Admission {
            signature: self.key.sign(&id, &Bearer(peer)),
            chain,
        }
    }

    /// Revokes the last grant of a chain that began with this one.
    ///
    /// # Errors
    ///
    /// If it did not begin with this one.
    pub fn revoke(&self, root: Root, chain: Chain) -> Result<Revocation, NotTheIssuer> {
        let revocation = Revocation::by(&self.key, chain, root.run);
        if revocation.is_good(root, self.key.scheme()) {
            Ok(revocation)
        } else {
            Err(NotTheIssuer)
        }
    }
}

/// The ticket was not made from the one that is to revoke it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "that ticket was not made from this folder's ticket: only the holder of a ticket that it was made from can revoke it"
)]
pub struct NotTheIssuer;

/// "This ticket, and every ticket made from it, lets in nobody any more."
#[derive(Serialize)]
struct Revoked(TicketId);

impl Statement for Revoked {
    const KIND: &'static str = "revoked";
    type Bound = RunId;
}

/// A revoked ticket, with proof that its issuer revoked it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Revocation {
    /// The ticket's chain.
    pub chain: Chain,
    /// By a key above its last grant.
    signature: Signature,
}

impl Revocation {
    /// The most revocations in one header. A guess: people make them.
    pub const MOST: usize = 4;

    /// As the owner of this key says it, whether or not it has the right to.
    pub(crate) fn by(key: &Key, chain: Chain, run: RunId) -> Self {
        let id = chain.ids(run).last().copied().unwrap_or(origin(run));
        let signature = key.sign(&run, &Revoked(id));
        Self { chain, signature }
    }

    /// The ticket, and its distance from the run's key.
    pub fn ticket(&self, run: RunId) -> Option<(u8, TicketId)> {
        let id = self.chain.ids(run).last().copied();
        id.map(|id| (self.chain.0.len() as u8, id))
    }

    /// Whether a key with the right to revoke has signed it.
    pub fn is_good(&self, root: Root, scheme: Scheme) -> bool {
        let signed = |(_, id)| {
            let mut issuers = self.chain.issuers(root);
            issuers.any(|by| scheme.holds(by, &root.run, &Revoked(id), &self.signature))
        };
        self.chain.check(root, scheme).is_ok() && self.ticket(root.run).is_some_and(signed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunId = RunId([9; 32]);

    fn key(name: u8) -> Key {
        Key::from_seed(&[name; 32])
    }

    fn root() -> Root {
        Root {
            run: RUN,
            key: key(0).peer(),
        }
    }

    fn all() -> Invitation {
        Invitation::of_run(key(0))
    }

    fn member(name: u8) -> Invitation {
        all().narrow(root(), key(name), Role::Member, None, None).unwrap()
    }

    #[test]
    fn a_peer_is_let_in_by_a_chain_that_goes_back_to_the_run() {
        let ann = key(50).peer();
        let good = |admission: &Admission, peer| admission.is_of(peer, root(), Scheme::Ed25519);
        let (first, own) = (member(1), all().admit(ann, RUN));
        let second = first
            .narrow(root(), key(2), Role::Contribute, Some(7), Some(3))
            .unwrap();
        let by = second.admit(ann, RUN);
        assert!(good(&own, ann) && good(&first.admit(ann, RUN), ann) && good(&by, ann));
        assert_eq!((own.role(), by.role()), (Role::Member, Role::Contribute));
        assert!(!good(&by, key(51).peer()), "it is of one name");
        let elsewhere = Root {
            run: RunId([8; 32]),
            ..root()
        };
        assert!(!by.is_of(ann, elsewhere, Scheme::Ed25519));
        assert!(!by.is_of(ann, Root { key: ann, ..root() }, Scheme::Ed25519));
        // A grant in another chain, a changed grant, a chain with one left out, and another's key.
        let other = member(3);
        let mut moved = by.clone();
        moved.chain.0[0] = other.chain.0[0].clone();
        let mut wider = by.clone();
        wider.chain.0[1].content.role = Role::Member;
        let mut shorter = by.clone();
        shorter.chain.0.remove(0);
        let mut none = by;
        none.chain.0.clear();
        for bad in [moved, wider, shorter, none] {
            assert!(!good(&bad, ann), "{bad:?}");
        }
        let stolen = Invitation {
            key: key(4),
            ..second
        };
        assert_eq!(stolen.check(root()), Err(ChainError::Unsigned));
        assert!(!good(&stolen.admit(ann, RUN), ann));
    }

    #[test]
    fn nothing_is_wider_than_what_it_was_made_from() {
        let first = all()
            .narrow(root(), key(1), Role::Member, Some(100), Some(5))
            .unwrap();
        let narrow = |role, until_s, uses| first.narrow(root(), key(2), role, until_s, uses).map(drop);
        assert_eq!(narrow(Role::Member, Some(100), Some(5)), Ok(()));
        assert_eq!(narrow(Role::Watch, Some(99), Some(1)), Ok(()));
        assert_eq!(narrow(Role::Member, Some(101), Some(5)), Err(ChainError::Later));
        assert_eq!(narrow(Role::Member, None, Some(5)), Err(ChainError::Later));
        assert_eq!(narrow(Role::Member, Some(9), Some(6)), Err(ChainError::More(5)));
        assert_eq!(narrow(Role::Member, Some(9), None), Err(ChainError::More(5)));
        assert_eq!(narrow(Role::Member, Some(9), Some(0)), Err(ChainError::Uses));
        let many = all().narrow(root(), key(2), Role::Member, None, Some(MAX_USES + 1));
        assert_eq!(many.map(drop), Err(ChainError::Uses));
        for role in [Role::Watch, Role::Contribute] {
            let poor = all().narrow(root(), key(1), role, None, None).unwrap();
            let on = poor.narrow(root(), key(2), Role::Watch, None, None).map(drop);
            assert_eq!(on, Err(ChainError::NotAMember(role)));
        }
        let mut long = member(1);
        for name in 2..=4 {
            long = long.narrow(root(), key(name), Role::Member, None, None).unwrap();
        }
        let more = long.narrow(root(), key(5), Role::Member, None, None).map(drop);
        assert_eq!(more, Err(ChainError::TooLong));
    }

    #[test]
    fn a_ticket_is_revoked_by_those_above_it_alone() {
        let (first, beside) = (member(1), member(2));
        let second = first.narrow(root(), key(3), Role::Member, None, None).unwrap();
        let third = second.narrow(root(), key(4), Role::Watch, None, None).unwrap();
        for issuer in [&all(), &first, &second] {
            let revocation = issuer.revoke(root(), third.chain.clone()).unwrap();
            assert_eq!(revocation.ticket(RUN).map(|(depth, _)| depth), Some(3));
            let mut other = revocation;
            other.chain = second.chain.clone();
            assert!(!other.is_good(root(), Scheme::Ed25519), "it is of one ticket");
        }
        for other in [&third, &beside] {
            assert!(other.revoke(root(), third.chain.clone()).is_err());
        }
        assert!(all().revoke(root(), Chain::default()).is_err());
    }
}
