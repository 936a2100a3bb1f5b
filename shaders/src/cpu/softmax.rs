//! Softmax: the twin of `softmax` and `softmax_backward`.

use super::Real;
use super::sums::{largest, sum_by, sum_by_pairs};

/// exp(x) / sum(exp(x)) of each row of `width` numbers.
pub fn softmax<T: Real>(x: &[T], width: usize) -> Vec<T> {
    let mut out = vec![T::ZERO; x.len()];
    for (row, to) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let top = largest(row);
        to.iter_mut().zip(row).for_each(|(y, x)| *y = (*x - top).exp());
        let scale = T::ONE / sum_by(to, |y| y);
        to.iter_mut().for_each(|y| *y *= scale);
    }
    out
}

/// The gradient for x, from the softmax `y` and its gradient.
pub fn softmax_backward<T: Real>(y: &[T], gradient: &[T], width: usize) -> Vec<T> {
    let mut to_x = vec![T::ZERO; y.len()];
    let rows = y.chunks_exact(width).zip(gradient.chunks_exact(width));
    for ((y, gradient), to) in rows.zip(to_x.chunks_exact_mut(width)) {
        let sum = sum_by_pairs(y, gradient, |y, g| y * g);
        for (to, (y, g)) in to.iter_mut().zip(y.iter().zip(gradient)) {
            *to = *y * (*g - sum);
        }
    }
    to_x
}
