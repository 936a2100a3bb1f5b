//! The GPU memory that this process holds, as Burn's allocator counts it: reserved buffers, in use or not. WebGPU does not
//! tell what drivers and other programs take, nor how much there is.

use burn::cubecl::MemoryScope;
use burn::tensor::{Device, Tensor};

use crate::launch::raw;

/// Bytes of all buffers on a device; none if the device is not a GPU.
pub fn reserved(device: &Device) -> Option<u64> {
    let device = device.clone().without_autodiff();
    let tensor = raw(Tensor::<1>::zeros([1], &device))?;
    let report = tensor.client.memory_report(MemoryScope::Device);
    Some(report.usage().bytes_reserved)
}

/// Has the allocator give back what is not in use.
pub fn give_back(device: &Device) {
    device.clone().without_autodiff().memory_cleanup();
}
