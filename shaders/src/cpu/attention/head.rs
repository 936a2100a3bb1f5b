//! Attention of the heads that share keys and values in one sequence: all products are made by one function, for four rows
//! at once.

use super::sizes::{Place, ROWS, Sizes};
use super::{Bias, Given, Placed};
use crate::cpu::Real;
use crate::cpu::dropout::{Mask, philox};

/// The score of what is hidden, and a maximum that it does not reach: weights of queries that see nothing are 0.
const HIDDEN: f64 = -1e30;
const LOWEST: f64 = -5e29;

/// The numbers of one head in a sequence: of queries, keys or values, or of the output.
#[derive(Clone, Copy)]
struct Rows<'a, T> {
    numbers: &'a [T],
    /// Distance from a token to the next.
    step: usize,
    tokens: usize,
    head_dim: usize,
}

impl<'a, T: Real> Rows<'a, T> {
    fn of(placed: Placed<'a, T>, [batch, head]: [usize; 2], tokens: usize, head_dim: usize) -> Self {
        let Placed { numbers, place } = placed;
        Self {
            numbers: &numbers[batch * place.batch + place.at(head, 0)..],
            step: place.token,
            tokens,
            head_dim,
        }
    }

    fn row(&self, token: usize) -> &'a [T] {
        &self.numbers[token * self.step..][..self.head_dim]
    }

    fn padded(&self) -> usize {
        self.tokens.next_multiple_of(ROWS)
    }

    /// `[padded tokens, head_dim]`, scaled; 0 for tokens that do not exist.
    #[inline(always)]
    fn packed(&self, scale: T) -> Vec<T> {
        let mut packed = vec![T::ZERO; self.padded() * self.head_dim];
        for (token, row) in packed
            .chunks_exact_mut(self.head_dim)
            .enumerate()
            .take(self.tokens)
        {
            row.iter_mut()
                .zip(self.row(token))
                .for_each(|(to, x)| *to = *x * scale);
        }
        packed
    }

    /// `[head_dim, padded tokens]`; 0 for tokens that do not exist.
    #[inline(always)]
    fn transposed(&self) -> Vec<T> {
        let padded = self.padded();
        let mut transposed = vec![T::ZERO; self.head_dim * padded];
        for token in 0..self.tokens {
            for (column, x) in self.row(token).iter().enumerate() {
                transposed[column * padded + token] = *x;
            }
        }
        transposed
    }
}

/// Adds the mask of one query and the first keys; -1e30 and less is -1e30.
fn add_bias<T: Real>(scores: &mut [T], bias: Bias<'_, T>, batch: usize, head: usize, query: usize) {
    let [of_batch, of_head, of_query, of_key] = bias.steps;
    let start = batch * of_batch + head * of_head + query * of_query;
    for (key, score) in scores.iter_mut().enumerate() {
        *score += bias.numbers[start + key * of_key].max(T::from_f64(HIDDEN));
    }
}

/// The factors of the weights of query `row`, counted through all heads of all sequences: word key mod 4 of the
/// generator at the counter (key / 4, row).
fn kept<T: Real>(factors: &mut [T], mask: Mask, row: usize) {
    let (threshold, scale) = (mask.threshold(), T::from_f64(f64::from(mask.scale())));
    let [key, offset] = [mask.seed, mask.offset].map(|word| [word as u32, (word >> 32) as u32]);
    for (block, four) in (0..).zip(factors.chunks_mut(4)) {
        let words = philox([block, row as u32, offset[0], offset[1]], key);
        for (factor, word) in four.iter_mut().zip(words) {
            *factor = if word >= threshold { scale } else { T::ZERO };
        }
    }
}

