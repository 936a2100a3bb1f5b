//! Gated activations, such as SwiGLU (Shazeer, 2020, "GLU variants improve transformer").

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::wgpu::{CubeBackend, CubeTensor};
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::Tensor;

use super::activation::Params;
use super::gradients::differentiable;
use super::host;
use crate::cpu;
use crate::cpu::activation::Activation;
use crate::kernel::{GATED, GATED_BACKWARD, GATED_BACKWARD_SCALAR, GATED_SCALAR, Kernel, fitting};
use crate::launch::{contiguous, empty, grid, launch};

/// SiLU(gate) * x, of tensors of one shape: what Llama's perceptron has between its products.
///
/// # Panics
///
/// If the shapes differ.
pub fn swiglu<const D: usize>(gate: Tensor<D>, x: Tensor<D>) -> Tensor<D> {
    gated(gate, x, Activation::Silu)
}

/// f(gate) * x, of tensors of one shape.
///
/// # Panics
///
/// If the shapes differ, or the function is the identity.
pub fn gated<const D: usize>(gate: Tensor<D>, x: Tensor<D>, kind: Activation) -> Tensor<D> {
    assert_eq!(gate.shape(), x.shape(), "numbers and their gates");
    let (gate, x) = (gate.into_dispatch(), x.into_dispatch());
    Tensor::from_dispatch(Dispatch::gate(gate, x, kind))
}

/// Gated activations and their gradients, not differentiable.
pub trait Gated: Backend {
    /// f(gate) * x.
    fn gated(gate: &FloatTensor<Self>, x: &FloatTensor<Self>, kind: Activation) -> FloatTensor<Self>;

    /// The gradients for gate and x.
    fn gated_gradients(
        gate: &FloatTensor<Self>,
        x: &FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        kind: Activation,
    ) -> [FloatTensor<Self>; 2];
}

/// The differentiable operation.
#[backend_extension(Cube, Flex, Autodiff)]
pub trait GatedOps: Backend {
    /// See [`gated`].
    fn gate(gate: FloatTensor<Self>, x: FloatTensor<Self>, kind: Activation) -> FloatTensor<Self>;
}

macro_rules! plain {
    ($backend:ty) => {
        impl GatedOps for $backend {
            fn gate(gate: FloatTensor<Self>, x: FloatTensor<Self>, kind: Activation) -> FloatTensor<Self> {
                Self::gated(&gate, &x, kind)
            }
        }
    };
}

plain!(CubeBackend);
plain!(Flex);

impl<B: GatedOps + Gated, C: CheckpointStrategy> GatedOps for Autodiff<B, C> {
    fn gate(gate: FloatTensor<Self>, x: FloatTensor<Self>, kind: Activation) -> FloatTensor<Self> {
        let nodes = [gate.node(), x.node()];
        let (gate, x) = (gate.into_primitive(), x.into_primitive());
        differentiable::<B, C, _, 2>(
            nodes,
            |_| (B::gated(&gate, &x, kind), (gate, x, kind)),
            |(gate, x, kind), gradient, _| B::gated_gradients(&gate, &x, gradient, kind).map(Some),
        )
    }
}

static FORWARD: [&Kernel; 2] = [&GATED, &GATED_SCALAR];
static BACKWARD: [&Kernel; 2] = [&GATED_BACKWARD, &GATED_BACKWARD_SCALAR];

/// All: how many numbers there are differs from batch to batch.
pub(crate) fn kernels() -> Vec<&'static Kernel> {
    [FORWARD, BACKWARD].concat()
}

impl Gated for CubeBackend {
    fn gated(gate: &CubeTensor, x: &CubeTensor, kind: Activation) -> CubeTensor {
        let (gate, x) = (contiguous(gate.clone()), contiguous(x.clone()));
        let out = empty(&x, x.shape());
        let (kernel, count) = fitting(FORWARD, x.shape().num_elements());
        if count > 0 {
            let groups = grid(count.div_ceil(64));
            launch(kernel, &[&gate, &x], &[&out], Params::new(count, kind), groups);
        }
        out
    }

    fn gated_gradients(
        gate: &CubeTensor,
        x: &CubeTensor,
        gradient: CubeTensor,
        kind: Activation,
    ) -> [CubeTensor; 2] {
        let (gate, x) = (contiguous(gate.clone()), contiguous(x.clone()));
        let gradient = contiguous(gradient);
        let [to_gate, to_x] = [(); 2].map(|()| empty(&x, x.shape()));
        let (kernel, count) = fitting(BACKWARD, x.shape().num_elements());
        if count > 0 {
            let groups = grid(count.div_ceil(64));
            let inputs = [&gate, &x, &gradient];
            launch(
                kernel,
                &inputs,
                &[&to_gate, &to_x],
                Params::new(count, kind),
                groups,
            );
        }
        [to_gate, to_x]
    }
}

impl Gated for Flex {
    fn gated(gate: &FlexTensor, x: &FlexTensor, kind: Activation) -> FlexTensor {
        let (gate, x) = (host::contiguous(gate.clone()), host::contiguous(x.clone()));
        let out = cpu::gated::gated(host::floats(&gate), host::floats(&x), kind);
        host::tensor(out, x.shape())
    }

    fn gated_gradients(
        gate: &FlexTensor,
        x: &FlexTensor,
        gradient: FlexTensor,
        kind: Activation,
    ) -> [FlexTensor; 2] {
        let (gate, x) = (host::contiguous(gate.clone()), host::contiguous(x.clone()));
        let gradient = host::contiguous(gradient);
        let [gates, numbers, gradients] = [&gate, &x, &gradient].map(host::floats);
        cpu::gated::gated_backward(gates, numbers, gradients, kind)
            .map(|slopes| host::tensor(slopes, x.shape()))
    }
}
