//! Reads numbers back from a device.

use burn::tensor::{Tensor, TensorData};

use super::worker::WorkerError;
use crate::task::{Eval, Metrics, Scores};

pub(super) async fn read<const D: usize>(tensor: Tensor<D>) -> Result<TensorData, WorkerError> {
    let data = tensor.into_data_async().await;
    data.map_err(|error| WorkerError::Device {
        reason: error.to_string(),
    })
}

pub(super) fn as_floats(data: &TensorData) -> Result<&[f32], WorkerError> {
    data.as_slice().map_err(|error| WorkerError::Device {
        reason: format!("it gave values of another type than f32: {error:?}"),
    })
}

pub(super) async fn read_scores(scores: Scores) -> Result<Eval, WorkerError> {
    let loss = read_scalar(scores.loss).await?;
    let mut metrics = Metrics::new();
    for (name, value) in scores.metrics {
        let value = read_scalar(value).await?;
        if value.is_finite() {
            metrics.insert(name.to_owned(), value);
        }
    }
    Ok(Eval { loss, metrics })
}

pub(super) async fn read_scalar(tensor: Tensor<1>) -> Result<f32, WorkerError> {
    let data = read(tensor).await?;
    match as_floats(&data)? {
        [value] => Ok(*value),
        values => Err(WorkerError::BadLoss {
            problem: format!("or score has {} elements; return the mean", values.len()),
        }),
    }
}
