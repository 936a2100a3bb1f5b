//! Softmax and cross-entropy in one: the twin of `cross_entropy`, `cross_entropy_mean` and
//! `cross_entropy_backward`.

use super::Real;
use super::sums::{largest, sum_by};

/// What a forward pass makes.
#[derive(Clone, Debug)]
pub struct Losses<T> {
    /// The mean over the rows that count; 0 if none does.
    pub mean: T,
    /// log(sum(exp(logits))) of each row.
    pub norms: Vec<T>,
    /// Sum of the losses, and how many there are.
    pub sums: [T; 2],
}

/// A target that is neither a class nor to be ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("target {target} of row {row} is none of {classes} classes")]
pub struct UnknownClass {
    /// In this row.
    pub row: usize,
    /// The target.
    pub target: i32,
    /// How many classes there are.
    pub classes: usize,
}

/// Mean of log(sum(exp(row))) - row[target] over the rows whose target is not `ignore`.
///
/// # Errors
///
/// If a target is no class.
pub fn cross_entropy<T: Real>(
    logits: &[T],
    width: usize,
    targets: &[i32],
    ignore: Option<i32>,
) -> Result<Losses<T>, UnknownClass> {
    let mut norms = Vec::with_capacity(targets.len());
    let mut sums = [T::ZERO; 2];
    for (row, (logits, target)) in logits.chunks_exact(width).zip(targets).enumerate() {
        let top = largest(logits);
        let norm = top + sum_by(logits, |x| (x - top).exp()).ln();
        norms.push(norm);
        if Some(*target) != ignore {
            let class = class(*target, width).ok_or(UnknownClass {
                row,
                target: *target,
                classes: width,
            })?;
            sums[0] += norm - logits[class];
            sums[1] += T::ONE;
        }
    }
    let mean = sums[0] / sums[1].max(T::ONE);
    Ok(Losses { mean, norms, sums })
}

/// The gradient for the logits, `upstream` being that for the loss. The targets are those of the
/// forward pass, which has checked them.
pub fn cross_entropy_backward<T: Real>(
    logits: &[T],
    width: usize,
    targets: &[i32],
    ignore: Option<i32>,
    losses: (&[T], [T; 2]),
    upstream: T,
) -> Vec<T> {
    let (norms, [_, count]) = losses;
    let scale = upstream / count.max(T::ONE);
    let mut gradient = vec![T::ZERO; logits.len()];
    let rows = logits.chunks_exact(width).zip(gradient.chunks_exact_mut(width));
    for ((logits, gradient), (norm, target)) in rows.zip(norms.iter().zip(targets)) {
        if Some(*target) == ignore {
            continue;
        }
        for (g, x) in gradient.iter_mut().zip(logits) {
            *g = (*x - *norm).exp() * scale;
        }
        if let Some(class) = class(*target, width) {
            gradient[class] -= scale;
        }
    }
    gradient
}

fn class(target: i32, width: usize) -> Option<usize> {
    usize::try_from(target).ok().filter(|class| *class < width)
}
