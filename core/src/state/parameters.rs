//! The state that all members share: parameters and optimizer state. Only committed rounds change it, block by
//! block, so a newcomer may fetch blocks of different rounds and bring each up to date by itself.

use crate::base::id::Digest;
use crate::base::jobs::{InTurn, Jobs};
use crate::collective::Assembly;
use crate::ledger::Head;
use crate::ledger::Record;
use crate::ledger::stepping::{step_slots, zeros};
use crate::numeric::codec::Codec;
use crate::numeric::optim::{Slot, Step, clip_scale, finite, norm_squared_without, views};
use crate::run::config::Manifest;
use crate::state::block::{BlockMut, digest_of};
use crate::state::moments::Moments;
use std::ops::Range;

/// Parameters and optimizer state, flat.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// All parameters. Empty in a split run, where each peer [keeps](Self::kept) some.
    pub params: Vec<f32>,
    /// The optimizer's vectors, each as long as the parameters. Empty if members keep parts of them.
    pub slots: Vec<Slot>,
    /// The parts of the optimizer's vectors that this peer keeps, if members keep parts. The state's digest does
    /// not cover them.
    pub kept: Moments,
    /// Elements of a block.
    block: usize,
}

/// The digest of a state, from the digests of its blocks.
pub(crate) fn root(blocks: &[Digest]) -> Digest {
    Digest::of(&joined(blocks))
}

/// Digests one after the other, as sent to other peers.
pub(crate) fn joined(digests: &[Digest]) -> Vec<u8> {
    digests.iter().flat_map(|digest| digest.0).collect()
}

impl State {
    /// A state before the first step, with slots of zeros.
    pub fn new(params: Vec<f32>, manifest: &Manifest) -> Self {
        let slots = match manifest.copies {
            None => zeros(manifest, params.len()),
            Some(_) => Vec::new(),
        };
        Self {
            slots,
            kept: Moments::default(),
            block: manifest.block(),
            params,
        }
    }

    /// The state as bytes, in the order in which it is saved: the parameters, the optimizer's vectors, and the
    /// codes of those in 8 bits.
    pub fn sections(&self) -> impl Iterator<Item = &[u8]> {
        self.sections_of(0..self.params.len())
    }

