//! Gradient clipping by the global norm. The norm is summed in an order that every platform repeats.

use std::ops::Range;

/// Clips where a run does not say otherwise: seldom an honest gradient, and any that would freeze the model for good. A guess:
/// ten times what transformers are usually clipped to.
pub const CLIP: f32 = 10.0;

/// Sum of the squares of a block, in `f64`: eight running sums, element `i` into sum `i mod 8`, then added
/// pairwise.
///
/// The order is fixed, so the bits are the same everywhere, but they depend on where a block begins and ends. For
/// the norm of a whole vector, add the blocks' results in the vector's order, with block borders that all peers
/// share.
pub fn norm_squared(block: &[f32]) -> f64 {
    let (chunks, rest) = block.as_chunks::<8>();
    let mut sums = [0.0f64; 8];
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            let x = f64::from(*x);
            *sum += x * x;
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        let x = f64::from(*x);
        *sum += x * x;
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}

/// Sum of the squares of the elements of a vector from `start` on, without those in the `skipped` ranges, which lie in order.
/// The norms of what lies between these are added one after the other.
pub fn norm_squared_without(skipped: &[Range<usize>], start: usize, block: &[f32]) -> f64 {
    let end = start + block.len();
    let first = skipped.partition_point(|range| range.end <= start);
    let (mut squared, mut done) = (0.0, start);
    for range in skipped[first..].iter().take_while(|range| range.start < end) {
        if range.start > done {
            squared += norm_squared(&block[done - start..range.start - start]);
        }
        done = range.end.min(end);
    }
    squared + norm_squared(&block[done - start..])
}

/// The factor that brings a gradient of norm `norm` down to `max`: `min(1, max / (norm + 1e-6))`, as in
/// `torch.nn.utils.clip_grad_norm_`. 0 if the norm is NaN, as a keeper's false word may make it.
pub fn clip_scale(norm: f64, max: f32) -> f32 {
    let scale = f64::from(max) / (norm + 1e-6);
    // With a NaN, `max` returns the other.
    if scale >= 1.0 { 1.0 } else { scale.max(0.0) as f32 }
}
