//! Chooses the device that a peer trains on.
//!
//! Burn's own default device is never used: it neither looks for hardware nor fails if there is none.

use std::fmt;
use std::str::FromStr;

use burn::tensor::Device;

/// The device that `--device` asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A hardware GPU if there is one, else the CPU.
    #[default]
    Auto,
    /// A GPU: hardware if there is any, else a software adapter.
    Gpu,
    /// The adapter of this number in [`adapters`], whatever its kind.
    GpuNumber(usize),
    /// Burn's CPU backend.
    Cpu,
}

impl FromStr for DeviceChoice {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let number = |digits: &str| digits.parse().map(Self::GpuNumber);
        match text {
            "auto" => Ok(Self::Auto),
            "gpu" => Ok(Self::Gpu),
            "cpu" => Ok(Self::Cpu),
            _ => text
                .strip_prefix("gpu:")
                .and_then(|digits| number(digits).ok())
                .ok_or_else(|| DeviceError::UnknownChoice {
                    text: text.to_owned(),
                }),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Gpu => f.write_str("gpu"),
            Self::GpuNumber(number) => write!(f, "gpu:{number}"),
            Self::Cpu => f.write_str("cpu"),
        }
    }
}

/// The value of `--device`: a device, with `+f16` behind it if linear layers should multiply halves there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceRequest {
    /// The device.
    pub choice: DeviceChoice,
    /// Whether products take halves, where it pays: those of the GPU's matrix units, or else weights kept as halves. They
    /// are less exact by the rounding. Sums stay `f32`.
    pub f16: bool,
}

impl From<DeviceChoice> for DeviceRequest {
    fn from(choice: DeviceChoice) -> Self {
        Self { choice, f16: false }
    }
}

impl FromStr for DeviceRequest {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let (device, f16) = match text.strip_suffix("+f16") {
            Some(device) => (device, true),
            None => (text, false),
        };
        let unknown = || DeviceError::UnknownChoice {
            text: text.to_owned(),
        };
        let choice = device.parse().map_err(|_| unknown())?;
        Ok(Self { choice, f16 })
    }
}

/// The kinds of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// Burn's CPU backend.
    Cpu,
    /// A GPU.
    Gpu,
    /// A software GPU that runs on the CPU, such as lavapipe: correct, but slow.
    SoftwareGpu,
}

/// A device that is ready to use.
#[derive(Clone, Debug)]
pub struct OpenDevice {
    /// Burn's handle of it.
    pub device: Device,
    /// Its name, such as `Radeon RX 7900 XTX (Vulkan)`.
    pub name: String,
    /// Its kind.
    pub kind: DeviceKind,
    /// Something that the user should know about the choice.
    pub note: Option<String>,
}

impl OpenDevice {
    /// Burn's CPU backend, which is always available.
    pub fn cpu() -> Self {
        Self {
            device: Device::flex(),
            name: "CPU".to_owned(),
            kind: DeviceKind::Cpu,
            note: None,
        }
    }
}

/// Why there is no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The value of `--device` is invalid.
    #[error(
        "unknown device {text:?}: choose auto, gpu, gpu:N (N from `annulus doctor`) or cpu; +f16 behind it \
         lets a GPU multiply halves"
    )]
    UnknownChoice {
        /// The value.
        text: String,
    },
    /// A GPU was requested, and there is none.
    #[error(
        "no GPU found: install its driver (on Linux the Vulkan one, or \
         mesa-vulkan-drivers for a software adapter), or use --device cpu"
    )]
    NoAdapter,
    /// There is no adapter of this number.
    #[error("no adapter gpu:{number}: there are {count}, numbered from 0 (see `annulus doctor`)")]
    NoSuchAdapter {
        /// The number.
        number: usize,
        /// How many adapters there are.
        count: usize,
    },
    /// The adapter exists but cannot be used.
    #[error("{name} cannot be used: {reason}; try another adapter or --device cpu")]
    Unusable {
        /// The adapter.
        name: String,
        /// The driver's message.
        reason: String,
    },
}

