//! Dropout with a mask that nobody stores.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::wgpu::{CubeBackend, CubeTensor};
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::Tensor;
use bytemuck::{Pod, Zeroable};

use super::gradients::differentiable;
use super::host;
use crate::cpu;
use crate::cpu::dropout::Mask;
use crate::kernel::DROPOUT;
use crate::launch::{contiguous, empty, grid, launch};

/// Drops a share of the numbers, `mask.rate`, and scales the others so that their mean stays. Which ones
/// follows from the mask's seed and offset alone, on all devices.
///
/// # Panics
///
/// If the rate is not from 0 to below 1.
pub fn dropout<const D: usize>(x: Tensor<D>, mask: Mask) -> Tensor<D> {
    if check_rate(mask.rate) == 0.0 {
        return x;
    }
    Tensor::from_dispatch(Dispatch::drop_out(x.into_dispatch(), mask))
}

/// The rate, which must be from 0 to below 1.
pub(super) fn check_rate(rate: f32) -> f32 {
    assert!(
        (0.0..1.0).contains(&rate),
        "a dropout rate of {rate} is not from 0 to below 1"
    );
    rate
}

/// The differentiable operation.
#[backend_extension(Cube, Flex, Autodiff)]
pub trait DropoutOps: Backend {
    /// See [`dropout`].
    fn drop_out(x: FloatTensor<Self>, mask: Mask) -> FloatTensor<Self>;
}

impl<B: DropoutOps, C: CheckpointStrategy> DropoutOps for Autodiff<B, C> {
    fn drop_out(x: FloatTensor<Self>, mask: Mask) -> FloatTensor<Self> {
        differentiable::<B, C, _, 1>(
            [x.node()],
            |_| (B::drop_out(x.into_primitive(), mask), mask),
            |mask, gradient, _| [Some(B::drop_out(gradient, mask))],
        )
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    count: u32,
    threshold: u32,
    scale: f32,
    seed: [u32; 2],
    offset: [u32; 2],
}

/// Lower half first.
pub(super) fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

impl DropoutOps for CubeBackend {
    fn drop_out(x: CubeTensor, mask: Mask) -> CubeTensor {
        let x = contiguous(x);
        let out = empty(&x, x.shape());
        let count = x.shape().num_elements();
        let params = Params {
            count: count as u32,
            threshold: mask.threshold(),
            scale: mask.scale(),
            seed: halves(mask.seed),
            offset: halves(mask.offset),
        };
        launch(&DROPOUT, &[&x], &[&out], params, grid(count.div_ceil(256)));
        out
    }
}

impl DropoutOps for Flex {
    fn drop_out(x: FlexTensor, mask: Mask) -> FlexTensor {
        let x = host::contiguous(x);
        host::tensor(cpu::dropout::dropout(host::floats(&x), mask), x.shape())
    }
}
