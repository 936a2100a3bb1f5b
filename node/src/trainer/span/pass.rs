//! Does one pass of a microbatch as the protocol asks for it, with plain numbers in and out.

use annulus_core::interface::{Pass, SpanDone};

use super::super::worker::WorkerError;
use super::{Activation, ModelSteps, SpanWorker};

/// Does a pass on a worker that has its parameters. `samples` are those at the positions of the pass.
///
/// # Errors
///
/// If the device fails, or a loss or a sum is not finite.
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
    let passed = worker.backward(samples, input, gradient, pass.sum).await?;
    let output = passed.gradient.map(|gradient| gradient.values);
    Ok(SpanDone {
        output: output.unwrap_or_default(),
        sum: passed.sums,
        loss: passed.loss_sum.unwrap_or(0.0),
        ..SpanDone::default()
    })
}

/// A step's output, or its gradient, with its shape.
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
