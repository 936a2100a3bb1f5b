//! Batch norm: each channel of `[batch, channels, ..]` with the statistics of the batch.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::wgpu::CubeBackend;
use burn::backend::{Autodiff, AutodiffBackend, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Shape, Tensor};

use super::gradients::differentiable;
use super::host;
use crate::cpu::batch_norm::{self as twin, Channels};

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

/// One number for each channel, to be taken with a tensor of this shape.
fn across<B: Backend>(numbers: FloatTensor<B>, shape: &Shape) -> FloatTensor<B> {
    let mut across = vec![1; shape.num_dims()];
    across[1] = shape[1];
    B::float_reshape(numbers, Shape::from(across))
}

/// The mean over all axes but the channels'.
fn mean<B: Backend>(mut x: FloatTensor<B>) -> FloatTensor<B> {
    for axis in (0..x.shape().num_dims()).filter(|axis| *axis != 1) {
        x = B::float_mean_dim(x, axis);
    }
    x
}

impl Saved<CubeBackend> {
    /// Means and 1 / deviation of the channels, to be taken with x.
    fn parts(&self) -> [FloatTensor<CubeBackend>; 2] {
        let shape = self.x.shape();
        let of = |row: usize| {
            let row = (row..row + 1).into();
            let numbers = CubeBackend::float_slice(self.statistics.clone(), &[row, (0..shape[1]).into()]);
            across::<CubeBackend>(numbers, &shape)
        };
        let deviation = CubeBackend::float_sqrt(CubeBackend::float_add_scalar(of(1), self.epsilon.into()));
        [of(0), CubeBackend::float_recip(deviation)]
    }
}

/// Of Burn's operations.
impl BatchNorms for CubeBackend {
    fn channel_stats(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let channels = x.shape()[1];
        let means = mean::<Self>(x.clone());
        let centered = Self::float_sub(x, means.clone());
        let variances = mean::<Self>(Self::float_mul(centered.clone(), centered));
        let rows = [means, variances].map(|row| Self::float_reshape(row, [1, channels].into()));
        Self::float_cat(rows.to_vec(), 0)
    }

    fn batch_normed(saved: &Saved<Self>, beta: FloatTensor<Self>) -> FloatTensor<Self> {
        let shape = saved.x.shape();
        let [means, inverse] = saved.parts();
        let scale = Self::float_mul(across::<Self>(saved.gamma.clone(), &shape), inverse);
        let centered = Self::float_sub(saved.x.clone(), means);
        Self::float_add(Self::float_mul(centered, scale), across::<Self>(beta, &shape))
    }

    fn batch_norm_gradients(saved: Saved<Self>, gradient: FloatTensor<Self>) -> [FloatTensor<Self>; 3] {
        let shape = saved.x.shape();
        let count = (shape.num_elements() / shape[1].max(1)) as f64;
        let [means, inverse] = saved.parts();
        let normed = Self::float_mul(Self::float_sub(saved.x, means), inverse.clone());
        let shift = mean::<Self>(gradient.clone());
        let slope = mean::<Self>(Self::float_mul(gradient.clone(), normed.clone()));
        let total = |mean: &FloatTensor<Self>| {
            let sum = Self::float_mul_scalar(mean.clone(), count.into());
            Self::float_reshape(sum, [shape[1]].into())
        };
        let [to_gamma, to_beta] = [&slope, &shift].map(total);
        let scale = Self::float_mul(across::<Self>(saved.gamma, &shape), inverse);
        let rest = Self::float_sub(gradient, Self::float_add(shift, Self::float_mul(normed, slope)));
        [Self::float_mul(rest, scale), to_gamma, to_beta]
    }
}

/// How many numbers a channel has in each image.
fn channels(x: &FlexTensor) -> Channels {
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
