//! Adam and AdamW: the twin of `adamw`.

use super::Real;

/// What is the same for all elements.
#[derive(Clone, Copy, Debug)]
pub struct AdamW<T> {
    /// The gradient is the sum of gradients times this.
    pub scale: T,
    /// `lr / (1 - beta1^step)`.
    pub size: T,
    /// `1 / sqrt(1 - beta2^step)`.
    pub second: T,
    /// Keeps the denominator from zero.
    pub eps: T,
    /// Smoothing of the gradients.
    pub beta1: T,
    /// Smoothing of the squared gradients.
    pub beta2: T,
    /// Adam's weight decay: the gradient gains this times the parameter.
    pub l2: T,
    /// AdamW's: learning rate times weight decay.
    pub decoupled: T,
}

/// One step.
pub fn adamw<T: Real>(rule: &AdamW<T>, p: &mut [T], m: &mut [T], v: &mut [T], sums: &[T]) {
    let (rest1, rest2) = (T::ONE - rule.beta1, T::ONE - rule.beta2);
    let keep = T::ONE - rule.decoupled;
    for (((p, m), v), sum) in p.iter_mut().zip(m).zip(v).zip(sums) {
        let g = *sum * rule.scale + rule.l2 * *p;
        *m = rule.beta1 * *m + rest1 * g;
        *v = rule.beta2 * *v + rest2 * g * g;
        *p = *p * keep - rule.size * (*m / (v.sqrt() * rule.second + rule.eps));
    }
}
