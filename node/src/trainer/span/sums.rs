//! Sums of gradients whose bits do not depend on the order in which microbatches come.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::TensorData;
use serde::{Deserialize, Serialize};

use super::super::read::as_floats;
use super::super::worker::WorkerError;

/// A step's use of a parameter tensor: what gradients are summed for. Where several steps use one tensor its gradient
/// is the sum over its uses, in the order of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Use {
    /// The step.
    pub step: usize,
    /// The tensor's number in the layout.
    pub tensor: usize,
}

/// A step's gradients, summed up over microbatches.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSum {
    /// The step.
    pub step: usize,
    /// Where each tensor that it uses lies in `values`.
    pub tensors: Vec<(usize, Range<usize>)>,
    /// The sums.
    pub values: Vec<f32>,
}

impl StepSum {
    /// Zeros for tensors of these lengths.
    pub(super) fn zeros(step: usize, tensors: Vec<(usize, usize)>) -> Self {
        let length = tensors.iter().map(|(_, length)| length).sum();
        Self::of(step, tensors, vec![0.0; length])
    }

    /// These sums for tensors of these lengths.
    pub(super) fn of(step: usize, tensors: Vec<(usize, usize)>, values: Vec<f32>) -> Self {
        let mut end = 0;
        let places = tensors.iter().map(|&(tensor, length)| {
            let start = end;
            end += length;
            (tensor, start..end)
        });
        let tensors = places.collect();
        Self {
            step,
            tensors,
            values,
        }
    }
}

/// One step's sum while microbatches come.
#[derive(Debug)]
pub(super) struct OrderedSum {
    pub sum: StepSum,
    /// The microbatch whose turn it is: all before it are in the sum.
    pub next: u32,
    /// What has come before its turn: gradients by tensor.
    waiting: BTreeMap<u32, Vec<Option<TensorData>>>,
}

impl OrderedSum {
    pub fn new(sum: StepSum) -> Self {
        Self {
            sum,
            next: 0,
            waiting: BTreeMap::new(),
        }
    }

    /// Whether this microbatch's gradients are there already.
    pub fn has(&self, microbatch: u32) -> bool {
        microbatch < self.next || self.waiting.contains_key(&microbatch)
    }

    /// Adds a microbatch's gradients, one for each tensor, as soon as it is its turn.
    pub fn add(&mut self, microbatch: u32, gradients: Vec<Option<TensorData>>) -> Result<(), WorkerError> {
        if self.has(microbatch) {
            return Ok(());
        }
        self.waiting.insert(microbatch, gradients);
        while let Some(gradients) = self.waiting.remove(&self.next) {
            self.next += 1;
            for ((_, place), gradient) in self.sum.tensors.iter().zip(&gradients) {
                let Some(gradient) = gradient else { continue };
                let sums = &mut self.sum.values[place.clone()];
                for (sum, value) in sums.iter_mut().zip(as_floats(gradient)?) {
                    *sum += value;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_coming_does_not_matter_nor_does_coming_twice() {
        let gradient = |microbatch: u32| {
            // Their sum depends on the order in which they are added.
            let value = [1e8f32, 1.0, -1e8, 0.5][microbatch as usize];
            vec![Some(TensorData::new(vec![value, -value], [2])), None]
        };
        let sum = |order: &[u32]| {
            let mut sums = OrderedSum::new(StepSum::zeros(3, vec![(7, 2), (9, 1)]));
            for microbatch in order {
                sums.add(*microbatch, gradient(*microbatch)).unwrap();
            }
            (sums.next, sums.sum.values)
        };
        let expected = (4, vec![1e8f32 + 1.0 - 1e8 + 0.5, -1e8f32 - 1.0 + 1e8 - 0.5, 0.0]);
        assert_eq!(sum(&[0, 1, 2, 3]), expected);
        assert_eq!(sum(&[3, 2, 1, 0]), expected);
        assert_eq!(sum(&[0, 2, 0, 2, 1, 1, 3, 2]), expected);
        assert_eq!(sum(&[0, 2, 3]).0, 1);
    }
}
