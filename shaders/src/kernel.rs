//! The table of WGSL kernels, and what their texts say about themselves.
//!
//! Bindings and workgroup sizes are never written down twice: they are read from the WGSL by naga,
//! the compiler that wgpu itself uses.

use std::borrow::Cow;
use std::path::Path;
use std::sync::OnceLock;

use naga::valid::{Capabilities, ValidationFlags, Validator};

use crate::launch::Adapter;

/// A kernel: a WGSL file with the entry point `main`, or another text of one.
#[derive(Debug)]
pub struct Kernel {
    /// The name of its file, without `.wgsl`, and what its variant is called.
    pub name: &'static str,
    /// The file's text that was compiled in.
    file: &'static str,
    variant: Option<&'static Variant>,
    text: OnceLock<Cow<'static, str>>,
    interface: OnceLock<Interface>,
}

/// The environment variable with a folder of WGSL files to be taken instead of those compiled in,
/// where it has them: for work on a kernel without compiling anything.
pub const FOLDER_VARIABLE: &str = "ANNULUS_WGSL";

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

impl Kernel {
    /// A kernel that is not in the table.
    pub const fn new(name: &'static str, text: &'static str) -> Self {
        Self {
            name,
            file: text,
            variant: None,
            text: OnceLock::new(),
            interface: OnceLock::new(),
        }
    }

    /// Another text of a file.
    const fn variant(name: &'static str, file: &'static str, variant: &'static Variant) -> Self {
        Self {
            name,
            file,
            variant: Some(variant),
            text: OnceLock::new(),
            interface: OnceLock::new(),
        }
    }

    /// The text: made of what was compiled in, or of a file of that name in the folder of [`FOLDER_VARIABLE`].
    pub fn text(&self) -> &str {
        self.text.get_or_init(|| {
            let folder = std::env::var_os(FOLDER_VARIABLE);
            let file = folder.and_then(|folder| self.file_in(Path::new(&folder)));
            self.text_of(file.map_or(Cow::Borrowed(self.file), Cow::Owned))
        })
    }

    fn file_in(&self, folder: &Path) -> Option<String> {
        let suffix = self.variant.map_or("", |variant| variant.suffix);
        let name = self.name.strip_suffix(suffix)?;
        std::fs::read_to_string(folder.join(name).with_extension("wgsl")).ok()
    }

    fn text_of<'a>(&self, file: Cow<'a, str>) -> Cow<'a, str> {
        let lines = self.variant.map_or(&[][..], |variant| variant.lines);
        let replaced = |text: Cow<'a, str>, [from, to]: &[&str; 2]| Cow::Owned(text.replace(from, to));
        lines.iter().fold(file, replaced)
    }

    /// Its bindings and workgroup.
    ///
    /// # Panics
    ///
    /// If the text is no valid kernel, which a test rules out for all of [`KERNELS`].
    pub fn interface(&self) -> &Interface {
        self.interface
            .get_or_init(|| match reflect(self.name, self.text()) {
                Ok(interface) => interface,
                Err(error) => panic!("{error}"),
            })
    }
}

/// A kernel for elements of one kind, and the same text for another.
///
/// A file that begins with `alias Elem = vec4<f32>;` and `const WIDE = 4u;` takes four numbers at a
/// time. Where rows are no multiple of four numbers long, its text with one number for `Elem` does it.
#[derive(Debug)]
pub struct Widths {
    /// As the file has it: rows of vec4.
    pub vectors: Kernel,
    /// Rows of any length.
    pub scalars: Kernel,
}

impl Widths {
    /// The kernel for rows of `width` numbers, and how many elements such a row has.
    pub fn fitting(&'static self, width: usize) -> (&'static Kernel, usize) {
        if width.is_multiple_of(4) {
            (&self.vectors, width / 4)
        } else {
            (&self.scalars, width)
        }
    }
}

/// A kernel for heads of any width, and the same text without what only wide ones need.
///
/// What a driver does not see it need not compile: on a CPU that plays a GPU that takes seconds. A file that
/// says `const WIDE_HEADS = 1u;` has a second text that says `0u`.
#[derive(Debug)]
pub struct Heads {
    /// As the file has it.
    pub any: Kernel,
    /// For heads of no more columns than a unit of work takes.
    pub narrow: Kernel,
}

/// The same for texts whose units take 32 columns, or 16. A file that says `const QUADS = 8u;` has a third text
/// that says `4u`.
#[derive(Debug)]
pub struct Columns {
    /// As the file has it.
    pub any: Kernel,
    /// For heads of at most 32 columns.
    pub narrow: Kernel,
    /// For heads of at most 16 columns.
    pub slim: Kernel,
}

