//! Pairs of numbers as halves: the twin of `halve`.

use super::f16::{decode, finite_half};

/// Finite numbers below 2^16, rounded to nearest; two to a word, the first in the lower bits.
pub fn pack(x: &[f32]) -> Vec<u32> {
    let half = |x: f32| {
        let sign = (x.to_bits() >> 16) & 0x8000;
        sign | u32::from(finite_half(f64::from(x.abs())))
    };
    x.chunks(2)
        .map(|pair| half(pair[0]) | half(pair.get(1).copied().unwrap_or(0.0)) << 16)
        .collect()
}

/// The first `count` numbers of such words.
pub fn unpack(words: &[u32], count: usize) -> Vec<f32> {
    let halves: Vec<u16> = words
        .iter()
        .flat_map(|word| [*word as u16, (word >> 16) as u16])
        .collect();
    decode(0, &halves[..count])
}
