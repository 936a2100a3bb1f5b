//! Which kernel makes a matrix product: a table of shapes and kinds of adapter.
//!
//! | adapter | operands | kernel |
//! |---|---|---|
//! | emulated by a CPU | vec4 fit | `gemm_nn`, `gemm_nt`, `gemm_tn` |
//! | SwiftShader | vec4 fit | `gemm_wide`, `gemm_nt` |
//! | both | other | `gemm_any` |
//! | GPU | vec4 fit | `gemm_tiled` |
//! | GPU | other | `gemm_tiled_scalar` |
//! | GPU whose [matrix units](crate::matrices) are taken | vec4 fit | `gemm_matrix` |
//!
//! Where a GPU would get few workgroups, as for weight gradients, they make products of pieces of k, and `gemm_total` adds
//! them up.
//!
//! `gemm_nn`, `gemm_nt` and `gemm_tiled` take a second operand that is stored as halves, too.

use burn::backend::TensorMetadata;
use burn::backend::wgpu::CubeTensor;

use crate::cpu::activation::Activation;
use crate::kernel::{
    GEMM_ANY, GEMM_NN, GEMM_NN_HALVES, GEMM_NT, GEMM_NT_HALVES, GEMM_TILED, GEMM_TILED_HALVES,
    GEMM_TILED_SCALAR, GEMM_TN, GEMM_TOTAL, GEMM_TOTAL_SCALAR, GEMM_WIDE, GEMM_WIDE_PLAIN, Kernel, fitting,
};
use crate::launch::{Adapter, adapter, empty, grid, launch};
use crate::matrices;

const BIAS: u32 = 1;
const EXTRA: u32 = 2;
const RELU: u32 = 4;
const GELU: u32 = 8;
const SIDE: u32 = 16;
const RELU_SLOPE: u32 = 32;
const GELU_SLOPE: u32 = 64;
const SUMS: u32 = 128;

/// A contiguous matrix `[rows, columns]`, to be taken as it lies or transposed.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    /// The numbers.
    pub tensor: &'a CubeTensor,
    /// Its rows as it lies.
    pub rows: usize,
    /// Its columns as it lies.
    pub columns: usize,
    /// Whether the product takes its transpose.
    pub transposed: bool,
    /// The same numbers as halves, to be taken where they are the second operand and the kernel takes them.
    pub halves: Option<&'a CubeTensor>,
    /// Whether they are gradients, which are small: matrix units get them scaled.
    pub is_gradient: bool,
}

impl<'a> Operand<'a> {
    /// A tensor as a matrix of its last axis, the others being rows.
    pub fn of(tensor: &'a CubeTensor) -> Self {
        let shape = tensor.shape();
        let columns = shape[shape.num_dims() - 1];
        Self {
            tensor,
            rows: shape.num_elements() / columns.max(1),
            columns,
            transposed: false,
            halves: None,
            is_gradient: false,
        }
    }

    /// The same numbers, as gradients.
    pub fn gradient(self) -> Self {
        Self {
            is_gradient: true,
            ..self
        }
    }

    /// With the same numbers as halves.
    pub fn or_halves(self, halves: Option<&'a CubeTensor>) -> Self {
        Self { halves, ..self }
    }

    /// Its transpose.
    pub fn transposed(self) -> Self {
        Self {
            transposed: !self.transposed,
            ..self
        }
    }

    /// As the product sees it.
    fn size(&self) -> (usize, usize) {
        if self.transposed {
            (self.columns, self.rows)
        } else {
            (self.rows, self.columns)
        }
    }

    /// What matrix units get its numbers multiplied with.
    fn scale(&self) -> f32 {
        if self.is_gradient {
            matrices::gradient_scale()
        } else {
            1.0
        }
    }

    fn strides(&self) -> (usize, usize) {
        if self.transposed {
            (1, self.columns)
        } else {
            (self.columns, 1)
        }
    }
}

