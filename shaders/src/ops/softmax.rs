//! Softmax over the last axis.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::wgpu::{CubeBackend, CubeTensor};
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::Tensor;
use bytemuck::{Pod, Zeroable};

use super::gradients::differentiable;
use super::host;
use super::rows::Rows;
use crate::cpu;
use crate::kernel::{Kernel, SOFTMAX, SOFTMAX_BACKWARD, SOFTMAX_BACKWARD_SCALAR, SOFTMAX_SCALAR, fitting};
use crate::launch::{contiguous, empty, grid, lanes, launch};

/// exp(x) / sum(exp(x)) along the last axis.
pub fn softmax<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::soften(x.into_dispatch()))
}

/// Softmax and its gradient, not differentiable.
pub trait Softmaxes: Backend {
    /// The softmax of each row.
    fn softmax_of(x: &FloatTensor<Self>) -> FloatTensor<Self>;

    /// The gradient for what went in, from the softmax and its gradient.
    fn softmax_gradient(y: &FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// The differentiable operation.
#[backend_extension(Cube, Flex, Autodiff)]
pub trait SoftmaxOps: Backend {
    /// See [`softmax`].
    fn soften(x: FloatTensor<Self>) -> FloatTensor<Self>;
}

macro_rules! plain {
    ($backend:ty) => {
        impl SoftmaxOps for $backend {
            fn soften(x: FloatTensor<Self>) -> FloatTensor<Self> {
                Self::softmax_of(&x)
            }
        }
    };
}

plain!(CubeBackend);
plain!(Flex);

impl<B: SoftmaxOps + Softmaxes, C: CheckpointStrategy> SoftmaxOps for Autodiff<B, C> {
    fn soften(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let node = x.node();
        let forward = |_| {
            let y = B::softmax_of(&x.into_primitive());
            (y.clone(), y)
        };
        differentiable::<B, C, _, 1>([node], forward, |y, gradient, _| {
            [Some(B::softmax_gradient(&y, gradient))]
        })
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    rows: u32,
    width: u32,
    lanes: u32,
}

static FORWARD: [&Kernel; 2] = [&SOFTMAX, &SOFTMAX_SCALAR];
static BACKWARD: [&Kernel; 2] = [&SOFTMAX_BACKWARD, &SOFTMAX_BACKWARD_SCALAR];

/// Those that rows of `width` numbers take.
pub(crate) fn kernels(width: usize) -> Vec<&'static Kernel> {
    vec![fitting(FORWARD, width).0, fitting(BACKWARD, width).0]
}

/// Runs one of the two kernels, which have the same parameters and grid.
fn run(kernels: [&'static Kernel; 2], inputs: &[&CubeTensor]) -> CubeTensor {
    let rows = Rows::of(inputs[0]);
    let out = empty(inputs[0], inputs[0].shape());
    if rows.is_empty() {
        return out;
    }
    let (kernel, width) = fitting(kernels, rows.width);
    let lanes = lanes(inputs[0], width);
    let params = Params {
        rows: rows.count as u32,
        width: width as u32,
        lanes,
    };
    launch(
        kernel,
        inputs,
        &[&out],
        params,
        grid(rows.count.div_ceil((64 / lanes) as usize)),
    );
    out
}

impl Softmaxes for CubeBackend {
    fn softmax_of(x: &CubeTensor) -> CubeTensor {
        run(FORWARD, &[&contiguous(x.clone())])
    }

    fn softmax_gradient(y: &CubeTensor, gradient: CubeTensor) -> CubeTensor {
        run(BACKWARD, &[y, &contiguous(gradient)])
    }
}

impl Softmaxes for Flex {
    fn softmax_of(x: &FlexTensor) -> FlexTensor {
        let x = host::contiguous(x.clone());
        let width = Rows::of(&x).width.max(1);
        host::tensor(cpu::softmax::softmax(host::floats(&x), width), x.shape())
    }

    fn softmax_gradient(y: &FlexTensor, gradient: FlexTensor) -> FlexTensor {
        let gradient = host::contiguous(gradient);
        let width = Rows::of(y).width.max(1);
        let to_x = cpu::softmax::softmax_backward(host::floats(y), host::floats(&gradient), width);
        host::tensor(to_x, y.shape())
    }
}
