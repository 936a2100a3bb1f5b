//! Adam and AdamW (`torch.optim.Adam`, `torch.optim.AdamW`, without AMSGrad): one loop, two ways to decay.

use super::{Step, finite};
use crate::base::wide::wide;

/// The smoothing factors of both moments.
pub(super) struct Moments {
    pub(super) beta1: f32,
    pub(super) beta2: f32,
    pub(super) eps: f32,
}

/// Weight decay, as its effect on one element.
pub(super) struct Decay {
    /// The gradient gains this times the parameter.
    l2: f32,
    /// The parameter is first multiplied by this.
    keep: f32,
}

impl Decay {
    pub(super) fn l2(weight_decay: f32) -> Self {
        Self {
            l2: weight_decay,
            keep: 1.0,
        }
    }

    pub(super) fn decoupled(lr: f32, weight_decay: f32) -> Self {
        Self {
            l2: 0.0,
            keep: 1.0 - lr * weight_decay,
        }
    }
}

/// `lr / (1 - beta1^step)` and `1 / sqrt(1 - beta2^step)`, computed in `f64`: for the first steps the differences are
/// small and `f32` would lose most of them.
pub(super) fn bias_corrected(lr: f32, step: u64, beta1: f32, beta2: f32) -> (f32, f32) {
    let first = 1.0 - power(f64::from(beta1), step);
    let second = 1.0 - power(f64::from(beta2), step);
    ((f64::from(lr) / first) as f32, (1.0 / second.sqrt()) as f32)
}

/// `base^exponent` by squaring: multiplications only, so that every platform agrees.
pub(super) fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

pub(super) fn adam(
    step: &Step,
    moments: &Moments,
    decay: &Decay,
    params: &mut [f32],
    m: &mut [f32],
    v: &mut [f32],
    sums: &[f32],
) {
    let &Moments { beta1, beta2, eps } = moments;
    let (rest1, rest2) = (1.0 - beta1, 1.0 - beta2);
    wide!({
        for (((p, m), v), sum) in params.iter_mut().zip(m).zip(v).zip(sums) {
            let g = sum * step.scale + decay.l2 * *p;
            *m = finite(beta1 * *m + rest1 * g);
            *v = finite(beta2 * *v + rest2 * g * g);
            *p = finite(*p * decay.keep - step.size * (*m / (v.sqrt() * step.second + eps)));
        }
    });
}
