//! Tensors that follow means, by definition: what a round makes of them, and the norm without them.

use crate::ledger::Record;
use crate::numeric::optim::{Moments, Slot, norm_squared};
use crate::run::config::{Manifest, TensorRule};
use crate::state::State;
use std::collections::BTreeSet;
use std::ops::Range;

/// The elements of tensors that follow means, with their rates.
fn means(manifest: &Manifest) -> impl Iterator<Item = (usize, f32)> {
    manifest.layout.tensors.iter().flat_map(|tensor| {
        let rate = match tensor.rule {
            TensorRule::Mean { rate } => Some(rate),
            TensorRule::Step | TensorRule::StepAndDecay => None,
        };
        let elements = tensor.offset..tensor.offset + tensor.len();
        elements.filter_map(move |element| Some((element, rate?)))
    })
}

/// The square of a piece of the sums, as far as it counts for the norm.
pub(super) fn square(manifest: &Manifest, piece: Range<usize>, sums: &[f32]) -> f64 {
    let skipped: BTreeSet<usize> = means(manifest).map(|(element, _)| element).collect();
    let counted: Vec<usize> = piece.filter(|element| !skipped.contains(element)).collect();
    let runs = counted.chunk_by(|a, b| a + 1 == *b);
    runs.fold(0.0, |all, run| {
        all + norm_squared(&sums[run[0]..run[0] + run.len()])
    })
}

/// Writes what a round makes of tensors that follow means, by definition.
pub(super) fn follow_means(
    state: &mut State,
    before: &State,
    manifest: &Manifest,
    record: &Record,
    sums: &[f32],
) {
    let one = 1.0 / record.weight() as f32;
    for (at, rate) in means(manifest) {
        let mean = sums[at] * one;
        state.params[at] = match manifest.local {
            // Sums of deltas, start minus end.
            Some(_) => before.params[at] - mean,
            None => before.params[at] + rate * mean,
        };
        // In 8 bits they may be rounded otherwise.
        let same = |(now, before): (&Slot, &Slot)| {
            let bits = |slot: &Slot| slot.floats(at..at + 1)[0].to_bits();
            manifest.moments != Moments::F32 || bits(now) == bits(before)
        };
        let untouched = state.slots.iter().zip(&before.slots).all(same);
        assert!(
            untouched,
            "the optimizer has stepped an element that follows a mean"
        );
    }
}
