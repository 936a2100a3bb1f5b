//! The endless stream of shuffled epochs, without a table.
//!
//! Position `p` of the stream lies in epoch `p / n`, and each epoch visits all `n` samples once, in its own order.
//! Any peer can compute the sample at any position, from the seed alone and in constant memory.
//!
//! An epoch's order is a keyed permutation of `0..n`: a Feistel network (Luby and Rackoff 1988) on the smallest
//! power of two that is not below `n`. The index is cut into two halves (unequal by a bit where the width is odd).
//! In turn, each half is xored with a keyed hash of the other; this can be undone, so it is a bijection for every
//! hash.
//!
//! Where the result is not below `n`, the network is applied again until it is ("cycle walking", Black and Rogaway
//! 2002). That keeps it a bijection on `0..n` and takes fewer than two rounds through the network on average. The
//! hash is the finalizer of SplitMix64 (Steele, Lea and Flood 2014, constants of Stafford's Mix13), which also
//! derives the epoch's key from the seed and the epoch. This is mixing for training, not cryptography.
//!
//! It knows neither what a sample is, nor who works on it.

use crate::base::random::{GOLDEN, mix};
use crate::run::config::Manifest;
use std::num::NonZeroU64;
use std::ops::Range;

/// The order in which a run visits its samples. Equal on all peers, since both fields are in the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shuffle {
    /// Picks one of the orders.
    pub seed: u64,
    /// Samples in an epoch, that is, in the data set.
    pub samples: NonZeroU64,
}

/// Rounds for large epochs. Four are pseudo-random for large halves (Luby and Rackoff); NIST's FF1 takes ten.
const ROUNDS: u32 = 10;

/// Rounds for indices of fewer than [`SMALL_BITS`]. Halves of a bit or two mix slowly: over 720 x 5000 epochs of six
/// samples their 720 orders are visibly uneven (chi-square) with 24 rounds, and no longer with 32.
const SMALL_ROUNDS: u32 = 32;

/// A guess on the safe side: eight rounds do well from six bits on.
const SMALL_BITS: u32 = 12;

/// The number of samples at these positions of the stream.
pub fn count(positions: &[Range<u64>]) -> u64 {
    positions.iter().map(|range| range.end - range.start).sum()
}

impl Shuffle {
    /// The shuffle of a run.
    pub fn of(manifest: &Manifest) -> Self {
        Self {
            seed: manifest.seed,
            samples: manifest.samples,
        }
    }

    /// The sample, below `samples`, at a position of the stream.
    ///
    /// Takes 40 ns with 60 thousand samples, 79 ns with 10 million (`cargo run --release -p annulus-core --example
    /// shuffle_rate`, on one core of a 2.3 GHz Sapphire Rapids Xeon).
    pub fn index(&self, position: u64) -> u64 {
        let n = self.samples.get();
        let network = Network::new(self.seed, position / n, n);
        let mut index = network.permute(position % n);
        while index >= n {
            index = network.permute(index);
        }
        index
    }

    /// The draws at some positions, in order. A draw is a sample in an epoch, as one number: the sample, plus the number of
    /// samples for each epoch before. So it also tells an epoch's crop of a picture from another's.
    pub fn draws(&self, positions: &[Range<u64>]) -> Vec<u64> {
        let positions = positions.iter().cloned().flatten();
        let epoch = |position| position - position % self.samples;
        positions
            .map(|position| epoch(position).wrapping_add(self.index(position)))
            .collect()
    }
}

/// A permutation of `0..2^(low_bits + high_bits)`.
struct Network {
    key: u64,
    rounds: u32,
    low_bits: u32,
    low_mask: u64,
    high_mask: u64,
}

impl Network {
    fn new(seed: u64, epoch: u64, n: u64) -> Self {
        let bits = u64::BITS - (n - 1).leading_zeros();
        let low_bits = bits.div_ceil(2);
        Self {
            key: mix(mix(seed.wrapping_add(GOLDEN)).wrapping_add(epoch)),
            rounds: if bits < SMALL_BITS { SMALL_ROUNDS } else { ROUNDS },
            low_bits,
            low_mask: (1 << low_bits) - 1,
            high_mask: (1 << (bits - low_bits)) - 1,
        }
    }

