//! Dropout, and the generator that decides: the twin of `dropout`.

use super::Real;

/// Decides which numbers are dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mask {
    /// Share of the numbers that are dropped, from 0 to below 1.
    pub rate: f32,
    /// Key of the generator: the run's, the peer's.
    pub seed: u64,
    /// Which mask under that key: another one for each use.
    pub offset: u64,
}

impl Mask {
    /// The least random word that keeps a number.
    pub fn threshold(&self) -> u32 {
        (f64::from(self.rate) * 4_294_967_296.0) as u32
    }

    /// The factor of the numbers that are kept.
    pub fn scale(&self) -> f32 {
        1.0 / (1.0 - self.rate)
    }
}

/// x / (1 - rate) for what is kept, 0 for the rest. It is its own backward pass.
pub fn dropout<T: Real>(x: &[T], mask: Mask) -> Vec<T> {
    let (threshold, scale) = (mask.threshold(), T::from_f64(f64::from(mask.scale())));
    let key = [mask.seed as u32, (mask.seed >> 32) as u32];
    let mut out = Vec::with_capacity(x.len());
    for (block, numbers) in (0..).zip(x.chunks(4)) {
        let words = philox([block, 0, mask.offset as u32, (mask.offset >> 32) as u32], key);
        let kept = |(x, word): (&T, u32)| if word >= threshold { *x * scale } else { T::ZERO };
        out.extend(numbers.iter().zip(words).map(kept));
    }
    out
}

/// Philox4x32-10 (Salmon, Moraes, Dror and Shaw: Parallel random numbers: as easy as 1, 2, 3; 2011).
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let first = 0xd251_1f53 * u64::from(counter[0]);
        let second = 0xcd9e_8d57 * u64::from(counter[2]);
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    counter
}