#[cfg(not(target_family = "wasm"))]
pub use native::{Adapter, AdapterLimits, adapters, auto_of, open};

#[cfg(not(target_family = "wasm"))]
mod native {
    //! The adapters of this machine. In a browser the page requests one instead.

    use std::sync::{Mutex, MutexGuard, PoisonError};

    use annulus_shaders::{halves, trial};
    use burn::tensor::wgpu::MemoryConfiguration;
    use burn::tensor::{Device, DeviceKind as Selector, read_sync};
    use wgpu::{CooperativeScalarType, DeviceType};

    use super::{DeviceChoice, DeviceError, DeviceKind, DeviceRequest, OpenDevice};

    /// An adapter as the graphics driver describes it.
    #[derive(Clone, Debug)]
    pub struct Adapter {
        /// The N in `--device gpu:N`.
        pub number: usize,
        /// The name that the driver gives.
        pub name: String,
        /// The graphics API: `vulkan`, `metal`, `dx12` or `gl`.
        pub api: String,
        /// Driver and version.
        pub driver: String,
        /// Hardware or a program.
        pub device_type: DeviceType,
        /// Its limits.
        pub limits: AdapterLimits,
        /// Sizes of the square matrices of halves that its matrix units multiply, with sums in `f32`; none without such
        /// units.
        pub matrix_blocks: Vec<u32>,
        /// How to tell Burn to use this adapter, which is not possible for some kinds.
        selector: Option<Selector>,
    }

    impl Adapter {
        /// Whether the adapter is software.
        pub fn is_software(&self) -> bool {
            self.device_type == DeviceType::Cpu
        }

        /// Preference among adapters: the lower the better.
        fn rank(&self) -> u8 {
            match self.device_type {
                DeviceType::DiscreteGpu => 0,
                DeviceType::IntegratedGpu => 1,
                DeviceType::VirtualGpu => 2,
                DeviceType::Other => 3,
                DeviceType::Cpu => 4,
            }
        }

        fn full_name(&self) -> String {
            format!("{} ({})", self.name, self.api)
        }
    }

    /// The limits that matter to compute kernels.
    #[derive(Clone, Copy, Debug)]
    pub struct AdapterLimits {
        /// Largest buffer, in bytes.
        pub buffer_bytes: u64,
        /// Largest part of a buffer that a kernel can see, in bytes.
        pub binding_bytes: u64,
        /// Storage buffers that a kernel can see at once.
        pub storage_buffers: u32,
        /// Workgroup memory, in bytes.
        pub workgroup_bytes: u32,
        /// Invocations of a workgroup.
        pub workgroup_invocations: u32,
    }

    impl AdapterLimits {
        /// Each limit's name and value, for people.
        pub fn list(&self) -> [(&'static str, u64); 5] {
            [
                ("buffer bytes", self.buffer_bytes),
                ("binding bytes", self.binding_bytes),
                ("storage buffers", self.storage_buffers.into()),
                ("workgroup bytes", self.workgroup_bytes.into()),
                ("workgroup invocations", self.workgroup_invocations.into()),
            ]
        }
    }

    /// Held while graphics drivers are called: the Vulkan loader crashes when instances come and go on several threads
    /// at once. Also holds the open devices, since Burn refuses to open an adapter twice.
    static DRIVERS: Mutex<Vec<(Selector, Device)>> = Mutex::new(Vec::new());

    fn lock_drivers() -> MutexGuard<'static, Vec<(Selector, Device)>> {
        // The list is only ever pushed to, so it is valid even if a driver made its thread panic.
        DRIVERS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All adapters that can be chosen, in the driver's order.
    ///
    /// One adapter appears under several graphics APIs. These are the adapters of the first API with hardware, or else
    /// of the first with any adapter, which is the rule by which Burn settles on an API.
    pub fn adapters() -> Vec<Adapter> {
        let _drivers = lock_drivers();
        enumerate()
    }

