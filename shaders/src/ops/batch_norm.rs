//! Batch norm: each channel of `[batch, channels, ..]` with the statistics of the batch.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::wgpu::{CubeBackend, CubeTensor};
use burn::backend::{Autodiff, AutodiffBackend, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{FloatDType, Tensor};

use super::gradients::differentiable;
use super::host;
use crate::cpu::batch_norm::{self as twin, Channels};
use crate::kernel::{
    BATCH_NORM, BATCH_NORM_BACKWARD, BATCH_NORM_BACKWARD_SCALAR, BATCH_NORM_SCALAR, BATCH_NORM_SUMS,
    BATCH_NORM_TOTAL, Kernel, fitting,
};
use crate::launch::{contiguous, empty, grid, launch, part};

/// Mean and biased variance of each channel of x `[batch, channels, ..]`: `[2, channels]`. No gradient goes through it.
pub fn statistics<const D: usize>(x: Tensor<D>) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::channel_statistics(x.into_dispatch()))
}

/// `(x - mean) / deviation * gamma + beta` for x `[batch, channels, ..]`, with its own [`statistics`], through which the
/// gradient goes too. `epsilon` is added to the variance.
///
/// # Panics
///
/// If there is not one number of `gamma` and `beta` for each channel.
pub fn batch_norm<const D: usize>(
    x: Tensor<D>,
    statistics: Tensor<2>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    let [x, statistics] = [x.into_dispatch(), statistics.into_dispatch()];
    let [gamma, beta] = [gamma, beta].map(Tensor::into_dispatch);
    Tensor::from_dispatch(Dispatch::normed_channels(x, statistics, gamma, beta, epsilon))
}

/// Batch norm and its gradients, not differentiable.
pub trait BatchNorms: Backend {
    /// See [`statistics`].
    fn channel_stats(x: FloatTensor<Self>) -> FloatTensor<Self>;

    /// See [`batch_norm`].
    fn batch_normed(saved: &Saved<Self>, beta: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Gradients for x, gamma and beta.
    fn batch_norm_gradients(saved: Saved<Self>, gradient: FloatTensor<Self>) -> [FloatTensor<Self>; 3];
}

/// What the backward pass needs.
#[derive(Clone, Debug)]
pub struct Saved<B: Backend> {
    /// What went in.
    pub x: FloatTensor<B>,
    /// Its statistics.
    pub statistics: FloatTensor<B>,
    /// The scale.
    pub gamma: FloatTensor<B>,
    /// Added to the variance.
    pub epsilon: f64,
}

/// The differentiable operations.
#[backend_extension(Cube, Flex, Autodiff)]
pub trait BatchNormOps: Backend {
    /// See [`statistics`].
    fn channel_statistics(x: FloatTensor<Self>) -> FloatTensor<Self>;

    /// See [`batch_norm`].
    fn normed_channels(
        x: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self>;
}

macro_rules! plain {
    ($backend:ty) => {
        impl BatchNormOps for $backend {
            fn channel_statistics(x: FloatTensor<Self>) -> FloatTensor<Self> {
                Self::channel_stats(x)
            }

            fn normed_channels(
                x: FloatTensor<Self>,
                statistics: FloatTensor<Self>,
                gamma: FloatTensor<Self>,
                beta: FloatTensor<Self>,
                epsilon: f64,
            ) -> FloatTensor<Self> {
                let saved = Saved {
                    x,
                    statistics,
                    gamma,
                    epsilon,
                };
                Self::batch_normed(&saved, beta)
            }
        }
    };
}

plain!(CubeBackend);
plain!(Flex);

impl<B: BatchNormOps + BatchNorms, C: CheckpointStrategy> BatchNormOps for Autodiff<B, C> {
    fn channel_statistics(x: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::from_inner(B::channel_stats(x.into_primitive()))
    }

