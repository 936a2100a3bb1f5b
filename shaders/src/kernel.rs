//! The table of WGSL kernels, and what their texts say about themselves.
//!
//! Bindings and workgroup sizes are never written down twice: they are read from the WGSL by naga,
//! the compiler that wgpu itself uses.

use std::sync::OnceLock;

use naga::valid::{Capabilities, ValidationFlags, Validator};

/// A kernel: one WGSL file with the entry point `main`.
#[derive(Debug)]
pub struct Kernel {
    /// The name of its file, without `.wgsl`.
    pub name: &'static str,
    /// The text.
    pub source: &'static str,
    interface: OnceLock<Interface>,
}

/// What a kernel's text says of its bindings and workgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Storage buffers that it reads, in order; they are the first bindings.
    pub inputs: u32,
    /// Storage buffers that it writes, in order; they follow the inputs.
    pub outputs: u32,
    /// Size of its parameters, which are the last binding, in bytes.
    pub params_bytes: u32,
    /// Invocations in a workgroup, along each axis.
    pub workgroup_size: [u32; 3],
    /// Workgroup memory, in bytes.
    pub workgroup_bytes: u32,
}

/// Why a WGSL text is no kernel of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelError {
    /// The kernel's name.
    pub kernel: String,
    /// What is wrong with it.
    pub problem: String,
}

impl std::fmt::Display for KernelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "kernel {}: {}", self.kernel, self.problem)
    }
}

impl std::error::Error for KernelError {}

impl Kernel {
    const fn new(name: &'static str, source: &'static str) -> Self {
        Self {
            name,
            source,
            interface: OnceLock::new(),
        }
    }

    /// Its bindings and workgroup.
    ///
    /// # Panics
    ///
    /// If the text is no valid kernel, which a test rules out for all of [`KERNELS`].
    pub fn interface(&self) -> &Interface {
        self.interface
            .get_or_init(|| match reflect(self.name, self.source) {
                Ok(interface) => interface,
                Err(error) => panic!("{error}"),
            })
    }
}