/// The heads of queries that share a head of keys in one sequence, whose output and logarithms are given.
#[inline(always)]
pub(super) fn head_forward<T: Real, const FUSED: bool>(
    given: &Given<'_, T>,
    [batch, key_head]: [usize; 2],
    out: &mut [T],
    lse: &mut [T],
    to: Place,
    sizes: Sizes,
) {
    let (d, padded) = (sizes.head_dim, sizes.padded_keys());
    let keys = Rows::of(given.k, [batch, key_head], sizes.keys, d).transposed();
    let v = Rows::of(given.v, [batch, key_head], sizes.keys, d).packed(T::ONE);
    let mut weights = vec![T::ZERO; ROWS * padded];
    let mut factors = vec![T::ZERO; padded];
    let mut sums = vec![T::ZERO; ROWS * d];
    for head in key_head * sizes.group..(key_head + 1) * sizes.group {
        let q = Rows::of(given.q, [batch, head], sizes.queries, d).packed(T::from_f64(sizes.scale));
        for row in (0..sizes.queries).step_by(ROWS) {
            let count = sizes.keys_of_four(row);
            weights.fill(T::ZERO);
            sums.fill(T::ZERO);
            for i in (0..d).step_by(4) {
                let by = four_by_four(&q[row * d + i..], d);
                mix::<T, FUSED>(&mut weights, padded, count, by, &keys[i * padded..]);
            }
            let rows = ROWS.min(sizes.queries - row);
            let mut shares = [T::ZERO; ROWS];
            for (r, share) in shares.iter_mut().enumerate().take(rows) {
                let (seen, hidden) = weights[r * padded..][..count].split_at_mut(sizes.seen(row + r));
                if let Some(bias) = given.bias {
                    add_bias(seen, bias, batch, head, row + r);
                }
                let top = fold(T::from_f64(LOWEST), seen, |top, s| if s > top { s } else { top });
                seen.iter_mut().for_each(|s| *s = (*s - top).exp());
                let sum = fold(T::ZERO, seen, |sum, s| sum + s);
                if let Some(mask) = sizes.dropout {
                    let factors = &mut factors[..seen.len()];
                    kept(
                        factors,
                        mask,
                        (batch * sizes.heads + head) * sizes.queries + row + r,
                    );
                    seen.iter_mut().zip(factors).for_each(|(s, factor)| *s *= *factor);
                }
                hidden.fill(T::ZERO);
                if sum != T::ZERO {
                    *share = T::ONE / sum;
                    lse[head * sizes.queries + row + r] = top + sum.ln();
                }
            }
            for key in (0..count).step_by(4) {
                let by = four_by_four(&weights[key..], padded);
                mix::<T, FUSED>(&mut sums, d, d, by, &v[key * d..]);
            }
            for (r, (sums, share)) in sums.chunks_exact(d).zip(shares).enumerate().take(rows) {
                let to = &mut out[to.at(head, row + r)..][..d];
                to.iter_mut().zip(sums).for_each(|(to, sum)| *to = *sum * share);
            }
        }
    }
}

/// Input of [`head_backward`] beside queries, keys and values, with the logarithms of one sequence.
#[derive(Clone, Copy)]
pub(super) struct Made<'a, T> {
    pub out: Placed<'a, T>,
    pub d_out: Placed<'a, T>,
    pub lse: &'a [T],
}

/// Where the slopes of one sequence go: of queries, keys and values each, in which of the buffers and where there.
pub(super) struct Slopes<'a, 'b, T> {
    pub buffers: &'b mut [&'a mut [T]],
    pub to: [(usize, Place); 3],
}

impl<T: Real> Slopes<'_, '_, T> {
    fn put(&mut self, kind: usize, head: usize, token: usize, row: &[T], scale: T) {
        let (buffer, place) = self.to[kind];
        let to = &mut self.buffers[buffer][place.at(head, token)..][..row.len()];
        to.iter_mut().zip(row).for_each(|(to, x)| *to = *x * scale);
    }
}