    /// Mutable access to [`sections`](Self::sections), for loading.
    pub fn sections_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.sections_of_mut(0..self.params.len())
    }

    /// All floats of the state, without codes.
    pub fn floats(&self) -> impl Iterator<Item = &[f32]> {
        self.floats_of(0..self.params.len())
    }

    fn floats_of(&self, range: Range<usize>) -> impl Iterator<Item = &[f32]> {
        let slots = self.slots.iter();
        std::iter::once(&self.params[range.clone()]).chain(slots.map(move |slot| slot.floats(range.clone())))
    }

    fn sections_of(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
        // All supported targets are little-endian in memory.
        let floats = self.floats_of(range.clone()).map(bytemuck::cast_slice);
        floats.chain(self.slots.iter().map(move |slot| slot.codes(range.clone())))
    }

    fn sections_of_mut(&mut self, range: Range<usize>) -> impl Iterator<Item = &mut [u8]> {
        let slots = self.slots.iter_mut().map(|slot| slot.parts_mut(range.clone()));
        let (floats, codes): (Vec<_>, Vec<_>) = slots.unzip();
        let floats = std::iter::once(&mut self.params[range]).chain(floats);
        floats.map(bytemuck::cast_slice_mut).chain(codes)
    }

    /// Hash of all bits of a block: its parameters and its part of the optimizer's vectors.
    pub(crate) fn block_digest(&self, elements: Range<usize>) -> Digest {
        digest_of(self.sections_of(elements))
    }

    /// The digests of all blocks.
    pub(crate) fn block_digests(&self) -> Vec<Digest> {
        let blocks = (0..).map_while(|block| self.block_range(block));
        blocks.map(|elements| self.block_digest(elements)).collect()
    }

    /// Hash of all bits: the hash of the digests of all blocks.
    pub fn digest(&self) -> Digest {
        root(&self.block_digests())
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u32 {
        self.params.len().div_ceil(self.block) as u32
    }

    /// Elements of a block, if it exists.
    pub fn block_range(&self, block: u32) -> Option<Range<usize>> {
        let start = (block as usize).checked_mul(self.block)?;
        (start < self.params.len()).then(|| start..self.params.len().min(start + self.block))
    }

    /// Bytes of a block, if it exists.
    pub(crate) fn block_len(&self, block: u32) -> Option<usize> {
        let range = self.block_range(block)?;
        Some(self.sections_of(range).map(<[u8]>::len).sum())
    }

    /// A block as bytes: its part of each section.
    pub fn read_block(&self, block: u32) -> Option<Vec<u8>> {
        let range = self.block_range(block)?;
        let mut bytes = Vec::with_capacity(self.block_len(block)?);
        self.sections_of(range)
            .for_each(|section| bytes.extend_from_slice(section));
        Some(bytes)
    }

    /// Writes a block's bytes. False, and unchanged, if the length is wrong.
    pub fn write_block(&mut self, block: u32, mut bytes: &[u8]) -> bool {
        if self.block_len(block) != Some(bytes.len()) {
            return false;
        }
        let range = self.block_range(block).expect("it has a length");
        for section in self.sections_of_mut(range) {
            let (part, rest) = bytes.split_at(section.len());
            section.copy_from_slice(part);
            bytes = rest;
        }
        true
    }

    /// Applies a committed round's sums to a range of elements. If members keep parts of the moments, applies the
    /// updates and leaves moments alone.
    pub fn apply_round(&mut self, manifest: &Manifest, step: &Step, sums: &Assembly, range: Range<usize>) {
        match manifest.copies {
            None => sums.decode(range, |part, values| self.apply(manifest, step, part, values)),
            Some(_) => self.take_updates(sums, range),
        }
    }

    /// Applies the sums of gradients of a range of elements. The range begins at a multiple of the
    /// [`grain`](crate::numeric::optim::Moments::grain) of its moments, and ends at one or with the vector.
    pub fn apply(&mut self, manifest: &Manifest, step: &Step, range: Range<usize>, sums: &[f32]) {
        let slots = &mut views(&mut self.slots, range.clone());
        let params = &mut self.params[range.clone()];
        step_slots(manifest, step, range, params, slots, sums);
    }

    /// Some blocks, each to be changed by itself, if members do not keep parts of the moments.
    pub(crate) fn blocks_mut(&mut self, blocks: Range<u32>) -> Vec<BlockMut<'_>> {
        let Some(first) = self.block_range(blocks.start) else {
            return Vec::new();
        };
        let end = (blocks.end as usize * self.block).min(self.params.len());
        let here = first.start..end;
        let mut rests = views(&mut self.slots, here.clone());
        let mut blocks = Vec::new();
        for (start, params) in here
            .clone()
            .step_by(self.block)
            .zip(self.params[here].chunks_mut(self.block))
        {
            let parts = rests.into_iter().map(|rest| rest.split(params.len()));
            let (slots, others) = parts.unzip();
            rests = others;
            blocks.push(BlockMut { start, params, slots });
        }
        blocks
    }

    /// Writes the updates of a committed round, if members keep parts of the moments.
    pub(crate) fn take_updates(&mut self, updates: &Assembly, range: Range<usize>) {
        if updates.codec() == Codec::F32 {
            return updates.decode_into(range.clone(), &mut self.params[range]);
        }
        updates.decode(range, |part, values| add(&mut self.params[part], values));
    }
}

/// Adds the changes that an update tells.
fn add(params: &mut [f32], changes: &[f32]) {
    let params = params.iter_mut().zip(changes);
    params.for_each(|(param, change)| *param = finite(*param + change));
}

/// The update of weights as sent to all: the new weights, or their change.
pub(crate) fn encode_update(codec: Codec, old: &[f32], new: &[f32]) -> Vec<u8> {
    let mut update = Vec::with_capacity(codec.encoded_len(new.len()));
    if codec == Codec::F32 {
        codec.encode(new, &mut update);
        return update;
    }
    // No number counts as no change, and too much as the most that can be summed.
    let largest = Codec::LARGEST;
    let change = new.iter().zip(old).map(|(new, old)| new - old);
    let change = change.map(|x| {
        if x.is_nan() {
            0.0
        } else {
            x.clamp(-largest, largest)
        }
    });
    codec.encode(&change.collect::<Vec<f32>>(), &mut update);
    update
}

