//! Committed rounds: who contributed what, the sample cursor and its holes. Everything here is a
//! function of the records alone, so that all members derive the same without asking.

use crate::config::{MAX_PEERS, Manifest, Settings};
use crate::id::{Contact, Digest, PeerId, Round};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Version of how headers, records and heads are encoded, for whoever keeps them. Another field is another version.
pub const VERSION: u8 = 1;

/// What one member says of itself in one attempt. Rides along with the chunks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Who says it.
    pub peer: PeerId,
    /// How many samples of its share, from the front, are in its contribution.
    pub weight: u32,
    /// Sum of the losses of those samples.
    pub loss: f32,
    /// Measured speed in samples per 1,000 seconds.
    pub speed: u64,
    /// How long the contribution took.
    pub compute_us: u64,
    /// The state that the contribution was computed from.
    pub digest: Digest,
    /// Newcomers that it sponsors and that have caught up.
    pub ready: Vec<Member>,
    /// It leaves after this round.
    pub leaving: bool,
}

/// A member as the others know it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Its name.
    pub peer: PeerId,
    /// Last measured speed in samples per 1,000 seconds.
    pub speed: u64,
    /// Where it can be dialled.
    pub contact: Contact,
}

impl Member {
    /// A peer as it knows itself.
    pub(crate) fn new(settings: &Settings, speed: Option<u64>) -> Self {
        Self {
            peer: settings.me,
            speed: speed.unwrap_or(1),
            contact: settings.contact.clone(),
        }
    }
}

/// One committed round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Its number, from 1.
    pub round: Round,
    /// Which attempt succeeded, from 0.
    pub attempt: u32,
    /// The contributors in ring order.
    pub headers: Vec<Header>,
}

impl Record {
    /// Samples in the round's sum.
    pub fn weight(&self) -> u64 {
        self.headers.iter().map(|h| u64::from(h.weight)).sum()
    }

    /// Mean loss over the round's samples.
    pub fn loss(&self) -> f32 {
        let sum: f64 = self.headers.iter().map(|h| f64::from(h.loss)).sum();
        (sum / self.weight() as f64) as f32
    }

    /// The state's digest that most contributors started from; among equals, that of the earliest in ring order.
    pub fn majority(&self) -> Digest {
        let votes = |digest| self.headers.iter().filter(|h| h.digest == digest).count();
        let mut best = self.headers[0].digest;
        for header in &self.headers {
            if votes(header.digest) > votes(best) {
                best = header.digest;
            }
        }
        best
    }
}

/// Samples to hand out again, as positions in the stream of shuffled epochs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hole {
    /// First position.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// How many times a member gave these back because its result was not finite.
    pub refused: u8,
}

impl Hole {
    pub(crate) fn len(&self) -> u64 {
        self.end - self.start
    }
}

/// The end of the ledger: all that the next round depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Committed rounds.
    pub round: Round,
    /// Optimizer steps taken (rounds that had samples).
    pub steps: u64,
    /// Samples counted.
    pub samples: u64,
    /// Samples given up because they were not finite twice.
    pub skipped: u64,
    /// Next position of the stream that nobody has been given.
    pub cursor: u64,
    /// Positions before the cursor that are not counted, in order.
    pub holes: Vec<Hole>,
    /// Members of the next round in ring order.
    pub members: Vec<Member>,
    /// Hash over all records: the lineage.
    pub chain: Digest,
}

/// Who works on which positions in the next round.
#[derive(Clone, Debug, PartialEq)]
pub struct Allotment {
    /// One share per member, in ring order.
    pub shares: Vec<Vec<Hole>>,
}

impl Allotment {
    /// Samples of one member's share.
    pub fn len(&self, member: usize) -> u64 {
        self.shares[member].iter().map(Hole::len).sum()
    }

