//! Asks compilers for hardware about the kernels, on a machine that has no such hardware.
//!
//! Khronos' validator reads the SPIR-V that naga writes. Mesa's drivers for AMD and NVIDIA compile for cards that are not
//! there, and say how large a kernel's code is and whether it keeps numbers in scratch memory. ThreadSanitizer looks for
//! races.

mod races;

use crate::common::again;
use annulus_shaders::kernel::{GEMM_MATRIX, GEMM_MATRIX_BROAD, KERNELS, Kernel, MATRIX_KERNELS};
use annulus_shaders::launch::Adapter;
use annulus_shaders::needs::{self, Layer};
use ash::{Device, Entry, Instance, khr, vk};
use naga::back::spv;
use naga::valid::{Capabilities, ValidationFlags, Validator};
use std::ffi::{CStr, OsStr};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A card that one of Mesa's drivers acts as, without the hardware.
struct Card {
    name: &'static str,
    /// What the file begins with by which Vulkan finds the driver.
    driver: &'static str,
    /// Makes the driver act as the card.
    environment: &'static [(&'static str, &'static str)],
    /// Plays the kernel's part of the driver, in a package of Debian since Mesa 26.
    shim: &'static str,
    /// Whether the driver needs it. Mesa's for AMD did without up to Mesa 25.
    needs_shim: bool,
    /// Bytes of code that the card keeps at hand; 0 where more may be.
    most_code: u64,
}

const CARDS: [Card; 3] = [
    Card {
        name: "RDNA2",
        driver: "radeon_icd",
        environment: &[("RADV_FORCE_FAMILY", "navi21"), ("AMDGPU_GPU_ID", "navi21")],
        shim: "libamdgpu_noop_drm_shim.so",
        needs_shim: false,
        most_code: 32 << 10,
    },
    Card {
        name: "RDNA3",
        driver: "radeon_icd",
        environment: &[("RADV_FORCE_FAMILY", "gfx1100"), ("AMDGPU_GPU_ID", "navi31")],
        shim: "libamdgpu_noop_drm_shim.so",
        needs_shim: false,
        most_code: 32 << 10,
    },
    Card {
        name: "AD102",
        driver: "nouveau_icd",
        environment: &[
            ("NOUVEAU_CHIPSET", "192"),
            ("NVK_I_WANT_A_BROKEN_VULKAN_DRIVER", "1"),
        ],
        shim: "libnouveau_noop_drm_shim.so",
        needs_shim: true,
        most_code: 0,
    },
];

/// Tells a process of this program that it is to compile for the card that its environment names.
const COMPILE: &str = "ANNULUS_TEST_CARD";

/// A kernel as Vulkan takes it, by the choices that Burn's runtime makes: nothing is checked for its bounds, and workgroup
/// memory is not cleared.
fn spirv(kernel: &Kernel) -> Vec<u32> {
    let module = naga::front::wgsl::parse_str(kernel.text()).unwrap();
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    let info = validator.validate(&module).unwrap();
    let options = spv::Options {
        lang_version: (1, 3),
        flags: spv::WriterFlags::empty(),
        bounds_check_policies: naga::proc::BoundsCheckPolicies {
            index: naga::proc::BoundsCheckPolicy::Unchecked,
            buffer: naga::proc::BoundsCheckPolicy::Unchecked,
            image_load: naga::proc::BoundsCheckPolicy::Unchecked,
            binding_array: naga::proc::BoundsCheckPolicy::Unchecked,
        },
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..spv::Options::default()
    };
    let entry = spv::PipelineOptions {
        shader_stage: naga::ShaderStage::Compute,
        entry_point: "main".to_owned(),
    };
    spv::write_vec(&module, &info, &options, Some(&entry)).unwrap()
}

/// What a validator from before 2024 says of the capability CooperativeMatrixKHR.
const UNKNOWN_UNITS: &str = "Invalid capability operand: 6022";

