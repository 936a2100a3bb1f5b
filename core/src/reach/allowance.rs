//! What is given on request: a question is short and its answer may be long, so each peer is given so much and no more
//! within the time of an answer. Who asks for what it needs never finds out.

use crate::base::id::PeerId;
use crate::base::time::Time;
use crate::run::config::Manifest;
use std::collections::BTreeMap;
use std::time::Duration;

/// So many whole states and vectors: a newcomer may have to begin again, and what it was given may be lost with a link.
const TIMES: u64 = 4;

/// Room beside them, for the heads that go with answers.
const HEADS_BYTES: u64 = 1 << 20;

/// Bytes given to each peer, since when.
#[derive(Debug)]
pub(crate) struct Allowance {
    limit_bytes: u64,
    given: BTreeMap<PeerId, (Time, u64)>,
}

impl Allowance {
    pub fn new(manifest: &Manifest) -> Self {
        let vector = manifest.codec.encoded_len(manifest.layout.len) as u64;
        Self {
            limit_bytes: TIMES * (manifest.state_bytes() + vector) + HEADS_BYTES,
            given: BTreeMap::new(),
        }
    }

    /// Whether a peer may be given so many bytes more; if so, they count.
    pub fn take(&mut self, peer: PeerId, bytes: usize, now: Time, answer: Duration) -> bool {
        self.given.retain(|_, (since, _)| now - *since < answer);
        let (_, given) = self.given.entry(peer).or_insert((now, 0));
        let after = given.saturating_add(bytes as u64);
        let may = after <= self.limit_bytes;
        if may {
            *given = after;
        }
        may
    }

    /// How many peers it remembers.
    pub fn len(&self) -> usize {
        self.given.len()
    }
}
