//! Attention: the twin of `attention_forward` and `attention_backward`, and what Burn's CPU backend
//! takes.
//!
//! Four queries at a time, keys and values of a head transposed once, so that every inner loop runs
//! over adjacent numbers and becomes vector instructions: all products are made by one function, for
//! four rows at once. Sequences are shared among threads.

mod head;
mod sizes;

use self::head::{Made, Slopes, head_backward, head_forward};
use super::Real;
use super::processor::{FUSED_EVERYWHERE, in_threads, widest};

pub use self::sizes::{Place, Sizes, usual_scale};

/// Numbers, and where heads' rows lie among them.
#[derive(Clone, Copy, Debug)]
pub struct Placed<'a, T> {
    /// The numbers.
    pub numbers: &'a [T],
    /// Where.
    pub place: Place,
}

/// A mask: what is added to the scores. Numbers of -1e30 and less hide a key from a query.
#[derive(Clone, Copy, Debug)]
pub struct Bias<'a, T> {
    /// The numbers.
    pub numbers: &'a [T],
    /// The steps from a sequence, a head, a query and a key to the next; 0 where all share it.
    pub steps: [usize; 4],
}

/// Input of attention.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a, T> {
    /// The queries.
    pub q: Placed<'a, T>,
    /// The keys.
    pub k: Placed<'a, T>,
    /// The values.
    pub v: Placed<'a, T>,
    /// The mask.
    pub bias: Option<Bias<'a, T>>,
}

impl<'a, T> Given<'a, T> {
    /// Queries, keys and values side by side, `[batch, tokens, 3, heads, head_dim]`.
    pub fn packed(qkv: &'a [T], sizes: Sizes) -> Self {
        let [q, k, v] = Place::packed(sizes).map(|place| Placed { numbers: qkv, place });
        Self { q, k, v, bias: None }
    }
}

/// The output, placed as `to` says, without gaps, and the logarithms of the softmax's sums `[batch, heads, queries]`. A
/// query that sees no key gets an output of 0.
///
/// # Panics
///
/// If `head_dim` is no multiple of 4, or there are fewer numbers than sizes and places say.
pub fn forward<T: Real>(given: Given<'_, T>, to: Place, sizes: Sizes) -> (Vec<T>, Vec<T>) {
    sizes.check();
    let mut out = vec![T::ZERO; sizes.batch * sizes.queries * sizes.inner()];
    let mut lse = vec![T::ZERO; sizes.batch * sizes.heads * sizes.queries];
    if sizes.is_empty() {
        return (out, lse);
    }
    let (of_out, of_lse) = (sizes.queries * sizes.inner(), sizes.heads * sizes.queries);
    let share = sizes.batch.div_ceil(sizes.threads());
    let parts = out.chunks_mut(share * of_out).zip(lse.chunks_mut(share * of_lse));
    in_threads(parts.enumerate(), |(part, (out, lse))| {
        let sequences = out.chunks_exact_mut(of_out).zip(lse.chunks_exact_mut(of_lse));
        for (batch, (out, lse)) in (part * share..).zip(sequences) {
            for head in 0..sizes.key_heads() {
                forward_of_head(&given, [batch, head], out, lse, to, sizes);
            }
        }
    });
    (out, lse)
}

/// Input of the backward pass beside that of the forward pass.
#[derive(Clone, Copy, Debug)]
pub struct Passed<'a, T> {
    /// What [`forward`] made.
    pub out: Placed<'a, T>,
    /// The slopes along it.
    pub d_out: Placed<'a, T>,
    /// The logarithms that [`forward`] made.
    pub lse: &'a [T],
}

