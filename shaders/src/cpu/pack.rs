//! Many tensors in one vector: the twin of `pack` and `pack_any`.

use super::Real;

/// Writes, or adds if `accumulate`, `scale` times `values` to the front of `place`, and 0 to the rest.
pub fn pack<T: Real>(place: &mut [T], values: &[T], scale: T, accumulate: bool) {
    if !accumulate {
        place.fill(T::ZERO);
    }
    for (x, g) in place.iter_mut().zip(values) {
        *x += scale * *g;
    }
}
