//! The kernels' twins: the same functions in plain loops over slices, to test the kernels against
//! and to take on Burn's CPU backend where that has nothing better.
//!
//! They are generic over the element type, so that finite differences can be taken in `f64`.

mod real;

pub mod activation;
pub mod gemm;
pub mod pack;

pub use real::Real;
