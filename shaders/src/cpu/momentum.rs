//! Stochastic gradient descent with momentum: the twin of `momentum`.

use super::Real;

/// What is the same for all elements.
#[derive(Clone, Copy, Debug)]
pub struct Momentum<T> {
    /// Learning rate.
    pub lr: T,
    /// The gradient is the sum of gradients times this.
    pub scale: T,
    /// L2 penalty, added to the gradient.
    pub weight_decay: T,
    /// How much of the velocity stays.
    pub momentum: T,
    /// Look ahead by one step of the velocity.
    pub nesterov: bool,
}

/// One step.
pub fn momentum<T: Real>(rule: &Momentum<T>, p: &mut [T], velocity: &mut [T], sums: &[T]) {
    for ((p, v), sum) in p.iter_mut().zip(velocity).zip(sums) {
        let g = *sum * rule.scale + rule.weight_decay * *p;
        *v = rule.momentum * *v + g;
        let way = if rule.nesterov { g + rule.momentum * *v } else { *v };
        *p -= rule.lr * way;
    }
}
