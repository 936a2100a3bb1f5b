//! Keys and signed statements. A peer's name is its public key, so anybody who knows the name can check a
//! statement, long after and from any source.
//!
//! A signature holds for one statement in one place. It covers the kind of statement, what the statement is bound
//! to (an attempt of one lineage, or the run), and the statement itself. A lineage's hash starts from the run's
//! name, so a statement bound to a lineage is bound to its run.
//!
//! All peers use one implementation, natively and in tabs. If two implementations judged malformed signatures
//! differently, a liar could split the peers that use one from those that use the other.

use crate::base::id::{Digest, PeerId, ViewKey};
use ed25519_dalek::{Signer as _, SigningKey, Verifier as _, VerifyingKey};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A key's signature of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature([u8; 32], [u8; 32]);

impl Signature {
    fn bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&self.0);
        bytes[32..].copy_from_slice(&self.1);
        bytes
    }
}

impl From<[u8; 64]> for Signature {
    fn from(bytes: [u8; 64]) -> Self {
        let half = |at: usize| bytes[at..at + 32].try_into().expect("half of 64 bytes");
        Self(half(0), half(32))
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signature({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

/// How names sign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    /// A name is an Ed25519 public key.
    #[default]
    Ed25519,
    /// For simulated worlds: fast, and easy to forge. Real builds do not have it.
    #[cfg(any(test, feature = "sim"))]
    StandIn,
}

impl Scheme {
    /// Whether a peer has signed these bytes.
    pub fn verifies(self, peer: PeerId, bytes: &[u8], signature: &Signature) -> bool {
        match self {
            Self::Ed25519 => {
                let signature = ed25519_dalek::Signature::from_bytes(&signature.bytes());
                point_of(peer).is_some_and(|key| key.verify(bytes, &signature).is_ok())
            }
            #[cfg(any(test, feature = "sim"))]
            Self::StandIn => stand_in(peer, bytes) == *signature,
        }
    }

    /// Whether a peer has signed this statement, bound to this value.
    pub fn holds<T: Statement>(self, by: PeerId, to: &T::Bound, said: &T, signature: &Signature) -> bool {
        self.verifies(by, &bytes(to, said), signature)
    }
}

/// How many names' curve points are cached.
const POINTS: usize = 256;

thread_local! {
    /// Decompressing a name to its curve point is a fifth of the cost of checking a signature, and members check
    /// each other's signatures in every round.
    static POINTS_OF: RefCell<HashMap<PeerId, VerifyingKey>> = RefCell::default();
}

/// The curve point of a name. `None` if there is none, or if it has small order: such a key would have signed
/// everything.
fn point_of(peer: PeerId) -> Option<VerifyingKey> {
    POINTS_OF.with_borrow_mut(|points| {
        if let Some(point) = points.get(&peer) {
            return Some(*point);
        }
        let point = VerifyingKey::from_bytes(&peer.0)
            .ok()
            .filter(|key| !key.is_weak())?;
        if points.len() >= POINTS {
            points.clear();
        }
        points.insert(peer, point);
        Some(point)
    })
}

/// Signs in a peer's name.
#[derive(Clone)]
pub struct Key(Secret);

#[derive(Clone)]
enum Secret {
    Ed25519(Arc<SigningKey>),
    #[cfg(any(test, feature = "sim"))]
    StandIn(PeerId),
}

impl Key {
    /// An Ed25519 key from its seed: 32 random bytes that only its owner knows.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(Secret::Ed25519(Arc::new(SigningKey::from_bytes(seed))))
    }

    /// The stand-in for the key of any name.
    #[cfg(any(test, feature = "sim"))]
    pub fn stand_in(peer: PeerId) -> Self {
        Self(Secret::StandIn(peer))
    }

    /// The name of its owner.
    pub fn peer(&self) -> PeerId {
        match &self.0 {
            Secret::Ed25519(key) => PeerId(key.verifying_key().to_bytes()),
            #[cfg(any(test, feature = "sim"))]
            Secret::StandIn(peer) => *peer,
        }
    }

    /// How it signs.
    pub fn scheme(&self) -> Scheme {
        match &self.0 {
            Secret::Ed25519(_) => Scheme::Ed25519,
            #[cfg(any(test, feature = "sim"))]
            Secret::StandIn(_) => Scheme::StandIn,
        }
    }

    /// Signs bytes. A caller outside of this crate must begin them with a word that no [`Statement`] begins with.
    pub fn sign_bytes(&self, bytes: &[u8]) -> Signature {
        match &self.0 {
            Secret::Ed25519(key) => key.sign(bytes).to_bytes().into(),
            #[cfg(any(test, feature = "sim"))]
            Secret::StandIn(peer) => stand_in(*peer, bytes),
        }
    }

    /// Signs a statement, bound to this value.
    pub fn sign<T: Statement>(&self, to: &T::Bound, said: &T) -> Signature {
        self.sign_bytes(&bytes(to, said))
    }

    /// A statement with its signature.
    pub fn signed<T: Statement>(&self, to: &T::Bound, content: T) -> Signed<T> {
        Signed {
            signature: self.sign(to, &content),
            content,
        }
    }
}

impl fmt::Debug for Key {
    /// Omits the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.peer())
    }
}

/// Something that peers sign.
pub trait Statement: Serialize {
    /// Distinguishes this kind of statement from all others.
    const KIND: &'static str;
    /// Its binding, for example an attempt.
    type Bound: Serialize;
}

/// One attempt of one lineage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Attempt {
    /// The lineage before the round.
    pub chain: Digest,
    /// The attempt.
    pub view: ViewKey,
}

