//! Rotary positions for packed queries and keys (Su et al., 2021, "RoFormer").

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::wgpu::{CubeBackend, CubeTensor};
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Device, Tensor, TensorData};
use bytemuck::{Pod, Zeroable};

use super::attention::head_dim;
use super::gradients::differentiable;
use super::host;
use crate::cpu;
use crate::kernel::ROTARY;
use crate::launch::{self, grid, launch};

/// Cosine and sine, in turn, of the angles of each token `[tokens, head_dim]`, for [`rotary`]: pair i
/// of a head turns by `base^(-2i / head_dim)` from a token to the next. Usual is a base of 10,000.
pub fn rotary_table(tokens: usize, head_dim: usize, base: f64, device: &Device) -> Tensor<2> {
    let table = cpu::rotary::table(tokens, head_dim, base);
    Tensor::from_data(TensorData::new(table, [tokens, head_dim]), device)
}

/// Turns the queries and keys in `qkv` `[batch, tokens, 3 * heads * head_dim]`, packed as
/// [`attention`](super::attention::attention()) takes them, by the angles of a table of at least as
/// many tokens. Neighbouring numbers make a pair. The table gets no gradient.
///
/// # Panics
///
/// If the shapes do not fit.
pub fn rotary(qkv: Tensor<3>, table: Tensor<2>, heads: usize) -> Tensor<3> {
    let [_, tokens, columns] = qkv.dims();
    let [rows, width] = table.dims();
    assert_eq!(width, head_dim(columns, heads), "columns of a table of angles");
    assert!(tokens <= rows, "{tokens} tokens, but angles for {rows}");
    let table = table.narrow(0, 0, tokens);
    Tensor::from_dispatch(Dispatch::packed_rotary(
        qkv.into_dispatch(),
        table.into_dispatch(),
        heads,
    ))
}

/// Turning, not differentiable.
pub trait Rotary: Backend {
    /// The queries and keys turned, or turned back.
    fn rotate(
        qkv: FloatTensor<Self>,
        table: FloatTensor<Self>,
        heads: usize,
        back: bool,
    ) -> FloatTensor<Self>;
}

/// The differentiable operation.
#[backend_extension(Cube, Flex, Autodiff)]
pub trait RotaryOps: Backend {
    /// See [`rotary`](rotary()).
    fn packed_rotary(qkv: FloatTensor<Self>, table: FloatTensor<Self>, heads: usize) -> FloatTensor<Self>;
}

impl RotaryOps for CubeBackend {
    fn packed_rotary(qkv: CubeTensor, table: CubeTensor, heads: usize) -> CubeTensor {
        Self::rotate(qkv, table, heads, false)
    }
}

impl RotaryOps for Flex {
    fn packed_rotary(qkv: FlexTensor, table: FlexTensor, heads: usize) -> FlexTensor {
        Self::rotate(qkv, table, heads, false)
    }
}

impl<B: RotaryOps + Rotary, C: CheckpointStrategy> RotaryOps for Autodiff<B, C> {
    fn packed_rotary(qkv: FloatTensor<Self>, table: FloatTensor<Self>, heads: usize) -> FloatTensor<Self> {
        let (node, table) = (qkv.node(), table.into_primitive());
        let forward = |_| {
            let out = B::rotate(qkv.into_primitive(), table.clone(), heads, false);
            (out, (table, heads))
        };
        differentiable::<B, C, _, 1>([node], forward, |(table, heads), gradient, _| {
            [Some(B::rotate(gradient, table, heads, true))]
        })
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    count: u32,
    tokens: u32,
    inner: u32,
    width: u32,
    turn: f32,
}

impl Rotary for CubeBackend {
    fn rotate(qkv: CubeTensor, table: CubeTensor, heads: usize, back: bool) -> CubeTensor {
        let (qkv, table) = (launch::contiguous(qkv), launch::contiguous(table));
        let shape = qkv.shape();
        let out = launch::empty(&qkv, shape.clone());
        let params = Params {
            count: (shape.num_elements() / 4) as u32,
            tokens: shape[1] as u32,
            inner: (shape[2] / 12) as u32,
            width: (shape[2] / (12 * heads)) as u32,
            turn: if back { -1.0 } else { 1.0 },
        };
        if params.count > 0 {
            let groups = grid(params.count.div_ceil(64) as usize);
            launch(&ROTARY, &[&qkv, &table], &[&out], params, groups);
        }
        out
    }
}

impl Rotary for Flex {
    fn rotate(qkv: FlexTensor, table: FlexTensor, heads: usize, back: bool) -> FlexTensor {
        let (mut qkv, table) = (host::contiguous(qkv), host::contiguous(table));
        let shape = qkv.shape();
        if shape.num_elements() > 0 {
            let sizes = [shape[1], heads, shape[2] / (3 * heads)];
            cpu::rotary::rotate(qkv.storage_mut(), host::floats(&table), sizes, back);
        }
        qkv
    }
}
