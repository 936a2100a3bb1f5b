//! Convolutions over one to three axes, and their transposes.
//!
//! They are products of matrices, whose second factor is never in memory as a whole.

mod cpu;
mod gpu;
mod walks;

pub(crate) use gpu::kernels;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::wgpu::CubeBackend;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Shape, Tensor};
use std::array;

use super::gradients::differentiable;
use super::optional::{Optional, Parent, optional};
use crate::cpu::convolution::Convolution;

/// How a kernel moves over the axes behind `[batch, channels]`: three, the last ones of which count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// From a position to the next.
    pub strides: [usize; 3],
    /// Zeros before the input, ...
    pub before: [usize; 3],
    /// ... and behind it.
    pub behind: [usize; 3],
    /// From a tap of the kernel to the next.
    pub dilations: [usize; 3],
    /// Groups of channels.
    pub groups: usize,
    /// Numbers that a transposed convolution makes behind its last.
    pub extra: [usize; 3],
}

impl Window {
    /// From number to number, without border or groups.
    pub const PLAIN: Self = Self {
        strides: [1; 3],
        before: [0; 3],
        behind: [0; 3],
        dilations: [1; 3],
        groups: 1,
        extra: [0; 3],
    };

    /// The sizes for an input `[batch, inputs, ..]` and weights `[outputs, inputs / groups, ..]`.
    fn sizes(&self, x: &[usize], weight: &[usize]) -> Convolution {
        let (input, kernel) = (lengths(x), lengths(weight));
        let output = array::from_fn(|axis| {
            let padded = input[axis] + self.before[axis] + self.behind[axis];
            let extent = (kernel[axis] - 1) * self.dilations[axis] + 1;
            let left = padded.checked_sub(extent);
            left.expect("a kernel within the input and its border") / self.strides[axis] + 1
        });
        Convolution {
            batch: x[0],
            inputs: x[1],
            outputs: weight[0],
            groups: self.groups,
            input,
            output,
            kernel,
            strides: self.strides,
            before: self.before,
            dilations: self.dilations,
        }
    }

    /// The sizes of the convolution of which this is the transpose: its output is `x`, `[batch, inputs, ..]`, with weights
    /// `[inputs, outputs / groups, ..]`.
    fn transposed_sizes(&self, x: &[usize], weight: &[usize]) -> Convolution {
        let (output, kernel) = (lengths(x), lengths(weight));
        let input = array::from_fn(|axis| {
            let whole =
                (output[axis] - 1) * self.strides[axis] + (kernel[axis] - 1) * self.dilations[axis] + 1;
            whole + self.extra[axis] - self.before[axis] - self.behind[axis]
        });
        Convolution {
            batch: x[0],
            inputs: weight[1] * self.groups,
            outputs: x[1],
            groups: self.groups,
            input,
            output,
            kernel,
            strides: self.strides,
            before: self.before,
            dilations: self.dilations,
        }
    }
}

/// The axes behind the first two; those that there are not have length 1.
fn lengths(shape: &[usize]) -> [usize; 3] {
    let mut lengths = [1; 3];
    lengths[5 - shape.len()..].copy_from_slice(&shape[2..]);
    lengths
}

/// x `[batch, inputs, ..]`, weights `[outputs, inputs / groups, ..]`, and a bias for each output.
///
/// # Panics
///
/// If the shapes do not fit, or the kernel is larger than the input with its border.
pub fn convolution<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<D>,
    bias: Option<Tensor<1>>,
    window: Window,
) -> Tensor<D> {
    let (x, weight) = (x.into_dispatch(), weight.into_dispatch());
    Tensor::from_dispatch(Dispatch::convolution(x, weight, optional(bias), window, false))
}

/// The transpose of a convolution: x `[batch, inputs, ..]`, weights `[inputs, outputs / groups, ..]`, and a bias for each
/// output. The border is the same before and behind.
///
/// # Panics
///
/// If the shapes do not fit, or nothing is left within the border.
pub fn transposed_convolution<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<D>,
    bias: Option<Tensor<1>>,
    window: Window,
) -> Tensor<D> {
    let (x, weight) = (x.into_dispatch(), weight.into_dispatch());
    Tensor::from_dispatch(Dispatch::convolution(x, weight, optional(bias), window, true))
}

