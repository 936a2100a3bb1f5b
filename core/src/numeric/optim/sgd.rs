//! Stochastic gradient descent, plain and with momentum (`torch.optim.SGD` without dampening).

use super::{Step, finite};

pub(super) fn plain(step: &Step, weight_decay: f32, params: &mut [f32], sums: &[f32]) {
    for (p, sum) in params.iter_mut().zip(sums) {
        let g = sum * step.scale + weight_decay * *p;
        *p = finite(*p - step.size * g);
    }
}

pub(super) fn momentum(
    step: &Step,
    momentum: f32,
    weight_decay: f32,
    params: &mut [f32],
    velocity: &mut [f32],
    sums: &[f32],
) {
    for ((p, v), sum) in params.iter_mut().zip(velocity).zip(sums) {
        let g = sum * step.scale + weight_decay * *p;
        *v = finite(momentum * *v + g);
        *p = finite(*p - step.size * *v);
    }
}

pub(super) fn nesterov(
    step: &Step,
    momentum: f32,
    weight_decay: f32,
    params: &mut [f32],
    velocity: &mut [f32],
    sums: &[f32],
) {
    for ((p, v), sum) in params.iter_mut().zip(velocity).zip(sums) {
        let g = sum * step.scale + weight_decay * *p;
        *v = finite(momentum * *v + g);
        *p = finite(*p - step.size * (g + momentum * *v));
    }
}
