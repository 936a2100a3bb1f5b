//! Values of the graph: floats on the device, and all else on the host.

use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor, TensorMetadata};
use burn::tensor::{Shape, Tensor};

use crate::host::{Element, HostTensor};

/// Floats on the device.
#[derive(Clone, Debug)]
pub struct Floats {
    /// Has one axis of length 1 where the shape has none, because Burn needs an axis.
    tensor: DispatchTensor,
    shape: Vec<usize>,
}

impl Floats {
    /// A tensor of Burn's.
    pub(crate) fn new(tensor: DispatchTensor) -> Self {
        let shape = tensor.shape().iter().copied().collect();
        Self { tensor, shape }
    }

    /// A tensor of one element, seen without axes.
    pub(crate) fn scalar(tensor: DispatchTensor) -> Self {
        Self::shaped(tensor, Vec::new())
    }

    /// A tensor seen in a shape of as many elements.
    pub(crate) fn shaped(tensor: DispatchTensor, shape: Vec<usize>) -> Self {
        let own = if shape.is_empty() { &[1][..] } else { &shape };
        let same = tensor.shape().iter().eq(own);
        let tensor = if same {
            tensor
        } else {
            Dispatch::float_reshape(tensor, Shape::from(own.to_vec()))
        };
        Self { tensor, shape }
    }

    /// Its shape as the model has it.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// As one of Burn's tensors, if it has D axes.
    pub fn into_tensor<const D: usize>(self) -> Option<Tensor<D>> {
        (self.shape.len() == D).then(|| Tensor::from_dispatch(self.tensor))
    }

    /// All elements along one axis.
    pub fn flat(self) -> Tensor<1> {
        let count = self.shape.iter().product();
        Tensor::from_dispatch(Self::shaped(self.tensor, vec![count]).tensor)
    }

    /// Whether a gradient flows to it.
    pub(crate) fn is_tracked(&self) -> bool {
        self.clone().any::<1>().is_tracked()
    }

    pub(crate) fn tensor(self) -> DispatchTensor {
        self.tensor
    }

    /// For our operations, which look at the shape and not at the type.
    pub(crate) fn any<const D: usize>(self) -> Tensor<D> {
        Tensor::from_dispatch(self.tensor)
    }

    /// In another shape of as many elements.
    pub(crate) fn reshaped(self, shape: Vec<usize>) -> Self {
        debug_assert_eq!(
            shape.iter().product::<usize>(),
            self.shape.iter().product::<usize>()
        );
        Self::shaped(self.tensor, shape)
    }

    /// With axes of length 1 in front, up to this rank.
    pub(crate) fn ranked(self, rank: usize) -> Self {
        let lead = rank.saturating_sub(self.shape.len());
        let shape = std::iter::repeat_n(1, lead).chain(self.shape.iter().copied());
        let shape = shape.collect();
        self.reshaped(shape)
    }

    /// Repeats axes of length 1. The shape must be one that this broadcasts to.
    pub(crate) fn expanded(self, shape: &[usize]) -> Self {
        if self.shape == shape {
            return self;
        }
        let ranked = self.ranked(shape.len());
        if ranked.shape == shape {
            return ranked;
        }
        Self::new(Dispatch::float_expand(ranked.tensor, Shape::from(shape.to_vec())))
    }
}

/// A value of the graph.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "most values are on the device")]
pub(crate) enum Value {
    Device(Floats),
    Host(HostTensor),
}

impl Value {
    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Self::Device(floats) => &floats.shape,
            Self::Host(host) => host.shape(),
        }
    }

    pub(crate) fn element(&self) -> Element {
        match self {
            Self::Device(_) => Element::Float,
            Self::Host(host) => host.element(),
        }
    }
}

impl From<Floats> for Value {
    fn from(floats: Floats) -> Self {
        Self::Device(floats)
    }
}

impl From<HostTensor> for Value {
    fn from(host: HostTensor) -> Self {
        Self::Host(host)
    }
}
