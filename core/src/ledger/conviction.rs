//! Convicting and cutting off peers that contradict themselves.
//!
//! An honest peer signs one header in an attempt, and one hash of the chunk that it finishes. Two different ones
//! convict their author, whoever shows them, and members pass them on. New names are free, so the ticket that the
//! author came by is bound too, and admits nobody any more. Only a ticket that many guests share is not: see
//! `accounts.rs` for what their failures cost.
//!
//! A peer that shows a false signature is cut off as well, but only by the receiver, which cannot prove the origin
//! to others.

use crate::access::invitation::Admission;
use crate::access::signature::{Attempt, Scheme, Signed};
use crate::base::id::{PeerId, RunId};
use crate::base::planted::Bug;
use crate::ledger::Header;
use crate::ledger::seal::{Seal, Sealed};
use crate::run::config::MAX_PEERS;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most peers remembered as cut off.
const OUTLAWS: usize = 4 * MAX_PEERS;

/// Two contradicting statements of one author for one attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conviction {
    /// The attempt that both were signed for.
    pub attempt: Attempt,
    /// Both statements.
    pub said: Contradiction,
    /// The admission of their author, where it is known.
    pub admission: Option<Box<Admission>>,
}

/// What contradicts itself.
#[allow(
    clippy::large_enum_variant,
    reason = "there are few, and a conviction is boxed as a whole"
)]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Contradiction {
    /// Two headers of one author.
    Headers([Signed<Header>; 2]),
    /// Two finished chunks of one owner.
    Seals {
        /// The owner.
        owner: PeerId,
        /// Its seals.
        seals: [Seal; 2],
    },
}

impl Contradiction {
    /// Bytes that it holds.
    fn bytes(&self) -> usize {
        match self {
            Self::Headers(headers) => headers.iter().map(|h| h.bytes()).sum(),
            Self::Seals { .. } => size_of::<Self>(),
        }
    }
}

/// A peer showed a statement that its author has not signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forged;

impl Conviction {
    /// The conviction of an author by two of its headers for an attempt.
    pub fn new(attempt: Attempt, headers: [Signed<Header>; 2]) -> Self {
        Self {
            attempt,
            said: Contradiction::Headers(headers),
            admission: None,
        }
    }

    /// The accused author.
    pub fn author(&self) -> PeerId {
        match &self.said {
            Contradiction::Headers(headers) => headers[0].peer,
            Contradiction::Seals { owner, .. } => *owner,
        }
    }

    /// The author, if the proof convicts it.
    pub fn of(&self, scheme: Scheme) -> Option<PeerId> {
        let (author, attempt) = (self.author(), &self.attempt);
        let convicts = match &self.said {
            Contradiction::Headers(headers) => {
                let [one, other] = headers;
                let contradict = one.peer == other.peer && one.content != other.content;
                contradict && headers.iter().all(|h| h.is_by(author, attempt, scheme))
            }
            Contradiction::Seals { seals, .. } => {
                let contradict = seals[0].content != seals[1].content;
                contradict && seals.iter().all(|seal| seal.is_by(author, attempt, scheme))
            }
        };
        convicts.then_some(author)
    }

    /// The first owner whose seal for another peer differs from the one known here.
    ///
    /// # Errors
    ///
    /// If one of the seals is not signed by its owner.
    pub(crate) fn find_seal(known: &Sealed, others: &[Seal], scheme: Scheme) -> Result<Option<Self>, Forged> {
        let mut pairs = known.members.iter().zip(known.seals.iter().zip(others));
        let differing = pairs.find(|(_, (one, other))| one.content != other.content);
        let Some((owner, (one, other))) = differing else {
            return Ok(None);
        };
        if !other.is_by(*owner, &known.attempt, scheme) {
            return Err(Forged);
        }
        Ok(Some(Self {
            attempt: known.attempt,
            said: Contradiction::Seals {
                owner: *owner,
                seals: [one.clone(), other.clone()],
            },
            admission: None,
        }))
    }

    /// The first of `others` that contradicts a known header of its author.
    pub fn find(attempt: Attempt, known: &[Signed<Header>], others: &[Signed<Header>]) -> Option<Self> {
        others.iter().find_map(|other| {
            let differs =
                |known: &&Signed<Header>| known.peer == other.peer && known.content != other.content;
            let one = known.iter().find(differs)?;
            Some(Self::new(attempt, [one.clone(), other.clone()]))
        })
    }
}

/// Peers that are cut off: nothing that they say is accepted.
#[derive(Debug, Default)]
pub(crate) struct Outlaws(BTreeMap<PeerId, Option<Box<Conviction>>>);

