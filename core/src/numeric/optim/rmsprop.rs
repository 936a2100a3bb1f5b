//! RMSProp (`torch.optim.RMSprop`, not centred, no momentum).

use super::{Step, finite};

pub(super) fn rmsprop(
    step: &Step,
    alpha: f32,
    eps: f32,
    weight_decay: f32,
    params: &mut [f32],
    squares: &mut [f32],
    sums: &[f32],
) {
    let rest = 1.0 - alpha;
    for ((p, s), sum) in params.iter_mut().zip(squares).zip(sums) {
        let g = sum * step.scale + weight_decay * *p;
        *s = finite(alpha * *s + rest * g * g);
        *p = finite(*p - step.size * (g / (s.sqrt() + eps)));
    }
}
