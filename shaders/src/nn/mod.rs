//! Layers that drop in for Burn's: change the import, and the model runs on our kernels.
//!
//! Their configurations, parameters and record names are those of Burn's layers of the same name.

mod linear;

pub use crate::cpu::activation::Activation;
pub use linear::{Linear, LinearConfig, Mlp};