impl Outlaws {
    pub fn contains(&self, peer: PeerId) -> bool {
        self.0.contains_key(&peer)
    }

    /// Whether an outlaw came by the ticket of this admission, or by one that it was made from.
    pub fn bars(&self, admission: &Admission, run: RunId, bug: Option<Bug>) -> bool {
        let binds = |admission: &&Admission| !admission.is_shared() || bug == Some(Bug::BarsShared);
        let mut bound = self
            .proofs()
            .filter_map(|proof| proof.admission.as_deref().filter(binds)?.ticket(run))
            .peekable();
        let ids = bound.peek().map(|_| admission.chain.ids(run)).unwrap_or_default();
        bound.any(|id| ids.contains(&id))
    }

    /// Remembers a peer, with a proof for others if there is one. False if it was known, or if there is no room and
    /// it does not `matter`.
    pub fn add(&mut self, peer: PeerId, proof: Option<Conviction>, matters: impl Fn(PeerId) -> bool) -> bool {
        let known = self.0.get(&peer);
        if known.is_some_and(|known| known.is_some() || proof.is_none()) {
            return false;
        }
        if known.is_none() && self.0.len() >= OUTLAWS {
            let idle = self.0.keys().find(|outlaw| !matters(**outlaw)).copied();
            let Some(idle) = idle.filter(|_| matters(peer)) else {
                return false;
            };
            self.0.remove(&idle);
        }
        self.0.insert(peer, proof.map(Box::new));
        true
    }

    /// Bytes that they hold.
    pub fn bytes(&self) -> usize {
        let admission = |proof: &Conviction| proof.admission.as_ref().map_or(0, |a| a.chain.bytes());
        let proofs = self.proofs().map(|proof| proof.said.bytes() + admission(proof));
        self.0.len() * size_of::<(PeerId, usize)>() + proofs.sum::<usize>()
    }

    /// All proofs.
    pub fn proofs(&self) -> impl Iterator<Item = &Conviction> {
        self.0.values().flatten().map(|proof| &**proof)
    }

    /// The proof against one peer.
    pub fn proof(&self, peer: PeerId) -> Option<&Conviction> {
        self.0.get(&peer)?.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::signature::Key;
    use crate::base::id::Digest;
    use crate::wire::ViewKey;

    fn attempt(round: u64) -> Attempt {
        Attempt {
            chain: Digest([1; 32]),
            view: ViewKey {
                round,
                attempt: 0,
                id: 4,
            },
        }
    }

    fn header(name: u8, weight: u32, round: u64) -> Signed<Header> {
        let peer = PeerId([name; 32]);
        let header = Header {
            weight,
            loss: 1.0,
            ..Header::stand_in(peer)
        };
        Key::stand_in(peer).signed(&attempt(round), header)
    }

    fn convicts(one: Signed<Header>, other: Signed<Header>) -> Option<PeerId> {
        Conviction::new(attempt(1), [one, other]).of(Scheme::StandIn)
    }

    #[test]
    fn two_headers_of_one_author_in_one_attempt_convict_it_and_nothing_else_does() {
        let ann = PeerId([1; 32]);
        assert_eq!(convicts(header(1, 3, 1), header(1, 4, 1)), Some(ann));
        assert_eq!(convicts(header(1, 3, 1), header(1, 3, 1)), None);
        assert_eq!(convicts(header(1, 3, 1), header(2, 4, 1)), None);
        assert_eq!(convicts(header(1, 3, 1), header(1, 4, 2)), None);
        let mut forged = header(1, 3, 1);
        forged.content.weight = 9;
        assert_eq!(convicts(header(1, 3, 1), forged), None);
    }

    #[test]
    fn outlaws_are_bounded_and_those_that_matter_are_kept() {
        let mut outlaws = Outlaws::default();
        let peer = |n: usize| {
            let mut name = [0; 32];
            name[..8].copy_from_slice(&n.to_le_bytes());
            PeerId(name)
        };
        let matters = |p: PeerId| p == peer(7) || p == peer(OUTLAWS);
        assert!((0..OUTLAWS).all(|n| outlaws.add(peer(n), None, matters)));
        assert!(!outlaws.add(peer(3), None, matters), "it is known");
        assert!(!outlaws.add(peer(OUTLAWS + 1), None, matters), "there is no room");
        assert!(outlaws.add(peer(OUTLAWS), None, matters));
        assert!(outlaws.contains(peer(7)) && outlaws.contains(peer(OUTLAWS)));
        assert_eq!(outlaws.0.len(), OUTLAWS);
    }
}