    /// Opens the requested device.
    ///
    /// # Errors
    ///
    /// If it does not exist or cannot be used. [`DeviceChoice::Auto`] and [`DeviceChoice::Cpu`] never fail.
    pub fn open(request: impl Into<DeviceRequest>) -> Result<OpenDevice, DeviceError> {
        let DeviceRequest { choice, f16 } = request.into();
        if choice == DeviceChoice::Cpu {
            // This wakes no graphics driver.
            return Ok(without_halves(OpenDevice::cpu(), f16));
        }
        let mut drivers = lock_drivers();
        let Some(adapter) = choose(choice, enumerate())? else {
            return Ok(without_halves(OpenDevice::cpu(), f16));
        };
        let opened = open_adapter(&adapter, &mut drivers);
        #[cfg(test)]
        crate::ending::end_tests_at_once();
        match opened {
            Err(error) if choice == DeviceChoice::Auto => {
                let cpu = OpenDevice {
                    note: Some(format!("using the CPU, because {error}")),
                    ..OpenDevice::cpu()
                };
                Ok(without_halves(cpu, f16))
            }
            Ok(device) if f16 => with_halves(device, &adapter.matrix_blocks),
            result => result,
        }
    }

    /// The CPU, with a note if halves were asked for.
    fn without_halves(device: OpenDevice, f16: bool) -> OpenDevice {
        let added = "+f16 changes nothing here: on the CPU all numbers stay f32";
        let note = match device.note {
            note if !f16 => note,
            Some(note) => Some(format!("{note}; {added}")),
            None => Some(added.to_owned()),
        };
        OpenDevice { note, ..device }
    }

    /// Lets products take halves: those of the device's matrix units if it has them, or else weights as halves.
    fn with_halves(device: OpenDevice, blocks: &[u32]) -> Result<OpenDevice, DeviceError> {
        halves::store_weights(&device.device).map_err(|error| DeviceError::Unusable {
            name: device.name.clone(),
            reason: error.to_string(),
        })?;
        match trial::take_units(&device.device, blocks) {
            Ok(()) => tracing::info!("{}: its matrix units multiply halves", device.name),
            Err(error) => tracing::info!("{}: no matrix units, weights as halves: {error}", device.name),
        }
        Ok(OpenDevice {
            name: format!("{}, with halves", device.name),
            ..device
        })
    }

    /// The number of the adapter that [`DeviceChoice::Auto`] takes; none means the CPU backend.
    pub fn auto_of(adapters: &[Adapter]) -> Option<usize> {
        best(adapters, |adapter| {
            !adapter.is_software() && adapter.selector.is_some()
        })
    }

    /// The number of the best adapter that is usable.
    fn best(adapters: &[Adapter], usable: impl Fn(&Adapter) -> bool) -> Option<usize> {
        let usable = adapters.iter().filter(|adapter| usable(adapter));
        let best = usable.min_by_key(|adapter| adapter.rank());
        best.map(|adapter| adapter.number)
    }

    /// Decides which adapter to take; none means the CPU backend.
    pub(super) fn choose(
        choice: DeviceChoice,
        mut adapters: Vec<Adapter>,
    ) -> Result<Option<Adapter>, DeviceError> {
        let count = adapters.len();
        match choice {
            DeviceChoice::Cpu => Ok(None),
            DeviceChoice::Auto => Ok(auto_of(&adapters).map(|number| adapters.swap_remove(number))),
            DeviceChoice::Gpu => match best(&adapters, |_| true) {
                Some(number) => Ok(Some(adapters.swap_remove(number))),
                None => Err(DeviceError::NoAdapter),
            },
            DeviceChoice::GpuNumber(number) if number < count => Ok(Some(adapters.swap_remove(number))),
            DeviceChoice::GpuNumber(_) if count == 0 => Err(DeviceError::NoAdapter),
            DeviceChoice::GpuNumber(number) => Err(DeviceError::NoSuchAdapter { number, count }),
        }
    }

