//! The adapter to train on.

use burn::tensor::{Device, DeviceKind};

/// A hardware GPU if there is one, else a software adapter; nothing if there is neither.
pub fn open_gpu() -> Option<Device> {
    let kinds = [
        DeviceKind::DiscreteGpu(0),
        DeviceKind::IntegratedGpu(0),
        DeviceKind::VirtualGpu(0),
        DeviceKind::Cpu,
    ];
    kinds
        .into_iter()
        .find_map(|kind| Device::wgpu_options().device_kind(kind).init().ok())
}
