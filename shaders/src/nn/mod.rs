//! Layers that drop in for Burn's: change the import, and the model runs on our kernels.
//!
//! Their configurations, parameters and record names are those of Burn's layers of the same name.

mod attention;
mod convolution;
mod embedding;
mod linear;
mod loss;
mod norm;

pub use crate::cpu::activation::Activation;
pub use attention::{CausalSelfAttention, CausalSelfAttentionConfig};
pub use convolution::convolve;
pub use embedding::{Embedding, EmbeddingConfig};
pub use linear::{Linear, LinearConfig, Mlp};
pub use loss::CrossEntropy;
pub use norm::{LayerNorm, LayerNormConfig, RmsNorm, RmsNormConfig};