impl State {
    /// Applies a committed round's sums where one peer keeps all parts of the moments, with the result that all
    /// members reach together. For a replay. Does nothing and returns `false` for a round without a step.
    ///
    /// # Panics
    /// If the sums are not [serial](Assembly::serial) ones of the round, or a part is not kept.
    pub fn apply_alone(
        &mut self,
        manifest: &Manifest,
        head: &Head,
        record: &Record,
        sums: &Assembly,
    ) -> bool {
        let Some(step) = plan(manifest, head, record, sums, &InTurn) else {
            return false;
        };
        let updates = sums.codec().of_updates();
        for (range, data) in sums.sums() {
            let old = self.params[range.clone()].to_vec();
            let mut values = vec![0.0; range.len()];
            sums.codec().decode(data, &mut values).expect("these are sums");
            let new = self
                .kept
                .try_step(manifest, &step, range.clone(), &self.params, &values);
            let update = encode_update(updates, &old, &new.expect("all parts are kept"));
            let held = [(range.start, data.clone())].into();
            let stepped = self.kept.step_piece(
                manifest,
                &step,
                (&self.params, range.clone()),
                (sums.codec(), &held, false),
            );
            stepped.expect("nothing is compared");
            let params = &mut self.params[range];
            match updates {
                Codec::F32 => updates.decode(&update, params).expect("just encoded"),
                _ => {
                    updates.decode(&update, &mut values).expect("just encoded");
                    add(params, &values);
                }
            }
        }
        true
    }
}

/// The step of a committed round: learning rate, step number and scale. `None` for a round without samples, which
/// leaves the state as it is.
///
/// The mean gradient is the sum over its weight. Its global norm, for clipping, is taken piece by piece in the
/// order of the vector, so that it is the same everywhere. If members keep parts of the moments, they have
/// exchanged the squares.
pub fn plan(
    manifest: &Manifest,
    head: &Head,
    record: &Record,
    sums: &Assembly,
    jobs: &dyn Jobs,
) -> Option<Step> {
    let squared = || {
        sums.squared().unwrap_or_else(|| {
            let means = manifest.layout.means();
            let of_piece =
                |range: Range<usize>, values: &[f32]| norm_squared_without(&means, range.start, values);
            let pieces = sums.of_pieces(of_piece, jobs);
            pieces.iter().fold(0.0, |sum, squared| sum + squared)
        })
    };
    plan_by(manifest, head, record, squared)
}

/// The step of a round, given a function for the squared norm of the sums, which is called only if it matters.
pub(crate) fn plan_by(
    manifest: &Manifest,
    head: &Head,
    record: &Record,
    squared: impl FnOnce() -> f64,
) -> Option<Step> {
    let weight = record.weight();
    if weight == 0 || !head.trains_record(manifest, record) {
        return None;
    }
    let (optimizer, lr) = manifest.shared_optimizer();
    let number = head.steps + 1;
    let mean = 1.0 / weight as f32;
    // Members have clipped their own steps, and the schedule is theirs. A liar leads the others no farther than such
    // steps go.
    let (step, most) = match manifest.local {
        Some(_) => (
            optimizer.step(lr, number, mean).of_deltas(),
            manifest.clip.map(|clip| farthest(manifest, head, clip)),
        ),
        None => (
            optimizer.step(manifest.schedule.rate(lr, number), number, mean),
            manifest.clip,
        ),
    };
    // `f64::sqrt` is exactly rounded everywhere.
    let norm = || squared().sqrt() * f64::from(mean);
    Some(match most {
        Some(most) => step.clipped(clip_scale(norm(), most)),
        None => step,
    })
}

/// The farthest that the mean of members' ways may lead in a round of local steps. Twice what their steps allow: shares that were
/// computed ahead were cut by an older head.
pub(crate) fn farthest(manifest: &Manifest, head: &Head, clip: f32) -> f32 {
    let steps = f64::from(head.pace.batches.get());
    // Their rates grow so with the members ([`LocalRound`](crate::local::LocalRound)).
    let rates = f64::from(manifest.lr) * steps * (head.members.len() as f64).sqrt();
    let means: usize = manifest.layout.means().iter().map(Range::len).sum();
    (2.0 * manifest
        .optimizer
        .farthest(rates, manifest.layout.len - means, clip)) as f32
}
