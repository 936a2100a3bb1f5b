//! Embeddings of tokens and of their positions.

use std::ops::Range;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::wgpu::{CubeBackend, CubeTensor};
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Int, Tensor};
use bytemuck::{Pod, Zeroable};

use super::gradients::differentiable;
use super::host;
use super::optional::{Optional, Parent, optional};
use crate::cpu;
pub use crate::cpu::embedding::TableRows;
use crate::kernel::{
    EMBEDDING, EMBEDDING_BACKWARD, EMBEDDING_BACKWARD_SCALAR, EMBEDDING_SCALAR, EMBEDDING_SORT,
    EMBEDDING_SORT_SCALAR, Kernel, fitting,
};
use crate::launch::{contiguous, empty, grid, integers, is_emulated, launch};

/// `table[id]` for each id, plus the row of `positions` that the token's place in its sequence says:
/// ids `[batch, tokens]`, table `[vocabulary, width]`, positions `[at least tokens, width]` to
/// `[batch, tokens, width]`.
///
/// An id that is no row of the table makes its row not a number on a GPU, which cannot complain in
/// words.
///
/// # Panics
///
/// If the shapes do not fit; on the CPU backend also for such an id.
pub fn embedding(ids: Tensor<2, Int>, table: Tensor<2>, positions: Option<Tensor<2>>) -> Tensor<3> {
    let rows = TableRows {
        first: 0,
        of: table.dims()[0],
    };
    embedding_in_part(ids, table, rows, positions)
}

/// As [`embedding`], where `table` holds only some rows of the whole one: the others count as 0, so that the rows of all
/// parts add up to those of the whole table.
///
/// # Panics
///
/// As [`embedding`].
pub fn embedding_in_part(
    ids: Tensor<2, Int>,
    table: Tensor<2>,
    rows: TableRows,
    positions: Option<Tensor<2>>,
) -> Tensor<3> {
    let (ids, table) = (ids.into_dispatch(), table.into_dispatch());
    Tensor::from_dispatch(Dispatch::embed(table, ids, rows, optional(positions)))
}

/// Embeddings and their gradients, not differentiable.
pub trait Embeddings: Backend {
    /// The rows.
    fn embedded(
        table: &FloatTensor<Self>,
        ids: &IntTensor<Self>,
        rows: TableRows,
        positions: Option<&FloatTensor<Self>>,
    ) -> FloatTensor<Self>;

    /// Gradients for these rows of the table and, if there are any, `positions` rows of positions.
    fn embedding_gradients(
        ids: &IntTensor<Self>,
        gradient: &FloatTensor<Self>,
        rows: Range<usize>,
        positions: Option<usize>,
    ) -> (FloatTensor<Self>, Option<FloatTensor<Self>>);
}

/// The differentiable operation.
#[backend_extension(Cube, Flex, Autodiff)]
pub trait EmbeddingOps: Backend {
    /// See [`embedding`].
    fn embed(
        table: FloatTensor<Self>,
        ids: IntTensor<Self>,
        rows: TableRows,
        #[extension_type] positions: Optional<Self>,
    ) -> FloatTensor<Self>;
}

macro_rules! plain {
    ($backend:ty) => {
        impl EmbeddingOps for $backend {
            fn embed(
                table: FloatTensor<Self>,
                ids: IntTensor<Self>,
                rows: TableRows,
                positions: Optional<Self>,
            ) -> FloatTensor<Self> {
                Self::embedded(&table, &ids, rows, positions.into_option().as_ref())
            }
        }
    };
}

plain!(CubeBackend);
plain!(Flex);

