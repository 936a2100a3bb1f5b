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

/// What a span has summed up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpanSums {
    /// Where each use of a tensor lies in `values`, in the order of steps.
    pub uses: Vec<(Use, Range<usize>)>,
    /// The sums of gradients, one after the other.
    pub values: Vec<f32>,
    /// Sum of the losses over all samples; 0 but in the last span.
    pub loss_sum: f32,
    /// Microbatches in the sums.
    pub microbatches: u32,
}

/// A span's sums while microbatches come: one vector, which is handed in and out as it is.
#[derive(Debug, Default)]
pub(super) struct OrderedSums {
    uses: Vec<(Use, Range<usize>)>,
    values: Vec<f32>,
    steps: Vec<StepSum>,
    /// The first tensor of which a sum was not finite when it was added to.
    bad: Option<usize>,
}

/// How far one step's sum is.
#[derive(Debug)]
struct StepSum {
    /// Its uses among the span's.
    uses: Range<usize>,
    /// The microbatch whose turn it is: all before it are in the sum.
    next: u32,
    /// What has come before its turn: gradients by tensor.
    waiting: BTreeMap<u32, Vec<Option<TensorData>>>,
}

impl OrderedSums {
    /// Sums that go on from `values`, or begin at zero, of steps from `first` on, each with its tensors and their lengths.
    ///
    /// # Panics
    ///
    /// If `values` are not as many as the tensors take.
    pub fn new(first: usize, steps: &[Vec<(usize, usize)>], values: Option<Vec<f32>>) -> Self {
        let (mut uses, mut end) = (Vec::new(), 0);
        let mut of = Vec::new();
        for (step, tensors) in (first..).zip(steps) {
            let begin = uses.len();
            for (tensor, length) in tensors {
                let tensor = *tensor;
                uses.push((Use { step, tensor }, end..end + length));
                end += length;
            }
            of.push(StepSum {
                uses: begin..uses.len(),
                next: 0,
                waiting: BTreeMap::new(),
            });
        }
        let values = values.unwrap_or_else(|| vec![0.0; end]);
        assert_eq!(values.len(), end, "as many sums as the steps have");
        Self {
            uses,
            values,
            steps: of,
            bad: None,
        }
    }

    /// Whether there are none, not even of nothing.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Adds a microbatch's gradients with regard to the tensors of a step, by its place in the span, as soon as it is its turn.
    /// One that was added before is not added again.
    pub fn add(
        &mut self,
        place: usize,
        microbatch: u32,
        gradients: Vec<Option<TensorData>>,
    ) -> Result<(), WorkerError> {
        let step = &mut self.steps[place];
        if microbatch < step.next || step.waiting.contains_key(&microbatch) {
            return Ok(());
        }
        step.waiting.insert(microbatch, gradients);
        while let Some(gradients) = step.waiting.remove(&step.next) {
            step.next += 1;
            for ((of, place), gradient) in self.uses[step.uses.clone()].iter().zip(&gradients) {
                let Some(gradient) = gradient else { continue };
                if !add(&mut self.values[place.clone()], as_floats(gradient)?) {
                    self.bad.get_or_insert(of.tensor);
                }
            }
        }
        Ok(())
    }

    /// The sums, with these losses; the number of a tensor of which some are not finite, if there is one.
    pub fn finish(self, loss_sum: f32) -> Result<SpanSums, usize> {
        match self.bad {
            Some(tensor) => Err(tensor),
            None => Ok(SpanSums {
                microbatches: self.steps.iter().map(|step| step.next).min().unwrap_or(0),
                uses: self.uses,
                values: self.values,
                loss_sum,
            }),
        }
    }
}

/// Adds to sums; whether all are finite then. What is not stays so, whatever is added to it.
fn add(sums: &mut [f32], values: &[f32]) -> bool {
    let mut bad = 0;
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += value;
        // Without a branch, so that many are added at once.
        bad |= u32::from(!sum.is_finite());
    }
    bad == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gradient of two numbers, and none of a third.
    fn gradient(value: f32) -> Vec<Option<TensorData>> {
        vec![Some(TensorData::new(vec![value, -value], [2])), None]
    }

    fn begun(values: Option<Vec<f32>>) -> OrderedSums {
        OrderedSums::new(3, &[vec![(7, 2), (9, 1)], vec![(8, 1)]], values)
    }

    #[test]
    fn the_order_of_coming_does_not_matter_nor_does_coming_twice() {
        // Their sum depends on the order in which they are added.
        let values = [1e8f32, 1.0, -1e8, 0.5];
        let sum = |order: &[u32]| {
            let mut sums = begun(None);
            for microbatch in order {
                sums.add(0, *microbatch, gradient(values[*microbatch as usize]))
                    .unwrap();
            }
            (sums.steps[0].next, sums.values)
        };
        let sum_up = 1e8f32 + 1.0 - 1e8 + 0.5;
        let expected = (4, vec![sum_up, -sum_up, 0.0, 0.0]);
        assert_eq!(sum(&[0, 1, 2, 3]), expected);
        assert_eq!(sum(&[3, 2, 1, 0]), expected);
        assert_eq!(sum(&[0, 2, 0, 2, 1, 1, 3, 2]), expected);
        assert_eq!(sum(&[0, 2, 3]).0, 1);
    }

    #[test]
    fn sums_go_on_from_what_is_given_and_stand_where_their_step_says() {
        let mut sums = begun(Some(vec![1.0, 2.0, 3.0, 4.0]));
        sums.add(0, 0, gradient(0.5)).unwrap();
        sums.add(1, 0, vec![Some(TensorData::new(vec![1.0f32], [1]))])
            .unwrap();
        let sums = sums.finish(0.25).unwrap();
        assert_eq!(sums.values, [1.5, 1.5, 3.0, 5.0]);
        let of = |step, tensor, place| (Use { step, tensor }, place);
        assert_eq!(sums.uses, [of(3, 7, 0..2), of(3, 9, 2..3), of(4, 8, 3..4)]);
        assert_eq!((sums.loss_sum, sums.microbatches), (0.25, 1));
    }

    #[test]
    fn what_is_not_finite_names_its_tensor_also_when_it_is_added_to() {
        let mut sums = begun(None);
        sums.add(0, 0, gradient(f32::MAX)).unwrap();
        sums.add(0, 1, gradient(f32::MAX)).unwrap();
        sums.add(0, 2, gradient(f32::MIN)).unwrap();
        assert_eq!(sums.finish(0.0), Err(7));
        let mut sums = begun(Some(vec![0.0, f32::NAN, 0.0, 0.0]));
        sums.add(0, 0, gradient(1.0)).unwrap();
        assert_eq!(sums.finish(0.0), Err(7));
    }
}
