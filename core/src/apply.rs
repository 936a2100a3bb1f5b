//! A committed round's way into the state: part by part, so that a long vector holds up nothing that others wait for.
//!
//! Who has all chunks of a round may still have to pass some of them on, and a state of many megabytes takes
//! as long to apply and to hash as the chunks take to travel. So after each part the peer asks for a tick at once, and
//! whoever moves it lets the network have its turn before. Nothing else is taken in between: any other input finishes
//! what was begun.

use crate::collective::Assembly;
use crate::config::Manifest;
use crate::ledger::Record;
use crate::lineage::Lineage;
use crate::optim::Step;
use crate::state::Hasher;
use crate::time::Time;

/// Elements in a part: short enough to be done in half a millisecond, and to be hashed while the cache still holds
/// what was applied; long enough that the network's turns cost little.
const PART: usize = 1 << 18;

/// A committed round that is being applied.
pub(crate) struct Applying {
    pub record: Record,
    /// When the round was complete.
    pub complete_at: Time,
    step: Step,
    /// Elements of the parameters that were applied and hashed, and then of each of the optimizer's vectors that were hashed.
    done: usize,
    hasher: Hasher,
}

impl Applying {
    pub fn new(record: Record, step: Step, complete_at: Time) -> Self {
        Self {
            record,
            complete_at,
            step,
            done: 0,
            hasher: Hasher::default(),
        }
    }

    /// Whether the state is so short that its parts are not worth it.
    pub fn is_short(lineage: &Lineage) -> bool {
        vectors_len(lineage) <= PART
    }

    /// Applies and hashes a part. Whether it was the last: then the digest is the state's.
    pub fn part(&mut self, manifest: &Manifest, sums: &Assembly, lineage: &mut Lineage) -> bool {
        let (len, start) = (manifest.layout.len, self.done);
        let all = vectors_len(lineage);
        if start < len {
            let mut end = start;
            while end < len && end - start < PART {
                end = sums.cut().piece_end(end);
            }
            lineage.state.apply_round(manifest, &self.step, sums, start..end);
            self.hasher.update(&lineage.state.params[start..end]);
            self.done = end;
        } else if start < all {
            let (slot, from) = (start / len - 1, start % len);
            let to = len.min(from + PART);
            self.hasher.update(&lineage.state.slots[slot][from..to]);
            self.done += to - from;
        }
        if self.done < all {
            return false;
        }
        lineage.digest = self.hasher.digest();
        true
    }
}

/// Elements of the whole state.
fn vectors_len(lineage: &Lineage) -> usize {
    lineage.state.params.len() * (1 + lineage.state.slots.len())
}
