//! What a WGSL text says of its bindings and workgroup.

use naga::valid::{Capabilities, ValidationFlags, Validator};

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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernel {kernel}: {problem}")]
pub struct KernelError {
    /// The kernel's name.
    pub kernel: String,
    /// What is wrong with it.
    pub problem: String,
}

/// Reads the interface of a WGSL text, after checking that it is valid and keeps to the conventions: group 0, inputs `read`,
/// then outputs `read_write`, then parameters. Only [`HALF_KERNELS`](super::HALF_KERNELS) and
/// [`MATRIX_KERNELS`](super::MATRIX_KERNELS) may use extensions.
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
    let capabilities = if name == "halve" || name.ends_with("_halves") {
        Capabilities::SHADER_FLOAT16_IN_FLOAT32
    } else if name.starts_with("gemm_matrix") {
        Capabilities::SHADER_FLOAT16 | Capabilities::COOPERATIVE_MATRIX | Capabilities::SUBGROUP
    } else {
        Capabilities::empty()
    };
    Validator::new(ValidationFlags::all(), capabilities)
        .validate(&module)
        .map_err(|error| fail(error.emit_to_string(source)))?;
    let [entry] = module.entry_points.as_slice() else {
        return Err(fail("needs exactly one entry point".to_owned()));
    };
    if entry.name != "main" {
        return Err(fail(format!("its entry point is {:?}, not \"main\"", entry.name)));
    }
    let layouts = module.to_ctx();
    let size = |ty| module.types[ty].inner.size(layouts);
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
