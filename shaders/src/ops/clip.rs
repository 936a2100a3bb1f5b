//! Numbers kept within bounds. On the CPU it is one loop each way, where Burn makes masks first.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::wgpu::CubeBackend;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::tensor::Tensor;

use super::gradients::differentiable;
use super::host;

/// Each number, or the bound that it is beyond. The gradient of those beyond is 0. A bound may be infinite.
pub fn clip<const D: usize>(x: Tensor<D>, least: f32, most: f32) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::clip(x.into_dispatch(), least, most))
}

/// The gradient for `x`, from that for what was made of it.
type Gradient<B> = fn(&FloatTensor<B>, FloatTensor<B>, [f32; 2]) -> FloatTensor<B>;

/// A backend that may have a gradient of our own.
pub trait Clips: Backend {
    /// It, where Burn's is not taken.
    fn own() -> Option<Gradient<Self>>;
}

/// The differentiable operation.
#[backend_extension(Cube, Flex, Autodiff)]
pub trait ClipOps: Backend {
    /// See [`clip`].
    fn clip(x: FloatTensor<Self>, least: f32, most: f32) -> FloatTensor<Self>;
}

impl Clips for CubeBackend {
    fn own() -> Option<Gradient<Self>> {
        None
    }
}

impl ClipOps for CubeBackend {
    fn clip(x: FloatTensor<Self>, least: f32, most: f32) -> FloatTensor<Self> {
        by_burn::<Self>(x, [least, most])
    }
}

impl Clips for Flex {
    fn own() -> Option<Gradient<Self>> {
        Some(gradient)
    }
}

impl ClipOps for Flex {
    fn clip(x: FloatTensor<Self>, least: f32, most: f32) -> FloatTensor<Self> {
        let mut x = host::contiguous(x);
        for x in host::floats_mut(&mut x) {
            // Not `clamp`: what is not a number must stay so.
            *x = if *x < least { least } else { *x };
            *x = if *x > most { most } else { *x };
        }
        x
    }
}

impl<B: ClipOps + Clips, C: CheckpointStrategy> ClipOps for Autodiff<B, C> {
    fn clip(x: FloatTensor<Self>, least: f32, most: f32) -> FloatTensor<Self> {
        let Some(own) = B::own() else {
            return by_burn::<Self>(x, [least, most]);
        };
        let node = x.node();
        let x = x.into_primitive();
        differentiable::<B, C, _, 1>(
            [node],
            |_| (B::clip(x.clone(), least, most), (x, own, [least, most])),
            |(x, own, bounds), gradient, _| [Some(own(&x, gradient, bounds))],
        )
    }
}

fn by_burn<B: Backend>(mut x: FloatTensor<B>, [least, most]: [f32; 2]) -> FloatTensor<B> {
    if least > f32::NEG_INFINITY {
        x = B::float_clamp_min(x, least.into());
    }
    if most < f32::INFINITY {
        x = B::float_clamp_max(x, most.into());
    }
    x
}

fn gradient(x: &FlexTensor, gradient: FlexTensor, [least, most]: [f32; 2]) -> FlexTensor {
    let x = host::contiguous(x.clone());
    let mut gradient = host::contiguous(gradient);
    for (g, x) in host::floats_mut(&mut gradient).iter_mut().zip(host::floats(&x)) {
        *g = if *x >= least && *x <= most { *g } else { 0.0 };
    }
    gradient
}
