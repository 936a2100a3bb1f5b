//! What all peers share: parameters and optimizer state. Changed by committed rounds alone, block by
//! block, so that a newcomer may take blocks of different rounds and bring each up to date on its own.

use crate::collective::Assembly;
use crate::config::{Layout, Manifest};
use crate::id::Digest;
use crate::ledger::Record;
use crate::optim::{Optimizer, Step, clip_scale, norm_squared};
use std::ops::Range;

/// Parameters and optimizer state, flat.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// All parameters.
    pub params: Vec<f32>,
    /// The optimizer's vectors, each as long as the parameters.
    pub slots: Vec<Vec<f32>>,
}

/// Takes the digest of a state part by part.
#[derive(Default)]
pub(crate) struct Hasher(blake3::Hasher);

impl Hasher {
    pub fn update(&mut self, values: &[f32]) {
        // Little-endian is what every supported target has in memory.
        self.0.update(bytemuck::cast_slice(values));
    }

    pub fn digest(&self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}

impl State {
    /// A state before the first step: slots are zero.
    pub fn new(params: Vec<f32>, manifest: &Manifest) -> Self {
        let slots = vec![vec![0.0; params.len()]; manifest.shared_optimizer().0.slots()];
        Self { params, slots }
    }

    /// Hash of all bits: of the parameters, then of each of the optimizer's vectors.
    pub fn digest(&self) -> Digest {
        let mut hasher = Hasher::default();
        for vector in std::iter::once(&self.params).chain(&self.slots) {
            hasher.update(vector);
        }
        hasher.digest()
    }

    /// Number of blocks.
    pub fn blocks(&self, manifest: &Manifest) -> u32 {
        self.params.len().div_ceil(manifest.block()) as u32
    }

    /// Elements of a block, if there is such a block.
    pub fn block_range(&self, manifest: &Manifest, block: u32) -> Option<Range<usize>> {
        let start = (block as usize).checked_mul(manifest.block())?;
        (start < self.params.len()).then(|| start..self.params.len().min(start + manifest.block()))
    }

    /// How long a block is, if there is such a block.
    pub(crate) fn block_len(&self, manifest: &Manifest, block: u32) -> Option<usize> {
        let elements = self.block_range(manifest, block)?.len();
        Some(4 * elements * (1 + self.slots.len()))
    }

    /// A block's bytes: parameters, then each slot.
    pub fn read_block(&self, manifest: &Manifest, block: u32) -> Option<Vec<u8>> {
        let range = self.block_range(manifest, block)?;
        let mut bytes = Vec::with_capacity(4 * range.len() * (1 + self.slots.len()));
        for vector in std::iter::once(&self.params).chain(&self.slots) {
            bytes.extend_from_slice(bytemuck::cast_slice(&vector[range.clone()]));
        }
        Some(bytes)
    }

    /// Takes a block's bytes. False, and unchanged, if they are not of the right length.
    pub fn write_block(&mut self, manifest: &Manifest, block: u32, bytes: &[u8]) -> bool {
        let Some(range) = self.block_range(manifest, block) else {
            return false;
        };
        if bytes.len() != 4 * range.len() * (1 + self.slots.len()) {
            return false;
        }
        let mut parts = bytes.chunks_exact(4 * range.len());
        for vector in std::iter::once(&mut self.params).chain(&mut self.slots) {
            let part = parts.next().expect("length was checked");
            for (value, le) in vector[range.clone()].iter_mut().zip(part.chunks_exact(4)) {
                *value = f32::from_le_bytes(le.try_into().expect("four bytes"));
            }
        }
        true
    }

    /// Applies a committed round's sums to a range of elements.
    pub fn apply_round(&mut self, manifest: &Manifest, step: &Step, sums: &Assembly, range: Range<usize>) {
        sums.decode(range, |part, values| self.apply(manifest, step, part, values));
    }

    /// Applies the sums of gradients of one range of elements.
    pub fn apply(&mut self, manifest: &Manifest, step: &Step, range: Range<usize>, sums: &[f32]) {
        let mut slots: Vec<&mut [f32]> = self.slots.iter_mut().map(|s| &mut s[range.clone()]).collect();
        let params = &mut self.params[range.clone()];
        let (optimizer, _) = manifest.shared_optimizer();
        let layout = &manifest.layout;
        apply_optimizer(optimizer, layout, step, range.start, params, &mut slots, sums);
    }
}

/// What a committed round does to every element: learning rate, step number and scale.
/// `None` for a round without samples, which leaves the state as it is.
///
/// The mean gradient is the sum over its weight; its global norm, for clipping, is taken piece by piece in
/// the order of the vector, so that it is the same wherever the round is applied.
pub fn plan(manifest: &Manifest, steps_before: u64, record: &Record, sums: &Assembly) -> Option<Step> {
    let weight = record.weight();
    if weight == 0 || !manifest.trains(record.headers.len()) {
        return None;
    }
    let mut scale = 1.0 / weight as f32;
    let step = steps_before + 1;
    if let Some(local) = &manifest.local {
        // Members have clipped their own steps, and the schedule is theirs.
        return Some(local.outer.step(local.outer_lr, step, scale));
    }
    if let Some(max) = manifest.clip {
        let mut squared = 0.0f64;
        sums.decode(0..manifest.layout.len, |_, values| {
            squared += norm_squared(values)
        });
        // `f64::sqrt` is exactly rounded everywhere.
        scale *= clip_scale(squared.sqrt() * f64::from(scale), max);
    }
    let lr = manifest.schedule.rate(manifest.lr, step);
    Some(manifest.optimizer.step(lr, step, scale))
}

/// Applies one step to a run of the flat vector's elements, from the one at `start` on: with weight decay where the layout
/// has it.
pub(crate) fn apply_optimizer(
    optimizer: &Optimizer,
    layout: &Layout,
    step: &Step,
    start: usize,
    params: &mut [f32],
    slots: &mut [&mut [f32]],
    sums: &[f32],
) {
    for part in decay_parts(layout, start..start + params.len()) {
        let local = part.range.start - start..part.range.end - start;
        let mut slots: Vec<&mut [f32]> = slots.iter_mut().map(|s| &mut s[local.clone()]).collect();
        let params = &mut params[local.clone()];
        optimizer.apply(step, params, &mut slots, &sums[local], part.decay);
    }
}

struct Part {
    range: Range<usize>,
    decay: bool,
}

/// Splits a range where weight decay starts or stops to apply.
fn decay_parts(layout: &Layout, range: Range<usize>) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let tensors = &layout.tensors;
    let first = tensors.partition_point(|t| t.offset + t.len() <= range.start);
    for tensor in tensors[first..].iter().take_while(|t| t.offset < range.end) {
        let start = tensor.offset.max(range.start);
        let end = (tensor.offset + tensor.len()).min(range.end);
        match parts.last_mut() {
            Some(part) if part.decay == tensor.decay => part.range.end = end,
            _ => parts.push(Part {
                range: start..end,
                decay: tensor.decay,
            }),
        }
    }
    parts
}