    /// Positions of one member's share.
    pub fn ranges(&self, member: usize) -> Vec<Range<u64>> {
        self.shares[member]
            .iter()
            .map(|hole| hole.start..hole.end)
            .collect()
    }

    /// Whether there is nothing left to do.
    pub fn is_empty(&self) -> bool {
        self.shares.iter().all(Vec::is_empty)
    }
}

/// A sample is given up after this many refusals: once by its first owner, once by another.
pub(crate) const REFUSALS: u8 = 2;

impl Head {
    /// Before the first round.
    pub fn genesis(manifest: &Manifest, founder: Member) -> Self {
        Self {
            round: 0,
            steps: 0,
            samples: 0,
            skipped: 0,
            cursor: 0,
            holes: Vec::new(),
            members: vec![founder],
            chain: Digest(manifest.run_id().0),
        }
    }

    /// The same head continued by one peer alone: after a restart, or when no member is left.
    /// A lineage of its own from here on.
    pub fn continued_by(mut self, founder: Member) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(&self.chain.0)
            .update(b"continued")
            .update(&founder.peer.0);
        self.chain = Digest(*hasher.finalize().as_bytes());
        self.members = vec![founder];
        self
    }

    /// Position of a peer in the ring.
    pub fn position(&self, peer: PeerId) -> Option<usize> {
        self.members.iter().position(|m| m.peer == peer)
    }

    /// Whether every sample has been counted or given up.
    pub fn finished(&self, manifest: &Manifest) -> bool {
        self.cursor >= manifest.target && self.holes.is_empty()
    }

    /// The next round's samples: holes first, then fresh ones, split by speed.
    pub fn allot(&self, manifest: &Manifest) -> Allotment {
        let taken = self.take(u64::from(manifest.batch), manifest.target);
        let total: u64 = taken.iter().map(Hole::len).sum();
        let quotas = split(total, &self.members.iter().map(|m| m.speed).collect::<Vec<_>>());
        let mut shares = vec![Vec::new(); self.members.len()];
        let mut taken = taken.into_iter().peekable();
        // The first range goes to another member each round, so that a refused one changes hands.
        let first = (self.round % self.members.len().max(1) as u64) as usize;
        for i in 0..shares.len() {
            let member = (first + i) % shares.len();
            let mut quota = quotas[member];
            while let Some(range) = taken.peek_mut().filter(|_| quota > 0) {
                let n = quota.min(range.len());
                shares[member].push(Hole {
                    end: range.start + n,
                    ..range.clone()
                });
                range.start += n;
                quota -= n;
                if range.start == range.end {
                    taken.next();
                }
            }
        }
        Allotment { shares }
    }

    fn take(&self, batch: u64, target: u64) -> Vec<Hole> {
        let mut left = batch;
        let mut taken = Vec::new();
        for hole in &self.holes {
            let n = left.min(hole.len());
            if n == 0 {
                break;
            }
            taken.push(Hole {
                end: hole.start + n,
                ..hole.clone()
            });
            left -= n;
        }
        let fresh = left.min(target.saturating_sub(self.cursor));
        if fresh > 0 {
            taken.push(Hole {
                start: self.cursor,
                end: self.cursor + fresh,
                refused: 0,
            });
        }
        taken
    }

    /// Takes a record: counts its samples, returns what was not counted to the holes, and derives the next view.
    ///
    /// A round of too few contributors to train hands out nothing; it only changes the view. The record must follow
    /// ([`Head::check`]).
    pub fn apply(&mut self, record: &Record, manifest: &Manifest) {
        debug_assert_eq!(record.round, self.round + 1);
        if manifest.trains(record.headers.len()) {
            self.count(record, manifest);
        }
        self.round = record.round;
        self.members = self.next_members(record);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.chain.0);
        hasher.update(&postcard::to_allocvec(record).expect("a record has only plain data"));
        self.chain = Digest(*hasher.finalize().as_bytes());
    }

    fn count(&mut self, record: &Record, manifest: &Manifest) {
        let allotment = self.allot(manifest);
        let mut uncounted = Vec::new();
        for (member, share) in self.members.iter().zip(&allotment.shares) {
            let header = record.headers.iter().find(|h| h.peer == member.peer);
            let mut counted = header.map_or(0, |h| u64::from(h.weight));
            for range in share {
                let n = counted.min(range.len());
                counted -= n;
                self.samples += n;
                if n == range.len() {
                    continue;
                }
                let refused = range.refused + u8::from(header.is_some());
                let rest = Hole {
                    start: range.start + n,
                    end: range.end,
                    refused,
                };
                if refused < REFUSALS {
                    uncounted.push(rest);
                } else {
                    self.skipped += rest.len();
                }
            }
        }
        let mut left = allotment.shares.iter().flatten().map(Hole::len).sum::<u64>();
        self.holes.retain_mut(|hole| {
            let n = left.min(hole.len());
            hole.start += n;
            left -= n;
            hole.start < hole.end
        });
        self.cursor += left;
        self.holes.append(&mut uncounted);
        self.holes.sort_by_key(|hole| hole.start);
        self.holes.dedup_by(|next, hole| {
            let adjacent = hole.end == next.start && hole.refused == next.refused;
            if adjacent {
                hole.end = next.end;
            }
            adjacent
        });
        self.steps += u64::from(record.weight() > 0);
    }

    fn next_members(&self, record: &Record) -> Vec<Member> {
        let majority = record.majority();
        let mut next = Vec::new();
        for header in record
            .headers
            .iter()
            .filter(|h| !h.leaving && h.digest == majority)
        {
            let contact = self
                .position(header.peer)
                .map(|i| self.members[i].contact.clone());
            next.push(Member {
                peer: header.peer,
                speed: header.speed,
                contact: contact.unwrap_or_default(),
            });
        }
        let mut ready: Vec<Member> = record
            .headers
            .iter()
            .flat_map(|h| h.ready.iter().cloned())
            .collect();
        ready.sort_by_key(|m| m.peer);
        ready.dedup_by_key(|m| m.peer);
        for member in ready {
            if next.len() < MAX_PEERS && record.headers.iter().all(|h| h.peer != member.peer) {
                next.push(member);
            }
        }
        next
    }
}