/// Work on the sums before they are stored.
#[derive(Clone, Copy, Default)]
pub struct Epilogue<'a> {
    /// Added to each row.
    pub bias: Option<&'a CubeTensor>,
    /// Applied then.
    pub activation: Activation,
    /// Whether what the activation is applied to is wanted too.
    pub keep: bool,
    /// Added at the end, `[m, n]`.
    pub add: Option<&'a CubeTensor>,
    /// An activation and its input in the forward pass: multiplies by the slope there.
    pub slope: Option<(Activation, &'a CubeTensor)>,
    /// Whether the column sums of the second operand are wanted too.
    pub sums: bool,
}

/// How a kernel wants its operands: what its parameters say of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Numbers with any strides.
    Any,
    /// The same, and what both are scaled by.
    Scaled,
    /// The first so, the second in rows of vec4.
    Wide,
    /// Both in rows of vec4.
    Vectors,
}

/// A kernel, and the rows and columns that a workgroup of it makes.
#[derive(Debug)]
struct Choice {
    kernel: &'static Kernel,
    /// The kernel for a second operand of halves, if there is one.
    for_halves: Option<&'static Kernel>,
    form: Form,
    tile: [usize; 2],
}

/// The table.
fn choose(
    adapter: Adapter,
    matrix: Option<&'static Kernel>,
    transposed: [bool; 2],
    [m, n, k]: [usize; 3],
    flags: u32,
) -> Choice {
    let choice = |kernel, form, tile| Choice {
        kernel,
        for_halves: None,
        form,
        tile,
    };
    let wide = |kernel| choice(kernel, Form::Wide, [8, 64]);
    let either = |kernel, for_halves, form, tile| Choice {
        for_halves: Some(for_halves),
        ..choice(kernel, form, tile)
    };
    let fours = |x: usize, y: usize| x.is_multiple_of(4) && y.is_multiple_of(4);
    let only = |mask: u32| flags & !mask == 0;
    let plain = BIAS | EXTRA | SUMS;
    // How long rows are as they lie in memory.
    let [a_row, b_row] = [
        if transposed[0] { m } else { k },
        if transposed[1] { k } else { n },
    ];
    match (adapter, transposed) {
        (Adapter::Gpu, _) if fours(a_row, b_row) && fours(n, n) => match matrix {
            Some(kernel) => choice(kernel, Form::Scaled, [64, 64]),
            None => either(&GEMM_TILED, &GEMM_TILED_HALVES, Form::Any, [64, 64]),
        },
        (Adapter::Gpu, _) => choice(&GEMM_TILED_SCALAR, Form::Any, [64, 64]),
        (_, [false, true]) if fours(k, n) && only(RELU_SLOPE | GELU_SLOPE) => {
            either(&GEMM_NT, &GEMM_NT_HALVES, Form::Vectors, [8, 64])
        }
        (Adapter::SwiftShader, [_, false]) if fours(n, n) && only(plain) => wide(&GEMM_WIDE_PLAIN),
        (Adapter::SwiftShader, [_, false]) if fours(n, n) && only(plain | RELU | GELU | SIDE) => {
            wide(&GEMM_WIDE)
        }
        (Adapter::Cpu, [false, false]) if fours(k, n) && only(BIAS | EXTRA | RELU | GELU | SIDE) => {
            either(&GEMM_NN, &GEMM_NN_HALVES, Form::Vectors, [8, 64])
        }
        (Adapter::Cpu, [true, false]) if fours(m, n) && only(SUMS) => {
            choice(&GEMM_TN, Form::Vectors, [8, 64])
        }
        _ => choice(&GEMM_ANY, Form::Any, [32, 32]),
    }
}

