//! Applies a committed round to the state in parts, so that a long vector does not delay the network.
//!
//! A member with all chunks of a round may still have to pass some on, and a state of many megabytes takes as long
//! to apply and hash as the chunks take to travel. So after some parts the peer asks for a tick at once, and the
//! driver lets the network have its turn before. No other input is handled in between: any other input finishes the
//! round first.

use crate::base::id::Digest;
use crate::base::time::Time;
use crate::collective::{Assembly, Held};
use crate::ledger::Record;
use crate::numeric::codec::Codec;
use crate::numeric::optim::Step;
use crate::run::config::Manifest;
use crate::state::State;
use crate::state::lineage::Lineage;

/// Elements between two turns of the network: half a millisecond of work, but long enough that turns cost little.
const TURN: usize = 1 << 17;

/// A state of fewer bytes is applied without turns.
const SHORT: u64 = 1 << 20;

/// A committed round that is being applied.
pub(crate) struct Applying {
    pub record: Record,
    /// When the round was complete.
    pub complete_at: Time,
    step: Step,
    /// Elements that were stepped, in whole pieces.
    done: usize,
    /// Digests of the stepped blocks, taken while they are still in the cache.
    blocks: Vec<Digest>,
    /// If blocks are to be verified: how many were compared with their digests after the previous round.
    proven: Option<u32>,
    /// The codec of sums, the sums of this member's parts, and whether it verifies these parts first.
    held: (Codec, Held, bool),
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Some blocks are left.
    More,
    /// The state is that after the round.
    Done,
    /// A block had changed by itself since the previous round.
    Damaged,
}

impl Applying {
    /// Begins to apply a round. With `proves`, it also hashes the state before the round. That is needed if only
    /// two full members could differ: nobody could tell which is right, so each has to know it by itself.
    pub fn new(
        record: Record,
        step: Step,
        (codec, held): (Codec, Held),
        complete_at: Time,
        proves: bool,
    ) -> Self {
        // A lone member has nothing else to go on from.
        let is_lone = record.headers.len() == 1;
        Self {
            held: (codec, held, !is_lone),
            record,
            complete_at,
            step,
            done: 0,
            blocks: Vec::new(),
            proven: proves.then_some(0),
        }
    }

    /// Whether the state is too short to apply in parts.
    pub fn is_short(manifest: &Manifest) -> bool {
        manifest.state_bytes() <= SHORT
    }

    /// Applies and hashes some blocks. After the last one the digest is that of the state.
    pub fn part(&mut self, manifest: &Manifest, sums: &mut Assembly, lineage: &mut Lineage) -> Progress {
        let state = &mut lineage.state;
        let until = self.done + TURN;
        while let Some(block) = state.block_range(self.blocks.len() as u32) {
            if self.done >= until {
                return Progress::More;
            }
            while self.done < block.end {
                let piece = self.done..sums.cut().piece_end(self.done);
                if !prove(&mut self.proven, piece.end, state, &lineage.blocks) {
                    return Progress::Damaged;
                }
                self.done = piece.end;
                let (codec, held, proves) = &self.held;
                let State { params, kept, .. } = state;
                let stepped = kept.step_piece(
                    manifest,
                    &self.step,
                    (params, piece.clone()),
                    (*codec, held, *proves),
                );
                if stepped.is_err() {
                    return Progress::Damaged;
                }
                state.apply_round(manifest, &self.step, sums, piece);
            }
            self.let_go(sums);
            self.blocks.push(state.block_digest(block));
        }
        lineage.hashed(std::mem::take(&mut self.blocks));
        Progress::Done
    }

    /// Drops pieces that are in the state now, since other members already send pieces of the next round.
    fn let_go(&mut self, sums: &mut Assembly) {
        let (_, held, _) = &mut self.held;
        *held = held.split_off(&self.done);
        sums.let_go(self.done);
    }
}

/// Verifies the blocks that begin before an element against these digests.
fn prove(proven: &mut Option<u32>, until: usize, state: &State, digests: &[Digest]) -> bool {
    let Some(proven) = proven else { return true };
    // A piece may end within a block, which is verified before any of it is stepped.
    while let Some(block) = state.block_range(*proven).filter(|block| block.start < until) {
        if digests.get(*proven as usize) != Some(&state.block_digest(block)) {
            return false;
        }
        *proven += 1;
    }
    true
}