macro_rules! kernels {
    ($($(#[$about:meta])* $constant:ident = $name:literal;)*) => {
        $(
            $(#[$about])*
            pub static $constant: Kernel =
                Kernel::new($name, include_str!(concat!("../wgsl/", $name, ".wgsl")));
        )*

        /// All kernels, by name.
        pub static KERNELS: &[&Kernel] = &[$(&$constant),*];
    };
}

kernels! {
    /// Matrix product of any shape and strides, a small tile per invocation.
    GEMM_ANY = "gemm_any";
    /// `A B`, rows in registers, no barriers.
    GEMM_NN = "gemm_nn";
    /// `A Bᵀ`, rows in registers, no barriers.
    GEMM_NT = "gemm_nt";
    /// `Aᵀ B` and the column sums of `B`, rows in registers, no barriers.
    GEMM_TN = "gemm_tn";
    /// Attention, without barriers.
    ATTENTION_FORWARD = "attention_forward";
    /// Its slopes, without barriers.
    ATTENTION_BACKWARD = "attention_backward";
    /// Attention, tiles in workgroup memory.
    ATTENTION_FORWARD_TILED = "attention_forward_tiled";
    /// Its slopes, tiles in workgroup memory.
    ATTENTION_BACKWARD_TILED = "attention_backward_tiled";
}

/// Reads the interface of a WGSL text, after checking that it is valid without any extension and
/// keeps to the conventions: group 0, inputs `read`, then outputs `read_write`, then parameters.
///
/// # Errors
///
/// If the text is not valid or not of that form.
pub fn reflect(name: &str, source: &str) -> Result<Interface, KernelError> {
    let fail = |problem: String| KernelError {
        kernel: name.to_owned(),
        problem,
    };
    let module = naga::front::wgsl::parse_str(source).map_err(|error| fail(error.emit_to_string(source)))?;
    Validator::new(ValidationFlags::all(), Capabilities::empty())
        .validate(&module)
        .map_err(|error| fail(error.emit_to_string(source)))?;
    let [entry] = module.entry_points.as_slice() else {
        return Err(fail("needs exactly one entry point".to_owned()));
    };
    if entry.name != "main" {
        return Err(fail(format!("its entry point is {:?}, not \"main\"", entry.name)));
    }
    let layouts = module.to_ctx();
    let size = |ty| u32::from(module.types[ty].inner.size(layouts));
    let mut bindings = Vec::new();
    let mut workgroup_bytes = 0;
    for (_, variable) in module.global_variables.iter() {
        let label = variable.name.clone().unwrap_or_default();
        if variable.space == naga::AddressSpace::WorkGroup {
            workgroup_bytes += size(variable.ty);
        }
        let Some(binding) = &variable.binding else {
            continue;
        };
        if binding.group != 0 {
            return Err(fail(format!("{label} is not in group 0")));
        }
        bindings.push((binding.binding, label, variable.space, size(variable.ty)));
    }
    bindings.sort_by_key(|(number, ..)| *number);
    let (mut inputs, mut outputs, mut params_bytes) = (0, 0, 0);
    for (place, (number, label, space, size)) in bindings.iter().enumerate() {
        let misplaced = || {
            fail(format!(
                "{label} is out of order: inputs, then outputs, then params"
            ))
        };
        if *number as usize != place || params_bytes > 0 {
            return Err(misplaced());
        }
        match space {
            naga::AddressSpace::Storage { access } if !access.contains(naga::StorageAccess::STORE) => {
                if outputs > 0 {
                    return Err(misplaced());
                }
                inputs += 1;
            }
            naga::AddressSpace::Storage { .. } => outputs += 1,
            naga::AddressSpace::Uniform if label == "params" => params_bytes = *size,
            _ => return Err(fail(format!("{label} is neither a storage buffer nor params"))),
        }
    }
    if outputs == 0 || params_bytes == 0 {
        return Err(fail("needs an output and params".to_owned()));
    }
    Ok(Interface {
        inputs,
        outputs,
        params_bytes,
        workgroup_size: entry.workgroup_size,
        workgroup_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WebGPU's default limits: what every adapter offers.
    const STORAGE_BUFFERS: u32 = 8;
    const WORKGROUP_BYTES: u32 = 16 << 10;
    const INVOCATIONS: u32 = 256;

    #[test]
    fn every_kernel_is_valid_within_the_default_limits() {
        for kernel in KERNELS {
            let interface = reflect(kernel.name, kernel.source).unwrap();
            assert!(
                interface.inputs + interface.outputs <= STORAGE_BUFFERS,
                "{}",
                kernel.name
            );
            assert!(interface.workgroup_bytes <= WORKGROUP_BYTES, "{}", kernel.name);
            let invocations: u32 = interface.workgroup_size.iter().product();
            assert!(invocations <= INVOCATIONS, "{}", kernel.name);
        }
    }

    #[test]
    fn the_table_holds_each_file_once() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("wgsl");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| {
                entry
                    .unwrap()
                    .path()
                    .file_stem()
                    .unwrap()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        let mut names: Vec<&str> = KERNELS.iter().map(|kernel| kernel.name).collect();
        files.sort();
        names.sort_unstable();
        assert_eq!(files, names);
    }

    #[test]
    fn what_breaks_the_conventions_is_named() {
        let text = |bindings: &str| {
            format!("{bindings}\n@compute @workgroup_size(1) fn main() {{ out[0] = params; }}")
        };
        let out = "@group(0) @binding(0) var<storage, read_write> out: array<u32>;";
        let params = "@group(0) @binding(1) var<uniform> params: u32;";
        let good = reflect("good", &text(&format!("{out}{params}"))).unwrap();
        assert_eq!((good.inputs, good.outputs, good.params_bytes), (0, 1, 4));
        let bad = [
            (
                text(&format!("{out}{}", params.replace("group(0)", "group(1)"))),
                "group 0",
            ),
            (
                text(&format!("{out}{}", params.replace("binding(1)", "binding(2)"))),
                "out of order",
            ),
            ("fn main() {}".to_owned(), "one entry point"),
            (text("let x = 1;"), "kernel bad"),
        ];
        for (source, expected) in bad {
            let error = reflect("bad", &source).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
