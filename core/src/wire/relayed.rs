//! Relayed frames: signed by their author, and accepted once.
//!
//! A relay cannot change a frame, forge its author, or deliver it twice. It can drop a frame, as a broken link
//! does.

use crate::access::signature::Statement;
use crate::base::id::{Digest, PeerId, RunId};
use crate::base::planted::Bug;
use crate::run::config::Settings;
use crate::wire::{Envelope, Lane, Message};
use bytes::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;

/// How far a frame may come behind the highest number of its author. Control messages overtake others, and relays
/// differ in speed; frames come out of order by less than this, even counting those that the author sends to other
/// receivers meanwhile. A guess.
const NUMBERS: usize = 1 << 15;

/// Authors whose numbers are remembered. The one that was silent for longest is forgotten first.
const AUTHORS: usize = 128;

/// The statement that an author signs.
#[derive(Serialize)]
struct Sealed {
    to: PeerId,
    number: u64,
    frame: Digest,
}

impl Statement for Sealed {
    const KIND: &'static str = "frame";
    type Bound = RunId;
}

/// The frames of one author that came: a window behind the highest number, as a ring of bits (RFC 6479, section 2).
#[derive(Debug)]
struct Seen {
    highest: u64,
    came: Box<[u64; NUMBERS / 64]>,
    /// When the last one came, counted in frames.
    at: u64,
}

/// Writes and opens relayed frames for this peer.
#[derive(Debug)]
pub(crate) struct Relayed {
    run: RunId,
    settings: Settings,
    /// Number of the last frame that was given to a relay.
    number: u64,
    seen: BTreeMap<PeerId, Seen>,
    taken: u64,
}

impl Relayed {
    pub fn new(settings: &Settings, run: RunId) -> Self {
        Self {
            run,
            settings: settings.clone(),
            number: settings.started,
            seen: BTreeMap::new(),
            taken: 0,
        }
    }

    /// The envelope for a frame that this peer has written.
    pub fn seal(&mut self, to: PeerId, lane: Lane, frame: &[u8]) -> Envelope {
        self.number += 1;
        let sealed = Sealed {
            to,
            number: self.number,
            frame: Digest::of(frame),
        };
        Envelope {
            from: self.settings.me,
            to,
            number: self.number,
            lane,
            signature: self.settings.key.sign(&self.run, &sealed),
        }
    }

    /// The message in a relayed frame for this peer, the first time that it comes. A message that would have to be
    /// relayed again is rejected: it could go in circles.
    pub fn open(&mut self, envelope: &Envelope, frame: Bytes) -> Option<Message> {
        let (author, number) = (envelope.from, envelope.number);
        let new = self.seen.get(&author).is_none_or(|seen| seen.is_new(number));
        let new = new || self.settings.planted(Bug::TakeAgain);
        if author == self.settings.me || !new || !self.is_written(envelope, &frame) {
            return None;
        }
        self.remember(author, number);
        match Message::decode(frame) {
            Ok(Message::Relay { .. } | Message::Unreachable { .. }) | Err(_) => None,
            Ok(message) => Some(message),
        }
    }

    /// Bytes of what it remembers.
    pub fn bytes(&self) -> usize {
        self.seen.len() * (size_of::<Seen>() + NUMBERS / 8)
    }

    fn is_written(&self, envelope: &Envelope, frame: &[u8]) -> bool {
        let Envelope {
            from,
            to,
            number,
            lane: _,
            signature,
        } = envelope;
        let sealed = Sealed {
            to: *to,
            number: *number,
            frame: Digest::of(frame),
        };
        let scheme = self.settings.key.scheme();
        scheme.holds(*from, &self.run, &sealed, signature) || self.settings.planted(Bug::TrustRelays)
    }

    fn remember(&mut self, author: PeerId, number: u64) {
        self.taken += 1;
        let seen = self.seen.entry(author).or_insert_with(|| Seen::up_to(number));
        seen.at = self.taken;
        seen.add(number);
        if self.seen.len() > AUTHORS {
            let silent = self.seen.iter().min_by_key(|(_, seen)| seen.at);
            if let Some(silent) = silent.map(|(author, _)| *author) {
                self.seen.remove(&silent);
            }
        }
    }
}

impl Seen {
    /// No frame came yet, and none beyond the window behind this number will be accepted.
    fn up_to(highest: u64) -> Self {
        Self {
            highest,
            came: Box::new([0; NUMBERS / 64]),
            at: 0,
        }
    }

