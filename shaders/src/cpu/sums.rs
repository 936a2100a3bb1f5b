//! Sums over slices, in an order that a compiler can make vector instructions of.

use super::Real;

/// Number of partial sums, kept side by side.
const SIDES: usize = 16;

/// The sum of `term` over `xs`: element i goes to partial sum i mod 16.
#[inline(always)]
pub fn sum_by<T: Real>(xs: &[T], term: impl Fn(T) -> T) -> T {
    let mut sums = [T::ZERO; SIDES];
    let (chunks, rest) = xs.as_chunks::<SIDES>();
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += term(*x);
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += term(*x);
    }
    sums.into_iter().sum()
}

/// The sum of `term` over pairs from two slices of one length, in the same order.
#[inline(always)]
pub fn sum_by_pairs<T: Real>(xs: &[T], ys: &[T], term: impl Fn(T, T) -> T) -> T {
    let mut sums = [T::ZERO; SIDES];
    let (x_chunks, x_rest) = xs.as_chunks::<SIDES>();
    let (y_chunks, y_rest) = ys.as_chunks::<SIDES>();
    for (x_chunk, y_chunk) in x_chunks.iter().zip(y_chunks) {
        for (sum, (x, y)) in sums.iter_mut().zip(x_chunk.iter().zip(y_chunk)) {
            *sum += term(*x, *y);
        }
    }
    for (sum, (x, y)) in sums.iter_mut().zip(x_rest.iter().zip(y_rest)) {
        *sum += term(*x, *y);
    }
    sums.into_iter().sum()
}

/// The largest number, or about the lowest finite one if there is none larger.
#[inline(always)]
pub fn largest<T: Real>(xs: &[T]) -> T {
    let mut tops = [T::from_f64(-3.0e38); SIDES];
    let (chunks, rest) = xs.as_chunks::<SIDES>();
    for chunk in chunks {
        for (top, x) in tops.iter_mut().zip(chunk) {
            *top = top.max(*x);
        }
    }
    for (top, x) in tops.iter_mut().zip(rest) {
        *top = top.max(*x);
    }
    tops.into_iter().fold(tops[0], Real::max)
}
