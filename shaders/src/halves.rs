//! Weights as halves: products may read their second operand as `f16`, two to a word, and still add up in `f32`.
//!
//! That halves what a product loads of its weights. It is this process's own choice: gradients differ a little, and
//! what is made of their sums is the same everywhere. Activations, gradients and sums stay `f32`.

use std::sync::atomic::{AtomicBool, Ordering};

use burn::backend::TensorMetadata;
use burn::backend::wgpu::CubeTensor;
use burn::tensor::Device;

use crate::check::compile;
use crate::kernel::{HALF_KERNELS, HALVE, KernelError};
use crate::launch::{contiguous, empty, grid, launch};

/// The largest finite half; weights beyond it become infinite, and what is made of them is refused as not finite.
pub const LARGEST: f32 = 65_504.0;

static STORE_WEIGHTS: AtomicBool = AtomicBool::new(false);

/// From now on, linear layers of this process store their weights as halves where that is faster: on a GPU, and where
/// the shape lets vec4 fit on a program that plays one. The CPU backend goes on as before.
///
/// # Errors
///
/// If the device's compiler refuses such kernels.
pub fn store_weights(device: &Device) -> Result<(), KernelError> {
    HALF_KERNELS
        .iter()
        .try_for_each(|kernel| compile(kernel, device))?;
    STORE_WEIGHTS.store(true, Ordering::Relaxed);
    Ok(())
}

/// Whether weights are to be stored as halves.
pub(crate) fn wanted() -> bool {
    STORE_WEIGHTS.load(Ordering::Relaxed)
}

/// A tensor's numbers as halves, two to an element of what comes back.
pub fn pack(tensor: &CubeTensor) -> CubeTensor {
    let tensor = contiguous(tensor.clone());
    let count = tensor.shape().num_elements();
    let halves = empty(&tensor, [count.div_ceil(2)]);
    if count > 0 {
        launch(
            &HALVE,
            &[&tensor],
            &[&halves],
            count as u32,
            grid(count.div_ceil(128)),
        );
    }
    halves
}
