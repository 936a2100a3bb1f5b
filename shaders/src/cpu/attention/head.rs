//! Attention of one head of one sequence: all products are made by one function, for four rows at once.

use super::sizes::{ROWS, Sizes};
use crate::cpu::Real;

/// The numbers of one head in a sequence: of queries, keys or values, or of the output.
#[derive(Clone, Copy)]
struct Rows<'a, T> {
    numbers: &'a [T],
    /// Distance from a token to the next.
    step: usize,
    head_dim: usize,
}

impl<'a, T: Real> Rows<'a, T> {
    fn of_qkv(qkv: &'a [T], kind: usize, head: usize, sizes: Sizes) -> Self {
        Self {
            numbers: &qkv[kind * sizes.inner() + head * sizes.head_dim..],
            step: 3 * sizes.inner(),
            head_dim: sizes.head_dim,
        }
    }

    fn of_out(out: &'a [T], head: usize, sizes: Sizes) -> Self {
        Self {
            numbers: &out[head * sizes.head_dim..],
            step: sizes.inner(),
            head_dim: sizes.head_dim,
        }
    }

    fn row(&self, token: usize) -> &'a [T] {
        &self.numbers[token * self.step..][..self.head_dim]
    }

    /// `[padded tokens, head_dim]`, scaled; 0 for tokens that do not exist.
    #[inline(always)]
    fn packed(&self, sizes: Sizes, scale: T) -> Vec<T> {
        let mut packed = vec![T::ZERO; sizes.padded() * self.head_dim];
        for (token, row) in packed
            .chunks_exact_mut(self.head_dim)
            .enumerate()
            .take(sizes.tokens)
        {
            row.iter_mut()
                .zip(self.row(token))
                .for_each(|(to, x)| *to = *x * scale);
        }
        packed
    }

    /// `[head_dim, padded tokens]`; 0 for tokens that do not exist.
    #[inline(always)]
    fn transposed(&self, sizes: Sizes) -> Vec<T> {
        let padded = sizes.padded();
        let mut transposed = vec![T::ZERO; self.head_dim * padded];
        for token in 0..sizes.tokens {
            for (column, x) in self.row(token).iter().enumerate() {
                transposed[column * padded + token] = *x;
            }
        }
        transposed
    }
}

/// One head of one sequence.
#[inline(always)]
pub(super) fn head_forward<T: Real, const FUSED: bool>(
    qkv: &[T],
    out: &mut [T],
    lse: &mut [T],
    head: usize,
    sizes: Sizes,
) {
    let (d, padded) = (sizes.head_dim, sizes.padded());
    let part = |kind| Rows::of_qkv(qkv, kind, head, sizes);
    let q = part(0).packed(sizes, T::from_f64(sizes.scale()));
    let keys = part(1).transposed(sizes);
    let v = part(2).packed(sizes, T::ONE);
    let mut weights = vec![T::ZERO; ROWS * padded];
    let mut sums = vec![T::ZERO; ROWS * d];
    for row in (0..sizes.tokens).step_by(ROWS) {
        let count = sizes.keys(row);
        weights.fill(T::ZERO);
        sums.fill(T::ZERO);
        for i in (0..d).step_by(4) {
            mix::<T, FUSED>(
                &mut weights,
                padded,
                count,
                four_by_four(&q[row * d + i..], d),
                &keys[i * padded..],
            );
        }
        let rows = ROWS.min(sizes.tokens - row);
        let mut shares = [T::ZERO; ROWS];
        for (r, share) in shares.iter_mut().enumerate().take(rows) {
            let (seen, hidden) = weights[r * padded..][..count].split_at_mut(sizes.seen(row + r));
            let top = fold(seen[0], seen, |top, s| if s > top { s } else { top });
            seen.iter_mut().for_each(|s| *s = (*s - top).exp());
            let sum = fold(T::ZERO, seen, |sum, s| sum + s);
            hidden.fill(T::ZERO);
            *share = T::ONE / sum;
            lse[row + r] = top + sum.ln();
        }
        for key in (0..count).step_by(4) {
            mix::<T, FUSED>(
                &mut sums,
                d,
                d,
                four_by_four(&weights[key..], padded),
                &v[key * d..],
            );
        }
        for (r, (sums, share)) in sums.chunks_exact(d).zip(shares).enumerate().take(rows) {
            let to = &mut out[(row + r) * sizes.inner() + head * d..][..d];
            to.iter_mut().zip(sums).for_each(|(to, sum)| *to = *sum * share);
        }
    }
}

