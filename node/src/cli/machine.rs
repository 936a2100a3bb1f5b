//! What this machine has to compute on, and the thread that a participant lives on.

use super::error::Failure;
use crate::device::{self, DeviceChoice, DeviceError};
use annulus_shaders::check;
use serde::Serialize;

/// A graphics adapter, or another device to compute on.
#[derive(Clone, Debug, Serialize)]
pub struct Adapter {
    /// What `--device` calls it.
    pub device: String,
    /// Its maker's name for it.
    pub name: String,
    /// Through which interface it is reached, such as Vulkan.
    pub backend: String,
    /// Hardware, or a processor that imitates it.
    pub software: bool,
    /// Limits that matter: name and value.
    pub limits: Vec<(String, u64)>,
}

/// The adapters that this machine has.
pub fn adapters() -> Vec<Adapter> {
    let adapters = device::adapters().into_iter();
    adapters
        .map(|adapter| Adapter {
            device: format!("gpu:{}", adapter.number),
            software: adapter.is_software(),
            limits: adapter
                .limits
                .list()
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            name: adapter.name,
            backend: adapter.api,
        })
        .collect()
}

/// Compiles every training kernel on the best adapter: how many there are; nothing without an adapter.
pub fn compile_kernels() -> Result<Option<usize>, Failure> {
    match device::open(DeviceChoice::Gpu) {
        Err(DeviceError::NoAdapter) => Ok(None),
        Err(error) => Err(error.into()),
        Ok(gpu) => Ok(Some(check::compile_needed(&gpu.device)?)),
    }
}

/// Waits for a participant's end. One thread serves links and protocol: more of them would only hand frames to each other.
pub fn block_on<F: Future>(participant: F) -> std::io::Result<F::Output> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(participant))
}
