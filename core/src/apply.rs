//! A committed round's way into the state: part by part, so that a long vector holds up nothing that others wait for.
//!
//! Who has all chunks of a round may still have to pass some of them on, and a state of many megabytes takes
//! as long to apply and to hash as the chunks take to travel. So after each part the peer asks for a tick at once, and
//! whoever moves it lets the network have its turn before. Nothing else is taken in between: any other input finishes
//! what was begun.

use crate::ledger::Record;
use crate::optim::Step;
use crate::peer::{Peer, Phase};
use crate::state::Hasher;
use crate::time::Time;

/// Elements in a part: short enough to be done in half a millisecond, and to be hashed while the cache still holds
/// what was applied; long enough that the network's turns cost little.
const PART: usize = 1 << 18;

/// A committed round that is being applied.
pub(crate) struct Applying {
    record: Record,
    step: Step,
    /// When the round was complete.
    complete_at: Time,
    /// Elements of the parameters that were applied and hashed, and then of each of the optimizer's vectors that were hashed.
    done: usize,
    hasher: Hasher,
}

impl Peer {
    /// Whether a round is being applied: let the network have its turn, then feed [`Input::Tick`](crate::Input::Tick).
    pub fn is_applying(&self) -> bool {
        self.applying.is_some()
    }

    /// Begins to apply a round; a short vector is done at once.
    pub(crate) fn apply(&mut self, record: Record, step: Step) {
        self.applying = Some(Box::new(Applying {
            record,
            step,
            complete_at: self.now,
            done: 0,
            hasher: Hasher::default(),
        }));
        if self.vectors_len() <= PART {
            self.apply_rest();
        }
    }

    /// Applies all that is left.
    pub(crate) fn apply_rest(&mut self) {
        while self.applying.is_some() {
            self.apply_part();
        }
    }

    /// Applies and hashes a part; after the last one the round is committed.
    pub(crate) fn apply_part(&mut self) {
        let (Some(mut applying), Phase::Member(w)) = (self.applying.take(), &self.phase) else {
            return;
        };
        let (sums, len, start) = (&w.reduce.gathered, self.manifest.layout.len, applying.done);
        if start < len {
            let mut end = start;
            while end < len && end - start < PART {
                end = sums.ring.piece_end(end);
            }
            self.state
                .apply_round(&self.manifest, &applying.step, sums, start..end);
            applying.hasher.update(&self.state.params[start..end]);
            applying.done = end;
        } else if start < self.vectors_len() {
            let (slot, from) = (start / len - 1, start % len);
            let to = len.min(from + PART);
            applying.hasher.update(&self.state.slots[slot][from..to]);
            applying.done += to - from;
        }
        if applying.done < self.vectors_len() {
            self.applying = Some(applying);
        } else {
            self.digest = applying.hasher.digest();
            self.applied(applying.record, applying.complete_at);
        }
    }

    /// Elements of the whole state.
    fn vectors_len(&self) -> usize {
        self.manifest.layout.len * (1 + self.state.slots.len())
    }
}
