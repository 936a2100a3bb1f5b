//! The table of WGSL kernels, and what their texts say about themselves.
//!
//! Bindings and workgroup sizes are never written down twice: they are read from the WGSL by naga,
//! the compiler that wgpu itself uses.

use std::borrow::Cow;
use std::path::Path;
use std::sync::OnceLock;

use naga::valid::{Capabilities, ValidationFlags, Validator};

/// A kernel: one WGSL file with the entry point `main`.
#[derive(Debug)]
pub struct Kernel {
    /// The name of its file, without `.wgsl`.
    pub name: &'static str,
    /// The text that was compiled in.
    pub source: &'static str,
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
    /// A kernel that is not in the table.
    pub const fn new(name: &'static str, source: &'static str) -> Self {
        Self {
            name,
            source,
            text: OnceLock::new(),
            interface: OnceLock::new(),
        }
    }

    /// The text: what was compiled in, or a file of that name in the folder of [`FOLDER_VARIABLE`].
    pub fn text(&self) -> &str {
        self.text.get_or_init(|| {
            let folder = std::env::var_os(FOLDER_VARIABLE);
            let text = folder.and_then(|folder| self.text_in(Path::new(&folder)));
            text.map_or(Cow::Borrowed(self.source), Cow::Owned)
        })
    }

    fn text_in(&self, folder: &Path) -> Option<String> {
        let variant = VARIANTS
            .iter()
            .find_map(|variant| Some((self.name.strip_suffix(variant.suffix)?, variant.lines)));
        let (file, lines) = variant.unwrap_or((self.name, &[]));
        let mut text = std::fs::read_to_string(folder.join(file).with_extension("wgsl")).ok()?;
        for [from, to] in lines {
            text = text.replace(from, to);
        }
        Some(text)
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

/// Another text of a file: what its kernel's name ends with, and lines with what they say there. Both are equally
/// long, so that the text can be made at compile time.
struct Variant {
    suffix: &'static str,
    lines: &'static [[&'static str; 2]],
}

const SCALAR: Variant = Variant {
    suffix: "_scalar",
    lines: &[
        ["alias Elem = vec4<f32>;", "alias Elem = f32      ;"],
        ["const WIDE = 4u;", "const WIDE = 1u;"],
        [
            "const STEPS = Elem(0.0, 1.0, 2.0, 3.0);",
            "const STEPS = Elem(0.0               );",
        ],
        ["alias Elem = vec4<i32>;", "alias Elem = i32      ;"],
        [
            "const STEPS = Elem(0, 1, 2, 3);",
            "const STEPS = Elem(0         );",
        ],
    ],
};

const NARROW: Variant = Variant {
    suffix: "_narrow",
    lines: &[["const WIDE_HEADS = 1u;", "const WIDE_HEADS = 0u;"]],
};

const SLIM: Variant = Variant {
    suffix: "_slim",
    lines: &[
        ["const WIDE_HEADS = 1u;", "const WIDE_HEADS = 0u;"],
        ["const QUADS = 8u;", "const QUADS = 4u;"],
    ],
};

const PLAIN: Variant = Variant {
    suffix: "_plain",
    lines: &[["const ACTIVATIONS = 1u;", "const ACTIVATIONS = 0u;"]],
};

const VARIANTS: [Variant; 4] = [SCALAR, NARROW, SLIM, PLAIN];

/// A file's other text.
const fn variant_text<const N: usize>(source: &str, variant: &Variant) -> [u8; N] {
    let source = source.as_bytes();
    let mut text = [0; N];
    let mut at = 0;
    while at < N {
        text[at] = source[at];
        at += 1;
    }
    let mut line = 0;
    while line < variant.lines.len() {
        let (from, to) = (
            variant.lines[line][0].as_bytes(),
            variant.lines[line][1].as_bytes(),
        );
        assert!(from.len() == to.len());
        let mut start = 0;
        while start + from.len() <= N {
            let mut same = 0;
            while same < from.len() && source[start + same] == from[same] {
                same += 1;
            }
            if same == from.len() {
                let mut at = 0;
                while at < to.len() {
                    text[start + at] = to[at];
                    at += 1;
                }
            }
            start += 1;
        }
        line += 1;
    }
    text
}

const fn utf8(text: &[u8]) -> &str {
    match std::str::from_utf8(text) {
        Ok(text) => text,
        Err(_) => panic!("a kernel's text is no UTF-8"),
    }
}

/// The kernel of a file, or of one of its other texts.
macro_rules! kernel {
    ($name:literal) => {
        Kernel::new($name, include_str!(concat!("../wgsl/", $name, ".wgsl")))
    };
    ($name:literal, $variant:ident, $suffix:literal) => {{
        const FILE: &str = include_str!(concat!("../wgsl/", $name, ".wgsl"));
        static TEXT: [u8; FILE.len()] = variant_text(FILE, &$variant);
        Kernel::new(concat!($name, $suffix), utf8(&TEXT))
    }};
}

macro_rules! kernels {
    (
        $($(#[$about:meta])* $constant:ident = $name:literal;)*
        @widths $($(#[$wide_about:meta])* $wide:ident = $wide_name:literal;)*
        @heads $($(#[$heads_about:meta])* $heads:ident = $heads_name:literal;)*
        @columns $($(#[$columns_about:meta])* $columns:ident = $columns_name:literal;)*
        @epilogues $($(#[$epilogues_about:meta])* $epilogues:ident = $epilogues_name:literal;)*
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

        /// All kernels, by name.
        pub static KERNELS: &[&Kernel] = &[
            $(&$constant,)*
            $(&$wide.vectors, &$wide.scalars,)*
            $(&$heads.any, &$heads.narrow,)*
            $(&$columns.any, &$columns.narrow, &$columns.slim,)*
            $(&$epilogues.any, &$epilogues.plain,)*
        ];
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
    /// Matrix product of any shape and strides, tiles in workgroup memory.
    GEMM_TILED = "gemm_tiled";
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
        let mut names: Vec<&str> = KERNELS
            .iter()
            .map(|kernel| kernel.name)
            .filter(|name| VARIANTS.iter().all(|variant| !name.ends_with(variant.suffix)))
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
        let texts = ["other", "other_scalar", "third"].map(|name| Kernel::new(name, "old").text_in(&folder));
        std::fs::remove_dir_all(&folder).unwrap();
        let [vectors, scalars, none] = texts;
        assert_eq!(vectors.unwrap(), "alias Elem = vec4<f32>; // new");
        assert_eq!(scalars.unwrap(), "alias Elem = f32      ; // new");
        assert_eq!(none, None);
    }

    #[test]
    fn texts_for_one_number_differ_in_the_element_alone() {
        let count = KERNELS
            .iter()
            .filter(|kernel| kernel.name.ends_with("_scalar"))
            .count();
        assert!(count > 0);
        for kernel in KERNELS.iter().filter(|kernel| kernel.name.ends_with("_scalar")) {
            let kinds = ["alias Elem = f32", "alias Elem = i32"];
            assert!(
                kinds.iter().any(|kind| kernel.source.contains(kind)),
                "{}",
                kernel.name
            );
            assert!(kernel.source.contains("const WIDE = 1u;"), "{}", kernel.name);
            let vectors = KERNELS
                .iter()
                .find(|other| format!("{}_scalar", other.name) == kernel.name)
                .unwrap();
            let lines = vectors.source.lines().zip(kernel.source.lines());
            assert!(
                lines.filter(|(a, b)| a != b).count() <= SCALAR.lines.len(),
                "{}",
                kernel.name
            );
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