    fn open_adapter(
        adapter: &Adapter,
        open: &mut Vec<(Selector, Device)>,
    ) -> Result<OpenDevice, DeviceError> {
        let unusable = |reason: String| DeviceError::Unusable {
            name: adapter.full_name(),
            reason,
        };
        let Some(selector) = adapter.selector.clone() else {
            return Err(unusable("its driver does not say what it is".to_owned()));
        };
        let known = open.iter().find(|(known, _)| *known == selector);
        let device = match known {
            Some((_, device)) => device.clone(),
            None => {
                // A separate buffer for each tensor: kernels read some and write others, and WebGPU forbids both within
                // one buffer.
                let device = Device::wgpu_options()
                    .device_kind(selector.clone())
                    .memory_config(MemoryConfiguration::ExclusivePages)
                    .init()
                    .map_err(|error| unusable(error.to_string()))?;
                open.push((selector, device.clone()));
                device
            }
        };
        let (kind, note) = if adapter.is_software() {
            let note = "no hardware: this adapter is a program that runs on the CPU, and slower \
                        than --device cpu";
            (DeviceKind::SoftwareGpu, Some(note.to_owned()))
        } else {
            (DeviceKind::Gpu, None)
        };
        Ok(OpenDevice {
            device,
            name: adapter.full_name(),
            kind,
            note,
        })
    }

    fn enumerate() -> Vec<Adapter> {
        let apis = if cfg!(target_os = "macos") {
            vec![wgpu::Backends::METAL]
        } else {
            vec![wgpu::Backends::VULKAN, wgpu::Backends::DX12, wgpu::Backends::GL]
        };
        let mut software = Vec::new();
        for api in apis {
            let found = enumerate_api(api);
            if found.iter().any(|adapter| !adapter.is_software()) {
                return found;
            }
            if software.is_empty() {
                software = found;
            }
        }
        software
    }

