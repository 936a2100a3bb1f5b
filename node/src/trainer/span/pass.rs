//! One pass of a microbatch as the protocol asks for it, plain numbers in and out, by what computes a span.

use annulus_core::interface::SpanDone;

use super::super::worker::WorkerError;
use super::{Activation, ModelSteps, SpanWorker};

/// What a pass is done on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pass<'a> {
    /// Whether it is the backward pass; of the last span it is both.
    pub back: bool,
    /// The microbatch's samples.
    pub samples: &'a [u64],
    /// What the span before has given; nothing for the first.
    pub input: Vec<f32>,
    /// The gradient of what this one gives, for a backward pass; nothing for the last.
    pub gradient: Vec<f32>,
    /// For a backward pass, what gradients are added to, those of each step one after the other.
    pub sum: Vec<f32>,
}

impl Pass<'_> {
    /// Does it by a worker that has its parameters.
    ///
    /// # Errors
    ///
    /// If the device fails, or what came of it is no number.
    pub async fn by(self, worker: &mut dyn SpanWorker) -> Result<SpanDone, WorkerError> {
        let (span, model) = (worker.steps(), worker.model());
        let input = match span.start.checked_sub(1) {
            None => None,
            Some(before) => Some(activation(model, before, self.input)?),
        };
        let gradient = match self.back && span.end < model.steps() {
            false => None,
            true => Some(activation(model, span.end - 1, self.gradient)?),
        };
        if !self.back {
            let output = worker.forward(self.samples, input).await?.values;
            return Ok(SpanDone {
                output,
                ..SpanDone::default()
            });
        }
        worker.put(self.sum);
        let passed = worker.backward(0, self.samples, input, gradient).await?;
        let sum = worker.take()?.values;
        let output = passed.gradient.map(|gradient| gradient.values);
        Ok(SpanDone {
            output: output.unwrap_or_default(),
            sum,
            loss: passed.loss_sum.unwrap_or(0.0),
            ..SpanDone::default()
        })
    }
}

/// What a step gives, or its gradient, in its shape.
pub(super) fn activation(
    model: &ModelSteps,
    step: usize,
    values: Vec<f32>,
) -> Result<Activation, WorkerError> {
    let [positions, features] = model.shapes[step];
    let samples = values.len() / (positions * features).max(1);
    if samples * positions * features != values.len() {
        return Err(WorkerError::WrongLength {
            expected: positions * features,
            found: values.len(),
        });
    }
    let shape = [samples, positions, features];
    Ok(Activation { shape, values })
}
