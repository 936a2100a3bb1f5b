//! Kernels that a device refuses are found and named.

use crate::common::{devices, gpu, numbers, run, tensor, values};
use annulus_shaders::check::compile;
use annulus_shaders::kernel::{KERNELS, Kernel, SQUARED_NORM_TOTAL};
use annulus_shaders::launch::{launch, raw};
use burn::tensor::{Device, Tensor};

#[test]
fn this_device_takes_every_kernel() {
    for device in devices() {
        for kernel in KERNELS {
            compile(kernel, &device).unwrap();
        }
        assert_eq!(compile(KERNELS[0], &device.autodiff()), Ok(()));
    }
}

fn kernel(name: &'static str, text: String) -> &'static Kernel {
    Box::leak(Box::new(Kernel::new(name, text.leak())))
}

/// Valid or not, and of the right form; each refused by another part of what takes a kernel.
fn bad_kernels() -> [&'static Kernel; 2] {
    let with = |element: &str, size: &str| {
        format!(
            "@group(0) @binding(0) var<storage, read_write> out: array<{element}>;
             @group(0) @binding(1) var<uniform> params: u32;
             @compute @workgroup_size({size}) fn main() {{ out[0] = params; }}"
        )
    };
    [
        kernel("no_such_type", with("u33", "1")),
        kernel("too_many_invocations", with("u32", "256, 256, 64")),
    ]
}

/// One more buffer than a device takes; nothing where that are thousands.
fn too_many_buffers(device: &Device) -> Option<&'static Kernel> {
    let tensor = raw(Tensor::<1>::zeros([1], device))?;
    let count = tensor.client.properties().hardware.max_bindings + 2;
    if count > 1000 {
        println!("skipped: a kernel of {count} buffers, as this adapter takes");
        return None;
    }
    let buffers: String = (0..count)
        .map(|i| format!("@group(0) @binding({i}) var<storage, read> x{i}: array<u32>;\n"))
        .collect();
    let sum: String = (0..count).map(|i| format!("x{i}[0] + ")).collect();
    let many = format!(
        "{buffers} @group(0) @binding({count}) var<storage, read_write> out: array<u32>;
         @group(0) @binding({}) var<uniform> params: u32;
         @compute @workgroup_size(1) fn main() {{ out[0] = {sum} params; }}",
        count + 1
    );
    Some(kernel("too_many_buffers", many))
}

#[test]
fn bad_kernels_are_named_and_the_device_goes_on() {
    let Some(device) = gpu() else { return };
    for bad in bad_kernels().into_iter().chain(too_many_buffers(&device)) {
        let error = compile(bad, &device).unwrap_err();
        assert_eq!(error.kernel, bad.name);
        assert!(error.to_string().contains(bad.name));
    }
    let pairs = numbers(4, 1);
    let found = run(&device, &SQUARED_NORM_TOTAL, &[&pairs], &[2], [2u32], [1, 1, 1]).remove(0);
    assert_eq!(found, [pairs[0] + pairs[2], pairs[1] + pairs[3]]);
    compile(&SQUARED_NORM_TOTAL, &device).unwrap();
}

#[test]
fn a_launch_that_fails_spoils_its_outputs_alone() {
    let Some(device) = gpu() else { return };
    let refused = kernel(
        "refused",
        "@group(0) @binding(0) var<storage, read> x: array<u32>;
         @group(0) @binding(1) var<storage, read_write> out: array<u32>;
         @group(0) @binding(2) var<uniform> params: u32;
         @compute @workgroup_size(256, 256, 64) fn main() { out[0] = x[0] + params; }"
            .to_owned(),
    );
    let input: Tensor<1> = tensor(&[1.0, 2.0], [2], &device);
    let output: Tensor<1> = tensor(&[3.0, 4.0], [2], &device);
    let [x, out] = [&input, &output].map(|tensor| raw(tensor.clone()).unwrap());
    launch(refused, &[&x], &[&out], 0u32, [1, 1, 1]);
    let error = output.try_into_data().unwrap_err().to_string();
    assert!(error.contains("units"), "{error}");
    assert_eq!(values(input), [1.0, 2.0]);
}