    fn normed_channels(
        x: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        let nodes = [x.node(), gamma.node(), beta.node()];
        let beta = beta.into_primitive();
        let saved = Saved {
            x: x.into_primitive(),
            statistics: statistics.into_primitive(),
            gamma: gamma.into_primitive(),
            epsilon,
        };
        let forward = |_| (B::batch_normed(&saved, beta), saved);
        differentiable::<B, C, _, 3>(nodes, forward, |saved, gradient, _| {
            B::batch_norm_gradients(saved, gradient).map(Some)
        })
    }
}

/// Sizes of a tensor `[images, channels, ..]`, and how a GPU divides its sums.
#[derive(Clone, Copy)]
struct Sizes {
    images: usize,
    channels: usize,
    each: usize,
    parts: usize,
}

/// What the kernel of sums adds up.
#[derive(Clone, Copy, PartialEq)]
enum Sum {
    Plain,
    Shifted,
    Squares,
    Slopes,
}

/// The kernels that batch norms may take.
pub(crate) fn kernels(each: usize) -> Vec<&'static Kernel> {
    let [forward, backward] = [FORWARD, BACKWARD].map(|kernels| fitting(kernels, each).0);
    vec![&BATCH_NORM_SUMS, &BATCH_NORM_TOTAL, forward, backward]
}

static FORWARD: [&Kernel; 2] = [&BATCH_NORM, &BATCH_NORM_SCALAR];
static BACKWARD: [&Kernel; 2] = [&BATCH_NORM_BACKWARD, &BATCH_NORM_BACKWARD_SCALAR];

impl Sizes {
    fn of(x: &CubeTensor) -> Self {
        // A sum's share of a GPU, which has a few hundred places for workgroups. A guess.
        const PARTS: usize = 16;
        let Channels { count, each } = channels(x);
        let images = x.shape()[0];
        Self {
            images,
            channels: count,
            each,
            parts: images.clamp(1, PARTS),
        }
    }

    fn is_empty(&self) -> bool {
        self.images * self.channels * self.each == 0
    }

    fn numbers(&self) -> usize {
        self.images * self.each
    }

    /// Two sums, or their parts, for each channel. `x`, its gradient, and what is known of it are contiguous.
    fn sums(&self, sum: Sum, x: &CubeTensor, gradient: &CubeTensor, known: &CubeTensor) -> CubeTensor {
        let out = empty(x, [2, self.channels, self.parts]);
        let across = self.each.next_power_of_two().min(64);
        let params = [
            self.images as u32,
            self.channels as u32,
            self.each as u32,
            self.parts as u32,
            across as u32,
            sum as u32,
        ];
        let groups = grid(self.channels * self.parts);
        launch(&BATCH_NORM_SUMS, &[x, gradient, known], &[&out], params, groups);
        out
    }

    /// Statistics of the sums of squares, or gradients of the sums of slopes.
    fn total(&self, parts: &CubeTensor, slopes_of: Option<&Saved<CubeBackend>>) -> CubeTensor {
        let out = empty(parts, [2, self.channels]);
        let params = [
            self.channels as u32,
            self.parts as u32,
            self.numbers() as u32,
            u32::from(slopes_of.is_some()),
            slopes_of.map_or(0, |saved| (saved.epsilon as f32).to_bits()),
        ];
        let stats = slopes_of.map_or(parts, |saved| &saved.statistics);
        launch(
            &BATCH_NORM_TOTAL,
            &[parts, stats],
            &[&out],
            params,
            grid(self.channels.div_ceil(64)),
        );
        out
    }
}

/// The sum of each channel of a contiguous `[images, channels, ..]`.
pub(super) fn channel_sums(x: &CubeTensor) -> CubeTensor {
    let sizes = Sizes {
        parts: 1,
        ..Sizes::of(x)
    };
    if sizes.is_empty() {
        return CubeBackend::float_zeros([sizes.channels].into(), &x.device, FloatDType::F32);
    }
    part(&sizes.sums(Sum::Plain, x, x, x), 0, [sizes.channels])
}

impl BatchNorms for CubeBackend {
    fn channel_stats(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let (sizes, x) = (Sizes::of(&x), contiguous(x));
        if sizes.is_empty() {
            return Self::float_zeros([2, sizes.channels].into(), &x.device, FloatDType::F32);
        }
        let shifted = sizes.sums(Sum::Shifted, &x, &x, &x);
        let squares = sizes.sums(Sum::Squares, &x, &x, &shifted);
        sizes.total(&squares, None)
    }

