//! A committed round's way into the state: part by part, so that a long vector holds up nothing that others wait for.
//!
//! Who has all chunks of a round may still have to pass some of them on, and a state of many megabytes takes
//! as long to apply and to hash as the chunks take to travel. So after some parts the peer asks for a tick at once, and
//! whoever moves it lets the network have its turn before. Nothing else is taken in between: any other input finishes
//! what was begun.

use crate::collective::Assembly;
use crate::config::Manifest;
use crate::id::Digest;
use crate::ledger::Record;
use crate::lineage::Lineage;
use crate::optim::Step;
use crate::time::Time;

/// Elements between two turns of the network: short enough to be done in half a millisecond, long enough that turns cost
/// little.
const TURN: usize = 1 << 17;

/// Bytes of a state that is not worth any turn.
const SHORT: u64 = 1 << 20;

/// A committed round that is being applied.
pub(crate) struct Applying {
    pub record: Record,
    /// When the round was complete.
    pub complete_at: Time,
    step: Step,
    /// Elements that were stepped: whole pieces.
    done: usize,
    /// Digests of the state's blocks that were stepped, taken while the cache still holds them.
    blocks: Vec<Digest>,
}

impl Applying {
    pub fn new(record: Record, step: Step, complete_at: Time) -> Self {
        Self {
            record,
            complete_at,
            step,
            done: 0,
            blocks: Vec::new(),
        }
    }

    /// Whether the state is so short that its parts are not worth it.
    pub fn is_short(manifest: &Manifest) -> bool {
        manifest.state_bytes() <= SHORT
    }

    /// Applies and hashes some blocks. Whether the last was among them: then the digest is the state's.
    pub fn part(&mut self, manifest: &Manifest, sums: &Assembly, lineage: &mut Lineage) -> bool {
        let state = &mut lineage.state;
        let until = self.done + TURN;
        while let Some(block) = state.block_range(self.blocks.len() as u32) {
            if self.done >= until {
                return false;
            }
            while self.done < block.end {
                let piece = self.done..sums.cut().piece_end(self.done);
                self.done = piece.end;
                state.apply_round(manifest, &self.step, sums, piece);
            }
            self.blocks.push(state.block_digest(block));
        }
        lineage.hashed(std::mem::take(&mut self.blocks));
        true
    }
}
