//! One block of the state by itself, so that several can be changed at the same time.

use crate::base::id::Digest;
use crate::ledger::stepping::step_slots;
use crate::numeric::optim::{SlotMut, Step};
use crate::run::config::Manifest;
use std::ops::Range;

/// A block's parameters and its part of the optimizer's vectors.
pub(crate) struct BlockMut<'a> {
    /// Its first element.
    pub start: usize,
    pub params: &'a mut [f32],
    pub slots: Vec<SlotMut<'a>>,
}

impl BlockMut<'_> {
    /// Its elements.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.params.len()
    }

    /// Applies the sums of gradients of some of its elements.
    pub fn apply(&mut self, manifest: &Manifest, step: &Step, range: Range<usize>, sums: &[f32]) {
        let here = range.start - self.start..range.end - self.start;
        let slots = self.slots.iter_mut();
        let mut slots: Vec<_> = slots.map(|slot| slot.part(here.clone())).collect();
        step_slots(manifest, step, range, &mut self.params[here], &mut slots, sums);
    }

    /// Hash of all its bits.
    pub fn digest(&self) -> Digest {
        let params: &[f32] = self.params;
        let (floats, codes): (Vec<_>, Vec<_>) = self.slots.iter().map(SlotMut::stored).unzip();
        let floats = std::iter::once(params).chain(floats);
        digest_of(floats.map(bytemuck::cast_slice).chain(codes))
    }
}

/// Hash of the sections of a block, in the order in which they are saved.
pub(crate) fn digest_of<'a>(sections: impl Iterator<Item = &'a [u8]>) -> Digest {
    let mut hasher = blake3::Hasher::new();
    sections.for_each(|section| {
        hasher.update(section);
    });
    Digest(*hasher.finalize().as_bytes())
}