/// The heads of queries that share a head of keys in one sequence.
#[inline(always)]
pub(super) fn head_backward<T: Real, const FUSED: bool>(
    given: &Given<'_, T>,
    made: Made<'_, T>,
    [batch, key_head]: [usize; 2],
    slopes: &mut Slopes<'_, '_, T>,
    sizes: Sizes,
) {
    let (d, padded) = (sizes.head_dim, sizes.padded_keys());
    let scale = T::from_f64(sizes.scale);
    let [k, v] = [given.k, given.v].map(|placed| Rows::of(placed, [batch, key_head], sizes.keys, d));
    let (keys, values, k) = (k.transposed(), v.transposed(), k.packed(T::ONE));
    let mut p = vec![T::ZERO; ROWS * padded];
    let mut d_s = vec![T::ZERO; ROWS * padded];
    let mut factors = vec![T::ZERO; padded];
    let mut d_q = vec![T::ZERO; ROWS * d];
    let mut d_k = vec![T::ZERO; padded * d];
    let mut d_v = vec![T::ZERO; padded * d];
    for head in key_head * sizes.group..(key_head + 1) * sizes.group {
        let of_queries = |placed| Rows::of(placed, [batch, head], sizes.queries, d);
        let q = of_queries(given.q).packed(scale);
        let [o, d_o] = [made.out, made.d_out].map(|placed| of_queries(placed).packed(T::ONE));
        for row in (0..sizes.queries).step_by(ROWS) {
            let count = sizes.keys_of_four(row);
            p.fill(T::ZERO);
            d_s.fill(T::ZERO);
            d_q.fill(T::ZERO);
            for i in (0..d).step_by(4) {
                let by = four_by_four(&q[row * d + i..], d);
                mix::<T, FUSED>(&mut p, padded, count, by, &keys[i * padded..]);
                let by = four_by_four(&d_o[row * d + i..], d);
                mix::<T, FUSED>(&mut d_s, padded, count, by, &values[i * padded..]);
            }
            let rows = ROWS.min(sizes.queries - row);
            for r in 0..ROWS {
                let seen = if r < rows { sizes.seen(row + r) } else { 0 };
                let (p, hidden) = p[r * padded..][..count].split_at_mut(seen);
                let (d_s, hidden_slopes) = d_s[r * padded..][..count].split_at_mut(seen);
                hidden.fill(T::ZERO);
                hidden_slopes.fill(T::ZERO);
                if r >= rows {
                    continue;
                }
                if let Some(bias) = given.bias {
                    add_bias(p, bias, batch, head, row + r);
                }
                let level = made.lse[head * sizes.queries + row + r];
                let at = (row + r) * d..(row + r + 1) * d;
                let delta: T = o[at.clone()].iter().zip(&d_o[at]).map(|(x, y)| *x * *y).sum();
                if let Some(mask) = sizes.dropout {
                    let factors = &mut factors[..seen];
                    kept(
                        factors,
                        mask,
                        (batch * sizes.heads + head) * sizes.queries + row + r,
                    );
                    for ((p, d_s), factor) in p.iter_mut().zip(d_s).zip(factors) {
                        let weight = (*p - level).exp();
                        *d_s = weight * (*factor * *d_s - delta);
                        *p = weight * *factor;
                    }
                } else {
                    for (p, d_s) in p.iter_mut().zip(d_s) {
                        *p = (*p - level).exp();
                        *d_s = *p * (*d_s - delta);
                    }
                }
            }
            for key in (0..count).step_by(4) {
                let weights = four_by_four(&d_s[key..], padded);
                mix::<T, FUSED>(&mut d_q, d, d, weights, &k[key * d..]);
                mix::<T, FUSED>(&mut d_k[key * d..], d, d, flipped(weights), &q[row * d..]);
                let weights = flipped(four_by_four(&p[key..], padded));
                mix::<T, FUSED>(&mut d_v[key * d..], d, d, weights, &d_o[row * d..]);
            }
            for (r, d_q) in d_q.chunks_exact(d).enumerate().take(rows) {
                slopes.put(0, head, row + r, d_q, scale);
            }
        }
    }
    let rows = d_k.chunks_exact(d).zip(d_v.chunks_exact(d));
    for (token, (d_k, d_v)) in rows.enumerate().take(sizes.keys) {
        slopes.put(1, key_head, token, d_k, T::ONE);
        slopes.put(2, key_head, token, d_v, T::ONE);
    }
}

/// The first four numbers of four rows.
#[inline(always)]
fn four_by_four<T: Real>(numbers: &[T], step: usize) -> [[T; 4]; 4] {
    std::array::from_fn(|row| std::array::from_fn(|column| numbers[row * step + column]))
}