/// A statement with its author's signature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Signed<T> {
    /// The statement.
    pub content: T,
    /// The author's signature.
    pub signature: Signature,
}

impl<T: Statement> Signed<T> {
    /// Whether this peer is its author.
    pub fn is_by(&self, peer: PeerId, to: &T::Bound, scheme: Scheme) -> bool {
        scheme.holds(peer, to, &self.content, &self.signature)
    }
}

impl<T> Deref for Signed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.content
    }
}

/// The bytes that are signed.
fn bytes<T: Statement>(to: &T::Bound, said: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(256);
    bytes.extend_from_slice(b"annulus 3 ");
    bytes.extend_from_slice(T::KIND.as_bytes());
    bytes.push(0);
    postcard::to_extend(&(to, said), bytes).expect("a statement has only plain data")
}

#[cfg(any(test, feature = "sim"))]
fn stand_in(peer: PeerId, bytes: &[u8]) -> Signature {
    let hash = *blake3::keyed_hash(&peer.0, bytes).as_bytes();
    Signature(hash, peer.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Number(u64);
    impl Statement for Number {
        const KIND: &'static str = "word";
        type Bound = u8;
    }

    #[derive(Serialize)]
    struct Other(u64);
    impl Statement for Other {
        const KIND: &'static str = "other";
        type Bound = u8;
    }

    #[test]
    fn a_signature_holds_for_its_author_its_statement_and_its_place_alone() {
        let stand_ins = [1, 2].map(|name| Key::stand_in(PeerId([name; 32])));
        let real = [1, 2].map(|seed| Key::from_seed(&[seed; 32]));
        for [me, other] in [stand_ins, real] {
            let (scheme, signature) = (me.scheme(), me.sign(&3, &Number(7)));
            let by_me = |to: u8, word| scheme.holds(me.peer(), &to, &Number(word), &signature);
            assert!(by_me(3, 7));
            assert!(!by_me(3, 8) && !by_me(4, 7));
            assert!(!scheme.holds(other.peer(), &3, &Number(7), &signature));
            assert!(!scheme.holds(me.peer(), &3, &Other(7), &signature));
            for at in 0..64 {
                let mut changed = signature.bytes();
                changed[at] ^= 1;
                assert!(!scheme.holds(me.peer(), &3, &Number(7), &changed.into()));
            }
        }
    }

    /// The first test vector of RFC 8032, section 7.1.
    #[test]
    fn names_and_signatures_are_those_of_rfc_8032() {
        let bytes = |hex: &str| data_encoding::HEXLOWER.decode(hex.as_bytes()).unwrap();
        let seed = bytes("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
        let key = Key::from_seed(&seed.try_into().unwrap());
        assert_eq!(
            key.peer().to_hex(),
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
        );
        let signature = bytes(
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        );
        assert_eq!(key.sign_bytes(b"").bytes().to_vec(), signature);
    }

    #[test]
    fn a_name_that_would_have_signed_everything_has_signed_nothing() {
        // The neutral element, and a signature that a lax verifier would accept for it.
        let mut neutral = [0; 32];
        neutral[0] = 1;
        let mut forged = [0; 64];
        forged[0] = 1;
        assert!(!Scheme::Ed25519.verifies(PeerId(neutral), b"anything", &forged.into()));
    }
}
