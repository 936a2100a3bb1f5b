//! The right to take part, handed on: what the run's key grants, and what those grant further who were granted something.
//!
//! Each [`Grant`] is made to a key of its own, which signs the next one, or the name of whoever comes by it. So whoever
//! knows the run's public key can check what somebody shows, without any shared secret and long after. A grant is signed for
//! all that led to it, so that a step cannot be put into another chain; and none is wider than the one before.

use crate::access::signature::{Key, Scheme, Signature, Signed, Statement};
use crate::base::id::{PeerId, RunId, TicketId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Most grants of a chain.
pub const MAX_CHAIN: usize = 4;

/// Most peers that a limited grant lets in: the ledger keeps their names.
pub const MAX_USES: u32 = 1024;

/// What somebody may do, from the least on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Follows: gets the state and the rounds, and is never a member.
    Watch,
    /// Is a member that computes and sums, and neither sponsors nor invites nor counts where members are counted.
    Contribute,
    /// Is a full member.
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

/// No role has this name.
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

/// What is granted, signed by the key before it in its chain; the first by the run's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The public half of the ticket's key.
    pub to: PeerId,
    /// What it lets do.
    pub role: Role,
    /// Until when it lets in, in seconds since 1970.
    pub until_s: Option<u64>,
    /// How many peers it lets in.
    pub uses: Option<u32>,
}

impl Statement for Grant {
    const KIND: &'static str = "grant";
    type Bound = TicketId;
}

/// What every right in a run goes back to.
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
    #[error("a ticket can be handed on {} times, and this one was: ask whoever gave it to you for another", MAX_CHAIN - 1)]
    TooLong,
    /// One of its grants is not signed by the key before it.
    #[error("the ticket is not signed by the run's key, nor by whom that let in: ask for a new one")]
    Unsigned,
    /// It was handed on by one that may not.
    #[error("only a ticket of the role member can be handed on, and this one is of the role {0}")]
    NotAMember(Role),
    /// A grant lets in for longer than the one before it.
    #[error("a ticket cannot last longer than the one that it is made from")]
    Later,
    /// A grant lets more peers in than the one before it.
    #[error("a ticket cannot let in more than the one that it is made from, which lets in {0}")]
    More(u32),
    /// It lets in nobody, or more than [`MAX_USES`].
    #[error("a ticket with a number of uses has from 1 to {MAX_USES}")]
    Uses,
}

/// Grants, each but the first signed by the key that the one before it was made to. Without any, it is the run's key's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Chain(pub Vec<Signed<Grant>>);

impl Chain {
    /// The name of each of its tickets: the hash of all that was granted up to it.
    pub fn ids(&self, run: RunId) -> Vec<TicketId> {
        let next = |before: &mut TicketId, grant: &Signed<Grant>| {
            let said =
                postcard::to_allocvec(&(&*before, &grant.content)).expect("a grant has only plain data");
            *before = TicketId(*blake3::hash(&said).as_bytes());
            Some(*before)
        };
        self.0.iter().scan(origin(run), next).collect()
    }

    /// What it lets do.
    pub fn role(&self) -> Role {
        self.0.last().map_or(Role::Member, |grant| grant.role)
    }

    /// Until when it lets in, in seconds since 1970.
    pub fn until_s(&self) -> Option<u64> {
        self.0.last().and_then(|grant| grant.until_s)
    }

    /// Whether it lets nobody new in any more, at a time in seconds since 1970.
    pub fn has_expired(&self, now_s: u64) -> bool {
        self.until_s().is_some_and(|until_s| until_s < now_s)
    }

    /// Whether it is no longer than it may be: else it is not looked at.
    pub fn is_bounded(&self) -> bool {
        self.0.len() <= MAX_CHAIN
    }

    /// Whether all of it was granted, each step by the one before it.
    ///
    /// # Errors
    ///
    /// What is wrong first.
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

    /// The keys whose owners may take its last grant back: those above it.
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
    /// Whether the next one is no wider.
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

/// What the first grant of a run is bound to.
fn origin(run: RunId) -> TicketId {
    TicketId(run.0)
}

/// "This peer comes by my ticket": what a ticket's key signs.
#[derive(Serialize)]
struct Bearer(PeerId);

impl Statement for Bearer {
    const KIND: &'static str = "bearer";
    type Bound = TicketId;
}

/// What a peer shows of its right to take part: anybody can check it, and it is of no use to any other name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Admission {
    /// What was granted.
    pub chain: Chain,
    /// Of the last grant's key, under the peer's name.
    signature: Signature,
}

