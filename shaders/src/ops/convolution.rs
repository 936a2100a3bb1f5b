//! Convolutions over one to three axes, and their transposes.
//!
//! On the CPU they are our own, as products of matrices. On a GPU they are Burn's.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::ops::{ConvOptions, ConvTransposeOptions};
use burn::backend::tensor::FloatTensor;
use burn::backend::wgpu::CubeBackend;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::Tensor;
use std::array;

use super::gradients::differentiable;
use super::host;
use super::optional::{Optional, Parent, optional};
use crate::cpu;

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
    fn sizes(&self, x: &[usize], weight: &[usize]) -> cpu::convolution::Convolution {
        let (input, kernel) = (lengths(x), lengths(weight));
        let output = array::from_fn(|axis| {
            let padded = input[axis] + self.before[axis] + self.behind[axis];
            (padded - (kernel[axis] - 1) * self.dilations[axis] - 1) / self.strides[axis] + 1
        });
        cpu::convolution::Convolution {
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
    fn transposed_sizes(&self, x: &[usize], weight: &[usize]) -> cpu::convolution::Convolution {
        let (output, kernel) = (lengths(x), lengths(weight));
        let input = array::from_fn(|axis| {
            let whole =
                (output[axis] - 1) * self.strides[axis] + (kernel[axis] - 1) * self.dilations[axis] + 1;
            whole + self.extra[axis] - self.before[axis] - self.behind[axis]
        });
        cpu::convolution::Convolution {
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

/// The gradients that are wanted, from that for the output.
type Gradients<B> = fn(Saved<B>, FloatTensor<B>, [bool; 3]) -> [Option<FloatTensor<B>>; 3];

/// A forward pass, and the gradients for input, weights and bias that are wanted.
#[derive(Debug)]
pub struct Own<B: Backend> {
    forward: fn(&Saved<B>, Option<&FloatTensor<B>>) -> FloatTensor<B>,
    gradients: Gradients<B>,
}

/// A backend that may have convolutions of our own.
pub trait Convolutions: Backend {
    /// They, where Burn's are not taken.
    fn own() -> Option<Own<Self>>;
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

impl Convolutions for CubeBackend {
    fn own() -> Option<Own<Self>> {
        None
    }
}

impl ConvolutionOps for CubeBackend {
    fn convolution(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Optional<Self>,
        window: Window,
        transposed: bool,
    ) -> FloatTensor<Self> {
        by_burn::<Self>(x, weight, bias.into_option(), window, transposed)
    }
}

impl ConvolutionOps for Flex {
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
        forward(&given, bias.into_option().as_ref())
    }
}

impl<B: ConvolutionOps + Convolutions, C: CheckpointStrategy> ConvolutionOps for Autodiff<B, C> {
    fn convolution(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Optional<Self>,
        window: Window,
        transposed: bool,
    ) -> FloatTensor<Self> {
        let Some(own) = B::own() else {
            return by_burn::<Self>(x, weight, bias.into_option(), window, transposed);
        };
        let bias = Parent::new(bias, &x);
        let nodes = [x.node(), weight.node(), bias.node];
        let saved = Saved {
            x: x.into_primitive(),
            weight: weight.into_primitive(),
            window,
            transposed,
        };
        let forward = |_| {
            let out = (own.forward)(&saved, bias.inner.as_ref());
            (out, (saved, bias.inner.is_some(), own.gradients))
        };
        differentiable::<B, C, _, 3>(
            nodes,
            forward,
            |(saved, has_bias, gradients), gradient, [on_x, on_weight, on_bias]| {
                gradients(saved, gradient, [on_x, on_weight, on_bias && has_bias])
            },
        )
    }
}

/// Burn's own, which its backends differentiate.
fn by_burn<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
    window: Window,
    transposed: bool,
) -> FloatTensor<B> {
    fn last<const N: usize, T: Copy>(all: [T; 3]) -> [T; N] {
        array::from_fn(|axis| all[axis + 3 - N])
    }
    fn options<const N: usize>(window: Window) -> ConvOptions<N> {
        let borders = array::from_fn(|axis| (window.before[axis], window.behind[axis]));
        ConvOptions::new_with_padding(
            last(window.strides),
            last::<N, _>(borders),
            last(window.dilations),
            window.groups,
        )
    }
    fn back<const N: usize>(window: Window) -> ConvTransposeOptions<N> {
        let [strides, before, extra, dilations] = [
            last(window.strides),
            last(window.before),
            last(window.extra),
            last(window.dilations),
        ];
        ConvTransposeOptions::new(strides, before, extra, dilations, window.groups)
    }
    match (x.shape().num_dims(), transposed) {
        (3, false) => B::conv1d(x, weight, bias, options(window)),
        (4, false) => B::conv2d(x, weight, bias, options(window)),
        (_, false) => B::conv3d(x, weight, bias, options(window)),
        (3, true) => B::conv_transpose1d(x, weight, bias, back(window)),
        (4, true) => B::conv_transpose2d(x, weight, bias, back(window)),
        (_, true) => B::conv_transpose3d(x, weight, bias, back(window)),
    }
}

impl Convolutions for Flex {
    fn own() -> Option<Own<Self>> {
        Some(Own { forward, gradients })
    }
}

impl Saved<Flex> {
    fn sizes(&self) -> cpu::convolution::Convolution {
        let [x, weight] = [&self.x, &self.weight].map(TensorMetadata::shape);
        match self.transposed {
            false => self.window.sizes(x.as_slice(), weight.as_slice()),
            true => self.window.transposed_sizes(x.as_slice(), weight.as_slice()),
        }
    }
}

fn forward(given: &Saved<Flex>, bias: Option<&FlexTensor>) -> FlexTensor {
    let sizes = given.sizes();
    let mut shape = given.x.shape();
    let [x, weight] = [&given.x, &given.weight].map(|tensor| host::contiguous(tensor.clone()));
    let [x, weight] = [&x, &weight].map(host::floats);
    let (mut out, channels, lengths) = match given.transposed {
        false => (sizes.forward(x, weight), sizes.outputs, sizes.output),
        true => (sizes.to_input(weight, x), sizes.inputs, sizes.input),
    };
    if let Some(bias) = bias.map(|bias| host::contiguous(bias.clone())) {
        let planes = out.chunks_exact_mut(lengths.iter().product::<usize>().max(1));
        for (plane, bias) in planes.zip(host::floats(&bias).iter().cycle()) {
            plane.iter_mut().for_each(|x| *x += *bias);
        }
    }
    let axes = shape.num_dims() - 2;
    shape[1] = channels;
    for axis in 0..axes {
        shape[2 + axis] = lengths[3 - axes + axis];
    }
    host::tensor(out, shape)
}

fn gradients(
    saved: Saved<Flex>,
    gradient: FlexTensor,
    [on_x, on_weight, on_bias]: [bool; 3],
) -> [Option<FlexTensor>; 3] {
    let sizes = saved.sizes();
    let shapes = [saved.x.shape(), saved.weight.shape()];
    let [x, weight, gradient] = [saved.x, saved.weight, gradient].map(host::contiguous);
    let [x, weight, gradient] = [&x, &weight, &gradient].map(host::floats);
    let [to_x, to_weight, to_bias] = match saved.transposed {
        false => [
            on_x.then(|| sizes.to_input(weight, gradient)),
            on_weight.then(|| sizes.to_weight(x, gradient)),
            on_bias.then(|| cpu::convolution::to_bias(gradient, sizes.outputs, sizes.output)),
        ],
        true => [
            on_x.then(|| sizes.forward(gradient, weight)),
            on_weight.then(|| sizes.to_weight(gradient, x)),
            on_bias.then(|| cpu::convolution::to_bias(gradient, sizes.inputs, sizes.input)),
        ],
    };
    let [x_shape, weight_shape] = shapes;
    [
        to_x.map(|numbers| host::tensor(numbers, x_shape)),
        to_weight.map(|numbers| host::tensor(numbers, weight_shape)),
        to_bias.map(|numbers| {
            let length = numbers.len();
            host::tensor(numbers, [length])
        }),
    ]
}