    fn batch_normed(saved: &Saved<Self>, beta: FloatTensor<Self>) -> FloatTensor<Self> {
        let sizes = Sizes::of(&saved.x);
        let per_channel = [&saved.gamma, &beta].map(|numbers| numbers.shape().num_elements());
        assert_eq!(
            per_channel, [sizes.channels; 2],
            "a scale and a shift for each channel"
        );
        if sizes.is_empty() {
            return saved.x.clone();
        }
        let [x, stats, gamma] = [&saved.x, &saved.statistics, &saved.gamma].map(|x| contiguous(x.clone()));
        let out = empty(&x, x.shape());
        let (kernel, each) = fitting(FORWARD, sizes.each);
        let count = sizes.images * sizes.channels * each;
        let (channels, epsilon) = (sizes.channels as u32, (saved.epsilon as f32).to_bits());
        let params = [count as u32, channels, each as u32, epsilon];
        let inputs = [&x, &stats, &gamma, &contiguous(beta)];
        launch(kernel, &inputs, &[&out], params, grid(count.div_ceil(64)));
        out
    }

    fn batch_norm_gradients(saved: Saved<Self>, gradient: FloatTensor<Self>) -> [FloatTensor<Self>; 3] {
        let sizes = Sizes::of(&saved.x);
        if sizes.is_empty() {
            let zeros = || Self::float_zeros([sizes.channels].into(), &gradient.device, FloatDType::F32);
            return [saved.x, zeros(), zeros()];
        }
        let saved = Saved::<Self> {
            x: contiguous(saved.x),
            statistics: contiguous(saved.statistics),
            gamma: contiguous(saved.gamma),
            epsilon: saved.epsilon,
        };
        let (x, gradient) = (&saved.x, contiguous(gradient));
        let slopes = sizes.sums(Sum::Slopes, x, &gradient, &saved.statistics);
        let total = sizes.total(&slopes, Some(&saved));
        let out = empty(x, x.shape());
        let (kernel, each) = fitting(BACKWARD, sizes.each);
        let count = sizes.images * sizes.channels * each;
        let (channels, numbers) = (sizes.channels as u32, sizes.numbers() as u32);
        let epsilon = (saved.epsilon as f32).to_bits();
        let params = [count as u32, channels, each as u32, numbers, epsilon];
        let inputs = [x, &gradient, &saved.statistics, &saved.gamma, &total];
        launch(kernel, &inputs, &[&out], params, grid(count.div_ceil(64)));
        let row = |row: usize| {
            let row = (row..row + 1).into();
            let numbers = Self::float_slice(total.clone(), &[row, (0..sizes.channels).into()]);
            Self::float_reshape(numbers, [sizes.channels].into())
        };
        [out, row(1), row(0)]
    }
}

/// How many numbers a channel has in each image.
fn channels(x: &impl TensorMetadata) -> Channels {
    let shape = x.shape();
    Channels {
        count: shape[1],
        each: shape.as_slice()[2..].iter().product(),
    }
}

impl BatchNorms for Flex {
    fn channel_stats(x: FlexTensor) -> FlexTensor {
        let (of, x) = (channels(&x), host::contiguous(x));
        host::tensor(twin::statistics(host::floats(&x), of), [2, of.count])
    }

    fn batch_normed(saved: &Saved<Self>, beta: FlexTensor) -> FlexTensor {
        let of = channels(&saved.x);
        let [x, stats, gamma, beta] = [
            saved.x.clone(),
            saved.statistics.clone(),
            saved.gamma.clone(),
            beta,
        ]
        .map(host::contiguous);
        let [numbers, stats, gamma, beta] = [&x, &stats, &gamma, &beta].map(host::floats);
        let out = twin::batch_norm(numbers, stats, gamma, beta, saved.epsilon, of);
        host::tensor(out, x.shape())
    }

    fn batch_norm_gradients(saved: Saved<Self>, gradient: FlexTensor) -> [FlexTensor; 3] {
        let of = channels(&saved.x);
        let [x, stats, gamma, gradient] =
            [saved.x, saved.statistics, saved.gamma, gradient].map(host::contiguous);
        let [numbers, stats, gamma, gradient] = [&x, &stats, &gamma, &gradient].map(host::floats);
        let found = twin::batch_norm_backward(numbers, stats, gamma, gradient, saved.epsilon, of);
        [
            host::tensor(found.x, x.shape()),
            host::tensor(found.gamma, [of.count]),
            host::tensor(found.beta, [of.count]),
        ]
    }
}
