//! The data of a task, sample by sample: [`Dataset`], and [`InMemory`] for samples that fit into memory.
//!
//! It knows neither models nor devices.

use super::error::TaskError;
use annulus_core::Digest;
use annulus_core::random::mix;
use serde::Serialize;
use std::num::NonZeroU32;
use std::time::Duration;

/// Samples to train on, made into batches on the host.
///
/// Batches are made ahead of time on a separate thread while the device works, so put slow work here: decoding,
/// cropping, tokenizing. A batch must depend on the samples' numbers alone, since every peer that works on a sample
/// must get the same.
///
/// ```
/// use annulus::Dataset;
/// use annulus::task::Digest;
///
/// /// The numbers below a bound; a batch is their squares.
/// struct Squares(u64);
///
/// impl Dataset for Squares {
///     type Batch = Vec<u64>;
///
///     fn len(&self) -> u64 {
///         self.0
///     }
///
///     fn digest(&self) -> Digest {
///         Digest::of(&self.0.to_le_bytes())
///     }
///
///     fn batch(&self, samples: &[u64]) -> Vec<u64> {
///         samples.iter().map(|number| number * number).collect()
///     }
/// }
///
/// assert_eq!(Squares(10).batch(&[3, 1]), [9, 1]);
/// assert!(!Squares(10).is_empty());
/// ```
pub trait Dataset: Send + Sync {
    /// The input of the loss: plain numbers, which the task turns into tensors. It holds no tensors.
    type Batch: Send + 'static;

    /// How many samples there are. Their numbers are 0 to `len() - 1`.
    fn len(&self) -> u64;

    /// Whether there are none, in which case no run can train.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A hash of all training data. A peer with another hash is refused.
    fn digest(&self) -> Digest;

    /// The samples with these numbers, at least one, in this order.
    fn batch(&self, samples: &[u64]) -> Self::Batch;

    /// The samples of these draws, at least one, in this order. The default takes the samples as they are. Implement it to vary
    /// them, such as by cropping: by [`Draw::seed`] alone, so that every peer makes the same of a draw.
    fn drawn(&self, draws: &[Draw]) -> Self::Batch {
        let samples: Vec<u64> = draws.iter().map(|draw| draw.sample).collect();
        self.batch(&samples)
    }

    /// Asks for the data of these draws, if it is streamed, and waits for so long at most. Returns whether all of it is here. The
    /// default is for data that is here as a whole.
    fn have(&self, draws: &[Draw], wait: Duration) -> bool {
        let _ = (draws, wait);
        true
    }

    /// How many samples in a row lie side by side in data that is *streamed*: each peer fetches only what it trains on, while it
    /// trains. The run's order then keeps each peer to few such chunks at a time. 1: every peer needs all data.
    fn chunk(&self) -> NonZeroU32 {
        NonZeroU32::MIN
    }

    /// Where a sample lies in the data set of whoever made the data: for a process that computes with its own copy. Implement it if
    /// some rows are left out.
    fn row(&self, sample: u64) -> u64 {
        sample
    }

    /// Whether every batch so far came from the data with this [`digest`](Self::digest). The peer asks after each batch. If
    /// not, it drops the batch and leaves the run. Implement it for data that is read from files during training.
    ///
    /// # Errors
    ///
    /// If a file has changed or cannot be read: which file, and what to do.
    fn intact(&self) -> Result<(), TaskError> {
        Ok(())
    }
}

/// Where each sample lies in the data set that the data was made from: see [`Dataset::row`].
pub type Rows = dyn Fn(u64) -> u64 + Send + Sync;

/// A sample in one of the epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// The sample's number.
    pub sample: u64,
    /// For what is random about it: equal on all peers of a run, and another in each epoch and for each sample.
    pub seed: u64,
}

/// The batch of some draws of a run with this seed, by the numbers that [`Shuffle::draws`](annulus_core::shuffle::Shuffle::draws)
/// gives.
pub(crate) fn batch_of<D: Dataset>(dataset: &D, seed: u64, draws: &[u64]) -> D::Batch {
    dataset.drawn(&drawn(dataset, seed, draws))
}

/// The draws of a run with this seed, by their numbers.
pub(crate) fn drawn<D: Dataset>(dataset: &D, seed: u64, draws: &[u64]) -> Vec<Draw> {
    let draw = |number: &u64| Draw {
        sample: number % dataset.len(),
        seed: mix(mix(seed) ^ number),
    };
    draws.iter().map(draw).collect()
}

