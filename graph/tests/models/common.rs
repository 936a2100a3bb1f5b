//! Devices, files and comparisons.

#[path = "../../../shaders/tests/kernels/common/ending.rs"]
mod ending;

use annulus_graph::{HostTensor, Numbers, named_gradients};
use burn::module::Module;
use burn::tensor::wgpu::MemoryConfiguration;
use burn::tensor::{Device, DeviceKind, Gradients, Tensor};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The folder with all fixtures, if it is there. Says so if not.
pub fn all_fixtures() -> Option<PathBuf> {
    let base = std::env::var_os("ANNULUS_DATA").map(PathBuf::from);
    let base = base.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"));
    let path = base.join("graph");
    if path.exists() {
        return Some(path);
    }
    println!(
        "skipped: {} is not there (set ANNULUS_DATA to the folder that holds graph)",
        path.display()
    );
    None
}

/// A file of the few fixtures that stand beside the tests.
pub fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(own_fixtures().join(name)).unwrap()
}

/// Where these few are.
pub fn own_fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// A GPU, or a program that plays one, opened once for all tests; says so where there is none.
pub fn gpu() -> Option<Device> {
    static DEVICE: OnceLock<Option<Device>> = OnceLock::new();
    let device = DEVICE.get_or_init(|| {
        let kinds = [
            DeviceKind::DiscreteGpu(0),
            DeviceKind::IntegratedGpu(0),
            DeviceKind::VirtualGpu(0),
            DeviceKind::Cpu,
        ];
        kinds.into_iter().find_map(|kind| {
            let options = Device::wgpu_options().device_kind(kind);
            let options = options.memory_config(MemoryConfiguration::ExclusivePages);
            options.init().ok()
        })
    });
    match device {
        Some(_) => ending::leave_the_driver_alone(),
        None => println!("skipped: this machine has no adapter, not even a software one"),
    }
    device.clone()
}

/// The gradients of a model by the names of its parameters; none for a parameter that the loss does not depend on.
pub fn gradients(model: &impl Module, gradients: &Gradients) -> Vec<(String, Option<Vec<f32>>)> {
    let found = named_gradients(model, gradients).into_iter();
    found.map(|own| (own.name, own.gradient.map(values))).collect()
}

/// The floats of a tensor.
pub fn floats(tensor: &HostTensor) -> &[f32] {
    match tensor.numbers() {
        Numbers::Floats(values) => values,
        other => panic!("{:?}", other.element()),
    }
}

/// The numbers of a tensor of one axis.
pub fn values(tensor: Tensor<1>) -> Vec<f32> {
    tensor.into_data().try_to_vec::<f32>().unwrap()
}

/// The only number of a tensor.
pub fn number(tensor: Tensor<1>) -> f32 {
    values(tensor)[0]
}

/// Sum of squares.
pub fn squares(values: impl IntoIterator<Item = f32>) -> f64 {
    values.into_iter().map(|x| f64::from(x).powi(2)).sum()
}