#[inline(always)]
fn flipped<T: Real>(block: [[T; 4]; 4]) -> [[T; 4]; 4] {
    std::array::from_fn(|row| std::array::from_fn(|column| block[column][row]))
}

/// Adds to each of four rows of `out` four rows of `from`, weighted; all are `step` apart, and `count`
/// numbers of each are taken.
#[inline(always)]
fn mix<T: Real, const FUSED: bool>(
    out: &mut [T],
    step: usize,
    count: usize,
    weights: [[T; 4]; 4],
    from: &[T],
) {
    let (a, out) = out.split_at_mut(step);
    let (b, out) = out.split_at_mut(step);
    let (c, d) = out.split_at_mut(step);
    let from: [&[T]; 4] = std::array::from_fn(|row| &from[row * step..][..count]);
    mix_rows::<T, FUSED>(
        &mut a[..count],
        &mut b[..count],
        &mut c[..count],
        &mut d[..count],
        weights,
        from,
    );
}

/// Each row is an argument of its own, so that the compiler knows that they do not overlap. Rows are short, and multiples
/// of 4: vectors of a fixed length leave nothing to be done number by number.
#[inline(always)]
fn mix_rows<T: Real, const FUSED: bool>(
    a: &mut [T],
    b: &mut [T],
    c: &mut [T],
    d: &mut [T],
    weights: [[T; 4]; 4],
    from: [&[T]; 4],
) {
    let eights = a.len() & !7;
    let [(a, a_rest), (b, b_rest), (c, c_rest), (d, d_rest)] =
        [a, b, c, d].map(|row| row.split_at_mut(eights));
    mix_vectors::<T, FUSED, 8>(a, b, c, d, weights, from.map(|row| &row[..eights]));
    let from = from.map(|row| &row[eights..]);
    mix_vectors::<T, FUSED, 4>(a_rest, b_rest, c_rest, d_rest, weights, from);
}

#[inline(always)]
fn mix_vectors<T: Real, const FUSED: bool, const N: usize>(
    a: &mut [T],
    b: &mut [T],
    c: &mut [T],
    d: &mut [T],
    [p, q, r, s]: [[T; 4]; 4],
    [x, y, z, w]: [&[T]; 4],
) {
    let to = a.as_chunks_mut().0.iter_mut().zip(b.as_chunks_mut().0);
    let to = to.zip(c.as_chunks_mut().0.iter_mut().zip(d.as_chunks_mut().0));
    let from = x.as_chunks::<N>().0.iter().zip(y.as_chunks::<N>().0);
    let from = from.zip(z.as_chunks::<N>().0.iter().zip(w.as_chunks::<N>().0));
    for (((a, b), (c, d)), ((x, y), (z, w))) in to.zip(from) {
        add::<T, FUSED, N>(a, p, [x, y, z, w]);
        add::<T, FUSED, N>(b, q, [x, y, z, w]);
        add::<T, FUSED, N>(c, r, [x, y, z, w]);
        add::<T, FUSED, N>(d, s, [x, y, z, w]);
    }
}

// With an iterator over `to` the compiler makes no vectors of it, which takes twice as long.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
fn add<T: Real, const FUSED: bool, const N: usize>(
    to: &mut [T; N],
    [p, q, r, s]: [T; 4],
    [x, y, z, w]: [&[T; N]; 4],
) {
    for i in 0..N {
        to[i] = if FUSED {
            s.mul_add(w[i], r.mul_add(z[i], q.mul_add(y[i], p.mul_add(x[i], to[i]))))
        } else {
            to[i] + ((p * x[i] + q * y[i]) + (r * z[i] + s * w[i]))
        };
    }
}

/// Eight folds side by side, and one over their results: one by one each step would wait for the one
/// before.
#[inline(always)]
fn fold<T: Real>(start: T, numbers: &[T], step: impl Fn(T, T) -> T) -> T {
    let mut lanes = [start; 8];
    let (eights, rest) = numbers.as_chunks::<8>();
    for eight in eights {
        for (lane, x) in lanes.iter_mut().zip(eight) {
            *lane = step(*lane, *x);
        }
    }
    lanes.iter().chain(rest).fold(start, |total, x| step(total, *x))
}
