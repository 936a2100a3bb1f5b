//! The samples of a model that came as a file: tensors whose first axis counts them.
//!
//! It knows nothing of models.

use annulus_core::Digest;
use annulus_graph::HostTensor;
use std::ops::Range;

use crate::task::{Dataset, TaskError};

/// Samples to train on, followed by those that are held out.
#[derive(Debug)]
pub struct Samples {
    /// One tensor for each input of the model.
    tensors: Vec<(String, HostTensor)>,
    trained: usize,
    held_out: usize,
    digest: Digest,
}

/// Some of the samples.
#[derive(Clone, Debug)]
pub struct Batch {
    /// A tensor for each input of the model.
    pub inputs: Vec<(String, HostTensor)>,
    /// Follows from the samples' numbers: the seed of dropout.
    pub seed: u64,
}

impl Samples {
    /// Samples of a model. The last `share` of them is held out. `digest` covers all of the run's data.
    ///
    /// # Errors
    ///
    /// If the tensors do not have the same number of samples.
    pub fn new(tensors: Vec<(String, HostTensor)>, share: f64, digest: Digest) -> Result<Self, TaskError> {
        let mut counts = tensors
            .iter()
            .map(|(name, tensor)| (name, tensor.shape().first().copied()));
        let Some((first, Some(count))) = counts.next() else {
            return Err("samples.safetensors has no sample; export the model with a data set".into());
        };
        if let Some((name, other)) = counts.find(|(_, other)| *other != Some(count)) {
            let other = other.unwrap_or(0);
            let problem =
                format!("samples.safetensors has {count} samples of `{first}`, but {other} of `{name}`");
            return Err(problem.into());
        }
        // Rounds down, so a few samples are all trained on.
        let held_out = (count as f64 * share) as usize;
        Ok(Self {
            tensors,
            trained: count - held_out,
            held_out,
            digest,
        })
    }

    /// How many samples are held out.
    pub fn held_out(&self) -> usize {
        self.held_out
    }

    /// Some of the held-out samples.
    pub fn test(&self, numbers: Range<usize>) -> Batch {
        self.pick(numbers.map(|number| self.trained + number).collect())
    }

    /// The first samples, at most this many.
    pub fn first(&self, count: usize) -> Batch {
        self.pick((0..count.min(self.trained)).collect())
    }

    fn pick(&self, numbers: Vec<usize>) -> Batch {
        let inputs = self.tensors.iter().map(|(name, tensor)| {
            let mut shape = tensor.shape().to_vec();
            let each: usize = shape[1..].iter().product();
            shape[0] = numbers.len();
            let places = numbers
                .iter()
                .flat_map(|number| number * each..(number + 1) * each);
            let picked = HostTensor::new(shape, tensor.numbers().pick(places));
            (name.clone(), picked.expect("as many numbers as the shape says"))
        });
        let mut hasher = blake3::Hasher::new();
        for number in &numbers {
            hasher.update(&(*number as u64).to_le_bytes());
        }
        let mut seed = [0; 8];
        hasher.finalize_xof().fill(&mut seed);
        Batch {
            inputs: inputs.collect(),
            seed: u64::from_le_bytes(seed),
        }
    }
}

impl Dataset for Samples {
    type Batch = Batch;

    fn len(&self) -> u64 {
        self.trained as u64
    }

    fn digest(&self) -> Digest {
        self.digest
    }

    fn batch(&self, samples: &[u64]) -> Batch {
        self.pick(samples.iter().map(|sample| *sample as usize).collect())
    }
}
