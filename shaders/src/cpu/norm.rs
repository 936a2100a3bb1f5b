//! Layer norm and RMS norm: the twin of `norm` and `norm_backward`.

use super::Real;
use super::processor::widest;
use super::sums::{sum_by, sum_by_pairs};

/// Which statistics a row is brought to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// Mean 0 and variance 1 (Ba, Kiros and Hinton, 2016).
    Layer,
    /// Mean square 1 (Zhang and Sennrich, 2019).
    Rms,
}

/// What a forward pass makes.
#[derive(Clone, Debug)]
pub struct Normed<T> {
    /// The rows.
    pub out: Vec<T>,
    /// Mean and 1 / deviation of each row.
    pub stats: Vec<T>,
}

/// `(x - mean) / deviation * gamma + beta` for each row of `gamma.len()` numbers.
pub fn norm<T: Real>(x: &[T], gamma: &[T], beta: Option<&[T]>, kind: Norm, epsilon: f32) -> Normed<T> {
    widest!(
        [T: Real] (x: &[T], gamma: &[T], beta: Option<&[T]>, kind: Norm, epsilon: f32) -> Normed<T>,
        fused forward, otherwise forward,
    )
}

#[inline(always)]
fn forward<T: Real>(x: &[T], gamma: &[T], beta: Option<&[T]>, kind: Norm, epsilon: f32) -> Normed<T> {
    let count = T::from_f64(gamma.len() as f64);
    let epsilon = T::from_f64(f64::from(epsilon));
    let mut out = vec![T::ZERO; x.len()];
    let mut stats = Vec::with_capacity(2 * x.len() / gamma.len());
    for (row, to) in x.chunks_exact(gamma.len()).zip(out.chunks_exact_mut(gamma.len())) {
        let mean = match kind {
            Norm::Layer => sum_by(row, |x| x) / count,
            Norm::Rms => T::ZERO,
        };
        let variance = sum_by(row, |x| (x - mean) * (x - mean)) / count;
        let scale = T::ONE / (variance + epsilon).sqrt();
        for (y, (x, g)) in to.iter_mut().zip(row.iter().zip(gamma)) {
            *y = (*x - mean) * scale * *g;
        }
        if let Some(beta) = beta {
            to.iter_mut().zip(beta).for_each(|(y, b)| *y += *b);
        }
        stats.extend([mean, scale]);
    }
    Normed { out, stats }
}

/// Gradients of a norm.
#[derive(Clone, Debug)]
pub struct NormGradients<T> {
    /// For the rows.
    pub x: Vec<T>,
    /// For the scale.
    pub gamma: Vec<T>,
    /// For the shift.
    pub beta: Vec<T>,
}

/// The gradients, from those of the output and the forward pass's `stats`.
pub fn norm_backward<T: Real>(
    x: &[T],
    stats: &[T],
    gamma: &[T],
    gradient: &[T],
    kind: Norm,
) -> NormGradients<T> {
    widest!(
        [T: Real] (x: &[T], stats: &[T], gamma: &[T], gradient: &[T], kind: Norm) -> NormGradients<T>,
        fused backward, otherwise backward,
    )
}

#[inline(always)]
fn backward<T: Real>(x: &[T], stats: &[T], gamma: &[T], gradient: &[T], kind: Norm) -> NormGradients<T> {
    let width = gamma.len();
    let count = T::from_f64(width as f64);
    let mut to_x = vec![T::ZERO; x.len()];
    let (mut to_gamma, mut to_beta) = (vec![T::ZERO; width], vec![T::ZERO; width]);
    let mut normed = vec![T::ZERO; width];
    let rows = x.chunks_exact(width).zip(gradient.chunks_exact(width));
    for (((row, gradient), stat), to) in rows
        .zip(stats.as_chunks::<2>().0)
        .zip(to_x.chunks_exact_mut(width))
    {
        let [mean, scale] = *stat;
        for (n, x) in normed.iter_mut().zip(row) {
            *n = (*x - mean) * scale;
        }
        for (h, (g, gamma)) in to.iter_mut().zip(gradient.iter().zip(gamma)) {
            *h = *g * *gamma;
        }
        let shift = match kind {
            Norm::Layer => sum_by(to, |h| h) / count,
            Norm::Rms => T::ZERO,
        };
        let slope = sum_by_pairs(to, &normed, |h, n| h * n) / count;
        for (h, n) in to.iter_mut().zip(&normed) {
            *h = (*h - shift - *n * slope) * scale;
        }
        for (sum, (g, n)) in to_gamma.iter_mut().zip(gradient.iter().zip(&normed)) {
            *sum += *g * *n;
        }
        to_beta.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += *g);
    }
    NormGradients {
        x: to_x,
        gamma: to_gamma,
        beta: to_beta,
    }
}
