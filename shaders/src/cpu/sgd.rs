//! Stochastic gradient descent: the twin of `sgd`.

use super::Real;

/// `p -= lr (g + weight_decay p)`, where `g` is `scale` times the sum of gradients.
pub fn sgd<T: Real>(p: &mut [T], sums: &[T], lr: T, scale: T, weight_decay: T) {
    for (p, sum) in p.iter_mut().zip(sums) {
        let g = *sum * scale + weight_decay * *p;
        *p -= lr * g;
    }
}
