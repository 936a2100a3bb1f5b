//! Attention: the twin of `attention_forward` and `attention_backward`, and what Burn's CPU backend
//! takes.
//!
//! Four queries at a time, keys and values of a head transposed once, so that every inner loop runs
//! over adjacent numbers and becomes vector instructions: all products are made by one function, for
//! four rows at once. Sequences are shared among threads.

mod head;
mod sizes;

use self::head::{head_backward, head_forward};
use super::Real;
use super::processor::{FUSED_EVERYWHERE, in_threads, widest};

pub use self::sizes::Sizes;

/// The output `[batch, tokens, heads, head_dim]` and the logarithms of the softmax's sums `[batch,
/// heads, tokens]` for packed queries, keys and values `[batch, tokens, 3, heads, head_dim]`.
///
/// # Panics
///
/// If `head_dim` is no multiple of 4, or the numbers are not as many as the sizes say.
pub fn forward<T: Real>(qkv: &[T], sizes: Sizes) -> (Vec<T>, Vec<T>) {
    let (row, tokens) = (sizes.inner(), sizes.tokens);
    sizes.check(qkv.len(), 3);
    let mut out = vec![T::ZERO; sizes.batch * tokens * row];
    let mut lse = vec![T::ZERO; sizes.batch * sizes.heads * tokens];
    if qkv.is_empty() {
        return (out, lse);
    }
    let share = sizes.batch.div_ceil(sizes.threads());
    let parts = qkv
        .chunks(share * tokens * 3 * row)
        .zip(out.chunks_mut(share * tokens * row))
        .zip(lse.chunks_mut(share * sizes.heads * tokens));
    in_threads(parts, |((qkv, out), lse)| {
        let sequences = qkv
            .chunks_exact(tokens * 3 * row)
            .zip(out.chunks_exact_mut(tokens * row))
            .zip(lse.chunks_exact_mut(sizes.heads * tokens));
        for ((qkv, out), lse) in sequences {
            for (head, lse) in lse.chunks_exact_mut(tokens).enumerate() {
                forward_of_head(qkv, out, lse, head, sizes);
            }
        }
    });
    (out, lse)
}

/// The slopes along `qkv`, given those along the output, and what [`forward`] gave.
///
/// # Panics
///
/// As [`forward`] does.
pub fn backward<T: Real>(qkv: &[T], out: &[T], lse: &[T], d_out: &[T], sizes: Sizes) -> Vec<T> {
    let (row, tokens) = (sizes.inner(), sizes.tokens);
    sizes.check(qkv.len(), 3);
    sizes.check(out.len(), 1);
    sizes.check(d_out.len(), 1);
    let mut d_qkv = vec![T::ZERO; qkv.len()];
    if qkv.is_empty() {
        return d_qkv;
    }
    let share = sizes.batch.div_ceil(sizes.threads());
    let parts = qkv
        .chunks(share * tokens * 3 * row)
        .zip(out.chunks(share * tokens * row))
        .zip(lse.chunks(share * sizes.heads * tokens))
        .zip(d_out.chunks(share * tokens * row))
        .zip(d_qkv.chunks_mut(share * tokens * 3 * row));
    in_threads(parts, |((((qkv, out), lse), d_out), d_qkv)| {
        let sequences = qkv
            .chunks_exact(tokens * 3 * row)
            .zip(out.chunks_exact(tokens * row))
            .zip(lse.chunks_exact(sizes.heads * tokens))
            .zip(d_out.chunks_exact(tokens * row))
            .zip(d_qkv.chunks_exact_mut(tokens * 3 * row));
        for ((((qkv, out), lse), d_out), d_qkv) in sequences {
            for (head, lse) in lse.chunks_exact(tokens).enumerate() {
                backward_of_head([qkv, out, lse, d_out], d_qkv, head, sizes);
            }
        }
    });
    d_qkv
}

fn forward_of_head<T: Real>(qkv: &[T], out: &mut [T], lse: &mut [T], head: usize, sizes: Sizes) {
    widest!(
        [T: Real] (qkv: &[T], out: &mut [T], lse: &mut [T], head: usize, sizes: Sizes),
        fused head_forward::<T, true>,
        otherwise head_forward::<T, FUSED_EVERYWHERE>,
    )
}

fn backward_of_head<T: Real>(given: [&[T]; 4], d_qkv: &mut [T], head: usize, sizes: Sizes) {
    widest!(
        [T: Real] (given: [&[T]; 4], d_qkv: &mut [T], head: usize, sizes: Sizes),
        fused head_backward::<T, true>,
        otherwise head_backward::<T, FUSED_EVERYWHERE>,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processors without fused multiply-add make nearly the same numbers.
    #[test]
    fn it_makes_no_difference_how_products_are_added() {
        for (tokens, causal) in [(1, true), (6, true), (7, false)] {
            let sizes = Sizes {
                batch: 1,
                tokens,
                heads: 2,
                head_dim: 12,
                causal,
            };
            let numbers = |count: usize, by: usize| -> Vec<f32> {
                (0..count).map(|i| ((i * by) % 31) as f32 / 15.0 - 1.0).collect()
            };
            let (qkv, d_out) = (numbers(3 * tokens * 24, 7), numbers(tokens * 24, 11));
            let (out, lse) = forward(&qkv, sizes);
            let d_qkv = backward(&qkv, &out, &lse, &d_out, sizes);
            let mut found = (vec![0.0; out.len()], vec![0.0; lse.len()], vec![0.0; qkv.len()]);
            for (head, lse) in found.1.chunks_exact_mut(tokens).enumerate() {
                head_forward::<f32, false>(&qkv, &mut found.0, lse, head, sizes);
                head_backward::<f32, false>([&qkv, &out, lse, &d_out], &mut found.2, head, sizes);
            }
            for (expected, found) in [(out, found.0), (lse, found.1), (d_qkv, found.2)] {
                for (e, f) in expected.iter().zip(&found) {
                    assert!((e - f).abs() < 1e-5, "{sizes:?}: {f}, not {e}");
                }
            }
        }
    }
}
