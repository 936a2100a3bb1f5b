//! The largest number, or the mean, of each window that moves over the last two axes.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::wgpu::{CubeBackend, CubeTensor};
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Shape, Tensor};

use super::gradients::differentiable;
use super::host;
use crate::kernel::{Kernel, POOL, POOL_BACKWARD};
use crate::launch::{contiguous, empty, grid, launch};

pub use crate::cpu::pool::{Kind, Windows};

/// x `[batch, channels, rows, columns]` to `[batch, channels, ..windows.count]`.
///
/// # Panics
///
/// If a mean is asked for of a window without numbers, or with dilations.
pub fn pool<const D: usize>(x: Tensor<D>, windows: Windows) -> Tensor<D> {
    assert!(
        windows.kind == Kind::Maximum || windows.dilations == [1, 1],
        "means are over neighbours"
    );
    Tensor::from_dispatch(Dispatch::pooled(x.into_dispatch(), windows))
}

/// The maxima of squares that touch but do not overlap.
pub fn max_pool(x: Tensor<4>, side: usize) -> Tensor<4> {
    let [.., rows, columns] = x.dims();
    let windows = Windows {
        kernel: [side; 2],
        strides: [side; 2],
        before: [0; 2],
        dilations: [1; 2],
        count: [rows / side, columns / side],
        kind: Kind::Maximum,
    };
    pool(x, windows)
}

/// Pooling and its gradient, not differentiable.
pub trait Pools: Backend {
    /// The numbers, and where the largest are, as bits.
    fn pool_of(x: FloatTensor<Self>, windows: Windows) -> [FloatTensor<Self>; 2];

    /// The gradient for an input of this shape.
    fn pool_gradient(
        places: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        windows: Windows,
        shape: Shape,
    ) -> FloatTensor<Self>;
}

/// The differentiable operation.
#[backend_extension(Cube, Flex, Autodiff)]
pub trait PoolOps: Backend {
    /// See [`pool`].
    fn pooled(x: FloatTensor<Self>, windows: Windows) -> FloatTensor<Self>;
}

macro_rules! plain {
    ($backend:ty) => {
        impl PoolOps for $backend {
            fn pooled(x: FloatTensor<Self>, windows: Windows) -> FloatTensor<Self> {
                let [out, _] = Self::pool_of(x, windows);
                out
            }
        }
    };
}

plain!(CubeBackend);
plain!(Flex);

impl<B: PoolOps + Pools, C: CheckpointStrategy> PoolOps for Autodiff<B, C> {
    fn pooled(x: FloatTensor<Self>, windows: Windows) -> FloatTensor<Self> {
        let node = x.node();
        let x = x.into_primitive();
        let shape = x.shape();
        let forward = |_| {
            let [out, places] = B::pool_of(x, windows);
            (out, (places, windows, shape))
        };
        differentiable::<B, C, _, 1>([node], forward, |(places, windows, shape), gradient, _| {
            [Some(B::pool_gradient(places, gradient, windows, shape))]
        })
    }
}

/// The shape of the output.
fn made(shape: &Shape, windows: &Windows) -> Shape {
    let mut made = shape.clone();
    (made[2], made[3]) = (windows.count[0], windows.count[1]);
    made
}

pub(crate) fn kernels() -> Vec<&'static Kernel> {
    vec![&POOL, &POOL_BACKWARD]
}

/// The parameters of both kernels, for an input of this shape.
fn params(shape: &Shape, windows: &Windows) -> [u32; 14] {
    let Windows {
        kernel,
        strides,
        before,
        dilations,
        count,
        kind,
    } = *windows;
    let planes = shape[0] * shape[1];
    let sizes = [[shape[2], shape[3]], count, kernel, strides, before, dilations];
    let mut words = [0; 14];
    words[0] = planes as u32;
    for (to, size) in words[1..].iter_mut().zip(sizes.as_flattened()) {
        *to = *size as u32;
    }
    words[13] = kind as u32;
    words
}

impl Pools for CubeBackend {
    fn pool_of(x: CubeTensor, windows: Windows) -> [CubeTensor; 2] {
        let x = contiguous(x);
        let shape = made(&x.shape(), &windows);
        let count = shape.num_elements();
        // Means have no places.
        let kept = match windows.kind {
            Kind::Maximum => shape.clone(),
            Kind::Mean | Kind::MeanWithBorder => [1].into(),
        };
        let (out, places) = (empty(&x, shape), empty(&x, kept));
        if count > 0 {
            let params = params(&x.shape(), &windows);
            launch(&POOL, &[&x], &[&out, &places], params, grid(count.div_ceil(64)));
        }
        [out, places]
    }

    fn pool_gradient(places: CubeTensor, gradient: CubeTensor, windows: Windows, shape: Shape) -> CubeTensor {
        let gradient = contiguous(gradient);
        let out = empty(&gradient, shape.clone());
        let count = shape.num_elements();
        if count > 0 {
            let params = params(&shape, &windows);
            let groups = grid(count.div_ceil(64));
            launch(&POOL_BACKWARD, &[&gradient, &places], &[&out], params, groups);
        }
        out
    }
}

impl Pools for Flex {
    fn pool_of(x: FloatTensor<Self>, windows: Windows) -> [FloatTensor<Self>; 2] {
        let x = host::contiguous(x);
        let shape = x.shape();
        let (out, places) = windows.forward(host::floats(&x), [shape[2], shape[3]]);
        let places = places.into_iter().map(f32::from_bits).collect();
        [out, places].map(|numbers| host::tensor(numbers, made(&shape, &windows)))
    }

    fn pool_gradient(
        places: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        windows: Windows,
        shape: Shape,
    ) -> FloatTensor<Self> {
        let gradient = host::contiguous(gradient);
        let places = bytemuck::cast_slice(host::floats(&places));
        let numbers = windows.backward(host::floats(&gradient), places, [shape[2], shape[3]]);
        host::tensor(numbers, shape)
    }
}
