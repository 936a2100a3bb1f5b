//! An activation function of one number times another: the twin of `gated` and `gated_backward`.

use super::Real;
use super::activation::Activation;

/// f(gate) * x.
///
/// # Panics
///
/// If they are not as many.
pub fn gated<T: Real>(gate: &[T], x: &[T], kind: Activation) -> Vec<T> {
    assert_eq!(gate.len(), x.len(), "numbers and their gates");
    let mut out = gate.to_vec();
    kind.apply_all(&mut out);
    out.iter_mut().zip(x).for_each(|(out, x)| *out *= *x);
    out
}

/// The gradients for gates and numbers, given that of the output.
///
/// # Panics
///
/// As [`gated`] does.
pub fn gated_backward<T: Real>(gate: &[T], x: &[T], gradient: &[T], kind: Activation) -> [Vec<T>; 2] {
    let to_x = gated(gate, gradient, kind);
    let mut to_gate: Vec<T> = gradient.iter().zip(x).map(|(g, x)| *g * *x).collect();
    kind.times_slopes(&mut to_gate, gate);
    [to_gate, to_x]
}