impl<B: EmbeddingOps + Embeddings, C: CheckpointStrategy> EmbeddingOps for Autodiff<B, C> {
    fn embed(
        table: FloatTensor<Self>,
        ids: IntTensor<Self>,
        rows: TableRows,
        positions: Optional<Self>,
    ) -> FloatTensor<Self> {
        let positions = Parent::new(positions, &table);
        let nodes = [table.node(), positions.node];
        let table = table.into_primitive();
        let forward = |_| {
            let places = positions.inner.as_ref().map(|positions| positions.shape()[0]);
            let out = B::embedded(&table, &ids, rows, positions.inner.as_ref());
            (out, (ids, rows.first..rows.first + table.shape()[0], places))
        };
        differentiable::<B, C, _, 2>(
            nodes,
            forward,
            |(ids, rows, places), gradient, [_, on_positions]| {
                let places = places.filter(|_| on_positions);
                let (to_table, to_positions) = B::embedding_gradients(&ids, &gradient, rows, places);
                [Some(to_table), to_positions]
            },
        )
    }
}

static FORWARD: [&Kernel; 2] = [&EMBEDDING, &EMBEDDING_SCALAR];
static BACKWARD: [&Kernel; 2] = [&EMBEDDING_BACKWARD, &EMBEDDING_BACKWARD_SCALAR];
static SORT: [&Kernel; 2] = [&EMBEDDING_SORT, &EMBEDDING_SORT_SCALAR];

