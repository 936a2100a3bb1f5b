//! Activation functions on their own, where no matrix product has them as its epilogue.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::wgpu::{CubeBackend, CubeTensor};
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::Tensor;
use bytemuck::{Pod, Zeroable};

use super::gradients::differentiable;
use super::host;
use crate::cpu::activation::Activation;
use crate::kernel::{
    ACTIVATION, ACTIVATION_BACKWARD, ACTIVATION_BACKWARD_SCALAR, ACTIVATION_SCALAR, Kernel, fitting,
};
use crate::launch::{contiguous, empty, grid, launch};

/// The function of each number.
pub fn activation<const D: usize>(x: Tensor<D>, kind: Activation) -> Tensor<D> {
    match kind {
        Activation::Identity => x,
        _ => Tensor::from_dispatch(Dispatch::activate(x.into_dispatch(), kind)),
    }
}

/// Activations and their gradients, not differentiable; of any kind but the identity.
pub trait Activations: Backend {
    /// f(x).
    fn activated(x: &FloatTensor<Self>, kind: Activation) -> FloatTensor<Self>;

    /// gradient * f'(x).
    fn activation_gradient(
        x: &FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        kind: Activation,
    ) -> FloatTensor<Self>;
}

/// The differentiable operation.
#[backend_extension(Cube, Flex, Autodiff)]
pub trait ActivationOps: Backend {
    /// See [`activation`].
    fn activate(x: FloatTensor<Self>, kind: Activation) -> FloatTensor<Self>;
}

macro_rules! plain {
    ($backend:ty) => {
        impl ActivationOps for $backend {
            fn activate(x: FloatTensor<Self>, kind: Activation) -> FloatTensor<Self> {
                Self::activated(&x, kind)
            }
        }
    };
}

plain!(CubeBackend);
plain!(Flex);

impl<B: ActivationOps + Activations, C: CheckpointStrategy> ActivationOps for Autodiff<B, C> {
    fn activate(x: FloatTensor<Self>, kind: Activation) -> FloatTensor<Self> {
        let node = x.node();
        let x = x.into_primitive();
        differentiable::<B, C, _, 1>(
            [node],
            |_| (B::activated(&x, kind), (x, kind)),
            |(x, kind), gradient, _| [Some(B::activation_gradient(&x, gradient, kind))],
        )
    }
}

static FORWARD: [&Kernel; 2] = [&ACTIVATION, &ACTIVATION_SCALAR];
static BACKWARD: [&Kernel; 2] = [&ACTIVATION_BACKWARD, &ACTIVATION_BACKWARD_SCALAR];

/// All: how many numbers there are differs from batch to batch.
pub(crate) fn kernels() -> Vec<&'static Kernel> {
    [FORWARD, BACKWARD].concat()
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Params {
    count: u32,
    kind: u32,
}

impl Params {
    pub(super) fn new(count: usize, kind: Activation) -> Self {
        let kind = match kind {
            Activation::Identity => panic!("the identity needs no kernel"),
            Activation::Relu => 1,
            Activation::Gelu => 2,
            Activation::Silu => 3,
            Activation::GeluTanh => 4,
        };
        Self {
            count: count as u32,
            kind,
        }
    }
}

impl Activations for CubeBackend {
    fn activated(x: &CubeTensor, kind: Activation) -> CubeTensor {
        let x = contiguous(x.clone());
        let out = empty(&x, x.shape());
        let (kernel, count) = fitting(FORWARD, x.shape().num_elements());
        if count > 0 {
            launch(
                kernel,
                &[&x],
                &[&out],
                Params::new(count, kind),
                grid(count.div_ceil(64)),
            );
        }
        out
    }

    fn activation_gradient(x: &CubeTensor, gradient: CubeTensor, kind: Activation) -> CubeTensor {
        let (x, gradient) = (contiguous(x.clone()), contiguous(gradient));
        let to_x = empty(&x, x.shape());
        let (kernel, count) = fitting(BACKWARD, x.shape().num_elements());
        if count > 0 {
            launch(
                kernel,
                &[&x, &gradient],
                &[&to_x],
                Params::new(count, kind),
                grid(count.div_ceil(64)),
            );
        }
        to_x
    }
}

impl Activations for Flex {
    fn activated(x: &FlexTensor, kind: Activation) -> FlexTensor {
        let mut out = host::contiguous(x.clone());
        kind.apply_all(host::floats_mut(&mut out));
        out
    }

    fn activation_gradient(x: &FlexTensor, gradient: FlexTensor, kind: Activation) -> FlexTensor {
        let x = host::contiguous(x.clone());
        let mut gradient = host::contiguous(gradient);
        kind.times_slopes(host::floats_mut(&mut gradient), host::floats(&x));
        gradient
    }
}
