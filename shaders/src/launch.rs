//! Runs kernels on a device of Burn's.
//!
//! Knows tensors as buffers of numbers; what the numbers mean is the business of `ops`.

use burn::backend::ops::IntTensorOps;
use burn::backend::wgpu::{CubeBackend, CubeTensor, into_contiguous};
use burn::backend::{
    BackendTensor, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind, TensorMetadata,
};
use burn::cubecl::device::WgpuDeviceKind;
use burn::cubecl::ir::attributes::BufferIOAttr;
use burn::cubecl::ir::settings::Dim3;
use burn::cubecl::ir::{AddressType, ElemType, UIntKind, metadata::Info};
use burn::cubecl::prelude::{
    ExecutionMode, KernelDefinition, KernelId, KernelMetadata, KernelSettings, Scope,
};
use burn::cubecl::server::{KernelArguments, MetadataBindingInfo};
use burn::cubecl::{CubeCount, Device};
use burn::cubecl::{CubeKernel, PrecompiledSource};
use burn::tensor::{DType, Device as BurnDevice, IntDType, Shape, Tensor};
use bytemuck::Pod;
use std::sync::OnceLock;

use crate::kernel::{Interface, Kernel};

/// WebGPU's default limit of workgroups along an axis.
pub const MAX_GROUPS: u32 = 65_535;

/// Enough workgroups for `count` of them, in rows no longer than WebGPU allows. Kernels count them
/// row after row, and must expect some too many.
pub fn grid(count: usize) -> [u32; 3] {
    let count = u32::try_from(count.max(1)).expect("fewer than 2^32 workgroups");
    let rows = count.div_ceil(MAX_GROUPS);
    [count.div_ceil(rows), rows, 1]
}

/// Runs `kernel` on `inputs`, which must be contiguous, and `outputs`, all on one device.
///
/// # Panics
///
/// If buffers or parameters are not as many as the kernel's text declares: a bug of the caller.
pub fn launch<P: Pod>(
    kernel: &'static Kernel,
    inputs: &[&CubeTensor],
    outputs: &[&CubeTensor],
    params: P,
    groups: [u32; 3],
) {
    let interface = kernel.interface();
    let declared = (interface.inputs as usize, interface.outputs as usize);
    assert_eq!(
        (inputs.len(), outputs.len()),
        declared,
        "buffers of {}",
        kernel.name
    );
    assert_eq!(
        size_of::<P>(),
        interface.params_bytes as usize,
        "params of {}",
        kernel.name
    );
    assert!(
        groups.iter().all(|count| (1..=MAX_GROUPS).contains(count)),
        "{groups:?} for {}",
        kernel.name
    );
    let mut words = vec![0u64; size_of::<P>().div_ceil(8)];
    bytemuck::cast_slice_mut(&mut words)[..size_of::<P>()].copy_from_slice(bytemuck::bytes_of(&params));
    let [x, y, z] = groups;
    kernel.count_launch();
    launch_counted(kernel, inputs, outputs, words, CubeCount::Static(x, y, z));
}

/// As [`launch`], with parameters as words and any kind of count of workgroups.
pub(crate) fn launch_counted(
    kernel: &'static Kernel,
    inputs: &[&CubeTensor],
    outputs: &[&CubeTensor],
    params: Vec<u64>,
    groups: CubeCount,
) {
    let mut arguments = KernelArguments::new().with_info(MetadataBindingInfo::custom(params));
    let client = &outputs[0].client;
    // So that a launch that fails spoils its outputs alone.
    let inputs = inputs.iter().map(|tensor| (tensor, BufferIOAttr::ReadOnly));
    let outputs = outputs.iter().map(|tensor| (tensor, BufferIOAttr::ReadWrite));
    for (tensor, access) in inputs.chain(outputs) {
        arguments = arguments.with_buffer_io(tensor.handle.clone().binding(), access);
    }
    let source = Text(kernel);
    client.launch(Box::new(source), groups, arguments);
}

/// A new tensor like `like` in device and element type, with undefined contents.
pub fn empty(like: &CubeTensor, shape: impl Into<Shape>) -> CubeTensor {
    let shape = shape.into();
    // Zero-sized buffers do not exist.
    let bytes = shape.num_elements().max(1) * size_of::<f32>();
    let handle = like.client.empty(bytes);
    CubeTensor::new_contiguous(
        like.client.clone(),
        like.device.clone(),
        shape,
        handle,
        like.dtype,
    )
}

/// The buffer behind a tensor without gradients, if it is on a GPU.
pub fn raw<const D: usize>(tensor: Tensor<D>) -> Option<CubeTensor> {
    match tensor.into_dispatch().kind {
        DispatchTensorKind::Cube(BackendTensor::Float(tensor)) => Some(tensor),
        _ => None,
    }
}

/// A tensor without gradients.
pub fn from_raw<const D: usize>(tensor: CubeTensor) -> Tensor<D> {
    Tensor::from_dispatch(DispatchTensor {
        kind: DispatchTensorKind::Cube(BackendTensor::Float(tensor)),
        autodiff: DispatchAutodiffContext::Disabled,
    })
}

/// The same numbers in row-major order; free if they are so already.
pub fn contiguous(tensor: CubeTensor) -> CubeTensor {
    debug_assert!(matches!(tensor.dtype(), DType::F32 | DType::I32 | DType::U32));
    into_contiguous(tensor)
}

/// Whole numbers in row-major order as `i32`; free if they are so already.
pub fn integers(tensor: CubeTensor) -> CubeTensor {
    let tensor = if tensor.dtype == DType::I32 {
        tensor
    } else {
        CubeBackend::int_cast(tensor, IntDType::I32)
    };
    contiguous(tensor)
}