    fn bit(number: u64) -> (usize, u64) {
        let at = number as usize % NUMBERS;
        (at / 64, 1 << (at % 64))
    }

    fn is_new(&self, number: u64) -> bool {
        let (word, bit) = Self::bit(number);
        match self.highest.checked_sub(number) {
            None => true,
            Some(behind) => behind < NUMBERS as u64 && self.came[word] & bit == 0,
        }
    }

    /// Marks a new number.
    fn add(&mut self, number: u64) {
        // These bits belonged to numbers that have left the window.
        let ahead = number.saturating_sub(self.highest).min(NUMBERS as u64);
        for passed in 0..ahead {
            let (word, bit) = Self::bit(number - passed);
            self.came[word] &= !bit;
        }
        self.highest = self.highest.max(number);
        let (word, bit) = Self::bit(number);
        self.came[word] |= bit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::config::{Layout, Manifest};

    fn manifest() -> Manifest {
        Manifest::new(Layout::flat(1))
    }
    use crate::base::id::Contact;

    const ANN: PeerId = PeerId([1; 32]);
    const BEN: PeerId = PeerId([2; 32]);

    fn of(peer: PeerId, started: u64) -> Relayed {
        let settings = Settings {
            started,
            ..Settings::stand_in(peer, Contact::default(), &manifest())
        };
        Relayed::new(&settings, RunId([9; 32]))
    }

    fn frame(nonce: u32) -> Bytes {
        let (round, doing) = (1, crate::wire::Doing::Idle);
        Message::Alive { nonce, round, doing }.to_frame()
    }

    #[test]
    fn a_frame_is_taken_once_and_as_it_was_written() {
        let (mut ann, mut ben) = (of(ANN, 0), of(BEN, 0));
        let first = ann.seal(BEN, Lane::Bulk, &frame(1));
        let second = ann.seal(BEN, Lane::Bulk, &frame(2));
        assert_eq!(ben.open(&first, frame(2)), None, "another frame");
        let other = Envelope {
            from: PeerId([3; 32]),
            ..first
        };
        assert_eq!(ben.open(&other, frame(1)), None, "another author");
        let other = Envelope { number: 7, ..first };
        assert_eq!(ben.open(&other, frame(1)), None, "another number");
        // In any order, but once.
        assert!(ben.open(&second, frame(2)).is_some());
        assert!(ben.open(&first, frame(1)).is_some());
        assert_eq!(ben.open(&first, frame(1)), None);
        assert_eq!(ben.open(&second, frame(2)), None);
        // In another run the signature is not valid.
        let mut elsewhere = of(BEN, 0);
        elsewhere.run = RunId([8; 32]);
        assert_eq!(elsewhere.open(&first, frame(1)), None);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_what_was_forgotten_is_too_late() {
        let (mut ann, mut ben) = (of(ANN, 0), of(BEN, 0));
        let envelopes: Vec<Envelope> = (0..2 * NUMBERS)
            .map(|_| ann.seal(BEN, Lane::Bulk, &frame(1)))
            .collect();
        let (late, on_time) = envelopes.split_at(NUMBERS);
        for envelope in on_time.iter().rev() {
            assert!(ben.open(envelope, frame(1)).is_some(), "out of order");
        }
        assert!(ben.open(&late[0], frame(1)).is_none(), "it comes too late");
        assert!(ben.bytes() < NUMBERS / 8 + 128);
        assert!(
            envelopes
                .iter()
                .all(|envelope| ben.open(envelope, frame(1)).is_none())
        );
        // The highest number works too.
        let mut last = of(PeerId([0; 32]), u64::MAX - 2);
        let two = [1, 2].map(|nonce| last.seal(BEN, Lane::Bulk, &frame(nonce)));
        for (envelope, nonce) in two.iter().zip([1, 2]).rev() {
            assert!(ben.open(envelope, frame(nonce)).is_some());
            assert!(ben.open(envelope, frame(nonce)).is_none());
        }
        // The same peer, started again later.
        let mut ann = of(ANN, 1_000_000);
        assert!(
            ben.open(&ann.seal(BEN, Lane::Bulk, &frame(1)), frame(1))
                .is_some()
        );
        for name in 3..=255 {
            let mut other = of(PeerId([name; 32]), 0);
            assert!(
                ben.open(&other.seal(BEN, Lane::Bulk, &frame(1)), frame(1))
                    .is_some()
            );
        }
        assert_eq!(ben.seen.len(), AUTHORS);
    }
}
