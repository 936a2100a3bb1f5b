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

/// The most peers remembered, several times as many as have links. Names are free, so whoever has many gets more in any
/// case.
const REMEMBERED: usize = 512;

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
        if self.given.len() >= REMEMBERED && !self.given.contains_key(&peer) {
            self.make_room(now, answer);
        }
        let (since, given) = self.given.entry(peer).or_insert((now, 0));
        if now - *since >= answer {
            (*since, *given) = (now, 0);
        }
        let after = given.saturating_add(bytes as u64);
        let may = after <= self.limit_bytes;
        if may {
            *given = after;
        }
        may
    }

    /// Forgets the peers whose time is over or, if there are none, the one that got least.
    fn make_room(&mut self, now: Time, answer: Duration) {
        self.given.retain(|_, (since, _)| now - *since < answer);
        if self.given.len() >= REMEMBERED {
            let least = self.given.iter().min_by_key(|(_, (_, given))| *given);
            let least = least.map(|(least, _)| *least);
            least.and_then(|least| self.given.remove(&least));
        }
    }

    /// The number of peers that it remembers.
    pub fn len(&self) -> usize {
        self.given.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::config::Layout;

    #[test]
    fn ever_new_names_take_no_room_and_do_not_free_one_that_has_much() {
        let mut allowance = Allowance::new(&Manifest::new(Layout::flat(8)));
        let (name, second) = (
            |n: u32| PeerId(std::array::from_fn(|i| n.to_le_bytes()[i % 4])),
            Duration::from_secs(1),
        );
        let much = allowance.limit_bytes as usize;
        assert!(allowance.take(name(0), much, Time(0), second));
        for n in 1..2000 {
            assert!(allowance.take(name(n), 1, Time(0), second));
        }
        assert_eq!(allowance.len(), REMEMBERED);
        assert!(
            !allowance.take(name(0), 1, Time(0), second),
            "it has had its share"
        );
        assert!(allowance.take(name(0), 1, Time(0) + second, second));
    }
}
