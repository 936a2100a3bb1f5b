//! Applies a committed round to the state in parts, so that a long vector does not delay the network.
//!
//! A member with all chunks of a round may still have to pass some on, and a state of many megabytes takes as long
//! to apply and hash as the chunks take to travel. So after some parts the peer asks for a tick at once, and the
//! driver lets the network have its turn before. No other input is handled in between: any other input finishes the
//! round first.

use crate::base::id::Digest;
use crate::base::jobs::{Job, Jobs};
use crate::base::time::Time;
use crate::collective::{Assembly, Held};
use crate::ledger::Record;
use crate::numeric::codec::Codec;
use crate::numeric::optim::Step;
use crate::run::config::Manifest;
use crate::state::State;
use crate::state::block::BlockMut;
use crate::state::lineage::Lineage;

/// Elements that one thread applies between two turns of the network: half a millisecond of work, but long enough that
/// turns cost little.
const TURN: usize = 1 << 17;

/// Elements that one thread applies in a turn of a peer alone, for which only newcomers wait: threads start half as often.
const ALONE: usize = 1 << 18;

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
    pub fn part(
        &mut self,
        manifest: &Manifest,
        sums: &mut Assembly,
        lineage: &mut Lineage,
        jobs: &dyn Jobs,
    ) -> Progress {
        // Sums of kept parts are not in the order of the vector. Moments in 8 bits are stepped in whole blocks.
        let in_order = manifest.copies.is_none();
        let progress = if in_order && manifest.block().is_multiple_of(manifest.moments.grain()) {
            self.blocks(manifest, sums, lineage, jobs)
        } else {
            self.pieces(manifest, sums, lineage)
        };
        if progress == Progress::Done {
            lineage.hashed(std::mem::take(&mut self.blocks));
        }
        progress
    }

    /// Several blocks at the same time: each element stands alone.
    fn blocks(
        &mut self,
        manifest: &Manifest,
        sums: &Assembly,
        lineage: &mut Lineage,
        jobs: &dyn Jobs,
    ) -> Progress {
        let first = self.blocks.len();
        let (_, _, with_others) = self.held;
        let elements = if with_others { TURN } else { ALONE };
        let turn = (elements / manifest.block()).max(1) * jobs.width();
        let step = &self.step;
        let before = self.proven.map(|_| &lineage.blocks[first..]);
        let blocks = lineage.state.blocks_mut(first as u32..(first + turn) as u32);
        let mut digests = vec![None; blocks.len()];
        let job = |((index, mut block), digest): ((usize, BlockMut<'_>), &mut Option<Digest>)| {
            if before.is_none_or(|before| before.get(index) == Some(&block.digest())) {
                sums.decode(block.range(), |part, values| {
                    block.apply(manifest, step, part, values)
                });
                *digest = Some(block.digest());
            }
        };
        let work = blocks.into_iter().enumerate().zip(&mut digests);
        jobs.run(work.map(|work| Box::new(move || job(work)) as Job<'_>).collect());
        let done = digests.iter().flatten().count();
        self.blocks.extend(digests.iter().flatten());
        match (
            done == digests.len(),
            self.blocks.len() == lineage.state.blocks() as usize,
        ) {
            (false, _) => Progress::Damaged,
            (true, false) => Progress::More,
            (true, true) => Progress::Done,
        }
    }

    /// One piece after the other.
    fn pieces(&mut self, manifest: &Manifest, sums: &mut Assembly, lineage: &mut Lineage) -> Progress {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::jobs::InTurn;
    use crate::collective::Cut;
    use crate::ledger::Head;
    use crate::numeric::optim::Moments;
    use crate::run::config::Layout;
    use bytes::Bytes;

    /// A vector of five blocks, the last of which is short and ends within a block of moments.
    const LEN: usize = 4 * 1024 * 4 + 700;

    /// Runs three jobs in another order than they are given in, as threads would.
    #[derive(Debug)]
    struct Backwards;

    impl Jobs for Backwards {
        fn width(&self) -> usize {
            3
        }

        fn run(&self, jobs: Vec<Job<'_>>) {
            jobs.into_iter().rev().for_each(|job| job());
        }
    }

    fn manifest(moments: Moments) -> Manifest {
        Manifest {
            piece: 1024.try_into().unwrap(),
            optimizer: "adamw weight_decay=0.1".parse().unwrap(),
            moments,
            ..Manifest::new(Layout::flat(LEN))
        }
    }

    /// A state with moments, and a round's sums of three members.
    fn before(manifest: &Manifest) -> (Lineage, Assembly) {
        let numbers =
            |seed: u32| (0..LEN as u32).map(move |i| (i.wrapping_mul(seed) % 1999) as f32 / 1000.0 - 1.0);
        let sums: Vec<f32> = numbers(7919).collect();
        let mut state = State::new(numbers(104_729).collect(), manifest);
        state.apply(manifest, &manifest.optimizer.step(0.1, 1, 0.5), 0..LEN, &sums);
        let cut = Cut {
            members: 3,
            guests: Vec::new(),
            len: LEN,
            piece: 1024,
            grain: manifest.moments.grain(),
            kept: None,
        };
        let mut gathered = Assembly::new(cut, manifest.codec);
        for chunk in 0..3 {
            for piece in 0..gathered.cut().pieces(chunk) {
                let range = gathered.cut().range(chunk, piece).unwrap();
                let data = Bytes::copy_from_slice(bytemuck::cast_slice(&sums[range]));
                assert_eq!(gathered.put(chunk as u16, piece as u32, data), Some(true));
            }
        }
        (Lineage::new(Head::unfounded(manifest), state), gathered)
    }

    /// Applies the round in turns, and tells how it ended.
    fn apply(
        manifest: &Manifest,
        (lineage, sums): (&mut Lineage, &mut Assembly),
        jobs: &dyn Jobs,
    ) -> Progress {
        let record = Record {
            round: 2,
            attempt: 0,
            headers: Vec::new(),
        };
        let step = manifest.optimizer.step(0.1, 2, 0.5);
        let held = (manifest.codec, Held::default());
        let mut applying = Applying::new(record, step, held, Time(0), true);
        loop {
            match applying.part(manifest, sums, lineage, jobs) {
                Progress::More => {}
                ended => return ended,
            }
        }
    }

    #[test]
    fn blocks_that_are_applied_at_the_same_time_have_the_same_bits() {
        for moments in [Moments::F32, Moments::EightBit] {
            let manifest = manifest(moments);
            let (mut expected, sums) = before(&manifest);
            let step = manifest.optimizer.step(0.1, 2, 0.5);
            sums.decode(0..LEN, |part, values| {
                expected.state.apply(&manifest, &step, part, values)
            });
            for jobs in [&InTurn as &dyn Jobs, &Backwards] {
                let (mut lineage, mut sums) = before(&manifest);
                let progress = apply(&manifest, (&mut lineage, &mut sums), jobs);
                assert_eq!(progress, Progress::Done);
                assert_eq!(lineage.state, expected.state);
                assert_eq!(lineage.blocks, expected.state.block_digests());
            }
        }
    }

    #[test]
    fn a_block_that_has_changed_by_itself_is_found() {
        let manifest = manifest(Moments::F32);
        for element in [0, LEN / 2, LEN - 1] {
            let (mut lineage, mut sums) = before(&manifest);
            lineage.state.params[element] += 1.0;
            let progress = apply(&manifest, (&mut lineage, &mut sums), &Backwards);
            assert_eq!(progress, Progress::Damaged, "element {element}");
        }
    }
}
