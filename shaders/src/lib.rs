//! Training kernels in WGSL for any GPU, as Burn operations with hand-written backward passes and
//! as layers that drop in for Burn's.
//!
//! From the bottom up: the table of WGSL texts ([`kernel`]), their twins in plain loops ([`cpu`]), and what runs a kernel
//! ([`launch`]). Of these are made differentiable Burn operations ([`ops`]) and layers ([`nn`]). A peer may ask for weights
//! stored as `f16` ([`halves`]), or for products by matrix units ([`matrices`]), whose kernel is found by [`trial`]. On Burn's
//! CPU backend the operations take the twins.
//! Nothing here knows of peers, files or tasks.

pub mod check;
pub mod codec;
pub mod cpu;
pub mod flat;
pub mod halves;
pub mod kernel;
pub mod launch;
pub mod matrices;
#[cfg(not(target_family = "wasm"))]
pub mod memory;
pub mod needs;
pub mod nn;
pub mod ops;
pub mod optim;
pub mod split;
#[cfg(not(target_family = "wasm"))]
pub mod trial;

pub use kernel::{KERNELS, Kernel};
