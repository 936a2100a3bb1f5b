//! The random numbers of a world, drawn from its seed.

use crate::base::random::SplitMix;

/// The generator of all random numbers in a world.
#[derive(Clone, Debug)]
pub struct Rng(SplitMix);

impl Rng {
    /// A generator that draws the same numbers for the same seed.
    pub fn new(seed: u64) -> Self {
        let mut rng = Self(SplitMix(seed ^ 0x5851_F42D_4C95_7F2D));
        rng.next();
        rng
    }

    /// A generator of its own for one purpose, so that drawing more there changes nothing else.
    pub fn fork(&mut self) -> Self {
        Self::new(self.next())
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0.bits()
    }

    /// Below `n`; 0 if `n` is 0. The bias of the multiplication is below `n / 2^64`.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// An index into something of that length.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// In `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    /// True with that probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// From `low` to `high`, with all octaves equally likely.
    pub fn octaves(&mut self, low: f64, high: f64) -> f64 {
        low * libm::exp2(self.unit() * libm::log2(high / low))
    }

    /// Time to the next event of a Poisson process with that mean.
    pub fn wait(&mut self, mean: f64) -> f64 {
        -libm::log(1.0 - self.unit()) * mean
    }

    /// A reference to one of them.
    pub fn pick_ref<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        (!from.is_empty()).then(|| &from[self.index(from.len())])
    }

    /// One of them.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.index(from.len())])
    }
}