#[test]
fn khronos_validator_takes_every_kernel() {
    let validator = |file: &Path| {
        let mut command = Command::new("spirv-val");
        command.args(["--target-env", "vulkan1.1"]).arg(file).output()
    };
    if validator(Path::new("--version")).is_err() {
        return println!("skipped: there is no spirv-val (Debian: spirv-tools)");
    }
    let folder = std::env::temp_dir().join(format!("annulus-spirv-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for kernel in KERNELS.iter().chain(MATRIX_KERNELS) {
        let file = folder.join(kernel.name).with_extension("spv");
        let words = without_strides(spirv(kernel));
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        std::fs::write(&file, bytes).unwrap();
        let found = validator(&file).unwrap();
        let said = String::from_utf8_lossy(&found.stderr).into_owned();
        let of_units = MATRIX_KERNELS.iter().any(|one| std::ptr::eq(*one, *kernel));
        if of_units && said.contains(UNKNOWN_UNITS) {
            println!(
                "skipped: {}: this spirv-val is older than matrix units",
                kernel.name
            );
            continue;
        }
        assert!(found.status.success(), "{}: {said}", kernel.name);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// SPIR-V without the strides of arrays in workgroup memory. naga writes them, and validators since 2025 refuse them there;
/// drivers pay no heed to them.
fn without_strides(words: Vec<u32>) -> Vec<u32> {
    const HEADER: usize = 5;
    let mut instructions = Vec::new();
    let mut rest = &words[HEADER..];
    while let Some(first) = rest.first() {
        let (instruction, behind) = rest.split_at((first >> 16) as usize);
        instructions.push(instruction);
        rest = behind;
    }
    // OpTypePointer result Workgroup type, of variables and of what is within them.
    let is_code = |code| move |words: &&&[u32]| words[0] & 0xffff == code;
    let mut shared: Vec<u32> = instructions
        .iter()
        .filter(is_code(32))
        .filter(|words| words[2] == 4)
        .map(|words| words[3])
        .collect();
    // OpTypeArray result element length.
    for words in instructions.iter().filter(is_code(28)).rev() {
        if shared.contains(&words[1]) {
            shared.push(words[2]);
        }
    }
    // OpDecorate target ArrayStride.
    let is_stride = |words: &&[u32]| words[0] & 0xffff == 71 && words[2] == 6 && shared.contains(&words[1]);
    let kept = instructions.into_iter().filter(|words| !is_stride(words));
    [&words[..HEADER]]
        .into_iter()
        .chain(kept)
        .flatten()
        .copied()
        .collect()
}

impl Card {
    /// The file by which Vulkan finds the driver.
    fn driver(&self) -> Option<PathBuf> {
        let folders = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"];
        let files = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok());
        let mut files = files.flatten().flatten().map(|file| file.path());
        files.find(|file| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            // Newer ones are for all architectures.
            name.strip_prefix(self.driver)
                .is_some_and(|rest| rest == ".json" || rest.contains(std::env::consts::ARCH))
        })
    }

    fn shim(&self) -> Option<PathBuf> {
        let folder = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        Some(Path::new(&folder).join(self.shim)).filter(|file| file.is_file())
    }

    /// What the driver says of each kernel, by a line; nothing, after a line that says why, without a driver.
    fn compile(&self) -> Option<String> {
        let (driver, shim) = (self.driver(), self.shim());
        let Some(driver) = driver.filter(|_| shim.is_some() || !self.needs_shim) else {
            println!(
                "skipped: no driver acts as {} (Debian: mesa-vulkan-drivers, mesa-drm-shim)",
                self.name
            );
            return None;
        };
        let mut environment: Vec<(&str, &OsStr)> = vec![
            (COMPILE, self.name.as_ref()),
            ("VK_DRIVER_FILES", driver.as_os_str()),
            // The name of the same where the loader is older.
            ("VK_ICD_FILENAMES", driver.as_os_str()),
        ];
        environment.extend(
            self.environment
                .iter()
                .map(|(name, value)| (*name, value.as_ref())),
        );
        environment.extend(shim.as_ref().map(|shim| ("LD_PRELOAD", shim.as_os_str())));
        Some(again(&["offline::cards", "--nocapture"], environment))
    }
}

#[test]
fn cards_keep_kernels_in_registers_and_their_code_in_caches() {
    if std::env::var_os(COMPILE).is_some() {
        return compile_for_a_card();
    }
    let mut broken = Vec::new();
    for card in &CARDS {
        let Some(said) = card.compile() else { continue };
        let name_of = card.name;
        let mut kernels = 0;
        for line in said
            .lines()
            .filter_map(|line| Some(line.split_once("compiled ")?.1))
        {
            println!("{name_of}: {line}");
            let words: Vec<&str> = line.split(' ').collect();
            let [name, code, scratch, _cycles] = words[..] else {
                panic!("{line}")
            };
            kernels += 1;
            let (code, scratch): (u64, u64) = (code.parse().unwrap(), scratch.parse().unwrap());
            if card.most_code > 0 && code > card.most_code || scratch > 0 {
                broken.push(format!(
                    "{name} on {name_of}: {code} bytes of code, {scratch} of scratch"
                ));
            }
        }
        let expected = for_hardware().len();
        let with_units = expected + OF_SIXTEEN.len();
        assert!([expected, with_units].contains(&kernels), "{name_of}: {said}");
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Whether a device has matrix units.
unsafe fn has_units(instance: &Instance, device: vk::PhysicalDevice) -> bool {
    let extensions = unsafe { instance.enumerate_device_extension_properties(device) }.unwrap();
    let mut names = extensions
        .iter()
        .map(vk::ExtensionProperties::extension_name_as_c_str);
    names.any(|name| name == Ok(khr::cooperative_matrix::NAME))
}

/// Sizes of the square matrices of halves that the units of a device multiply with sums in `f32`; of the first device that is
/// no program, if there is one.
pub fn matrix_blocks() -> Vec<u32> {
    // Nothing is made but the instance, which the end of the process frees.
    unsafe {
        let Ok(entry) = Entry::load() else {
            return Vec::new();
        };
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
        let create = vk::InstanceCreateInfo::default().application_info(&application);
        let instance = entry.create_instance(&create, None).unwrap();
        let mut devices = instance.enumerate_physical_devices().unwrap();
        let kind = |device| instance.get_physical_device_properties(device).device_type;
        devices.sort_by_key(|device| kind(*device) == vk::PhysicalDeviceType::CPU);
        let units = khr::cooperative_matrix::Instance::new(&entry, &instance);
        if devices
            .first()
            .is_none_or(|device| !has_units(&instance, *device))
        {
            return Vec::new();
        }
        let found = units.get_physical_device_cooperative_matrix_properties(devices[0]);
        let of_halves = |one: &&vk::CooperativeMatrixPropertiesKHR| {
            [one.a_type, one.b_type] == [vk::ComponentTypeKHR::FLOAT16; 2]
                && [one.c_type, one.result_type] == [vk::ComponentTypeKHR::FLOAT32; 2]
                && [one.m_size, one.n_size] == [one.k_size; 2]
                && one.scope == vk::ScopeKHR::SUBGROUP
        };
        let found = found.unwrap();
        found.iter().filter(of_halves).map(|one| one.k_size).collect()
    }
}

/// Those for the matrix units of such cards, which only newer drivers know.
const OF_SIXTEEN: [&Kernel; 2] = [&GEMM_MATRIX, &GEMM_MATRIX_BROAD];

/// The kernels that any hardware may get.
fn for_hardware() -> Vec<&'static Kernel> {
    needs::kernels(&Layer::all(), Adapter::Gpu)
}

/// Says of each kernel, on the card that the environment names, how large it is and how many cycles the driver expects of it.
fn compile_for_a_card() {
    // A driver that is told to act as a card needs no device; nothing is ever submitted.
    unsafe {
        let entry = Entry::load().unwrap();
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
        let create = vk::InstanceCreateInfo::default().application_info(&application);
        let instance = entry.create_instance(&create, None).unwrap();
        let physical = instance.enumerate_physical_devices().unwrap()[0];
        let has_units = has_units(&instance, physical);
        let device = device(&instance, physical, has_units);
        let statistics = khr::pipeline_executable_properties::Device::new(&instance, &device);
        let of_sixteen = if has_units { &OF_SIXTEEN[..] } else { &[] };
        for kernel in for_hardware().iter().chain(of_sixteen) {
            let pipeline = pipeline(&device, kernel);
            let executable = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline);
            let found = statistics
                .get_pipeline_executable_statistics(&executable)
                .unwrap();
            let value = |names: [&CStr; 2]| {
                let is_one = |one: &&vk::PipelineExecutableStatisticKHR| {
                    names.iter().any(|name| one.name_as_c_str() == Ok(name))
                };
                let own = found.iter().find(is_one);
                own.unwrap_or_else(|| panic!("the driver tells neither of {names:?}"))
                    .value
                    .u64
            };
            println!(
                "compiled {} {} {} {}",
                kernel.name,
                value([c"Code size"; 2]),
                value([c"Scratch size", c"SLM size"]),
                value([c"Latency", c"Static cycle count"]),
            );
        }
    }
}

/// Opens a device as wgpu does: with accesses that are checked for their bounds.
unsafe fn device(instance: &Instance, physical: vk::PhysicalDevice, has_units: bool) -> Device {
    let queue = vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0]);
    let mut extensions = vec![
        khr::pipeline_executable_properties::NAME.as_ptr(),
        ash::ext::robustness2::NAME.as_ptr(),
    ];
    if has_units {
        extensions.push(khr::cooperative_matrix::NAME.as_ptr());
    }
    let mut units = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(has_units);
    let mut halves = vk::PhysicalDeviceVulkan12Features::default()
        .shader_float16(has_units)
        .vulkan_memory_model(has_units);
    let mut robust = vk::PhysicalDeviceRobustness2FeaturesEXT::default().robust_buffer_access2(true);
    let mut statistics =
        vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default().pipeline_executable_info(true);
    let features = vk::PhysicalDeviceFeatures::default().robust_buffer_access(true);
    let queues = [queue];
    let create = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&extensions)
        .enabled_features(&features)
        .push_next(&mut robust)
        .push_next(&mut statistics)
        .push_next(&mut halves);
    let create = if has_units {
        create.push_next(&mut units)
    } else {
        create
    };
    unsafe { instance.create_device(physical, &create, None).unwrap() }
}