/// Into how many pieces of k, of whole vec4 each, a GPU takes a product. Time goes with the longest chain of sums and with
/// what the pieces write: `PIECES` says at which ratio of `k` to `m n` more of them stop paying. More workgroups than
/// `ENOUGH` are no use to the largest GPUs, and each piece should be worth its launch.
fn pieces([m, n, k]: [usize; 3]) -> usize {
    // From the clocks of a slice and the bandwidth of an H100, by its datasheet.
    const PIECES: usize = 13_700;
    // Six workgroups for each of its 132 multiprocessors.
    const ENOUGH: usize = 768;
    const SHORTEST: usize = 32;
    if k < 8 * SHORTEST {
        return 1;
    }
    let groups = m.div_ceil(64) * n.div_ceil(64);
    let most = (PIECES * k / (m * n))
        .isqrt()
        .min(ENOUGH / groups)
        .min(k / SHORTEST);
    (1..=most)
        .rev()
        .find(|pieces| k.is_multiple_of(4 * pieces))
        .unwrap_or(1)
}

/// All that the table has for an adapter.
pub fn kernels(adapter: Adapter) -> Vec<&'static Kernel> {
    let mut kernels: Vec<&Kernel> = match adapter {
        Adapter::Gpu => vec![&GEMM_TOTAL, &GEMM_TOTAL_SCALAR],
        Adapter::Cpu | Adapter::SwiftShader => Vec::new(),
    };
    let ways = [[false, false], [false, true], [true, false], [true, true]];
    // With rows that are whole vec4 and rows that are not.
    let sizes = [[4, 4, 4], [1, 4, 4], [4, 1, 4], [4, 4, 1]];
    for transposed in ways {
        for sizes in sizes {
            for flags in 0..2 * SUMS {
                let kernel = choose(adapter, None, transposed, sizes, flags).kernel;
                if !kernels.iter().any(|other| std::ptr::eq(*other, kernel)) {
                    kernels.push(kernel);
                }
            }
        }
    }
    kernels
}

/// Whether products with a matrix of this size, and with its transpose, take it as halves.
pub fn takes_halves(matrix: &CubeTensor, [rows, columns]: [usize; 2]) -> bool {
    match adapter(matrix) {
        Adapter::Gpu | Adapter::Cpu => rows.is_multiple_of(4) && columns.is_multiple_of(4),
        // It is slow by how many numbers it loads, not by how many bytes.
        Adapter::SwiftShader => false,
    }
}

/// `a b` as a tensor `[m, n]`, and what else the epilogue asks for.
///
/// # Panics
///
/// If the shapes do not fit, or the activation has no place in a product.
pub fn gemm(a: Operand, b: Operand, epilogue: Epilogue) -> (CubeTensor, Option<CubeTensor>) {
    gemm_by(matrices::kernel(adapter(a.tensor)), a, b, epilogue)
}

