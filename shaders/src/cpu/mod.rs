//! The kernels' twins: the same functions in plain loops over slices, to test the kernels against
//! and to take on Burn's CPU backend where that has nothing better.
//!
//! They are generic over the element type, so that finite differences can be taken in `f64`.

mod real;

pub mod activation;
pub mod adamw;
pub mod f16;
pub mod gemm;
pub mod int8;
pub mod momentum;
pub mod pack;
pub mod sgd;
pub mod squared_norm;

pub use real::Real;
