//! Rotary positions (Su et al., 2021, "RoFormer"): the twin of `rotary`, and the angles.

use super::Real;

/// Cosine and sine, in turn, of the angles of each token: `[tokens, head_dim]`. Pair i of a head turns
/// by `base^(-2i / head_dim)` from a token to the next.
pub fn table(tokens: usize, head_dim: usize, base: f64) -> Vec<f32> {
    let mut table = Vec::with_capacity(tokens * head_dim);
    for token in 0..tokens {
        for pair in 0..head_dim / 2 {
            let exponent = -2.0 * pair as f64 / head_dim as f64;
            let (sine, cosine) = libm::sincos(token as f64 * libm::pow(base, exponent));
            table.extend([cosine as f32, sine as f32]);
        }
    }
    table
}

/// Turns the queries and keys of `qkv` `[batch, tokens, 3, heads, head_dim]` by a table's angles, or
/// back.
///
/// # Panics
///
/// If the numbers are not as many as that.
pub fn rotate<T: Real>(qkv: &mut [T], table: &[T], [tokens, heads, head_dim]: [usize; 3], back: bool) {
    let inner = heads * head_dim;
    assert!(qkv.len().is_multiple_of(tokens * 3 * inner) && table.len() == tokens * head_dim);
    let turn = if back { -T::ONE } else { T::ONE };
    for (row, numbers) in qkv.chunks_exact_mut(3 * inner).enumerate() {
        let angles = &table[row % tokens * head_dim..][..head_dim];
        for head in numbers[..2 * inner].chunks_exact_mut(head_dim) {
            for (pair, angle) in head.chunks_exact_mut(2).zip(angles.chunks_exact(2)) {
                let (x, y) = (pair[0], pair[1]);
                let (cosine, sine) = (angle[0], turn * angle[1]);
                pair[0] = x * cosine - y * sine;
                pair[1] = x * sine + y * cosine;
            }
        }
    }
}