/// A data set of samples in memory. A batch is a `Vec` of copies of them.
///
/// ```
/// use annulus::{Dataset, InMemory};
///
/// let set = InMemory::new(vec![(0.5f32, 'a'), (1.5, 'b')]);
/// assert_eq!(set.len(), 2);
/// assert_eq!(set.batch(&[1, 0]), [(1.5, 'b'), (0.5, 'a')]);
/// assert_ne!(set.digest(), InMemory::new(vec![(0.5f32, 'a')]).digest());
/// ```
#[derive(Clone, Debug)]
pub struct InMemory<S> {
    samples: Vec<S>,
    digest: Digest,
}

impl<S: Serialize> InMemory<S> {
    /// A data set of these samples. Its hash covers their fields in order, so all peers must have equal bits. (A sine
    /// is not the same on all machines; a tenth is.)
    ///
    /// # Panics
    ///
    /// If a sample cannot be serialized. All of serde's own types and derives can.
    pub fn new(samples: Vec<S>) -> Self {
        let mut hasher = blake3::Hasher::new();
        for sample in &samples {
            hasher.update(&postcard::to_allocvec(sample).expect("a sample of plain data"));
        }
        let digest = Digest(*hasher.finalize().as_bytes());
        Self { samples, digest }
    }
}

impl<S: Clone + Send + Sync + 'static> Dataset for InMemory<S> {
    type Batch = Vec<S>;

    fn len(&self) -> u64 {
        self.samples.len() as u64
    }

    fn digest(&self) -> Digest {
        self.digest
    }

    fn batch(&self, samples: &[u64]) -> Vec<S> {
        samples
            .iter()
            .map(|i| self.samples[*i as usize].clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_holds_its_samples_in_their_order() {
        let set = InMemory::new(vec![(0.5f32, 'a'), (1.5, 'b'), (2.5, 'c')]);
        assert_eq!(set.len(), 3);
        assert_eq!(set.batch(&[2, 0, 2]), [(2.5, 'c'), (0.5, 'a'), (2.5, 'c')]);
    }

    /// Gives the draws themselves.
    struct Draws;

    impl Dataset for Draws {
        type Batch = Vec<Draw>;

        fn len(&self) -> u64 {
            10
        }

        fn digest(&self) -> Digest {
            Digest::of(b"")
        }

        fn batch(&self, _samples: &[u64]) -> Vec<Draw> {
            unreachable!("draws are not taken as samples")
        }

        fn drawn(&self, draws: &[Draw]) -> Vec<Draw> {
            draws.to_vec()
        }
    }

    #[test]
    fn a_draw_has_its_own_seed_in_each_epoch_and_each_run() {
        let drawn = batch_of(&Draws, 1, &[3, 13, 4]);
        assert_eq!(
            drawn.iter().map(|draw| draw.sample).collect::<Vec<_>>(),
            [3, 3, 4]
        );
        let seeds: Vec<u64> = drawn
            .iter()
            .chain(&batch_of(&Draws, 2, &[3]))
            .map(|draw| draw.seed)
            .collect();
        let distinct: std::collections::HashSet<_> = seeds.iter().collect();
        assert_eq!(distinct.len(), 4);
        assert_eq!(batch_of(&Draws, 1, &[13])[0].seed, seeds[1]);
        let set = InMemory::new(vec!['a', 'b', 'c']);
        assert_eq!(batch_of(&set, 1, &[2, 5, 3]), ['c', 'c', 'a']);
    }

    #[test]
    fn the_digest_is_that_of_the_samples_in_their_order() {
        let digest = |samples: &[(f32, u64)]| InMemory::new(samples.to_vec()).digest();
        let whole = digest(&[(0.5, 1), (1.5, 300)]);
        assert_eq!(digest(&[(0.5, 1), (1.5, 300)]), whole);
        for other in [
            &[(1.5, 300), (0.5, 1)][..],
            &[(0.5, 1), (1.5, 301)],
            &[(-0.5, 1), (1.5, 300)],
            &[(0.5, 1)],
            &[],
        ] {
            assert_ne!(digest(other), whole, "{other:?}");
        }
    }
}
