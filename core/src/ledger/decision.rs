//! Stopping an attempt and giving it up: the statements that members sign, and the proof for others.
//!
//! A decision is proven if all members that it leaves in have signed for the same suspects. So nobody can expel
//! members in the name of others that did not agree, and any holder of the proof may pass it on.

use crate::access::signature::{Attempt, Key, Scheme, Signature, Statement};
use crate::base::id::{Digest, PeerId, ViewKey};
use serde::Serialize;
use std::collections::BTreeSet;

/// "I have stopped this attempt without committing it, and suspect these."
#[derive(Serialize)]
pub struct Suspicion<'a>(pub &'a [PeerId]);

impl Statement for Suspicion<'_> {
    const KIND: &'static str = "flush";
    type Bound = Attempt;
}

/// The suspicion of a member that has said before that it can commit the attempt, in a split run. Another member
/// may have committed it.
#[derive(Serialize)]
pub struct HeldSuspicion<'a>(pub &'a [PeerId]);

impl Statement for HeldSuspicion<'_> {
    const KIND: &'static str = "flush of what is held";
    type Bound = Attempt;
}

/// Signs that a member has stopped an attempt.
pub(crate) fn sign(attempt: &Attempt, suspects: &[PeerId], held: bool, key: &Key) -> Signature {
    match held {
        false => key.sign(attempt, &Suspicion(suspects)),
        true => key.sign(attempt, &HeldSuspicion(suspects)),
    }
}

/// Checks a signature that stops an attempt. Returns whether the author had said that it can commit; `None` if the
/// signature is false.
pub(crate) fn signed(
    attempt: &Attempt,
    peer: PeerId,
    suspects: &[PeerId],
    (signature, scheme): (&Signature, Scheme),
) -> Option<bool> {
    let plain = scheme.holds(peer, attempt, &Suspicion(suspects), signature);
    let held = || scheme.holds(peer, attempt, &HeldSuspicion(suspects), signature);
    if plain {
        Some(false)
    } else {
        held().then_some(true)
    }
}

/// An attempt that was given up.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    pub view: ViewKey,
    /// All members of the attempt, in ring order.
    pub members: Vec<PeerId>,
    /// The members that are left out of the next attempt.
    pub suspects: BTreeSet<PeerId>,
    /// The signatures of all others, in ring order.
    pub proof: Vec<(PeerId, Signature)>,
}

impl Decided {
    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        let names = self.members.len() + self.suspects.len();
        names * size_of::<PeerId>() + self.proof.len() * size_of::<(PeerId, Signature)>()
    }

    /// The attempt, if it was at the round after this lineage.
    pub fn known(&self, chain: Digest) -> Known {
        let view = self.view;
        Known {
            attempt: Attempt { chain, view },
            members: self.members.clone(),
        }
    }
}

/// An attempt in which this peer took part.
pub(crate) struct Known {
    pub attempt: Attempt,
    /// All its members, in ring order.
    pub members: Vec<PeerId>,
}

impl Known {
    /// Whether all members but the suspects, and at least one, have signed for these.
    pub fn proves(&self, suspects: &[PeerId], proof: &[(PeerId, Signature)], scheme: Scheme) -> bool {
        let rest = self.members.iter().filter(|m| !suspects.contains(m));
        let said = proof
            .iter()
            .map(|(peer, signature)| signed(&self.attempt, *peer, suspects, (signature, scheme)));
        let said: Option<Vec<bool>> = said.collect();
        // An attempt that all members left can commit is not given up.
        let not_all_hold = said.is_some_and(|held| held.contains(&false));
        not_all_hold && rest.eq(proof.iter().map(|(peer, _)| peer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: u8) -> PeerId {
        PeerId([name; 32])
    }

    fn known() -> Known {
        let view = ViewKey {
            round: 1,
            attempt: 0,
            id: 5,
        };
        Known {
            attempt: Attempt {
                chain: Digest([3; 32]),
                view,
            },
            members: (1..=4).map(peer).collect(),
        }
    }

    fn signatures(attempt: &Attempt, authors: &[u8], suspects: &[PeerId]) -> Vec<(PeerId, Signature)> {
        let sign = |name: &u8| {
            let key = Key::stand_in(peer(*name));
            (peer(*name), key.sign(attempt, &Suspicion(suspects)))
        };
        authors.iter().map(sign).collect()
    }

    #[test]
    fn a_decision_is_proven_by_all_whom_it_leaves_in() {
        let known = known();
        let (suspects, all) = ([peer(3)], [peer(1), peer(2), peer(3), peer(4)]);
        let proves = |suspects: &[PeerId], proof: &[_]| known.proves(suspects, proof, Scheme::StandIn);
        let good = signatures(&known.attempt, &[1, 2, 4], &suspects);
        assert!(proves(&suspects, &good));
        assert!(proves(&[], &signatures(&known.attempt, &[1, 2, 3, 4], &[])));
        // One signature is missing, not of a member, of a suspect, or for other suspects.
        assert!(!proves(&suspects, &good[..2]));
        assert!(!proves(
            &suspects,
            &signatures(&known.attempt, &[1, 2, 9], &suspects)
        ));
        assert!(!proves(
            &suspects,
            &signatures(&known.attempt, &[1, 2, 3, 4], &suspects)
        ));
        assert!(!proves(
            &[peer(4)],
            &signatures(&known.attempt, &[1, 2, 3], &suspects)
        ));
        // The proof is of another attempt.
        let mut other = known.attempt;
        other.chain = Digest([4; 32]);
        assert!(!proves(&suspects, &signatures(&other, &[1, 2, 4], &suspects)));
        // The suspects are all members.
        assert!(!proves(&all, &[]));
        // Some of those left can commit, or all.
        let held = |authors: &[u8]| -> Vec<(PeerId, Signature)> {
            let of = |name: &u8| {
                let key = Key::stand_in(peer(*name));
                (peer(*name), sign(&known.attempt, &suspects, true, &key))
            };
            authors.iter().map(of).collect()
        };
        let some = [held(&[1, 2]), good[2..].to_vec()].concat();
        assert!(proves(&suspects, &some));
        assert!(!proves(&suspects, &held(&[1, 2, 4])));
    }
}
