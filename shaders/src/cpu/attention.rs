//! Attention: the twin of `attention_forward` and `attention_backward`, and what Burn's CPU backend
//! takes.
//!
//! Four queries at a time, keys and values of a head transposed once, so that every inner loop runs
//! over adjacent numbers and becomes vector instructions. Batches are shared among threads.

use std::thread;

use super::Real;

/// The sizes of an attention, and whether later tokens are hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Sequences.
    pub batch: usize,
    /// Tokens in each.
    pub tokens: usize,
    /// Heads.
    pub heads: usize,
    /// Numbers in a query, key or value of one head.
    pub head_dim: usize,
    /// Whether a token sees only itself and those before it.
    pub causal: bool,
}

impl Sizes {
    /// Numbers in a token's row of the output; one of `qkv` has three times as many.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// What scores are multiplied by.
    pub fn scale(&self) -> f64 {
        1.0 / (self.head_dim as f64).sqrt()
    }

    /// How many keys the four queries from `row` on see between them.
    fn keys(&self, row: usize) -> usize {
        if self.causal {
            self.tokens.min(row + ROWS)
        } else {
            self.tokens
        }
    }

    /// Threads that are worth starting, at most one per sequence.
    fn threads(&self) -> usize {
        let products = self.batch * self.inner() * self.tokens * self.tokens;
        let useful = (products / PRODUCTS_PER_THREAD).clamp(1, self.batch.max(1));
        useful.min(thread::available_parallelism().map_or(1, usize::from))
    }
}

/// Queries that are treated together: their keys and values are read once.
const ROWS: usize = 4;

/// Products that take about ten times as long as starting a thread does (30 us).
const PRODUCTS_PER_THREAD: usize = 1 << 20;

/// The output `[batch, tokens, heads, head_dim]` and the logarithms of the softmax's sums `[batch,
/// heads, tokens]` for packed queries, keys and values `[batch, tokens, 3, heads, head_dim]`.
pub fn forward<T: Real>(qkv: &[T], sizes: Sizes) -> (Vec<T>, Vec<T>) {
    let (row, tokens) = (sizes.inner(), sizes.tokens);
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
                head_forward(qkv, out, lse, head, sizes);
            }
        }
    });
    (out, lse)
}

/// The slopes along `qkv`, given those along the output, and what [`forward`] gave.
pub fn backward<T: Real>(qkv: &[T], out: &[T], lse: &[T], d_out: &[T], sizes: Sizes) -> Vec<T> {
    let (row, tokens) = (sizes.inner(), sizes.tokens);
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
                head_backward([qkv, out, lse, d_out], d_qkv, head, sizes);
            }
        }
    });
    d_qkv
}

/// Does `work` on each part, the last one in this thread.
fn in_threads<P: Send>(parts: impl Iterator<Item = P>, work: impl Fn(P) + Sync) {
    thread::scope(|scope| {
        let mut parts = parts.peekable();
        while let Some(part) = parts.next() {
            let work = &work;
            if parts.peek().is_some() {
                scope.spawn(move || work(part));
            } else {
                work(part);
            }
        }
    });
}

/// One head of one sequence.
#[inline(always)]
fn head_forward<T: Real>(qkv: &[T], out: &mut [T], lse: &mut [T], head: usize, sizes: Sizes) {
    let (tokens, d, inner) = (sizes.tokens, sizes.head_dim, sizes.inner());
    let at = |kind: usize, token: usize| &qkv[(token * 3 + kind) * inner + head * d..][..d];
    let keys = transposed(tokens, d, |token| at(1, token));
    let scale = T::from_f64(sizes.scale());
    let mut weights = vec![T::ZERO; tokens];
    for row in 0..tokens {
        let count = if sizes.causal { row + 1 } else { tokens };
        let weights = &mut weights[..count];
        weights.fill(T::ZERO);
        let q = at(0, row);
        mix(weights, d, |i| q[i] * scale, |i| &keys[i * tokens..]);
        let top = weights
            .iter()
            .fold(weights[0], |top, s| if *s > top { *s } else { top });
        let mut sum = T::ZERO;
        for s in weights.iter_mut() {
            *s = (*s - top).exp();
            sum += *s;
        }
        let out = &mut out[row * inner + head * d..][..d];
        let share = T::ONE / sum;
        mix(out, count, |i| weights[i] * share, |i| at(2, i));
        lse[row] = top + sum.ln();
    }
}