/// As [`gemm`], with this kernel for a GPU's matrix units.
pub(crate) fn gemm_by(
    matrix: Option<&'static Kernel>,
    a: Operand,
    b: Operand,
    epilogue: Epilogue,
) -> (CubeTensor, Option<CubeTensor>) {
    let ((m, k), (inner, n)) = (a.size(), b.size());
    assert_eq!(k, inner, "inner sizes of a product");
    let out = empty(a.tensor, [m, n]);
    let flags = epilogue.flags();
    let side_shape = match (epilogue.keep, epilogue.sums) {
        (true, _) => Some(vec![m, n]),
        (_, true) => Some(vec![n]),
        _ => None,
    };
    let wanted = side_shape.is_some();
    let side = empty(a.tensor, side_shape.unwrap_or_else(|| vec![4]));
    // Where a buffer is not used, another stands in for it.
    let bias = epilogue.bias.unwrap_or(b.tensor);
    let extra = epilogue.add.or(epilogue.slope.map(|(_, input)| input));
    let extra = extra.unwrap_or(b.tensor);
    let adapter = adapter(a.tensor);
    let turned = [a.transposed, b.transposed];
    let choice = choose(adapter, matrix, turned, [m, n, k], flags);
    let (kernel, second) = match (choice.for_halves, b.halves) {
        (Some(kernel), Some(halves)) => (kernel, halves),
        _ => (choice.kernel, b.tensor),
    };
    let launch_of = Launch {
        kernel,
        form: choice.form,
        tile: choice.tile,
        sizes: [m, n, k],
        operands: [&a, &b],
    };
    let pieces = match adapter {
        Adapter::Gpu => pieces([m, n, k]),
        Adapter::Cpu | Adapter::SwiftShader => 1,
    };
    if pieces == 1 {
        launch_of.run([a.tensor, second, bias, extra], [&out, &side], 1, flags);
    } else {
        let parts = empty(a.tensor, [pieces, m, n]);
        let sums = empty(a.tensor, [pieces, n]);
        launch_of.run(
            [a.tensor, second, bias, extra],
            [&parts, &sums],
            pieces,
            flags & SUMS,
        );
        let (kernel, width) = fitting([&GEMM_TOTAL, &GEMM_TOTAL_SCALAR], n);
        let [rows, columns, count] = [m, n, pieces].map(|size| size as u32);
        let params = [rows, columns, count, 0, 0, 0, 0, 0, 0, flags];
        let groups = grid((m * width).div_ceil(64));
        launch(
            kernel,
            &[&parts, bias, extra, &sums],
            &[&out, &side],
            params,
            groups,
        );
    }
    (out, wanted.then_some(side))
}

/// A product of two operands by a kernel.
struct Launch<'a> {
    kernel: &'static Kernel,
    form: Form,
    tile: [usize; 2],
    sizes: [usize; 3],
    operands: [&'a Operand<'a>; 2],
}

impl Launch<'_> {
    /// The kernel on the first of these buffers that it takes, for each of so many pieces of `k`.
    fn run(&self, inputs: [&CubeTensor; 4], outputs: [&CubeTensor; 2], pieces: usize, flags: u32) {
        let [m, n, k] = self.sizes;
        let [a, b] = self.operands;
        let ((a_row, a_column), (b_row, b_column)) = (a.strides(), b.strides());
        let size = |size: usize| size as u32;
        let depth = k / pieces;
        let groups = [n.div_ceil(self.tile[1]), m.div_ceil(self.tile[0]), pieces].map(size);
        let batch = match pieces {
            1 => [0, 0],
            _ => [depth * a_column, depth * b_row].map(size),
        };
        let interface = self.kernel.interface();
        let inputs = match interface.inputs {
            3 => vec![inputs[0], inputs[1], inputs[3]],
            count => inputs[..count as usize].to_vec(),
        };
        let outputs = &outputs[..interface.outputs as usize];
        let [m, n, k] = [m, n, depth].map(size);
        let [a_batch, b_batch] = batch;
        match self.form {
            Form::Any | Form::Scaled => {
                let [a_row, a_column, b_row, b_column] = [a_row, a_column, b_row, b_column].map(size);
                let [a_scale, b_scale] = self.operands.map(Operand::scale).map(f32::to_bits);
                let params = [
                    m, n, k, a_row, a_column, b_row, b_column, a_batch, b_batch, flags, a_scale, b_scale,
                ];
                match self.form {
                    Form::Scaled => launch(self.kernel, &inputs, outputs, params, groups),
                    _ => launch(
                        self.kernel,
                        &inputs,
                        outputs,
                        *params.first_chunk::<10>().expect("of twelve"),
                        groups,
                    ),
                }
            }
            Form::Wide => {
                let params = [m, n, k, size(a_row), size(a_column), size(b_row / 4), 0, 0, flags];
                launch(self.kernel, &inputs, outputs, params, groups);
            }
            Form::Vectors => {
                let params = [m, n, k, size(a.columns / 4), size(b.columns / 4), 0, 0, flags];
                launch(self.kernel, &inputs, outputs, params, groups);
            }
        }
    }
}

