//! Attention: the twin of `attention_forward` and `attention_backward`, and what Burn's CPU backend
//! takes.
//!
//! Four queries at a time, keys and values of a head transposed once, so that every inner loop runs
//! over adjacent numbers and becomes vector instructions: all products are made by one function, for
//! four rows at once. Sequences are shared among threads.

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

    fn check(&self, numbers: usize, parts: usize) {
        assert!(
            self.head_dim.is_multiple_of(4),
            "heads of {} numbers",
            self.head_dim
        );
        assert_eq!(
            numbers,
            parts * self.batch * self.tokens * self.inner(),
            "{self:?}"
        );
    }

    /// Tokens, with as many that do not exist as make the last group of four full.
    fn padded(&self) -> usize {
        self.tokens.next_multiple_of(ROWS)
    }

    /// How many keys a query sees.
    fn seen(&self, token: usize) -> usize {
        if self.causal { token + 1 } else { self.tokens }
    }

    /// The same for four queries together, a multiple of 4.
    fn keys(&self, row: usize) -> usize {
        if self.causal { row + ROWS } else { self.padded() }
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

fn forward_of_head<T: Real>(qkv: &[T], out: &mut [T], lse: &mut [T], head: usize, sizes: Sizes) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        #[target_feature(enable = "avx2,fma")]
        fn fused<T: Real>(qkv: &[T], out: &mut [T], lse: &mut [T], head: usize, sizes: Sizes) {
            head_forward::<T, true>(qkv, out, lse, head, sizes);
        }
        // SAFETY: safe code that needs AVX2 and FMA, which this processor has.
        return unsafe { fused(qkv, out, lse, head, sizes) };
    }
    head_forward::<T, FUSED_EVERYWHERE>(qkv, out, lse, head, sizes);
}

fn backward_of_head<T: Real>(given: [&[T]; 4], d_qkv: &mut [T], head: usize, sizes: Sizes) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        #[target_feature(enable = "avx2,fma")]
        fn fused<T: Real>(given: [&[T]; 4], d_qkv: &mut [T], head: usize, sizes: Sizes) {
            head_backward::<T, true>(given, d_qkv, head, sizes);
        }
        // SAFETY: safe code that needs AVX2 and FMA, which this processor has.
        return unsafe { fused(given, d_qkv, head, sizes) };
    }
    head_backward::<T, FUSED_EVERYWHERE>(given, d_qkv, head, sizes);
}

/// Whether every processor of this kind has fused multiply-add.
const FUSED_EVERYWHERE: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

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
fn head_forward<T: Real, const FUSED: bool>(
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
fn head_backward<T: Real, const FUSED: bool>(given: [&[T]; 4], d_qkv: &mut [T], head: usize, sizes: Sizes) {
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

/// Each row is an argument of its own, so that the compiler knows that they do not overlap.
#[inline(always)]
fn mix_rows<T: Real, const FUSED: bool>(
    a: &mut [T],
    b: &mut [T],
    c: &mut [T],
    d: &mut [T],
    weights: [[T; 4]; 4],
    from: [&[T]; 4],
) {
    let count = a.len();
    let (b, c, d) = (&mut b[..count], &mut c[..count], &mut d[..count]);
    let [x, y, z, w] = from.map(|row| &row[..count]);
    let sum = |start: T, [p, q, r, s]: [T; 4], i: usize| {
        if FUSED {
            s.mul_add(w[i], r.mul_add(z[i], q.mul_add(y[i], p.mul_add(x[i], start))))
        } else {
            start + ((p * x[i] + q * y[i]) + (r * z[i] + s * w[i]))
        }
    };
    for i in 0..count {
        a[i] = sum(a[i], weights[0], i);
        b[i] = sum(b[i], weights[1], i);
        c[i] = sum(c[i], weights[2], i);
        d[i] = sum(d[i], weights[3], i);
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