/// What the backward pass needs.
#[derive(Clone, Debug)]
pub struct Saved<B: Backend> {
    /// What went in.
    pub x: FloatTensor<B>,
    /// The weights.
    pub weight: FloatTensor<B>,
    /// How they move.
    pub window: Window,
    /// Whether it was a transpose.
    pub transposed: bool,
}

/// Convolutions and their gradients, not differentiable.
pub trait Convolutions: Backend {
    /// See [`convolution`] and [`transposed_convolution`].
    fn convolved(given: &Saved<Self>, bias: Option<&FloatTensor<Self>>) -> FloatTensor<Self>;

    /// The gradients for input, weights and bias that are wanted, from that for the output.
    fn convolution_gradients(
        saved: Saved<Self>,
        gradient: FloatTensor<Self>,
        wanted: [bool; 3],
    ) -> [Option<FloatTensor<Self>>; 3];
}

/// The differentiable operation.
#[backend_extension(Cube, Flex, Autodiff)]
pub trait ConvolutionOps: Backend {
    /// See [`convolution`] and [`transposed_convolution`].
    fn convolution(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Optional<Self>,
        window: Window,
        transposed: bool,
    ) -> FloatTensor<Self>;
}

macro_rules! plain {
    ($backend:ty) => {
        impl ConvolutionOps for $backend {
            fn convolution(
                x: FloatTensor<Self>,
                weight: FloatTensor<Self>,
                bias: Optional<Self>,
                window: Window,
                transposed: bool,
            ) -> FloatTensor<Self> {
                let given = Saved {
                    x,
                    weight,
                    window,
                    transposed,
                };
                Self::convolved(&given, bias.into_option().as_ref())
            }
        }
    };
}

plain!(CubeBackend);
plain!(Flex);

impl<B: ConvolutionOps + Convolutions, C: CheckpointStrategy> ConvolutionOps for Autodiff<B, C> {
    fn convolution(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Optional<Self>,
        window: Window,
        transposed: bool,
    ) -> FloatTensor<Self> {
        let bias = Parent::new(bias, &x);
        let nodes = [x.node(), weight.node(), bias.node];
        let saved = Saved {
            x: x.into_primitive(),
            weight: weight.into_primitive(),
            window,
            transposed,
        };
        let forward = |_| {
            let out = B::convolved(&saved, bias.inner.as_ref());
            (out, (saved, bias.inner.is_some()))
        };
        differentiable::<B, C, _, 3>(
            nodes,
            forward,
            |(saved, has_bias), gradient, [on_x, on_weight, on_bias]| {
                B::convolution_gradients(saved, gradient, [on_x, on_weight, on_bias && has_bias])
            },
        )
    }
}

impl<B: Backend> Saved<B> {
    fn sizes(&self) -> Convolution {
        let [x, weight] = [&self.x, &self.weight].map(TensorMetadata::shape);
        let groups = self.window.groups;
        // A GPU would read beyond the tensors.
        let fits = match self.transposed {
            false => x[1] == weight[1] * groups && weight[0].is_multiple_of(groups),
            true => x[1] == weight[0] && x[1].is_multiple_of(groups),
        };
        assert!(fits, "{x:?} with weights {weight:?} in {groups} groups");
        match self.transposed {
            false => self.window.sizes(x.as_slice(), weight.as_slice()),
            true => self.window.transposed_sizes(x.as_slice(), weight.as_slice()),
        }
    }

    /// The shape of the output.
    fn made(&self) -> Shape {
        let sizes = self.sizes();
        let (channels, lengths) = match self.transposed {
            false => (sizes.outputs, sizes.output),
            true => (sizes.inputs, sizes.input),
        };
        let mut shape = self.x.shape();
        let axes = shape.num_dims() - 2;
        shape[1] = channels;
        for axis in 0..axes {
            shape[2 + axis] = lengths[3 - axes + axis];
        }
        shape
    }
}
