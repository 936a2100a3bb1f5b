//! A span's parameters and moments, and how a round's gradient moves them.

use annulus_core::TensorSpec;
use annulus_core::optim::{Optimizer, Step, norm_squared};

use crate::trainer::span::{SpanSums, SpanWorker, Use};

/// Parameters and moments of the tensors that a span uses.
///
/// The optimizer works on each element alone, so a tensor that two spans have ends with the same bits in both.
#[derive(Clone, Debug)]
pub struct SpanState {
    /// Numbers in the model's layout, ascending.
    tensors: Vec<usize>,
    /// Where each lies in the vectors below.
    layout: Vec<TensorSpec>,
    params: Vec<f32>,
    slots: Vec<Vec<f32>>,
    optimizer: Optimizer,
}

impl SpanState {
    /// As a worker's span begins.
    pub fn new(worker: &dyn SpanWorker, optimizer: Optimizer) -> Self {
        let params = worker.init();
        Self {
            tensors: worker.tensors().to_vec(),
            layout: worker.layout(),
            slots: vec![vec![0.0; params.len()]; optimizer.slots()],
            params,
            optimizer,
        }
    }

    /// The parameters, tensor by tensor.
    pub fn params(&self) -> &[f32] {
        &self.params
    }

    /// Where a tensor of the model's layout lies, if the span uses it.
    pub fn place(&self, tensor: usize) -> Option<std::ops::Range<usize>> {
        let spec = &self.layout[self.tensors.binary_search(&tensor).ok()?];
        Some(spec.offset..spec.offset + spec.len())
    }

    /// The gradient of each tensor, summed over its uses in the order of steps: one's own and those of other spans.
    pub fn combine(&self, own: &SpanSums, others: &[(Use, Vec<f32>)]) -> Vec<f32> {
        let of_own = own
            .uses
            .iter()
            .map(|(of, place)| (*of, &own.values[place.clone()]));
        let of_others = others.iter().map(|(of, values)| (*of, &values[..]));
        let mut all: Vec<(Use, &[f32])> = of_own.chain(of_others).collect();
        all.sort_by_key(|(of, _)| *of);
        let mut gradient = vec![0.0; self.params.len()];
        for (of, values) in all {
            let Some(place) = self.place(of.tensor) else {
                continue;
            };
            for (sum, value) in gradient[place].iter_mut().zip(values) {
                *sum += value;
            }
        }
        gradient
    }

    /// The sum of the squares of each tensor's gradient.
    pub fn squares(&self, gradient: &[f32]) -> Vec<(usize, f64)> {
        let places = self.tensors.iter().zip(&self.layout);
        let of_tensor = |(tensor, spec): (&usize, &TensorSpec)| {
            let values = &gradient[spec.offset..spec.offset + spec.len()];
            (*tensor, norm_squared(values))
        };
        places.map(of_tensor).collect()
    }

    /// One step by `scale` times a gradient.
    pub fn apply(&mut self, lr: f32, step: u64, scale: f32, gradient: &[f32]) {
        let step: Step = self.optimizer.step(lr, step, scale);
        for spec in &self.layout {
            let place = spec.offset..spec.offset + spec.len();
            let mut slots: Vec<&mut [f32]> = self
                .slots
                .iter_mut()
                .map(|slot| &mut slot[place.clone()])
                .collect();
            let (params, sums) = (&mut self.params[place.clone()], &gradient[place]);
            self.optimizer.apply(&step, params, &mut slots, sums, spec.decay);
        }
    }
}