/// Those that rows of `width` numbers take, for any number of tokens.
pub(crate) fn kernels(width: usize) -> Vec<&'static Kernel> {
    let [vectors, scalars] = SORT;
    vec![
        fitting(FORWARD, width).0,
        fitting(BACKWARD, width).0,
        vectors,
        scalars,
    ]
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ForwardParams {
    tokens: u32,
    width: u32,
    lanes: u32,
    blocks: u32,
    flags: u32,
    rows: u32,
    first: u32,
    vocabulary: u32,
    period: u32,
    invalid: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BackwardParams {
    tokens: u32,
    width: u32,
    lanes: u32,
    blocks: u32,
    rows: u32,
    first: u32,
    positions: u32,
    period: u32,
}

/// `[batch, tokens]` of the ids, after checking that all fits.
fn sizes(
    table: &impl TensorMetadata,
    ids: &impl TensorMetadata,
    positions: Option<&impl TensorMetadata>,
) -> [usize; 2] {
    let [batch, tokens] = [ids.shape()[0], ids.shape()[1]];
    if let Some(positions) = positions {
        let (rows, width) = (positions.shape()[0], positions.shape()[1]);
        assert_eq!(
            table.shape()[1],
            width,
            "rows of positions are as long as those of the table"
        );
        assert!(tokens <= rows, "{tokens} tokens, but only {rows} positions");
    }
    [batch, tokens]
}

/// How a row of `width` elements is cut: pieces, and invocations for each. Emulated, an invocation takes
/// a whole row, so that it looks for it only once.
fn pieces(tensor: &CubeTensor, width: usize) -> (usize, usize) {
    if is_emulated(tensor) {
        return (1, 1);
    }
    let lanes = width.next_power_of_two().clamp(8, 64);
    (width.div_ceil(lanes), lanes)
}

impl Embeddings for CubeBackend {
    fn embedded(
        table: &CubeTensor,
        ids: &CubeTensor,
        rows: TableRows,
        positions: Option<&CubeTensor>,
    ) -> CubeTensor {
        let [batch, period] = sizes(table, ids, positions);
        let (table, ids) = (contiguous(table.clone()), integers(ids.clone()));
        let positions = positions.map(|positions| contiguous(positions.clone()));
        let numbers = table.shape()[1];
        let tokens = batch * period;
        let out = empty(&table, [batch, period, numbers]);
        if tokens * numbers == 0 {
            return out;
        }
        let (kernel, width) = fitting(FORWARD, numbers);
        let (blocks, lanes) = pieces(&ids, width);
        let params = ForwardParams {
            tokens: tokens as u32,
            width: width as u32,
            lanes: lanes as u32,
            blocks: blocks as u32,
            flags: u32::from(positions.is_some()),
            rows: table.shape()[0] as u32,
            first: rows.first as u32,
            vocabulary: rows.of as u32,
            period: period as u32,
            invalid: f32::NAN,
        };
        let groups = grid((tokens * blocks).div_ceil(64 / lanes));
        launch(
            kernel,
            &[&ids, &table, positions.as_ref().unwrap_or(&table)],
            &[&out],
            params,
            groups,
        );
        out
    }

    fn embedding_gradients(
        ids: &CubeTensor,
        gradient: &CubeTensor,
        rows: Range<usize>,
        positions: Option<usize>,
    ) -> (CubeTensor, Option<CubeTensor>) {
        let (ids, gradient) = (integers(ids.clone()), contiguous(gradient.clone()));
        let [tokens, numbers] = [ids.shape().num_elements(), gradient.shape()[2]];
        let to_table = empty(&gradient, [rows.len(), numbers]);
        let to_positions = positions.map(|rows| empty(&gradient, [rows, numbers]));
        assert!(tokens * numbers > 0, "the gradient of no tokens");
        let sorted = empty(&gradient, [tokens, 2]);
        let (kernel, count) = fitting(SORT, tokens);
        launch(
            kernel,
            &[&ids],
            &[&sorted],
            count as u32,
            grid(count.div_ceil(64)),
        );
        let (kernel, width) = fitting(BACKWARD, numbers);
        let (blocks, lanes) = pieces(&ids, width);
        let params = BackwardParams {
            tokens: tokens as u32,
            width: width as u32,
            lanes: lanes as u32,
            blocks: blocks as u32,
            rows: rows.len() as u32,
            first: rows.start as u32,
            positions: positions.unwrap_or(0) as u32,
            period: ids.shape()[1] as u32,
        };
        let groups = grid(((rows.len() + positions.unwrap_or(0)) * blocks).div_ceil(64 / lanes));
        // A buffer of its own where there is nothing to write.
        let unused = to_positions.is_none().then(|| empty(&gradient, [4]));
        let second = to_positions.as_ref().or(unused.as_ref()).expect("one of them");
        launch(
            kernel,
            &[&sorted, &gradient],
            &[&to_table, second],
            params,
            groups,
        );
        (to_table, to_positions)
    }
}

impl Embeddings for Flex {
    fn embedded(
        table: &FlexTensor,
        ids: &FlexTensor,
        rows: TableRows,
        positions: Option<&FlexTensor>,
    ) -> FlexTensor {
        let [batch, period] = sizes(table, ids, positions);
        let (table, ids) = (host::contiguous(table.clone()), host::integers(ids.clone()));
        let positions = positions.map(|positions| host::contiguous(positions.clone()));
        let width = table.shape()[1];
        let sizes = cpu::embedding::Sizes { width, period };
        let positions = positions.as_ref().map(host::floats);
        let table = (host::floats(&table), rows);
        match cpu::embedding::embedding(host::whole(&ids), table, positions, sizes) {
            Ok(rows) => host::tensor(rows, [batch, period, width]),
            Err(error) => panic!("{error}"),
        }
    }

    fn embedding_gradients(
        ids: &FlexTensor,
        gradient: &FlexTensor,
        rows: Range<usize>,
        positions: Option<usize>,
    ) -> (FlexTensor, Option<FlexTensor>) {
        let (ids, gradient) = (host::integers(ids.clone()), host::contiguous(gradient.clone()));
        let (width, period) = (gradient.shape()[2], ids.shape()[1]);
        let numbers = host::floats(&gradient);
        let table = [rows.len(), width];
        let to_table = cpu::embedding::table_gradient(host::whole(&ids), numbers, rows, width);
        let to_positions = positions.map(|rows| {
            let sizes = cpu::embedding::Sizes { width, period };
            let sums = cpu::embedding::position_gradient(numbers, rows, sizes);
            host::tensor(sums, [rows, width])
        });
        (host::tensor(to_table, table), to_positions)
    }
}