/// The same buffer seen in another shape with as many elements.
pub fn reshaped(tensor: CubeTensor, shape: Shape) -> CubeTensor {
    debug_assert_eq!(tensor.shape().num_elements(), shape.num_elements());
    let CubeTensor {
        client,
        handle,
        device,
        dtype,
        ..
    } = contiguous(tensor);
    CubeTensor::new_contiguous(client, device, shape, handle, dtype)
}

/// Some of a tensor's numbers, from `start` on, as a tensor of their own: no copy.
pub fn part(whole: &CubeTensor, start: usize, shape: impl Into<Shape>) -> CubeTensor {
    let shape = shape.into();
    let bytes = |numbers: usize| (numbers * size_of::<f32>()) as u64;
    let handle = whole.handle.clone();
    let behind = handle.size_in_used() - bytes(start + shape.num_elements());
    let handle = handle.offset_start(bytes(start)).offset_end(behind);
    let (client, device) = (whole.client.clone(), whole.device.clone());
    CubeTensor::new_contiguous(client, device, shape, handle, whole.dtype)
}

/// The kind of adapter, which decides which kernel is fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adapter {
    /// Hardware.
    Gpu,
    /// A program whose compiler optimises, such as lavapipe.
    Cpu,
    /// SwiftShader, browsers' own program: it loads lane by lane, and branches skip nothing.
    SwiftShader,
}

/// The kind of adapter of a device; none if the device is not a GPU.
pub fn adapter_of(device: &BurnDevice) -> Option<Adapter> {
    let device = device.clone().without_autodiff();
    raw(Tensor::<1>::zeros([1], &device)).map(|tensor| adapter(&tensor))
}

/// The environment variable that says which kernels a device gets, whatever it is: `gpu`, `cpu` or `swiftshader`. With
/// it a program that plays a GPU runs those meant for hardware.
pub const ADAPTER_VARIABLE: &str = "ANNULUS_ADAPTER";

/// What [`ADAPTER_VARIABLE`] says.
fn named_adapter() -> Option<Adapter> {
    static NAMED: OnceLock<Option<Adapter>> = OnceLock::new();
    *NAMED.get_or_init(|| match std::env::var(ADAPTER_VARIABLE).ok()?.as_str() {
        "gpu" => Some(Adapter::Gpu),
        "cpu" => Some(Adapter::Cpu),
        "swiftshader" => Some(Adapter::SwiftShader),
        other => panic!("{ADAPTER_VARIABLE} is {other:?}; set it to gpu, cpu or swiftshader, or unset it"),
    })
}

/// What plays the GPU that a tensor lies on.
pub(crate) fn adapter(tensor: &CubeTensor) -> Adapter {
    if let Some(named) = named_adapter() {
        return named;
    }
    if !matches!(&tensor.device, Device::Wgpu(device) if device.kind == WgpuDeviceKind::Cpu) {
        return Adapter::Gpu;
    }
    let properties = tensor.client.properties();
    let name = &properties.identity.name;
    // Browsers hide the name, but not that there are four lanes.
    if name.contains("SwiftShader") || name.is_empty() && properties.hardware.plane_size_max == 4 {
        Adapter::SwiftShader
    } else {
        Adapter::Cpu
    }
}

/// Whether the adapter is a program that plays a GPU on the CPU.
pub(crate) fn is_emulated(tensor: &CubeTensor) -> bool {
    adapter(tensor) != Adapter::Gpu
}

/// How many neighbouring invocations share a row of `width` elements: a power of two, at most 64.
/// On a GPU enough to read memory in runs of cache lines, but not so many that adding up their
/// partial sums takes longer than making them. Emulated, one: sharing needs a barrier, which is dear.
pub(crate) fn lanes(tensor: &CubeTensor, width: usize) -> u32 {
    if is_emulated(tensor) {
        1
    } else {
        (width.next_power_of_two() / 16).clamp(8, 64) as u32
    }
}

fn dim(interface: &Interface) -> Dim3 {
    let [x, y, z] = interface.workgroup_size;
    Dim3 { x, y, z }
}

/// A kernel's text for Burn's runtime.
struct Text(&'static Kernel);

/// No loop of ours is endless, so none needs the counter that the checked mode adds to end it: with
/// one, compilers unroll nothing, and matrix products take twice as long.
const MODE: ExecutionMode = ExecutionMode::Unchecked;

impl CubeKernel for Text {
    fn define(&self) -> KernelDefinition {
        let size = dim(self.0.interface());
        let settings = KernelSettings::new(size, MODE, AddressType::U32);
        KernelDefinition {
            body: Scope::root(settings.clone()),
            settings,
            info: Info::default(),
        }
    }

    fn source(&self) -> Option<PrecompiledSource> {
        Some(PrecompiledSource {
            source: self.0.text().to_owned(),
            entrypoint_name: "main".to_owned(),
            lang: "wgsl",
        })
    }
}

impl KernelMetadata for Text {
    fn id(&self) -> KernelId {
        KernelId::new::<Self>()
            .info(self.0.name)
            .mode(MODE)
            .cube_dim(dim(self.0.interface()))
    }

    fn address_type(&self) -> ElemType {
        UIntKind::U32.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_hold_enough_groups_in_rows_that_are_allowed() {
        for count in [0, 1, 2, 65_535, 65_536, 65_537, 131_070, 10_000_019] {
            let [x, y, z] = grid(count);
            assert!(x <= MAX_GROUPS && y <= MAX_GROUPS && z == 1);
            let enough = x as usize * y as usize;
            assert!(
                (count..count + y as usize + 1).contains(&enough),
                "{count}: {x} x {y}"
            );
        }
    }
}