    fn enumerate_api(api: wgpu::Backends) -> Vec<Adapter> {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
            backends: api,
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        });
        let mut counts = [0; 3];
        let found = read_sync(instance.enumerate_adapters(api));
        let described = found.iter().enumerate().map(|(number, adapter)| {
            let info = adapter.get_info();
            let limits = adapter.limits();
            Adapter {
                number,
                selector: selector(info.device_type, &mut counts),
                api: info.backend.to_string(),
                driver: format!("{} {}", info.driver, info.driver_info),
                device_type: info.device_type,
                name: info.name,
                matrix_blocks: matrix_blocks(adapter),
                limits: AdapterLimits {
                    buffer_bytes: limits.max_buffer_size,
                    binding_bytes: limits.max_storage_buffer_binding_size,
                    storage_buffers: limits.max_storage_buffers_per_shader_stage,
                    workgroup_bytes: limits.max_compute_workgroup_storage_size,
                    workgroup_invocations: limits.max_compute_invocations_per_workgroup,
                },
            }
        });
        described.collect()
    }

    fn matrix_blocks(adapter: &wgpu::Adapter) -> Vec<u32> {
        let units = adapter.cooperative_matrix_properties();
        let of_halves = units.iter().filter(|unit| {
            (unit.ab_type, unit.cr_type) == (CooperativeScalarType::F16, CooperativeScalarType::F32)
                && [unit.m_size, unit.n_size] == [unit.k_size; 2]
        });
        of_halves.map(|unit| unit.k_size).collect()
    }

    /// Burn numbers each type of adapter separately, and knows only the first software one.
    fn selector(device_type: DeviceType, counts: &mut [usize; 3]) -> Option<Selector> {
        let mut next = |slot: usize| {
            counts[slot] += 1;
            counts[slot] - 1
        };
        match device_type {
            DeviceType::DiscreteGpu => Some(Selector::DiscreteGpu(next(0))),
            DeviceType::IntegratedGpu => Some(Selector::IntegratedGpu(next(1))),
            DeviceType::VirtualGpu => Some(Selector::VirtualGpu(next(2))),
            DeviceType::Cpu => Some(Selector::Cpu),
            DeviceType::Other => None,
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn machine(types: &[DeviceType]) -> Vec<Adapter> {
            let mut counts = [0; 3];
            let adapter = |(number, device_type): (usize, &DeviceType)| Adapter {
                number,
                name: format!("adapter {number}"),
                api: "vulkan".to_owned(),
                driver: String::new(),
                device_type: *device_type,
                limits: AdapterLimits {
                    buffer_bytes: 0,
                    binding_bytes: 0,
                    storage_buffers: 0,
                    workgroup_bytes: 0,
                    workgroup_invocations: 0,
                },
                matrix_blocks: Vec::new(),
                selector: selector(*device_type, &mut counts),
            };
            types.iter().enumerate().map(adapter).collect()
        }

        #[test]
        fn each_choice_takes_the_adapter_it_should() {
            use DeviceChoice::{Auto, Cpu, Gpu, GpuNumber};
            use DeviceType::{Cpu as Software, DiscreteGpu as Discrete, IntegratedGpu as Integrated, Other};
            let none: &[DeviceType] = &[];
            let two = &[Software, Discrete, Integrated, Discrete][..];
            let no_such = |number, count| Err(DeviceError::NoSuchAdapter { number, count });
            let table = [
                (Auto, none, Ok(None)),
                (Cpu, two, Ok(None)),
                (Gpu, none, Err(DeviceError::NoAdapter)),
                (GpuNumber(0), none, Err(DeviceError::NoAdapter)),
                (Auto, &[Software], Ok(None)),
                (Auto, &[Other, Software], Ok(None)),
                (Gpu, &[Software], Ok(Some(Selector::Cpu))),
                (Auto, two, Ok(Some(Selector::DiscreteGpu(0)))),
                (Gpu, two, Ok(Some(Selector::DiscreteGpu(0)))),
                (
                    Auto,
                    &[Software, Integrated],
                    Ok(Some(Selector::IntegratedGpu(0))),
                ),
                (GpuNumber(0), two, Ok(Some(Selector::Cpu))),
                (GpuNumber(3), two, Ok(Some(Selector::DiscreteGpu(1)))),
                (GpuNumber(4), two, no_such(4, 4)),
            ];
            for (choice, types, expected) in table {
                let chosen = choose(choice, machine(types));
                let chosen = chosen.map(|adapter| adapter.and_then(|adapter| adapter.selector));
                assert_eq!(chosen, expected, "{choice} of {types:?}");
            }
        }

        #[test]
        fn opening_an_adapter_twice_gives_the_same_device() {
            match open(DeviceChoice::Gpu) {
                Err(DeviceError::NoAdapter) => {
                    println!("skipped: this machine has no adapter, not even a software one");
                }
                first => {
                    let first = first.unwrap();
                    let again = open(DeviceChoice::Gpu).unwrap();
                    assert_eq!(first.device, again.device);
                    assert_eq!(first.kind == DeviceKind::SoftwareGpu, first.note.is_some());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_as_they_are_written() {
        let choices = [
            DeviceChoice::Auto,
            DeviceChoice::Gpu,
            DeviceChoice::GpuNumber(12),
            DeviceChoice::Cpu,
        ];
        for choice in choices {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        for (text, choice, f16) in [
            ("gpu:3+f16", DeviceChoice::GpuNumber(3), true),
            ("auto+f16", DeviceChoice::Auto, true),
            ("cpu", DeviceChoice::Cpu, false),
        ] {
            assert_eq!(text.parse(), Ok(DeviceRequest { choice, f16 }));
        }
        for text in ["+f16", "gpu+f32", "gpu +f16", "gpu+f16+f16"] {
            let error = text.parse::<DeviceRequest>().unwrap_err().to_string();
            assert!(
                error.contains(&format!("{text:?}: choose auto")),
                "{text}: {error}"
            );
        }
        for text in ["", "cuda", "gpu:", "gpu:-1", "gpu:x", "GPU", "cpu:0"] {
            let error = text.parse::<DeviceChoice>().unwrap_err().to_string();
            assert!(error.contains("choose auto"), "{text}: {error}");
        }
    }
}
