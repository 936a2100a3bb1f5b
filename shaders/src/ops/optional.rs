//! A tensor that may be missing, as an argument of an operation.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::ops::NodeGuard;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, ExtensionType};
use burn::tensor::Tensor;

/// A tensor or nothing.
#[derive(ExtensionType)]
pub enum Optional<B: Backend> {
    /// Nothing.
    Missing,
    /// A tensor.
    Given(FloatTensor<B>),
}

impl<B: Backend> Optional<B> {
    /// As an [`Option`].
    pub fn into_option(self) -> Option<FloatTensor<B>> {
        match self {
            Self::Missing => None,
            Self::Given(tensor) => Some(tensor),
        }
    }
}

impl<B: Backend> From<Option<FloatTensor<B>>> for Optional<B> {
    fn from(tensor: Option<FloatTensor<B>>) -> Self {
        tensor.map_or(Self::Missing, Self::Given)
    }
}

/// For the call of an operation.
pub fn optional<const D: usize>(tensor: Option<Tensor<D>>) -> Optional<Dispatch> {
    tensor.map_or(Optional::Missing, |tensor| {
        Optional::Given(tensor.into_dispatch())
    })
}

/// An optional tensor among the parents of a differentiable operation.
pub struct Parent<B: Backend> {
    /// The argument of the operation on the inner backend.
    pub inner: Option<FloatTensor<B>>,
    /// Its node. Another parent stands in for a missing one, and must not get its gradient.
    pub node: NodeGuard,
}

impl<B: Backend> Parent<B> {
    /// Takes an argument apart; `other` is a parent that is there.
    pub fn new<C: CheckpointStrategy>(
        argument: Optional<Autodiff<B, C>>,
        other: &FloatTensor<Autodiff<B, C>>,
    ) -> Self {
        match argument {
            Optional::Missing => Self {
                inner: None,
                node: other.node(),
            },
            Optional::Given(tensor) => Self {
                node: tensor.node(),
                inner: Some(tensor.into_primitive()),
            },
        }
    }
}