/// The slopes along queries, keys and values in new buffers of these lengths, which sequences share evenly. `to` says of each
/// in which buffer, and where there, it is put.
///
/// # Panics
///
/// As [`forward`] does.
pub fn backward<T: Real>(
    given: Given<'_, T>,
    passed: Passed<'_, T>,
    lengths: &[usize],
    to: [(usize, Place); 3],
    sizes: Sizes,
) -> Vec<Vec<T>> {
    sizes.check();
    let mut slopes: Vec<Vec<T>> = lengths.iter().map(|length| vec![T::ZERO; *length]).collect();
    if sizes.is_empty() {
        return slopes;
    }
    let mut sequences: Vec<Vec<&mut [T]>> = (0..sizes.batch).map(|_| Vec::new()).collect();
    for buffer in &mut slopes {
        let each = buffer.len() / sizes.batch;
        for (sequence, part) in sequences.iter_mut().zip(buffer.chunks_exact_mut(each)) {
            sequence.push(part);
        }
    }
    let of_lse = sizes.heads * sizes.queries;
    let share = sizes.batch.div_ceil(sizes.threads());
    in_threads(sequences.chunks_mut(share).enumerate(), |(part, sequences)| {
        for (batch, buffers) in (part * share..).zip(sequences) {
            let made = Made {
                out: passed.out,
                d_out: passed.d_out,
                lse: &passed.lse[batch * of_lse..][..of_lse],
            };
            let mut slopes = Slopes { buffers, to };
            for head in 0..sizes.key_heads() {
                backward_of_head(&given, made, [batch, head], &mut slopes, sizes);
            }
        }
    });
    slopes
}

/// The slopes along `qkv` as [`Given::packed`] has it, given those along an output `[batch, tokens, heads, head_dim]`.
///
/// # Panics
///
/// As [`forward`] does.
pub fn packed_backward<T: Real>(qkv: &[T], out: &[T], lse: &[T], d_out: &[T], sizes: Sizes) -> Vec<T> {
    let place = Place::tokens_first(sizes.queries, sizes.heads, sizes.head_dim);
    let [out, d_out] = [out, d_out].map(|numbers| Placed { numbers, place });
    let passed = Passed { out, d_out, lse };
    let to = Place::packed(sizes).map(|place| (0, place));
    backward(Given::packed(qkv, sizes), passed, &[qkv.len()], to, sizes).remove(0)
}

fn forward_of_head<T: Real>(
    given: &Given<'_, T>,
    at: [usize; 2],
    out: &mut [T],
    lse: &mut [T],
    to: Place,
    sizes: Sizes,
) {
    widest!(
        [T: Real] (given: &Given<'_, T>, at: [usize; 2], out: &mut [T], lse: &mut [T], to: Place, sizes: Sizes),
        fused head_forward::<T, true>,
        otherwise head_forward::<T, FUSED_EVERYWHERE>,
    )
}

fn backward_of_head<T: Real>(
    given: &Given<'_, T>,
    made: Made<'_, T>,
    at: [usize; 2],
    slopes: &mut Slopes<'_, '_, T>,
    sizes: Sizes,
) {
    widest!(
        [T: Real] (
            given: &Given<'_, T>,
            made: Made<'_, T>,
            at: [usize; 2],
            slopes: &mut Slopes<'_, '_, T>,
            sizes: Sizes,
        ),
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
            let sizes = Sizes::of_tokens(1, tokens, 2, 12, causal);
            let numbers = |count: usize, by: usize| -> Vec<f32> {
                (0..count).map(|i| ((i * by) % 31) as f32 / 15.0 - 1.0).collect()
            };
            let (qkv, d_out) = (numbers(3 * tokens * 24, 7), numbers(tokens * 24, 11));
            let given = Given::packed(&qkv, sizes);
            let place = Place::tokens_first(tokens, 2, 12);
            let (out, lse) = forward(given, place, sizes);
            let d_qkv = packed_backward(&qkv, &out, &lse, &d_out, sizes);
            let mut found = (vec![0.0; out.len()], vec![0.0; lse.len()], vec![0.0; qkv.len()]);
            for head in 0..2 {
                let [out, d_out] = [&out, &d_out].map(|numbers| Placed { numbers, place });
                let lse = lse.as_slice();
                head_forward::<f32, false>(&given, [0, head], &mut found.0, &mut found.1, place, sizes);
                let mut slopes = Slopes {
                    buffers: &mut [&mut found.2],
                    to: Place::packed(sizes).map(|place| (0, place)),
                };
                let made = Made { out, d_out, lse };
                head_backward::<f32, false>(&given, made, [0, head], &mut slopes, sizes);
            }
            for (expected, found) in [(out, found.0), (lse, found.1), (d_qkv, found.2)] {
                for (e, f) in expected.iter().zip(&found) {
                    assert!((e - f).abs() < 1e-5, "{sizes:?}: {f}, not {e}");
                }
            }
        }
    }
}
