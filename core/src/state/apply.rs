//! A committed round's way into the state: part by part, so that a long vector holds up nothing that others wait for.
//!
//! Who has all chunks of a round may still have to pass some of them on, and a state of many megabytes takes
//! as long to apply and to hash as the chunks take to travel. So after some parts the peer asks for a tick at once, and
//! whoever moves it lets the network have its turn before. Nothing else is taken in between: any other input finishes
//! what was begun.

use crate::base::id::Digest;
use crate::base::time::Time;
use crate::collective::{Assembly, Held};
use crate::ledger::Record;
use crate::numeric::codec::Codec;
use crate::numeric::optim::Step;
use crate::run::config::Manifest;
use crate::state::State;
use crate::state::lineage::Lineage;

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
    /// Blocks that were compared with what they were after the round before, if they are to be.
    proven: Option<u32>,
    /// How sums are encoded, those of the parts of the moments that this member keeps, and whether it looks first whether these
    /// are what they were.
    held: (Codec, Held, bool),
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Some blocks are left.
    More,
    /// The state is that after the round.
    Done,
    /// A block was not what it had been after the round before.
    Damaged,
}

impl Applying {
    /// Begins. Who `proves` takes one hash more over the whole state: where two full members alone could differ, so that
    /// nobody could tell which of them is right, each has to know it by itself.
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

    /// Whether the state is so short that its parts are not worth it.
    pub fn is_short(manifest: &Manifest) -> bool {
        manifest.state_bytes() <= SHORT
    }

    /// Applies and hashes some blocks. After the last the digest is the state's.
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

    /// What is in the state by now is held no longer: while the rest is applied others send what they have of the next round.
    fn let_go(&mut self, sums: &mut Assembly) {
        let (_, held, _) = &mut self.held;
        *held = held.split_off(&self.done);
        sums.let_go(self.done);
    }
}

/// Whether the blocks that end or begin before an element are what they were when these digests were taken.
fn prove(proven: &mut Option<u32>, until: usize, state: &State, digests: &[Digest]) -> bool {
    let Some(proven) = proven else { return true };
    // A piece may end in the middle of a block, which is compared before any of it is stepped.
    while let Some(block) = state.block_range(*proven).filter(|block| block.start < until) {
        if digests.get(*proven as usize) != Some(&state.block_digest(block)) {
            return false;
        }
        *proven += 1;
    }
    true
}
