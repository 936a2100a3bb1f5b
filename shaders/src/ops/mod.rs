//! Differentiable operations on Burn tensors, forward and backward.
//!
//! Each file holds one operation: a function on [`Tensor`](burn::tensor::Tensor)s for layers to call, a backend extension
//! with the raw forward and backward, and the step of the backward pass. The extension is implemented for Burn's CubeCL
//! backend, which launches kernels, and for its CPU backend, which uses Burn's matrix products and our twins.

pub mod gemm;
mod gradients;
mod heads;
mod host;
mod optional;
mod rows;

pub mod activation;
pub mod attention;
pub mod batch_norm;
pub mod clip;
pub mod convolution;
pub mod cross_entropy;
pub mod dropout;
pub mod embedding;
pub mod gated;
pub mod linear;
pub mod linear_cross_entropy;
pub mod norm;
pub mod pool;
pub mod recurrent;
pub mod rotary;
pub mod rotary_halves;
pub mod softmax;
