//! One optimizer step over a range of the flat vector, by each tensor's rule and in the run's moment precision.

use crate::numeric::optim::{Moments as Kind, Optimizer, Slot, SlotMut, Step, step_coded};
use crate::run::config::{Layout, Manifest, TensorRule};
use std::ops::Range;

/// The optimizer's vectors of this many elements before the first step.
pub(crate) fn zeros(manifest: &Manifest, len: usize) -> Vec<Slot> {
    let values = manifest.shared_optimizer().0.slot_values().iter();
    values
        .map(|values| Slot::zeros(manifest.moments, *values, len))
        .collect()
}

/// Steps a range of elements, given their parameters, moments and sums.
pub(crate) fn step_slots(
    manifest: &Manifest,
    step: &Step,
    range: Range<usize>,
    params: &mut [f32],
    slots: &mut [SlotMut<'_>],
    sums: &[f32],
) {
    let (optimizer, _) = manifest.shared_optimizer();
    let layout = &manifest.layout;
    match manifest.moments {
        Kind::F32 => {
            let mut slots: Vec<&mut [f32]> = slots.iter_mut().map(SlotMut::floats).collect();
            apply_optimizer(optimizer, layout, step, range.start, params, &mut slots, sums);
        }
        Kind::EightBit => step_coded(step.step, slots, range.clone(), |at, slots| {
            let part = at.start - range.start..at.end - range.start;
            let (params, sums) = (&mut params[part.clone()], &sums[part]);
            apply_optimizer(optimizer, layout, step, at.start, params, slots, sums);
        }),
    }
}

/// Applies one step to elements of the flat vector from `start` on, by the rule of each tensor.
pub(crate) fn apply_optimizer(
    optimizer: &Optimizer,
    layout: &Layout,
    step: &Step,
    start: usize,
    params: &mut [f32],
    slots: &mut [&mut [f32]],
    sums: &[f32],
) {
    for (range, rule) in alike(layout, start..start + params.len()) {
        let local = range.start - start..range.end - start;
        let mut slots: Vec<&mut [f32]> = slots.iter_mut().map(|s| &mut s[local.clone()]).collect();
        let (params, sums) = (&mut params[local.clone()], &sums[local]);
        match rule {
            TensorRule::Step => optimizer.apply(step, params, &mut slots, sums, false),
            TensorRule::StepAndDecay => optimizer.apply(step, params, &mut slots, sums, true),
            TensorRule::Mean { rate } => step.follow(rate, params, sums),
        }
    }
}

/// Splits a range where another rule begins.
fn alike(layout: &Layout, range: Range<usize>) -> impl Iterator<Item = (Range<usize>, TensorRule)> {
    let tensors = &layout.tensors;
    let first = tensors.partition_point(|t| t.offset + t.len() <= range.start);
    let last = tensors.partition_point(|t| t.offset < range.end);
    let alike = tensors[first..last.max(first)].chunk_by(|a, b| a.rule == b.rule);
    alike.map(move |tensors| {
        let (start, last) = (tensors[0].offset, &tensors[tensors.len() - 1]);
        let end = range.end.min(last.offset + last.len());
        (start.max(range.start)..end, last.rule)
    })
}
