//! Computes gradients from a batch. This is the only place that asks a task for its loss.

use burn::tensor::{Device, Gradients, Tensor};

use super::prefetch::Part;
use super::worker::WorkerError;
use crate::task::Task;

/// The sum of the losses over a part of a batch, and its gradients.
pub(super) fn backward<T: Task>(
    task: &T,
    model: &T::Model,
    part: Part<T>,
    device: &Device,
) -> Result<(Tensor<1>, Gradients), WorkerError> {
    let mean = task.loss(model, part.batch, device);
    if mean.dims() != [1] {
        return Err(WorkerError::BadLoss {
            problem: format!(
                "has the shape {:?}; return the mean over the samples",
                mean.dims()
            ),
        });
    }
    let sum = mean.mul_scalar(part.samples as f32);
    if !sum.is_tracked() {
        return Err(WorkerError::BadLoss {
            problem: "does not depend on the model's parameters; compute it from them on the \
                      device that is given, without detaching"
                .to_owned(),
        });
    }
    let gradients = sum.backward();
    Ok((sum.inner(), gradients))
}