    fn permute(&self, index: u64) -> u64 {
        let mut low = index & self.low_mask;
        let mut high = index >> self.low_bits;
        let mut key = self.key;
        for _ in 0..self.rounds / 2 {
            key = key.wrapping_add(GOLDEN);
            low ^= mix(key ^ high) & self.low_mask;
            key = key.wrapping_add(GOLDEN);
            high ^= mix(key ^ low) & self.high_mask;
        }
        high << self.low_bits | low
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn shuffle(seed: u64, samples: u64) -> Shuffle {
        let samples = NonZeroU64::new(samples).unwrap();
        Shuffle { seed, samples }
    }

    fn epoch(shuffle: Shuffle, epoch: u64) -> Vec<u64> {
        let n = shuffle.samples.get();
        (epoch * n..(epoch + 1) * n)
            .map(|position| shuffle.index(position))
            .collect()
    }

    #[track_caller]
    fn assert_permutation(order: &[u64]) {
        let mut seen = vec![false; order.len()];
        for index in order {
            let seen = &mut seen[*index as usize];
            assert!(!*seen, "{index} twice in an epoch of {}", order.len());
            *seen = true;
        }
    }

    /// Chi-square statistic of counts that should be equal.
    fn chi_square(counts: &[u64]) -> f64 {
        let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        counts
            .iter()
            .map(|count| (*count as f64 - expected).powi(2) / expected)
            .sum()
    }

    /// Six standard deviations above the mean of the chi-square distribution.
    fn limit(categories: usize) -> f64 {
        let freedom = (categories - 1) as f64;
        freedom + 6.0 * (2.0 * freedom).sqrt()
    }

    #[test]
    fn each_epoch_visits_every_sample_once() {
        for n in 1..=300 {
            for number in 0..4 {
                assert_permutation(&epoch(shuffle(42, n), number));
            }
        }
        for n in [60_000, 65_535, 65_536, 65_537, 1_000_003] {
            assert_permutation(&epoch(shuffle(7, n), 3));
        }
    }

    #[test]
    fn huge_epochs_stay_in_range_and_do_not_repeat() {
        for n in [1 << 32, (1 << 32) + 1, 1 << 63, u64::MAX] {
            let shuffle = shuffle(1, n);
            let mut seen = HashSet::new();
            for i in 0..50_000u64 {
                let index = shuffle.index(i * (n / 50_000));
                assert!(index < n && seen.insert(index));
            }
        }
        assert!(shuffle(1, 1000).index(u64::MAX) < 1000);
        assert_eq!(shuffle(9, 1).index(0), 0);
        assert_eq!(shuffle(9, 1).index(u64::MAX), 0);
    }

    #[test]
    fn epochs_and_seeds_have_their_own_orders() {
        let orders: HashSet<_> = (0..50).map(|number| epoch(shuffle(5, 100), number)).collect();
        assert_eq!(orders.len(), 50);
        let orders: HashSet<_> = (0..50).map(|seed| epoch(shuffle(seed, 100), 0)).collect();
        assert_eq!(orders.len(), 50);
        // Seed s in epoch e + 1 is not seed s + 1 in epoch e.
        assert_ne!(epoch(shuffle(5, 100), 1), epoch(shuffle(6, 100), 0));
    }

    #[test]
    fn a_draw_is_a_sample_in_an_epoch() {
        let shuffle = shuffle(5, 10);
        let draws = shuffle.draws(&[7..9, 18..23]);
        let expected =
            [7, 8, 18, 19, 20, 21, 22].map(|position| position / 10 * 10 + shuffle.index(position));
        assert_eq!(draws, expected);
        let all: HashSet<u64> = shuffle.draws(&[0..20, 20..50]).into_iter().collect();
        assert_eq!(all, (0..50).collect());
    }

    /// Over many epochs each sample stands at each position equally often.
    #[test]
    fn every_position_sees_every_sample_equally_often() {
        for n in [2, 3, 5, 8, 10, 33, 64] {
            let shuffle = shuffle(2026, n);
            let mut counts = vec![0; (n * n) as usize];
            for position in 0..n * 40_000 {
                counts[(position % n * n + shuffle.index(position)) as usize] += 1;
            }
            for (position, counts) in counts.chunks(n as usize).enumerate() {
                let got = chi_square(counts);
                assert!(got < limit(counts.len()), "n {n}, position {position}: {got}");
            }
        }
    }

    /// Over many epochs all orders of few samples come equally often.
    #[test]
    fn every_order_of_few_samples_comes_equally_often() {
        for (n, orders) in [(2, 2), (3, 6), (4, 24), (5, 120), (6, 720)] {
            let mut counts = std::collections::HashMap::new();
            for number in 0..orders * 200 {
                *counts.entry(epoch(shuffle(11, n), number)).or_insert(0) += 1;
            }
            let counts: Vec<u64> = counts.into_values().collect();
            assert_eq!(counts.len() as u64, orders, "n {n}");
            let got = chi_square(&counts);
            assert!(got < limit(counts.len()), "n {n}: {got}");
        }
    }

    /// Over many epochs all pairs of neighbours come equally often.
    #[test]
    fn neighbours_are_independent() {
        for n in [7, 20, 50] {
            let shuffle = shuffle(77, n);
            let mut counts = vec![0; (n * n) as usize];
            for number in 0..n * n * 100 {
                let (one, next) = (shuffle.index(number * n), shuffle.index(number * n + 1));
                counts[(one * n + next) as usize] += 1;
            }
            let (same, others): (Vec<_>, Vec<_>) =
                (0u64..).zip(counts).partition(|(pair, _)| pair / n == pair % n);
            assert!(same.iter().all(|(_, count)| *count == 0));
            let counts: Vec<u64> = others.into_iter().map(|(_, count)| count).collect();
            let got = chi_square(&counts);
            assert!(got < limit(counts.len()), "n {n}: {got}");
        }
    }

    /// Within one epoch the order shows no trace of the positions: neither where samples land, nor the step from one
    /// to the next.
    #[test]
    fn one_epoch_looks_random() {
        const BINS: u64 = 16;
        for n in [10_000, 65_536, 100_003] {
            let order = epoch(shuffle(3, n), 0);
            let mut landed = vec![0; (BINS * BINS) as usize];
            let mut steps = vec![0; BINS as usize];
            let mut parity = vec![0; 4];
            for (position, pair) in (0u64..).zip(order.windows(2)) {
                landed[(position * BINS / n * BINS + pair[0] * BINS / n) as usize] += 1;
                steps[((pair[1] + n - pair[0]) % n * BINS / n) as usize] += 1;
                parity[(position % 2 * 2 + pair[0] % 2) as usize] += 1;
            }
            for counts in [landed, steps, parity] {
                let got = chi_square(&counts);
                assert!(got < limit(counts.len()), "n {n}: {got} in {} bins", counts.len());
            }
        }
    }

    /// Peers of all versions and machines must agree on the order.
    #[test]
    fn the_order_is_pinned() {
        assert_eq!(epoch(shuffle(42, 10), 0), [1, 2, 9, 7, 5, 4, 3, 8, 6, 0]);
        assert_eq!(shuffle(42, 1_000_000_007).index(123_456_789_012), 486_429_956);
    }
}