/// One head of one sequence.
#[inline(always)]
pub(super) fn head_backward<T: Real, const FUSED: bool>(
    given: [&[T]; 4],
    d_qkv: &mut [T],
    head: usize,
    sizes: Sizes,
) {
    let [qkv, out, lse, d_out] = given;
    let (d, padded) = (sizes.head_dim, sizes.padded());
    let scale = T::from_f64(sizes.scale());
    let part = |kind| Rows::of_qkv(qkv, kind, head, sizes);
    let (q, k) = (part(0).packed(sizes, scale), part(1).packed(sizes, T::ONE));
    let (keys, values) = (part(1).transposed(sizes), part(2).transposed(sizes));
    let [o, d_o] = [out, d_out].map(|out| Rows::of_out(out, head, sizes).packed(sizes, T::ONE));
    let mut p = vec![T::ZERO; ROWS * padded];
    let mut d_s = vec![T::ZERO; ROWS * padded];
    let mut d_q = vec![T::ZERO; ROWS * d];
    let mut d_k = vec![T::ZERO; padded * d];
    let mut d_v = vec![T::ZERO; padded * d];
    let mut put = |kind: usize, token: usize, row: &[T], scale: T| {
        let to = &mut d_qkv[(3 * token + kind) * sizes.inner() + head * d..][..d];
        to.iter_mut().zip(row).for_each(|(to, x)| *to = *x * scale);
    };
    for row in (0..sizes.tokens).step_by(ROWS) {
        let count = sizes.keys(row);
        p.fill(T::ZERO);
        d_s.fill(T::ZERO);
        d_q.fill(T::ZERO);
        for i in (0..d).step_by(4) {
            mix::<T, FUSED>(
                &mut p,
                padded,
                count,
                four_by_four(&q[row * d + i..], d),
                &keys[i * padded..],
            );
            mix::<T, FUSED>(
                &mut d_s,
                padded,
                count,
                four_by_four(&d_o[row * d + i..], d),
                &values[i * padded..],
            );
        }
        let rows = ROWS.min(sizes.tokens - row);
        for r in 0..ROWS {
            let seen = if r < rows { sizes.seen(row + r) } else { 0 };
            let (p, hidden) = p[r * padded..][..count].split_at_mut(seen);
            let (d_s, hidden_slopes) = d_s[r * padded..][..count].split_at_mut(seen);
            hidden.fill(T::ZERO);
            hidden_slopes.fill(T::ZERO);
            if r < rows {
                let level = lse[row + r];
                let at = (row + r) * d..(row + r + 1) * d;
                let delta: T = o[at.clone()].iter().zip(&d_o[at]).map(|(x, y)| *x * *y).sum();
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
            mix::<T, FUSED>(
                &mut d_v[key * d..],
                d,
                d,
                flipped(four_by_four(&p[key..], padded)),
                &d_o[row * d..],
            );
        }
        for (r, d_q) in d_q.chunks_exact(d).enumerate().take(rows) {
            put(0, row + r, d_q, scale);
        }
    }
    for (token, (d_k, d_v)) in d_k
        .chunks_exact(d)
        .zip(d_v.chunks_exact(d))
        .enumerate()
        .take(sizes.tokens)
    {
        put(1, token, d_k, T::ONE);
        put(2, token, d_v, T::ONE);
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
