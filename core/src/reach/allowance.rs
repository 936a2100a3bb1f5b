//! Limits what each peer gets on request. A request is short and its answer may be long, so each peer gets a
//! limited number of bytes within the time of an answer. A peer that asks only for what it needs never reaches the
//! limit.

use crate::base::id::PeerId;
use crate::base::time::Time;
use crate::run::config::Manifest;
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of whole states and vectors. A newcomer may have to start over, and a broken link may lose what it
/// was sent.
const TIMES: u64 = 4;

/// Room besides them, for the heads in answers.
const HEADS_BYTES: u64 = 1 << 20;

/// Bytes sent to each peer, and since when.
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

    /// Whether a peer may get this many more bytes. If so, they count.
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

    /// The number of peers that it remembers.
    pub fn len(&self) -> usize {
        self.given.len()
    }
}