impl Admission {
    /// What it lets do.
    pub fn role(&self) -> Role {
        self.chain.role()
    }

    /// The ticket that it came by.
    pub fn ticket(&self, run: RunId) -> Option<TicketId> {
        self.chain.ids(run).last().copied()
    }

    /// Whether this peer was let in by it.
    pub fn is_of(&self, peer: PeerId, root: Root, scheme: Scheme) -> bool {
        let (last, id) = (self.chain.0.last(), self.ticket(root.run));
        let signed = |(last, id): (&Signed<Grant>, TicketId)| {
            scheme.holds(last.to, &id, &Bearer(peer), &self.signature)
        };
        self.chain.check(root, scheme).is_ok() && last.zip(id).is_some_and(signed)
    }

    /// What anybody has whose names sign by stand-ins: a ticket of its own, as a member and for ever.
    #[cfg(any(test, feature = "sim"))]
    pub fn stand_in(peer: PeerId, root: Root) -> Self {
        let of_run = Invitation::of_run(Key::stand_in(root.key));
        let own = of_run.narrow(root, Key::stand_in(peer), Role::Member, None, None);
        own.expect("the run's key grants all").admit(peer, root.run)
    }
}

/// A chain with the key that its last grant was made to: whoever has both may come in, and hand it on.
#[derive(Clone, Debug)]
pub struct Invitation {
    /// What was granted.
    pub chain: Chain,
    /// To whom, or the run's own key.
    pub key: Key,
}

impl Invitation {
    /// What the run's own key may do: all.
    pub fn of_run(key: Key) -> Self {
        let chain = Chain::default();
        Self { chain, key }
    }

    /// Whether it is what its chain says.
    ///
    /// # Errors
    ///
    /// What is wrong first.
    pub fn check(&self, root: Root) -> Result<(), ChainError> {
        let key = self.chain.0.last().map_or(root.key, |grant| grant.to);
        self.chain.check(root, self.key.scheme())?;
        if self.key.peer() == key {
            Ok(())
        } else {
            Err(ChainError::Unsigned)
        }
    }

    /// Hands on a part of it, to a key of its own.
    ///
    /// # Errors
    ///
    /// If that were more than there is.
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

    /// Its chain with one grant more.
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

    /// What a peer shows that comes by it. Who holds the run's own key grants itself membership for ever.
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

    /// Takes back the last grant of a chain that this one led to.
    ///
    /// # Errors
    ///
    /// If it did not.
    pub fn revoke(&self, root: Root, chain: Chain) -> Result<Revocation, NotTheIssuer> {
        let revocation = Revocation::by(&self.key, chain, root.run);
        if revocation.is_good(root, self.key.scheme()) {
            Ok(revocation)
        } else {
            Err(NotTheIssuer)
        }
    }
}

/// A ticket was not made from the one that is to revoke it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "that ticket was not made from the one of this directory: only who is above it in its chain revokes it"
)]
pub struct NotTheIssuer;

/// "This ticket, and what was made from it, lets in nobody any more."
#[derive(Serialize)]
struct Revoked(TicketId);

impl Statement for Revoked {
    const KIND: &'static str = "revoked";
    type Bound = RunId;
}

/// A ticket taken back, with what shows that its issuer did it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Revocation {
    /// The ticket's.
    pub chain: Chain,
    /// Of a key above its last grant.
    signature: Signature,
}

impl Revocation {
    /// Most that one header brings: a guess, since people make them.
    pub const MOST: usize = 4;

    /// As this key's owner says it, who may or may not.
    pub(crate) fn by(key: &Key, chain: Chain, run: RunId) -> Self {
        let id = chain.ids(run).last().copied().unwrap_or(origin(run));
        let signature = key.sign(&run, &Revoked(id));
        Self { chain, signature }
    }

    /// The ticket, and how far it is from the run's key.
    pub fn ticket(&self, run: RunId) -> Option<(u8, TicketId)> {
        let id = self.chain.ids(run).last().copied();
        id.map(|id| (self.chain.0.len() as u8, id))
    }

    /// Whether one who may has said it.
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
        // A grant in another chain, one changed, one left out, and the key of another.
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
