//! The kernels' twins: the same functions in plain loops over slices, to test the kernels against
//! and to take on Burn's CPU backend where that has nothing better.
//!
//! They are generic over the element type, so that finite differences can be taken in `f64`.

mod processor;
mod real;
mod sums;

pub mod activation;
pub mod adamw;
pub mod attention;
pub mod batch_norm;
pub mod convolution;
pub mod cross_entropy;
pub mod dropout;
pub mod embedding;
pub mod f16;
pub mod gated;
pub mod gemm;
pub mod halve;
pub mod int8;
pub mod momentum;
pub mod norm;
pub mod pack;
pub mod pool;
pub mod product;
pub mod rotary;
pub mod rotary_halves;
pub mod sgd;
pub mod softmax;
pub mod squared_norm;

pub use processor::keep_to;
pub use real::Real;
