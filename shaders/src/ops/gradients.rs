//! What all backward steps have in common.

use burn::backend::Backend;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::tensor::FloatTensor;

/// Hands a gradient to a parent, if that one wants it; computes it only then.
pub fn give<B: Backend>(
    gradients: &mut Gradients,
    parent: Option<NodeId>,
    gradient: impl FnOnce() -> FloatTensor<B>,
) {
    if let Some(parent) = parent {
        gradients.register::<B>(parent, gradient());
    }
}
