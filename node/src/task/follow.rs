//! Values that follow a statistic of the batch, such as batch norm's running mean and variance.

use burn::tensor::Tensor;

/// Lets a value of the model follow a statistic of the batch: returns the same mean loss, but with `statistic - value`
/// as the gradient of `value`. The task must name the value's tensor in [`Task::rule`](super::Task::rule).
///
/// A batch may be computed in micro-batches. Each then has a statistic of its own, and their mean over the samples
/// counts, as in PyTorch's distributed data parallel training.
pub fn follow<const D: usize>(loss: Tensor<1>, value: &Tensor<D>, statistic: Tensor<D>) -> Tensor<1> {
    let way = (statistic - value.clone()).detach();
    let product = (value.clone() * way).sum();
    // Adds nothing but the gradient.
    loss + (product.clone() - product.detach())
}
