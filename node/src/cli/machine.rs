//! The devices of this machine, and the thread that a participant lives on.

use super::error::Failure;
use crate::device::{self, DeviceChoice, DeviceError};
use crate::task_factory::TaskFactory;
use annulus_shaders::check::compile;
use annulus_shaders::launch::adapter_of;
use annulus_shaders::needs::{self, Layer};
use serde::Serialize;
use serde_json::Map;

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
    /// Whether it is what `--device auto` takes.
    pub auto: bool,
    /// Limits that matter: name and value.
    pub limits: Vec<(String, u64)>,
}

/// How a size of matrices is called that an adapter's matrix units multiply.
const MATRICES: &str = "rows of matrices of halves";

/// The adapters that this machine has.
pub fn adapters() -> Vec<Adapter> {
    let adapters = device::adapters();
    let auto = device::auto_of(&adapters);
    adapters
        .into_iter()
        .map(|adapter| Adapter {
            device: format!("gpu:{}", adapter.number),
            software: adapter.is_software(),
            auto: auto == Some(adapter.number),
            limits: adapter
                .limits
                .list()
                .into_iter()
                .chain(
                    adapter
                        .matrix_blocks
                        .iter()
                        .map(|size| (MATRICES, (*size).into())),
                )
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            name: adapter.name,
            backend: adapter.api,
        })
        .collect()
}

/// Compiles on the best adapter every kernel that these tasks launch with the settings that they come with: how many
/// there are; nothing without an adapter.
pub fn compile_kernels(tasks: &[TaskFactory]) -> Result<Option<usize>, Failure> {
    match device::open(DeviceChoice::Gpu) {
        Err(DeviceError::NoAdapter) => Ok(None),
        Err(error) => Err(error.into()),
        Ok(gpu) => {
            let layers = tasks.iter().flat_map(usual_layers);
            let layers: Vec<Layer> = layers.chain([Layer::LocalSteps]).collect();
            let adapter = adapter_of(&gpu.device);
            let kernels = adapter.map(|adapter| needs::kernels(&layers, adapter));
            let kernels = kernels.unwrap_or_default();
            let mut each = kernels.iter();
            each.try_for_each(|kernel| compile(kernel, &gpu.device))?;
            Ok(Some(kernels.len()))
        }
    }
}

/// The layers of a task's model; all layers if the task cannot be made without the user's data.
fn usual_layers(task: &TaskFactory) -> Vec<Layer> {
    let loaded = (task.load)(&task.config(&Map::new()), None);
    loaded.map_or_else(|_| Layer::all(), |task| task.layers)
}

/// Waits for a participant's end. One thread serves links and protocol: more of them would only hand frames to each other.
pub fn block_on<F: Future>(participant: F) -> std::io::Result<F::Output> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(participant))
}
