//! Devices, numbers and comparisons for the kernels' tests.
#![allow(dead_code)]

use std::sync::OnceLock;

use annulus_shaders::kernel::{KERNELS, Kernel};
use annulus_shaders::launch::{grid, launch};
use burn::backend::wgpu::CubeTensor;
use burn::tensor::wgpu::MemoryConfiguration;
use burn::tensor::{Device, DeviceKind, Int, Tensor, TensorData};
use bytemuck::Pod;

/// What a kernel must overwrite and nothing else may touch.
pub const SENTINEL: f32 = -12345.0;

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
    if device.is_none() {
        println!("skipped: this machine has no adapter, not even a software one");
    }
    device.clone()
}

/// How many kernels of the table this process has launched so far.
pub fn launches() -> u64 {
    KERNELS.iter().map(|kernel| kernel.launches()).sum()
}

/// The same sequence of numbers in [-1, 1) each time.
pub fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A tensor on `device`.
pub fn tensor<const D: usize>(values: &[f32], shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), device)
}

/// A tensor of whole numbers on `device`.
pub fn whole<const D: usize>(values: &[i32], shape: [usize; D], device: &Device) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), device)
}

/// A tensor's numbers.
pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec::<f32>().unwrap()
}

/// The raw tensor of a device's.
pub fn raw<const D: usize>(tensor: Tensor<D>) -> CubeTensor {
    match tensor.into_dispatch().kind {
        burn::backend::DispatchTensorKind::Cube(tensor) => tensor.float(),
        other => panic!("not on a GPU: {other:?}"),
    }
}

/// What follows each buffer of [`run`]: as far as a kernel that overlooks its end would soon get.
const BEHIND: usize = 1024;

/// Enough workgroups for `count` of them, some more, and in several rows, as kernels must expect.
pub fn spare(count: usize) -> [u32; 3] {
    if count > 100_000 {
        return grid(count + 3);
    }
    [count.div_ceil(2) as u32, 3, 1]
}

/// Runs a kernel on slices. Behind each input there are numbers that spoil whatever they touch; outputs
/// are filled with [`SENTINEL`] before, and so is what follows them, which must stay.
pub fn run<P: Pod>(
    device: &Device,
    kernel: &'static Kernel,
    inputs: &[&[f32]],
    outputs: &[usize],
    params: P,
    groups: [u32; 3],
) -> Vec<Vec<f32>> {
    let inputs: Vec<CubeTensor> = inputs
        .iter()
        .map(|values| {
            let mut values = values.to_vec();
            values.resize(values.len() + BEHIND, f32::NAN);
            raw(tensor(&values, [values.len()], device))
        })
        .collect();
    let lengths = outputs;
    let outputs: Vec<Tensor<1>> = lengths
        .iter()
        .map(|count| count + BEHIND)
        .map(|count| tensor(&vec![SENTINEL; count], [count], device))
        .collect();
    let raw_outputs: Vec<CubeTensor> = outputs.iter().cloned().map(raw).collect();
    launch(
        kernel,
        &inputs.iter().collect::<Vec<_>>(),
        &raw_outputs.iter().collect::<Vec<_>>(),
        params,
        groups,
    );
    let found = outputs.into_iter().zip(lengths).map(|(output, count)| {
        let mut found = values(output);
        let behind = found.split_off(*count);
        let untouched = behind.iter().all(|x| *x == SENTINEL);
        assert!(untouched, "{} writes behind the end of an output", kernel.name);
        found
    });
    found.collect()
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