impl Epilogue<'_> {
    fn flags(&self) -> u32 {
        let when = |condition: bool, flag: u32| if condition { flag } else { 0 };
        let activation = |kind, relu, gelu| match kind {
            Activation::Identity => 0,
            Activation::Relu => relu,
            Activation::Gelu => gelu,
            Activation::Silu | Activation::GeluTanh => panic!("no product has an epilogue with {kind:?}"),
        };
        assert!(
            !(self.keep && self.sums),
            "there is one place for what else is wanted"
        );
        assert!(
            self.add.is_none() || self.slope.is_none(),
            "there is one place for a summand or an input"
        );
        when(self.bias.is_some(), BIAS)
            | when(self.add.is_some(), EXTRA)
            | when(self.keep, SIDE)
            | when(self.sums, SUMS)
            | activation(self.activation, RELU, GELU)
            | self
                .slope
                .map_or(0, |(kind, _)| activation(kind, RELU_SLOPE, GELU_SLOPE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::GEMM_MATRIX;

    #[test]
    fn each_adapter_gets_its_own_kernels() {
        let [straight, to_input, to_weights] = [[false, false], [false, true], [true, false]];
        let name =
            |adapter, transposed, sizes, flags| choose(adapter, None, transposed, sizes, flags).kernel.name;
        let sizes = [7, 12, 8];
        for (transposed, flags, cpu, swift_shader) in [
            (straight, BIAS | EXTRA, "gemm_nn", "gemm_wide_plain"),
            (straight, BIAS | GELU | SIDE, "gemm_nn", "gemm_wide"),
            (to_input, GELU_SLOPE, "gemm_nt", "gemm_nt"),
            (to_weights, SUMS, "gemm_any", "gemm_wide_plain"),
            (straight, RELU_SLOPE, "gemm_any", "gemm_any"),
        ] {
            assert_eq!(name(Adapter::Cpu, transposed, sizes, flags), cpu);
            assert_eq!(name(Adapter::SwiftShader, transposed, sizes, flags), swift_shader);
            let gpu = |sizes| name(Adapter::Gpu, transposed, sizes, flags);
            assert_eq!(gpu([8, 12, 16]), "gemm_tiled");
            assert_eq!(gpu([8, 10, 16]), "gemm_tiled_scalar");
            // Rows that are no whole vec4.
            for adapter in [Adapter::Cpu, Adapter::SwiftShader] {
                assert_eq!(name(adapter, transposed, [7, 10, 8], flags), "gemm_any");
            }
        }
    }

    #[cfg(not(target_family = "wasm"))]
    #[test]
    fn the_trial_of_matrix_units_runs_their_kernel() {
        let sizes = crate::trial::SIZES;
        let choice = choose(Adapter::Gpu, Some(&GEMM_MATRIX), [true, false], sizes, SUMS);
        assert_eq!(choice.kernel.name, "gemm_matrix");
        // In pieces of k.
        assert!(pieces(sizes) > 1);
    }

    #[test]
    fn pieces_fill_a_gpu_where_the_grid_is_small() {
        let grid = |[m, n, _]: [usize; 3]| m.div_ceil(64) * n.div_ceil(64);
        // Weight gradients of a nano step, and of a small one.
        for sizes in [
            [128, 384, 768],
            [128, 128, 768],
            [128, 512, 768],
            [512, 128, 768],
            [512, 512, 6144],
        ] {
            let pieces = pieces(sizes);
            assert!(
                (96..=768).contains(&(pieces * grid(sizes))),
                "{sizes:?} in {pieces}"
            );
            assert!(sizes[2].is_multiple_of(4 * pieces));
        }
        for whole in [
            [6144, 2048, 512],
            [768, 512, 128],
            [64, 64, 255],
            [64, 64, 257],
            [1, 1, 1],
        ] {
            assert_eq!(pieces(whole), 1, "{whole:?}");
        }
    }
}