/// Compiles a kernel. Nothing is freed: the process ends soon.
unsafe fn pipeline(device: &Device, kernel: &Kernel) -> vk::Pipeline {
    let words = spirv(kernel);
    let interface = kernel.interface();
    let buffers = interface.inputs + interface.outputs;
    let bindings: Vec<_> = (0..=buffers)
        .map(|binding| {
            let kind = match binding < buffers {
                true => vk::DescriptorType::STORAGE_BUFFER,
                false => vk::DescriptorType::UNIFORM_BUFFER,
            };
            vk::DescriptorSetLayoutBinding::default()
                .binding(binding)
                .descriptor_type(kind)
                .descriptor_count(1)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        })
        .collect();
    unsafe {
        let create = vk::ShaderModuleCreateInfo::default().code(&words);
        let module = device.create_shader_module(&create, None).unwrap();
        let create = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        let sets = [device.create_descriptor_set_layout(&create, None).unwrap()];
        let create = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
        let layout = device.create_pipeline_layout(&create, None).unwrap();
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main");
        let create = vk::ComputePipelineCreateInfo::default()
            .flags(vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR)
            .stage(stage)
            .layout(layout);
        let made = device.create_compute_pipelines(vk::PipelineCache::null(), &[create], None);
        made.map_err(|(_, error)| error).unwrap()[0]
    }
}
