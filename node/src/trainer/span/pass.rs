//! One pass of a microbatch as the protocol asks for it, plain numbers in and out, by what computes a span.

use annulus_core::interface::{Pass, SpanDone};

use super::super::worker::WorkerError;
use super::{Activation, ModelSteps, SpanWorker};

/// Does it by a worker that has its parameters; `samples` are those at the positions of the pass.
///
/// # Errors
///
/// If the device fails, or what came of it is no number.
pub async fn pass(worker: &mut dyn SpanWorker, pass: Pass, samples: &[u64]) -> Result<SpanDone, WorkerError> {
    let (span, model) = (worker.steps(), worker.model());
    let input = match span.start.checked_sub(1) {
        None => None,
        Some(before) => Some(activation(model, before, pass.input)?),
    };
    let gradient = match pass.back && span.end < model.steps() {
        false => None,
        true => Some(activation(model, span.end - 1, pass.gradient)?),
    };
    if !pass.back {
        let output = worker.forward(samples, input).await?.values;
        return Ok(SpanDone {
            output,
            ..SpanDone::default()
        });
    }
    worker.put(pass.sum);
    let passed = worker.backward(0, samples, input, gradient).await?;
    let sum = worker.take()?.values;
    let output = passed.gradient.map(|gradient| gradient.values);
    Ok(SpanDone {
        output: output.unwrap_or_default(),
        sum,
        loss: passed.loss_sum.unwrap_or(0.0),
        ..SpanDone::default()
    })
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
