//! What a task learns from, sample by sample: [`Dataset`], and one for samples that fit into memory.
//!
//! It knows neither models nor devices.

use annulus_core::Digest;
use serde::Serialize;

/// Samples to train on, made into batches on the host.
///
/// Batches are made ahead on a thread of their own while the device works, so this is the place for what takes time:
/// decoding, cropping, tokenizing. What it makes must follow from the samples' numbers alone: every peer that works on a
/// sample works on the same.
pub trait Dataset: Send + Sync {
    /// What the loss is computed from: plain numbers, which the task makes tensors of. Tensors have no place in it.
    type Batch: Send + 'static;

    /// How many samples there are: they are called 0 to `len() - 1`.
    fn len(&self) -> u64;

    /// Whether there are none, which no run can be trained on.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A hash of all that is trained on. A peer with another one is refused.
    fn digest(&self) -> Digest;

    /// The samples of these numbers, never none, in this order.
    fn batch(&self, samples: &[u64]) -> Self::Batch;
}

/// A data set of samples in memory; a batch is a `Vec` of copies of them.
#[derive(Clone, Debug)]
pub struct InMemory<S> {
    samples: Vec<S>,
    digest: Digest,
}

impl<S: Serialize> InMemory<S> {
    /// Of these samples, whose hash is that of their fields in order: all peers must come by equal bits. (A sine is not the
    /// same on all machines; a tenth is.)
    ///
    /// # Panics
    ///
    /// If a sample cannot be written down: serde's own types and derives can.
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