/// A product with activations, and the same text without: a file that says `const ACTIVATIONS = 1u;` has a second
/// text that says `0u`.
#[derive(Debug)]
pub struct Epilogues {
    /// As the file has it.
    pub any: Kernel,
    /// For products that nothing but a bias and a summand is added to.
    pub plain: Kernel,
}

/// A product, and the same text for a second operand whose numbers are halves: a file that says how it takes a number
/// of it says so in a line that the other text has otherwise.
#[derive(Debug)]
pub struct Storage {
    /// As the file has it.
    pub singles: Kernel,
    /// For pairs of `f16`.
    pub halves: Kernel,
}

/// Another text of a file: what its kernel's name ends with, and parts of the file with what they are there.
#[derive(Debug)]
struct Variant {
    suffix: &'static str,
    lines: &'static [[&'static str; 2]],
}

static SCALAR: Variant = Variant {
    suffix: "_scalar",
    lines: &[
        ["alias Elem = vec4<f32>;", "alias Elem = f32;"],
        ["alias Elem = vec4<i32>;", "alias Elem = i32;"],
        ["const WIDE = 4u;", "const WIDE = 1u;"],
        [
            "const STEPS = Elem(0.0, 1.0, 2.0, 3.0);",
            "const STEPS = Elem(0.0);",
        ],
        ["const STEPS = Elem(0, 1, 2, 3);", "const STEPS = Elem(0);"],
    ],
};

static NARROW: Variant = Variant {
    suffix: "_narrow",
    lines: &[["const WIDE_HEADS = 1u;", "const WIDE_HEADS = 0u;"]],
};

static SLIM: Variant = Variant {
    suffix: "_slim",
    lines: &[
        ["const WIDE_HEADS = 1u;", "const WIDE_HEADS = 0u;"],
        ["const QUADS = 8u;", "const QUADS = 4u;"],
    ],
};

static PLAIN: Variant = Variant {
    suffix: "_plain",
    lines: &[["const ACTIVATIONS = 1u;", "const ACTIVATIONS = 0u;"]],
};

static HALVES: Variant = Variant {
    suffix: "_halves",
    lines: &[
        ["alias Four = vec4<f32>;", "alias Four = vec2<u32>;"],
        [
            "return vec4<f32>(x);",
            "return vec4(unpack2x16float(x.x), unpack2x16float(x.y));",
        ],
        ["alias Number = f32;", "alias Number = u32;"],
        ["return b[at];", "return unpack2x16float(b[at / 2u])[at % 2u];"],
    ],
};

/// The kernel of a file, or of one of its other texts.
macro_rules! kernel {
    ($name:literal) => {
        Kernel::new($name, include_str!(concat!("../wgsl/", $name, ".wgsl")))
    };
    ($name:literal, $variant:ident, $suffix:literal) => {
        Kernel::variant(
            concat!($name, $suffix),
            include_str!(concat!("../wgsl/", $name, ".wgsl")),
            &$variant,
        )
    };
}

