//! SplitMix64, a small generator of numbers from a seed: the same on every platform and with every version of every
//! dependency. Nothing secret may come from it.
//!
//! Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. The finaliser's constants
//! are Stafford's Mix13.

/// The increment of the state: the odd number nearest to 2^64 divided by the golden ratio.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A sequence of numbers, determined by its first state.
#[derive(Clone, Debug)]
pub struct SplitMix(pub u64);

impl SplitMix {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// In `[0, 1)`, a multiple of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The finaliser: a bijection of 64 bits in which each bit of the result depends on every bit of `z`.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_the_reference() {
        // Vigna's splitmix64.c, from the state 1234567.
        let mut random = SplitMix(1234567);
        let first = [(); 3].map(|()| random.bits());
        assert_eq!(
            first,
            [6457827717110365317, 3203168211198807973, 9817491932198370423]
        );
    }
}
