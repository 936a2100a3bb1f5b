//! Squared norms and what is not finite: the twin of `squared_norm` and `squared_norm_total`.

use super::Real;

/// The sum of the squares of what is finite, and how many elements are not.
pub fn squared_norm<T: Real>(values: &[T]) -> (T, usize) {
    let finite = |x: &&T| x.to_f64().is_finite();
    let squares = values.iter().filter(finite).map(|x| *x * *x).sum();
    (squares, values.iter().filter(|x| !finite(x)).count())
}
