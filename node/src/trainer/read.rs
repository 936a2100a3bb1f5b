//! Reads numbers back from a device.

use burn::tensor::{Tensor, TensorData, Transaction};

use super::worker::WorkerError;

pub(super) async fn read<const D: usize>(tensor: Tensor<D>) -> Result<TensorData, WorkerError> {
    let data = tensor.into_data_async().await;
    data.map_err(|error| WorkerError::Device {
        reason: error.to_string(),
    })
}

/// Both at once: waiting for a device costs more than a few numbers.
pub(super) async fn read_both(first: Tensor<1>, second: Tensor<1>) -> Result<[TensorData; 2], WorkerError> {
    let both = Transaction::default().register(first).register(second);
    let data = both.execute_async().await.map_err(|error| WorkerError::Device {
        reason: error.to_string(),
    })?;
    Ok(data.try_into().expect("one for each tensor"))
}

pub(super) fn as_floats(data: &TensorData) -> Result<&[f32], WorkerError> {
    data.as_slice().map_err(|error| WorkerError::Device {
        reason: format!("it gave values of another type than f32: {error:?}"),
    })
}

pub(super) async fn read_scalar(tensor: Tensor<1>) -> Result<f32, WorkerError> {
    scalar_of(&read(tensor).await?)
}

pub(super) fn scalar_of(data: &TensorData) -> Result<f32, WorkerError> {
    match as_floats(data)? {
        [value] => Ok(*value),
        values => Err(WorkerError::BadLoss {
            problem: format!("or score has {} elements; return the mean", values.len()),
        }),
    }
}
