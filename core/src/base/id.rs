//! Names of peers, runs, tickets and states. Plain values without behaviour.

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! digest_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub [u8; 32]);

        impl $name {
            /// All 64 hexadecimal digits.
            pub fn to_hex(&self) -> String {
                HEXLOWER.encode(&self.0)
            }

            /// Reads 64 hexadecimal digits.
            pub fn from_hex(text: &str) -> Option<Self> {
                let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?;
                bytes.try_into().ok().map(Self)
            }
        }

        /// The first eight hexadecimal digits, enough to tell a few apart by eye.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&HEXLOWER.encode(&self.0[..4]))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

digest_type! {
    /// A participant: its public key.
    PeerId
}
digest_type! {
    /// A training job: the hash of its manifest.
    RunId
}
digest_type! {
    /// A ticket: the hash of all that was granted up to it.
    TicketId
}
digest_type! {
    /// BLAKE3 of something that all peers must share: a state, a lineage, a data set.
    Digest
}

impl Digest {
    /// BLAKE3 of bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

/// Number of committed rounds. The round in work is one more.
pub type Round = u64;

/// Names one attempt at one round in one view of one lineage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ViewKey {
    /// The round in work.
    pub round: Round,
    /// The attempt, from 0.
    pub attempt: u32,
    /// Hash of lineage, members and attempt.
    pub id: u64,
}

impl ViewKey {
    /// Names an attempt at a round after the head with this hash. Members with equal keys derive equal attempts.
    pub(crate) fn of(head: Digest, round: Round, attempt: u32, members: &[PeerId]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&head.0).update(&attempt.to_le_bytes());
        for member in members {
            hasher.update(&member.0);
        }
        let id = hasher.finalize().as_bytes()[..8].try_into().expect("eight bytes");
        Self {
            round,
            attempt,
            id: u64::from_le_bytes(id),
        }
    }
}

/// Where a peer can be dialled, as the transport writes it (`"192.0.2.7:4433"`).
/// Without an address for a peer that can only dial out. Opaque to the protocol, bounded by [`Contact::LIMIT`].
///
/// One entry may be the peer's [name](Contact::NAME) for people. Nobody checks it: a name is a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact(pub Vec<String>);

impl Contact {
    /// At most this many addresses of at most [`Contact::ADDRESS_LIMIT`] bytes each.
    pub const LIMIT: usize = 8;
    /// Longest address in bytes.
    pub const ADDRESS_LIMIT: usize = 128;
    /// Marks the entry by which a peer names itself. It is not an address.
    pub const NAME: &str = "name:";

    /// Whether an entry is an address.
    pub(crate) fn leads_somewhere(&self) -> bool {
        self.0.iter().any(|entry| !entry.starts_with(Self::NAME))
    }

    /// Bytes that its addresses hold in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|a| size_of::<String>() + a.len()).sum()
    }

    /// Puts other addresses before these, of which as many stay as there is room for.
    pub(crate) fn precede(&mut self, others: &Self) {
        let mut all = others.0.clone();
        all.extend(self.0.drain(..).filter(|address| !others.0.contains(address)));
        all.truncate(Self::LIMIT);
        self.0 = all;
    }

    /// Whether both bounds hold.
    pub fn is_bounded(&self) -> bool {
        self.0.len() <= Self::LIMIT && self.0.iter().all(|a| a.len() <= Self::ADDRESS_LIMIT)
    }
}
