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
//! Data larger than a machine is read in *chunks* of neighbouring samples. Then the network orders the chunks, and a
//! batch takes a few samples of each of some chunks, the *stripes*, in turn until these are used up. A member with the
//! same place in each batch reads from the same stripes, so it needs only its share of the data.
//!
//! It knows neither what a sample is, nor who works on it.

use crate::base::random::{GOLDEN, mix};
use crate::run::config::Manifest;
use std::num::{NonZeroU16, NonZeroU32, NonZeroU64};
use std::ops::Range;

/// The order in which a run visits its samples. Equal on all peers, since all fields are in the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shuffle {
    /// Picks one of the orders.
    pub seed: u64,
    /// Samples in an epoch, that is, in the data set.
    pub samples: NonZeroU64,
    /// How it keeps to few chunks of the data at a time.
    pub stripes: Stripes,
}

/// Which samples lie side by side in the data and are visited in the same part of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripes {
    /// Samples of a chunk. 1: each sample goes where the network puts it.
    pub chunk: NonZeroU32,
    /// Chunks that are open at a time. If it divides the batch, a place in the batch stays with one of them.
    pub open: NonZeroU16,
    /// Samples of a batch.
    pub batch: NonZeroU32,
}

impl Stripes {
    /// Chunks of one sample: any sample anywhere.
    pub const NONE: Self = Self {
        chunk: NonZeroU32::MIN,
        open: NonZeroU16::MIN,
        batch: NonZeroU32::MIN,
    };

    /// The chunk, by its place in the epoch, and the sample in it at a position of an epoch of this many whole chunks.
    fn place(&self, position: u64, chunks: u64) -> (u64, u64) {
        let (chunk, open) = (u64::from(self.chunk.get()), u64::from(self.open.get()));
        let first = position / (open * chunk) * open;
        // The last group has the chunks that are left.
        let open = open.min(chunks - first);
        let unit = (u64::from(self.batch.get()) / open).max(1);
        let rest = position - first * chunk;
        let turn = rest / (open * unit);
        // The last turn has what is left of each chunk.
        let (rest, left) = (rest - turn * open * unit, unit.min(chunk - turn * unit));
        (first + rest / left, turn * unit + rest % left)
    }
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
            stripes: Stripes {
                chunk: manifest.chunk,
                open: manifest.stripes,
                batch: manifest.batch,
            },
        }
    }

    /// Guesses where this share will lie once half of each open chunk is used up. For a share in the second half, that is in the
    /// chunks that come next. None if any sample lies anywhere.
    pub fn ahead(&self, positions: &[Range<u64>]) -> Vec<Range<u64>> {
        let Stripes { chunk, open, batch } = self.stripes;
        if chunk.get() == 1 {
            return Vec::new();
        }
        let (half, batch) = (
            u64::from(chunk.get()) * u64::from(open.get()) / 2,
            batch.get().into(),
        );
        let later = half.max(1).next_multiple_of(batch);
        positions
            .iter()
            .map(|range| range.start + later..range.end + later)
            .collect()
    }

    /// The sample, below `samples`, at a position of the stream.
    ///
    /// Takes 40 ns with 60 thousand samples, 79 ns with 10 million (`cargo run --release -p annulus-core --example
    /// shuffle_rate`, on one core of a 2.3 GHz Sapphire Rapids Xeon).
    pub fn index(&self, position: u64) -> u64 {
        let (n, chunk) = (self.samples.get(), u64::from(self.stripes.chunk.get()));
        let (epoch, position, chunks) = (position / n, position % n, n / chunk);
        // Samples beyond the last whole chunk come last.
        if position >= chunks * chunk {
            return position;
        }
        let (place, within) = self.stripes.place(position, chunks);
        let network = Network::new(self.seed, epoch, chunks);
        let mut index = network.permute(place);
        while index >= chunks {
            index = network.permute(index);
        }
        index * chunk + within
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
mod tests;
