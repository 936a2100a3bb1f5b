//! Training kernels in WGSL for any GPU, as Burn operations with hand-written backward passes and
//! as layers that drop in for Burn's.
//!
//! From the bottom up: [`kernel`] is the table of WGSL texts, [`cpu`] their twins in plain loops, and [`launch`] runs a
//! kernel. [`ops`] makes differentiable Burn operations of them, and [`nn`] layers. [`halves`] decides whether they store
//! weights as `f16`. [`matrices`] decides whether products take a device's matrix units; [`trial`] finds the kernel for these.
//! On Burn's CPU backend the operations take the twins.
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
