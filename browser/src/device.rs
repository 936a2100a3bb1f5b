//! The device of a tab: opened, named, and its compiler tried out on every kernel.

use crate::js::{field, words};
use crate::page::{Failure, Kind, Page, State};
use annulus::device::{DeviceKind, OpenDevice};
use annulus_shaders::launch::adapter_of;
use annulus_shaders::needs::{self, Layer};
use burn::tensor::wgpu::MemoryConfiguration;
use burn::tensor::{Device, DeviceKind as Selector};
use js_sys::{Array, Promise};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// WebGPU.
    Gpu,
    /// Burn's CPU backend.
    Cpu,
}

#[wasm_bindgen]
extern "C" {
    /// What the page's script knows of what computes: `page/gpu.js`, `page/worker.js`.
    pub type Gpu;

    /// The promise is of `{gpu: {name, software, ..} or null, problem}`.
    #[wasm_bindgen(method)]
    fn probe(this: &Gpu) -> Promise;

    /// Compiles texts; the promise is of null, or of `{name, problem}` of the first that fails.
    #[wasm_bindgen(method)]
    fn compile(this: &Gpu, names: &Array, texts: &Array) -> Promise;

    /// Starts the inner worker, for an encoded manifest and the run's data or null: not the GPU's, but what computes where
    /// there is none.
    #[wasm_bindgen(method, js_name = innerWorker)]
    pub fn inner_worker(this: &Gpu, manifest: &[u8], data: JsValue) -> Promise;
}

/// Opens it, for a model of these layers.
///
/// # Errors
///
/// If there is no GPU, or one that does not take our kernels.
pub async fn open(backend: Backend, layers: &[Layer], gpu: &Gpu, page: &Page) -> Result<OpenDevice, Failure> {
    if backend == Backend::Cpu {
        return Ok(OpenDevice {
            name: "CPU (WASM)".to_owned(),
            ..OpenDevice::cpu()
        });
    }
    page.state(State::Checking, "compiling the kernels");
    let lost = |error: JsValue| Failure::new(Kind::GpuLost, words(&error));
    let adapter = JsFuture::from(gpu.probe()).await.map_err(lost)?;
    let gpu_description = field(&adapter, "gpu");
    let Some(name) = field(&gpu_description, "name").as_string() else {
        let problem = field(&adapter, "problem").as_string();
        return Err(Failure::new(Kind::GpuLost, problem.unwrap_or_default()));
    };
    let software = field(&gpu_description, "software").is_truthy();
    let gone = |problem| Failure::new(Kind::GpuLost, problem);
    let device = webgpu(&name, software).await.map_err(gone)?;
    let adapter = adapter_of(&device.device).ok_or_else(|| gone("the GPU is gone".to_owned()))?;
    let (names, texts) = (Array::new(), Array::new());
    for kernel in needs::kernels(layers, adapter) {
        names.push(&kernel.name.into());
        texts.push(&kernel.text().into());
    }
    let failed = JsFuture::from(gpu.compile(&names, &texts)).await.map_err(lost)?;
    if let Some(kernel) = field(&failed, "name").as_string() {
        let problem = field(&failed, "problem").as_string().unwrap_or_default();
        let message = format!(
            "this browser does not compile the kernel {kernel} for {name}: {problem}. The tab did not join the run"
        );
        return Err(Failure::new(Kind::Kernel, message));
    }
    Ok(device)
}

/// The tab's GPU as tasks are trained on it, or why there is none. It is for the caller to know what it is called and
/// whether it is a program.
pub async fn webgpu(name: &str, software: bool) -> Result<OpenDevice, String> {
    // Kernels choose by the kind whether workgroup memory pays. Browsers do not give the kind, so it is said here.
    let kind = if software {
        Selector::Cpu
    } else {
        Selector::DefaultDevice
    };
    let device = open_gpu(kind).await?;
    Ok(OpenDevice {
        device,
        name: format!("{name} (webgpu)"),
        kind: if software {
            DeviceKind::SoftwareGpu
        } else {
            DeviceKind::Gpu
        },
        note: None,
    })
}

/// Opens WebGPU, which kernels are to take for a device of this kind.
///
/// # Errors
///
/// If there is none.
pub async fn open_gpu(kind: Selector) -> Result<Device, String> {
    let options = Device::wgpu_options().device_kind(kind);
    let options = options.memory_config(MemoryConfiguration::ExclusivePages);
    options.init_async().await.map_err(|error| error.to_string())
}