/// Splits `total` by weight: largest remainders, ties to the earlier; at least one each where there are enough.
fn split(total: u64, speeds: &[u64]) -> Vec<u64> {
    let n = speeds.len() as u64;
    if n == 0 {
        return Vec::new();
    }
    let floor = u64::from(total >= n);
    let spare = u128::from(total - floor * n);
    let sum: u128 = speeds.iter().map(|s| u128::from((*s).max(1))).sum();
    let mut quotas = Vec::with_capacity(speeds.len());
    let mut remainders = Vec::with_capacity(speeds.len());
    for (i, speed) in speeds.iter().enumerate() {
        let scaled = spare * u128::from((*speed).max(1));
        quotas.push(floor + (scaled / sum) as u64);
        remainders.push((std::cmp::Reverse(scaled % sum), i));
    }
    remainders.sort_unstable();
    let missing = total - quotas.iter().sum::<u64>();
    for (_, i) in remainders.into_iter().take(missing as usize) {
        quotas[i] += 1;
    }
    quotas
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn split_hands_out_all(total in 0u64..10_000, speeds in prop::collection::vec(0u64..1_000_000, 1..12)) {
            let quotas = split(total, &speeds);
            prop_assert_eq!(quotas.iter().sum::<u64>(), total);
            if total >= speeds.len() as u64 {
                prop_assert!(quotas.iter().all(|q| *q >= 1));
            }
            for (a, qa) in speeds.iter().zip(&quotas) {
                for (b, qb) in speeds.iter().zip(&quotas) {
                    prop_assert!(a <= b || *qa + 1 >= *qb);
                }
            }
        }
    }
}
