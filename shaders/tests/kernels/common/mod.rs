//! Devices, numbers and comparisons for the kernels' tests.

mod ending;

use crate::cases::bench::Bench;
pub use crate::cases::bench::{numbers, tensor};
use annulus_shaders::kernel::{KERNELS, Kernel};
use burn::tensor::wgpu::MemoryConfiguration;
use burn::tensor::{Device, DeviceKind, Int, Tensor, TensorData};
use bytemuck::Pod;
use std::ffi::OsStr;
use std::process::Command;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};

/// A GPU, or a program that plays one; says so where there is none.
pub fn gpu() -> Option<Device> {
    static DEVICE: OnceLock<Option<Device>> = OnceLock::new();
    let device = DEVICE.get_or_init(|| {
        // By kind, so that the kernels learn which it is.
        let kinds = [
            DeviceKind::DiscreteGpu(0),
            DeviceKind::IntegratedGpu(0),
            DeviceKind::VirtualGpu(0),
            DeviceKind::Cpu,
        ];
        kinds.into_iter().find_map(|kind| {
            let options = Device::wgpu_options().device_kind(kind);
            options
                .memory_config(MemoryConfiguration::ExclusivePages)
                .init()
                .ok()
        })
    });
    match device {
        Some(_) => ending::leave_the_driver_alone(),
        None => println!("skipped: this machine has no adapter, not even a software one"),
    }
    device.clone()
}

/// All that a test of both can have: the GPU, if there is one, and Burn's CPU backend.
pub fn devices() -> Vec<Device> {
    gpu().into_iter().chain([Device::flex()]).collect()
}

pub const ALONE: &str = "ANNULUS_TEST_ALONE";

/// Runs a test again in a process of its own, for what holds for a whole process; true in that process.
pub fn alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let said = again(&[test, "--exact", "--nocapture"], [(ALONE, "1")]);
    assert!(said.contains("1 passed"), "{test}, alone:\n{said}");
    false
}

/// Runs tests of this program again with environment variables; what they say.
pub fn again<V: AsRef<OsStr>>(
    tests: &[&str],
    environment: impl IntoIterator<Item = (&'static str, V)>,
) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(tests).envs(environment);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{command:?}:\n{said}");
    said
}

/// How many kernels of the table this process has launched so far.
pub fn launches() -> u64 {
    KERNELS.iter().map(|kernel| kernel.launches()).sum()
}

/// A tensor of whole numbers on `device`.
pub fn whole<const D: usize>(values: &[i32], shape: [usize; D], device: &Device) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), device)
}

/// A tensor's numbers.
pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec::<f32>().unwrap()
}

/// Runs a kernel on slices as [`Bench::run`] does.
pub fn run<P: Pod>(
    device: &Device,
    kernel: &'static Kernel,
    inputs: &[&[f32]],
    outputs: &[usize],
    params: P,
    groups: [u32; 3],
) -> Vec<Vec<f32>> {
    let mut bench = Bench::new(device.clone());
    let found = block_on(bench.run(kernel, inputs, outputs, params, groups));
    assert_no_problem(&bench);
    found
}

/// Runs cases of kernels against their twins, where there is a device.
pub fn agree(cases: impl AsyncFnOnce(&mut Bench)) {
    let Some(device) = gpu() else { return };
    let mut bench = Bench::new(device);
    block_on(cases(&mut bench));
    assert!(!bench.rows.is_empty());
    assert_no_problem(&bench);
}

fn assert_no_problem(bench: &Bench) {
    for (name, row) in &bench.rows {
        assert_eq!(row.problem, None, "{name}");
    }
}

/// What is waited for here needs nobody to wake it.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::yield_now(),
        }
    }
}

/// Fails at the first number that is further off than `tolerance` times the largest magnitude
/// (at least 1).
#[track_caller]
pub fn assert_close(what: &str, expected: &[f32], found: &[f32], tolerance: f32) {
    assert_eq!(expected.len(), found.len(), "{what}: lengths");
    let scale = expected.iter().fold(1.0f32, |max, x| max.max(x.abs()));
    for (at, (e, f)) in expected.iter().zip(found).enumerate() {
        assert!(
            (e - f).abs() <= tolerance * scale,
            "{what}: element {at} of {} is {f}, not {e}",
            expected.len()
        );
    }
}

/// The slope of `function` along each element of `at`, by central differences in `f64`.
pub fn slopes(at: &[f64], function: impl Fn(&[f64]) -> f64) -> Vec<f32> {
    let step = 1e-5;
    let mut moved = at.to_vec();
    (0..at.len())
        .map(|index| {
            moved[index] = at[index] + step;
            let up = function(&moved);
            moved[index] = at[index] - step;
            let down = function(&moved);
            moved[index] = at[index];
            ((up - down) / (2.0 * step)) as f32
        })
        .collect()
}