macro_rules! kernels {
    (
        $($(#[$about:meta])* $constant:ident = $name:literal;)*
        @widths $($(#[$wide_about:meta])* $wide:ident = $wide_name:literal;)*
        @heads $($(#[$heads_about:meta])* $heads:ident = $heads_name:literal;)*
        @columns $($(#[$columns_about:meta])* $columns:ident = $columns_name:literal;)*
        @epilogues $($(#[$epilogues_about:meta])* $epilogues:ident = $epilogues_name:literal;)*
        @storage $($(#[$storage_about:meta])* $storage:ident = $storage_name:literal;)*
        @halves $($(#[$halves_about:meta])* $halves:ident = $halves_name:literal;)*
    ) => {
        $(
            $(#[$about])*
            pub static $constant: Kernel = kernel!($name);
        )*
        $(
            $(#[$wide_about])*
            pub static $wide: Widths = Widths {
                vectors: kernel!($wide_name),
                scalars: kernel!($wide_name, SCALAR, "_scalar"),
            };
        )*
        $(
            $(#[$heads_about])*
            pub static $heads: Heads = Heads {
                any: kernel!($heads_name),
                narrow: kernel!($heads_name, NARROW, "_narrow"),
            };
        )*
        $(
            $(#[$columns_about])*
            pub static $columns: Columns = Columns {
                any: kernel!($columns_name),
                narrow: kernel!($columns_name, NARROW, "_narrow"),
                slim: kernel!($columns_name, SLIM, "_slim"),
            };
        )*
        $(
            $(#[$epilogues_about])*
            pub static $epilogues: Epilogues = Epilogues {
                any: kernel!($epilogues_name),
                plain: kernel!($epilogues_name, PLAIN, "_plain"),
            };
        )*

        $(
            $(#[$storage_about])*
            pub static $storage: Storage = Storage {
                singles: kernel!($storage_name),
                halves: kernel!($storage_name, HALVES, "_halves"),
            };
        )*
        $(
            $(#[$halves_about])*
            pub static $halves: Kernel = kernel!($halves_name);
        )*

        /// What [`halves`](crate::halves) take beside [`KERNELS`]; naga, unlike WGSL, asks adapters for leave.
        pub static HALF_KERNELS: &[&Kernel] = &[
            $(&$storage.halves,)*
            $(&$halves,)*
        ];

        /// All kernels that take nothing but what every adapter has, by name.
        pub static KERNELS: &[&Kernel] = &[
            $(&$constant,)*
            $(&$wide.vectors, &$wide.scalars,)*
            $(&$heads.any, &$heads.narrow,)*
            $(&$columns.any, &$columns.narrow, &$columns.slim,)*
            $(&$epilogues.any, &$epilogues.plain,)*
            $(&$storage.singles,)*
        ];
    };
}

kernels! {
    /// Matrix product of any shape and strides, a small tile per invocation.
    GEMM_ANY = "gemm_any";
    /// `Aᵀ B` and the column sums of `B`, rows in registers, no barriers.
    GEMM_TN = "gemm_tn";
    /// Many tensors, of lengths that four divides, into one vector, scaled, summed up.
    PACK = "pack";
    /// Many tensors of any length into one vector, scaled, summed up.
    PACK_ANY = "pack_any";
    /// Partial sums of squares, and how many elements are not finite.
    SQUARED_NORM = "squared_norm";
    /// The sum of the partial ones.
    SQUARED_NORM_TOTAL = "squared_norm_total";
    /// A step of stochastic gradient descent.
    SGD = "sgd";
    /// A step of stochastic gradient descent with momentum.
    MOMENTUM = "momentum";
    /// A step of Adam or AdamW.
    ADAMW = "adamw";
    /// Halves around an exponent per run.
    F16_ENCODE = "f16_encode";
    /// The way back.
    F16_DECODE = "f16_decode";
    /// Bytes with a scale per block.
    INT8_ENCODE = "int8_encode";
    /// The way back.
    INT8_DECODE = "int8_decode";
    /// Attention, tiles in workgroup memory.
    ATTENTION_FORWARD_TILED = "attention_forward_tiled";
    /// Its slopes, tiles in workgroup memory.
    ATTENTION_BACKWARD_TILED = "attention_backward_tiled";
    /// Rotary positions.
    ROTARY = "rotary";
    /// Mean of the losses, from their partial sums.
    CROSS_ENTROPY_MEAN = "cross_entropy_mean";
    /// Dropout by a counter-based generator.
    DROPOUT = "dropout";

    @widths

    /// Activation functions.
    ACTIVATION = "activation";
    /// Gradient of `activation`.
    ACTIVATION_BACKWARD = "activation_backward";
    /// Softmax and cross-entropy in one.
    CROSS_ENTROPY = "cross_entropy";
    /// Gradient of `cross_entropy` for the logits.
    CROSS_ENTROPY_BACKWARD = "cross_entropy_backward";
    /// Rows of a table and of positions.
    EMBEDDING = "embedding";
    /// Ids with their tokens, sorted.
    EMBEDDING_SORT = "embedding_sort";
    /// Gradients of `embedding` for the table and the positions.
    EMBEDDING_BACKWARD = "embedding_backward";
    /// Layer norm and RMS norm.
    NORM = "norm";
    /// Gradients of `norm` for its input, scale and shift.
    NORM_BACKWARD = "norm_backward";
    /// Softmax.
    SOFTMAX = "softmax";
    /// Gradient of `softmax`.
    SOFTMAX_BACKWARD = "softmax_backward";

    @heads

    /// Attention, without barriers.
    ATTENTION_FORWARD = "attention_forward";
    /// Its slopes, without barriers.
    ATTENTION_BACKWARD = "attention_backward";

    @columns

    /// Attention, without branches.
    ATTENTION_FORWARD_UNROLLED = "attention_forward_unrolled";
    /// Its slopes to queries, without branches.
    ATTENTION_BACKWARD_QUERIES = "attention_backward_queries";
    /// Its slopes to keys and values, without branches.
    ATTENTION_BACKWARD_KEYS = "attention_backward_keys";

    @epilogues

    /// `A B` for any strides of `A`, a large tile per invocation, without branches.
    GEMM_WIDE = "gemm_wide";

    @storage

    /// `A B`, rows in registers, no barriers.
    GEMM_NN = "gemm_nn";
    /// `A Bᵀ`, rows in registers, no barriers.
    GEMM_NT = "gemm_nt";
    /// Matrix product of any shape and strides, tiles in workgroup memory.
    GEMM_TILED = "gemm_tiled";

    @halves

    /// Pairs of numbers as halves.
    HALVE = "halve";
}

/// Those of [`KERNELS`] that operations may take on such an adapter: what there is to check before they do.
pub fn needed_on(adapter: Adapter) -> impl Iterator<Item = &'static Kernel> {
    let others = move |kernel: &Kernel| {
        let is = |kernels: &[&Kernel]| kernels.iter().any(|other| std::ptr::eq(*other, kernel));
        match adapter {
            Adapter::Gpu => is(&EMULATED) || is(&CPU) || is(&SWIFT_SHADER),
            Adapter::Cpu => is(&GPU) || is(&SWIFT_SHADER),
            Adapter::SwiftShader => is(&GPU) || is(&CPU),
        }
    };
    KERNELS.iter().copied().filter(move |kernel| !others(kernel))
}

/// Kernels for GPUs alone.
static GPU: [&Kernel; 3] = [
    &GEMM_TILED.singles,
    &ATTENTION_FORWARD_TILED,
    &ATTENTION_BACKWARD_TILED,
];

/// Kernels for all programs that play a GPU.
static EMULATED: [&Kernel; 2] = [&GEMM_ANY, &GEMM_NT.singles];

/// Kernels for such programs but SwiftShader.
static CPU: [&Kernel; 6] = [
    &GEMM_NN.singles,
    &GEMM_TN,
    &ATTENTION_FORWARD.any,
    &ATTENTION_FORWARD.narrow,
    &ATTENTION_BACKWARD.any,
    &ATTENTION_BACKWARD.narrow,
];

/// Kernels for SwiftShader.
static SWIFT_SHADER: [&Kernel; 11] = [
    &GEMM_WIDE.any,
    &GEMM_WIDE.plain,
    &ATTENTION_FORWARD_UNROLLED.any,
    &ATTENTION_FORWARD_UNROLLED.narrow,
    &ATTENTION_FORWARD_UNROLLED.slim,
    &ATTENTION_BACKWARD_QUERIES.any,
    &ATTENTION_BACKWARD_QUERIES.narrow,
    &ATTENTION_BACKWARD_QUERIES.slim,
    &ATTENTION_BACKWARD_KEYS.any,
    &ATTENTION_BACKWARD_KEYS.narrow,
    &ATTENTION_BACKWARD_KEYS.slim,
];

/// Reads the interface of a WGSL text, after checking that it is valid without any extension (but for
/// [`HALF_KERNELS`], which read and write halves) and keeps to the conventions: group 0, inputs `read`, then outputs `read_write`, then parameters.
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
    let capabilities = match name.ends_with(HALVES.suffix) || name == HALVE.name {
        true => Capabilities::SHADER_FLOAT16_IN_FLOAT32,
        false => Capabilities::empty(),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// WebGPU's default limits: what every adapter offers.
    const STORAGE_BUFFERS: u32 = 8;
    const WORKGROUP_BYTES: u32 = 16 << 10;
    const INVOCATIONS: u32 = 256;

    #[test]
    fn every_kernel_is_valid_within_the_default_limits() {
        for kernel in KERNELS.iter().chain(HALF_KERNELS) {
            let interface = reflect(kernel.name, kernel.text()).unwrap();
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
        let mut names: Vec<&str> = KERNELS
            .iter()
            .chain(HALF_KERNELS)
            .filter(|kernel| kernel.variant.is_none())
            .map(|kernel| kernel.name)
            .collect();
        files.sort();
        names.sort_unstable();
        assert_eq!(files, names);
    }

    #[test]
    fn texts_from_a_folder_replace_those_compiled_in() {
        let folder = std::env::temp_dir().join(format!("annulus-kernels-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("other.wgsl"), "alias Elem = vec4<f32>; // new").unwrap();
        let kernels = [
            Kernel::new("other", "old"),
            Kernel::variant("other_scalar", "old", &SCALAR),
            Kernel::new("third", "old"),
        ];
        let texts = kernels.each_ref().map(|kernel| {
            let file = kernel.file_in(&folder)?;
            Some(kernel.text_of(file.into()).into_owned())
        });
        std::fs::remove_dir_all(&folder).unwrap();
        let [vectors, scalars, none] = texts;
        assert_eq!(vectors.unwrap(), "alias Elem = vec4<f32>; // new");
        assert_eq!(scalars.unwrap(), "alias Elem = f32; // new");
        assert_eq!(none, None);
    }

    #[test]
    fn every_variant_finds_something_to_change() {
        let variants = KERNELS.iter().chain(HALF_KERNELS);
        let variants: Vec<_> = variants.filter(|kernel| kernel.variant.is_some()).collect();
        assert!(!variants.is_empty());
        for kernel in variants {
            assert_ne!(kernel.text(), kernel.file, "{}", kernel.name);
            let lines = kernel.text().lines().zip(kernel.file.lines());
            let changed = lines.filter(|(a, b)| a != b).count();
            let most = kernel.variant.map_or(0, |variant| variant.lines.len());
            assert!(changed <= most, "{}", kernel.name);
        }
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
