//! Which kernel makes a matrix product: a table of shapes and kinds of adapter.
//!
//! | adapter | operands | kernel |
//! |---|---|---|
//! | emulated by a CPU | vec4 fit | `gemm_nn`, `gemm_nt`, `gemm_tn` |
//! | emulated by a CPU | other | `gemm_any` |
//! | GPU | all | `gemm_tiled` |

use burn::backend::TensorMetadata;
use burn::backend::wgpu::CubeTensor;
use bytemuck::{Pod, Zeroable};

use crate::cpu::activation::Activation;
use crate::kernel::{GEMM_ANY, GEMM_NN, GEMM_NT, GEMM_TILED, GEMM_TN, Kernel};
use crate::launch::{empty, is_emulated, launch};

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
    pub tensor: &'a CubeTensor,
    pub rows: usize,
    pub columns: usize,
    pub transposed: bool,
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
        }
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

    fn strides(&self) -> (usize, usize) {
        if self.transposed {
            (1, self.columns)
        } else {
            (self.columns, 1)
        }
    }
}

/// What is done to the sums before they are stored.
#[derive(Clone, Copy, Default)]
pub struct Epilogue<'a> {
    pub bias: Option<&'a CubeTensor>,
    pub activation: Activation,
    /// Whether what the activation is applied to is wanted too.
    pub keep: bool,
    pub add: Option<&'a CubeTensor>,
    /// What an activation was applied to in the forward pass: multiplies by its slope there.
    pub slope: Option<(Activation, &'a CubeTensor)>,
    /// Whether the column sums of the second operand are wanted too.
    pub sums: bool,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct AnyParams {
    m: u32,
    n: u32,
    k: u32,
    a_row: u32,
    a_column: u32,
    b_row: u32,
    b_column: u32,
    a_batch: u32,
    b_batch: u32,
    flags: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct VectorParams {
    m: u32,
    n: u32,
    k: u32,
    a_row: u32,
    b_row: u32,
    a_batch: u32,
    b_batch: u32,
    flags: u32,
}

/// `a b` as a tensor `[m, n]`, and what else the epilogue asks for.
///
/// # Panics
///
/// If the shapes do not fit, or the activation has no place in a product.
pub fn gemm(a: Operand, b: Operand, epilogue: Epilogue) -> (CubeTensor, Option<CubeTensor>) {
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
    let bias = epilogue.bias.unwrap_or(b.tensor);
    let extra = epilogue
        .add
        .or(epilogue.slope.map(|(_, input)| input))
        .unwrap_or(a.tensor);
    let tiles = |height: usize, width: usize| [n.div_ceil(width) as u32, m.div_ceil(height) as u32, 1];
    let fits = |x: usize, y: usize| x.is_multiple_of(4) && y.is_multiple_of(4);
    let emulated = is_emulated(a.tensor);
    let allowed = |mask: u32| flags & !mask == 0;
    let choice = match (a.transposed, b.transposed) {
        _ if !emulated => None,
        (false, false) if fits(k, n) && allowed(BIAS | EXTRA | RELU | GELU | SIDE) => Some(&GEMM_NN),
        (false, true) if fits(k, n) && allowed(RELU_SLOPE | GELU_SLOPE) => Some(&GEMM_NT),
        (true, false) if fits(m, n) && allowed(SUMS) => Some(&GEMM_TN),
        _ => None,
    };
    match choice {
        Some(kernel) => {
            let params = VectorParams {
                m: m as u32,
                n: n as u32,
                k: k as u32,
                a_row: (a.columns / 4) as u32,
                b_row: (b.columns / 4) as u32,
                a_batch: 0,
                b_batch: 0,
                flags,
            };
            let inputs: &[&CubeTensor] = match kernel.interface().inputs {
                4 => &[a.tensor, b.tensor, bias, extra],
                3 => &[a.tensor, b.tensor, extra],
                _ => &[a.tensor, b.tensor],
            };
            let outputs: &[&CubeTensor] = if kernel.interface().outputs == 2 {
                &[&out, &side]
            } else {
                &[&out]
            };
            launch(kernel, inputs, outputs, params, tiles(8, 64));
        }
        None => {
            let (kernel, tile): (&'static Kernel, usize) = if emulated {
                (&GEMM_ANY, 32)
            } else {
                (&GEMM_TILED, 64)
            };
            let ((a_row, a_column), (b_row, b_column)) = (a.strides(), b.strides());
            let params = AnyParams {
                m: m as u32,
                n: n as u32,
                k: k as u32,
                a_row: a_row as u32,
                a_column: a_column as u32,
                b_row: b_row as u32,
                b_column: b_column as u32,
                a_batch: 0,
                b_batch: 0,
                flags,
            };
            launch(
                kernel,
                &[a.tensor, b.tensor, bias, extra],
                &[&out, &side],
                params,
                tiles(tile, tile),
            );
        }
    }
    (out, wanted.then_some(side))
}

impl Epilogue<'_> {
    fn flags(&self) -> u32 {
        let when = |condition: bool, flag: u32| if condition { flag } else { 0 };
        let activation = |kind, relu, gelu| match kind {
            Activation::Identity => 0,
            Activation::Relu => relu,
            Activation::Gelu => gelu,
            Activation::Silu => panic!("no product has an epilogue with SiLU"),
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
