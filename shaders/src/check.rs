//! Whether this device takes our kernels, asked before they are needed.
//!
//! Drivers differ in what they refuse. A kernel that does not compile is never run, and what it should
//! have written holds other numbers; so a device is asked about every kernel when it is opened.

use burn::backend::wgpu::CubeTensor;
use burn::cubecl::CubeCount;
use burn::tensor::{Device, Tensor};

use crate::kernel::{Kernel, KernelError, reflect};
use crate::launch::{launch_counted, raw};

/// Enough for one element of any binding.
const SCRATCH_ELEMENTS: usize = 64;

/// Compiles a kernel on a GPU; on another device there is nothing to do.
///
/// In a browser a device answers later than this function can wait: there it only finds what is wrong
/// with a text on any device.
///
/// # Errors
///
/// If the kernel is not valid or the device refuses it.
pub fn compile(kernel: &'static Kernel, device: &Device) -> Result<(), KernelError> {
    let interface = reflect(kernel.name, kernel.text())?;
    let device = device.clone().without_autodiff();
    let scratch = || raw(Tensor::<1>::zeros([SCRATCH_ELEMENTS], &device));
    // Burn compiles a kernel when it is launched, and a grid of no workgroups is launched only if
    // its size comes from the device.
    let Some(size) = scratch() else { return Ok(()) };
    let buffers: Option<Vec<CubeTensor>> = (0..interface.inputs + interface.outputs)
        .map(|_| scratch())
        .collect();
    let buffers: Vec<CubeTensor> = buffers.unwrap_or_default();
    let (inputs, outputs) = buffers.split_at(interface.inputs as usize);
    let inputs: Vec<&CubeTensor> = inputs.iter().collect();
    let outputs: Vec<&CubeTensor> = outputs.iter().collect();
    let params = vec![0; interface.params_bytes.div_ceil(8) as usize];
    let no_groups = CubeCount::Dynamic(size.handle.clone().binding());
    launch_counted(kernel, &inputs, &outputs, params, no_groups);
    // A launch that failed left the reason with its outputs.
    let failed = size.client.check(outputs.iter().map(|output| &output.handle));
    failed.map_err(|error| KernelError {
        kernel: kernel.name.to_owned(),
        problem: format!("the device refuses it: {error}"),
    })
}