/// One head of one sequence.
#[inline(always)]
fn head_backward<T: Real>(given: [&[T]; 4], d_qkv: &mut [T], head: usize, sizes: Sizes) {
    let [qkv, out, lse, d_out] = given;
    let (tokens, d, inner) = (sizes.tokens, sizes.head_dim, sizes.inner());
    let at = |kind: usize, token: usize| &qkv[(token * 3 + kind) * inner + head * d..][..d];
    let keys = transposed(tokens, d, |token| at(1, token));
    let values = transposed(tokens, d, |token| at(2, token));
    let scale = T::from_f64(sizes.scale());
    let zeros = vec![T::ZERO; d];
    let mut p: [Vec<T>; ROWS] = std::array::from_fn(|_| vec![T::ZERO; tokens]);
    let mut d_s: [Vec<T>; ROWS] = std::array::from_fn(|_| vec![T::ZERO; tokens]);
    for row in (0..tokens).step_by(ROWS) {
        let count = sizes.keys(row);
        let rows = ROWS.min(tokens - row);
        for r in 0..rows {
            let token = row + r;
            let (p, d_s) = (&mut p[r][..count], &mut d_s[r][..count]);
            let (q, d_o) = (at(0, token), &d_out[token * inner + head * d..][..d]);
            let o = &out[token * inner + head * d..][..d];
            let delta: T = o.iter().zip(d_o).map(|(x, y)| *x * *y).sum();
            p.fill(T::ZERO);
            d_s.fill(-delta);
            mix(p, d, |i| q[i] * scale, |i| &keys[i * tokens..]);
            mix(d_s, d, |i| d_o[i], |i| &values[i * tokens..]);
            let seen = if sizes.causal { token + 1 } else { tokens };
            for s in &mut p[..seen] {
                *s = (*s - lse[token]).exp();
            }
            p[seen..].fill(T::ZERO);
            for (d_s, p) in d_s.iter_mut().zip(p.iter()) {
                *d_s *= *p * scale;
            }
            let d_q = &mut d_qkv[token * 3 * inner + head * d..][..d];
            mix(d_q, seen, |i| d_s[i], |i| at(1, i));
        }
        for r in rows..ROWS {
            p[r].fill(T::ZERO);
            d_s[r].fill(T::ZERO);
        }
        let q: [&[T]; ROWS] = std::array::from_fn(|r| if r < rows { at(0, row + r) } else { &zeros });
        let d_o: [&[T]; ROWS] = std::array::from_fn(|r| {
            if r < rows {
                &d_out[(row + r) * inner + head * d..][..d]
            } else {
                &zeros
            }
        });
        for key in 0..count {
            let to = (key * 3 + 1) * inner + head * d;
            mix_four(&mut d_qkv[to..][..d], std::array::from_fn(|r| d_s[r][key]), q);
            let to = to + inner;
            mix_four(&mut d_qkv[to..][..d], std::array::from_fn(|r| p[r][key]), d_o);
        }
    }
}

/// `[columns, rows]` from `rows` slices.
#[inline(always)]
fn transposed<'a, T: Real>(rows: usize, columns: usize, row: impl Fn(usize) -> &'a [T]) -> Vec<T> {
    let mut out = vec![T::ZERO; rows * columns];
    for i in 0..rows {
        for (j, x) in row(i).iter().enumerate() {
            out[j * rows + i] = *x;
        }
    }
    out
}

/// Adds `count` weighted rows, four at a time. Rows may be longer than `out`.
#[inline(always)]
fn mix<'a, T: Real>(
    out: &mut [T],
    count: usize,
    weight: impl Fn(usize) -> T,
    row: impl Fn(usize) -> &'a [T],
) {
    for i in (0..count).step_by(4) {
        let at = |j: usize| (i + j).min(count - 1);
        let weights = std::array::from_fn(|j| if i + j < count { weight(i + j) } else { T::ZERO });
        mix_four(out, weights, std::array::from_fn(|j| row(at(j))));
    }
}

/// Adds four weighted rows.
#[inline(always)]
fn mix_four<T: Real>(out: &mut [T], [a, b, c, d]: [T; 4], [x, y, z, w]: [&[T]; 4]) {
    let count = out.len();
    let (x, y, z, w) = (&x[..count], &y[..count], &z[..count], &w[..count]);
    for i in 0..count {
        out[i] += (a * x[i] + b * y[i]) + (c * z[i] + d * w[i]);
    }
}
