//! Training steps with nothing but Burn's own layers, losses and optimizers: the baseline that ours
//! are measured against.
//!
//! It must not know our kernels, nor tasks or peers.

mod device;
mod gpt;
mod mlp;

pub use device::open_gpu;
pub use gpt::{Gpt, GptShape, GptTraining, causal_attention};
pub use mlp::{Mlp, MlpTraining};

/// Something that can be trained step by step, on a batch of its own making.
pub trait Training {
    /// One step: forward, backward and update; gives the loss, read from the device.
    fn step(&mut self) -> f32;
}

/// Whether this program was built with Burn's fusion and tuning.
pub const TUNED: bool = cfg!(feature = "tuned");

/// The same sequence of whole numbers below `limit` for each seed (Knuth's MMIX generator).
fn draw(seed: &mut u64, limit: usize) -> i32 {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    ((*seed >> 33) % limit as u64) as i32
}
