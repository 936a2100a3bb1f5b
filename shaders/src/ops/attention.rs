//! Attention over packed queries, keys and values, without a matrix of all scores (Dao et al.,
//! 2022, "FlashAttention"; Dao, 2023, "FlashAttention-2").

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::wgpu::{CubeBackend, CubeTensor};
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Shape, Tensor};
use bytemuck::{Pod, Zeroable};

use super::gradients::differentiable;
use super::host;
use crate::cpu;
use crate::cpu::attention::Sizes;
use crate::kernel::{
    ATTENTION_BACKWARD, ATTENTION_BACKWARD_KEYS, ATTENTION_BACKWARD_KEYS_NARROW,
    ATTENTION_BACKWARD_KEYS_SLIM, ATTENTION_BACKWARD_NARROW, ATTENTION_BACKWARD_QUERIES,
    ATTENTION_BACKWARD_QUERIES_NARROW, ATTENTION_BACKWARD_QUERIES_SLIM, ATTENTION_BACKWARD_TILED,
    ATTENTION_FORWARD, ATTENTION_FORWARD_NARROW, ATTENTION_FORWARD_TILED, ATTENTION_FORWARD_UNROLLED,
    ATTENTION_FORWARD_UNROLLED_NARROW, ATTENTION_FORWARD_UNROLLED_SLIM, Kernel,
};
use crate::launch::{self, Adapter, grid, launch};

/// Attention of each of `heads` heads: `qkv` `[batch, tokens, 3 * heads * head_dim]` holds queries,
/// keys and values side by side, as one linear layer makes them, each `heads` times `head_dim`. The
/// output is `[batch, tokens, heads * head_dim]`. If `causal`, no token sees a later one.
///
/// # Panics
///
/// As [`head_dim`] does.
pub fn attention(qkv: Tensor<3>, heads: usize, causal: bool) -> Tensor<3> {
    head_dim(qkv.dims()[2], heads);
    Tensor::from_dispatch(Dispatch::packed_attention(qkv.into_dispatch(), heads, causal))
}

/// Numbers in a query of one head, when queries, keys and values make `columns` together.
///
/// # Panics
///
/// If they cannot be shared among the heads, or if the share is not a multiple of 4, which the
/// kernels need.
pub fn head_dim(columns: usize, heads: usize) -> usize {
    assert!(
        heads > 0 && columns.is_multiple_of(3 * heads),
        "{columns} columns are no queries, keys and values of {heads} heads"
    );
    let head_dim = columns / (3 * heads);
    assert!(
        head_dim > 0 && head_dim.is_multiple_of(4),
        "heads of {head_dim} numbers: attention needs a multiple of 4"
    );
    head_dim
}

/// Attention and its slopes, not differentiable.
pub trait Attention: Backend {
    /// The output and the logarithms of the softmax's sums, `[batch, heads, tokens]`.
    fn attention_forward(qkv: &FloatTensor<Self>, sizes: Sizes) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The slopes along `qkv`, given those along the output.
    fn attention_backward(
        saved: &Saved<Self>,
        gradient: FloatTensor<Self>,
        sizes: Sizes,
    ) -> FloatTensor<Self>;
}

/// What the backward pass needs of the forward pass.
#[derive(Clone, Debug)]
pub struct Saved<B: Backend> {
    /// The input.
    pub qkv: FloatTensor<B>,
    /// The output.
    pub out: FloatTensor<B>,
    /// The logarithms of the softmax's sums.
    pub lse: FloatTensor<B>,
}

/// The differentiable operation.
#[backend_extension(Cube, Flex, Autodiff)]
pub trait AttentionOps: Backend {
    /// See [`attention`](attention()).
    fn packed_attention(qkv: FloatTensor<Self>, heads: usize, causal: bool) -> FloatTensor<Self>;
}

impl AttentionOps for CubeBackend {
    fn packed_attention(qkv: CubeTensor, heads: usize, causal: bool) -> CubeTensor {
        let sizes = sizes(&qkv.shape(), heads, causal);
        Self::attention_forward(&launch::contiguous(qkv), sizes).0
    }
}

impl AttentionOps for Flex {
    fn packed_attention(qkv: FlexTensor, heads: usize, causal: bool) -> FlexTensor {
        let sizes = sizes(&qkv.shape(), heads, causal);
        Self::attention_forward(&host::contiguous(qkv), sizes).0
    }
}

impl<B: AttentionOps + Attention, C: CheckpointStrategy> AttentionOps for Autodiff<B, C> {
    fn packed_attention(qkv: FloatTensor<Self>, heads: usize, causal: bool) -> FloatTensor<Self> {
        let node = qkv.node();
        let qkv = qkv.into_primitive();
        let sizes = sizes(&qkv.shape(), heads, causal);
        let forward = |_| {
            let (out, lse) = B::attention_forward(&qkv, sizes);
            let saved = Saved {
                qkv,
                out: out.clone(),
                lse,
            };
            (out, (saved, sizes))
        };
        differentiable::<B, C, _, 1>([node], forward, |(saved, sizes), gradient, _| {
            [Some(B::attention_backward(&saved, gradient, sizes))]
        })
    }
}

fn sizes(qkv: &Shape, heads: usize, causal: bool) -> Sizes {
    Sizes {
        batch: qkv[0],
        tokens: qkv[1],
        heads,
        head_dim: head_dim(qkv[2], heads),
        causal,
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ForwardParams {
    tokens: u32,
    heads: u32,
    width: u32,
    pairs: u32,
    chunks: u32,
    causal: u32,
    scale: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BackwardParams {
    forward: ForwardParams,
    each: u32,
}

/// Kernels and the tile that a unit of their work makes.
struct Plan {
    forward: &'static Kernel,
    backward: Slopes,
    tokens: usize,
    columns: usize,
    units_per_group: usize,
}

/// What makes the slopes.
enum Slopes {
    /// One launch, with so many kinds of workgroups.
    AtOnce(&'static Kernel, usize),
    /// One for the queries' and one for the keys' and values', where half of the workgroups would wait for the
    /// other half's branch.
    InTurn {
        queries: &'static Kernel,
        keys: &'static Kernel,
    },
}

/// For CPUs that play a GPU.
static SERIAL: Plan = Plan {
    forward: &ATTENTION_FORWARD,
    backward: Slopes::AtOnce(&ATTENTION_BACKWARD, 2),
    tokens: 4,
    columns: 32,
    units_per_group: 8,
};

/// [`SERIAL`] for heads of one unit's columns.
static NARROW: Plan = Plan {
    forward: &ATTENTION_FORWARD_NARROW,
    backward: Slopes::AtOnce(&ATTENTION_BACKWARD_NARROW, 2),
    ..SERIAL
};

/// For SwiftShader.
static UNROLLED: Plan = Plan {
    forward: &ATTENTION_FORWARD_UNROLLED,
    backward: Slopes::InTurn {
        queries: &ATTENTION_BACKWARD_QUERIES,
        keys: &ATTENTION_BACKWARD_KEYS,
    },
    ..SERIAL
};

/// [`UNROLLED`] for heads of one unit's columns.
static UNROLLED_NARROW: Plan = Plan {
    forward: &ATTENTION_FORWARD_UNROLLED_NARROW,
    backward: Slopes::InTurn {
        queries: &ATTENTION_BACKWARD_QUERIES_NARROW,
        keys: &ATTENTION_BACKWARD_KEYS_NARROW,
    },
    ..SERIAL
};

/// [`UNROLLED`] for heads of half as many columns as a unit's.
static UNROLLED_SLIM: Plan = Plan {
    forward: &ATTENTION_FORWARD_UNROLLED_SLIM,
    backward: Slopes::InTurn {
        queries: &ATTENTION_BACKWARD_QUERIES_SLIM,
        keys: &ATTENTION_BACKWARD_KEYS_SLIM,
    },
    columns: 16,
    ..SERIAL
};

/// For GPUs.
static TILED: Plan = Plan {
    forward: &ATTENTION_FORWARD_TILED,
    backward: Slopes::AtOnce(&ATTENTION_BACKWARD_TILED, 3),
    tokens: 32,
    columns: 64,
    units_per_group: 1,
};

impl Plan {
    fn of(adapter: Adapter, head_dim: usize) -> &'static Self {
        match adapter {
            Adapter::Gpu => &TILED,
            Adapter::Cpu if head_dim <= NARROW.columns => &NARROW,
            Adapter::Cpu => &SERIAL,
            Adapter::SwiftShader if head_dim <= UNROLLED_SLIM.columns => &UNROLLED_SLIM,
            Adapter::SwiftShader if head_dim <= UNROLLED_NARROW.columns => &UNROLLED_NARROW,
            Adapter::SwiftShader => &UNROLLED,
        }
    }

    fn params(&self, sizes: Sizes) -> ForwardParams {
        ForwardParams {
            tokens: sizes.tokens as u32,
            heads: sizes.heads as u32,
            width: (sizes.head_dim / 4) as u32,
            pairs: (sizes.batch * sizes.heads) as u32,
            chunks: sizes.head_dim.div_ceil(self.columns) as u32,
            causal: u32::from(sizes.causal),
            scale: sizes.scale() as f32,
        }
    }

    fn groups(&self, sizes: Sizes) -> usize {
        let blocks = sizes.tokens.div_ceil(self.tokens) * sizes.head_dim.div_ceil(self.columns);
        (sizes.batch * sizes.heads * blocks).div_ceil(self.units_per_group)
    }
}

/// The kernels for heads of `head_dim` numbers.
pub(crate) fn kernels(adapter: Adapter, head_dim: usize) -> Vec<&'static Kernel> {
    let plan = Plan::of(adapter, head_dim);
    match plan.backward {
        Slopes::AtOnce(backward, _) => vec![plan.forward, backward],
        Slopes::InTurn { queries, keys } => vec![plan.forward, queries, keys],
    }
}

impl Attention for CubeBackend {
    fn attention_forward(qkv: &CubeTensor, sizes: Sizes) -> (CubeTensor, CubeTensor) {
        let qkv = launch::contiguous(qkv.clone());
        let out = launch::empty(&qkv, [sizes.batch, sizes.tokens, sizes.inner()]);
        let lse = launch::empty(&qkv, [sizes.batch, sizes.heads, sizes.tokens]);
        let plan = Plan::of(launch::adapter(&qkv), sizes.head_dim);
        let groups = plan.groups(sizes);
        if groups > 0 {
            launch(
                plan.forward,
                &[&qkv],
                &[&out, &lse],
                plan.params(sizes),
                grid(groups),
            );
        }
        (out, lse)
    }

    fn attention_backward(saved: &Saved<Self>, gradient: CubeTensor, sizes: Sizes) -> CubeTensor {
        let qkv = launch::contiguous(saved.qkv.clone());
        let gradient = launch::contiguous(gradient);
        let d_qkv = launch::empty(&qkv, qkv.shape());
        let plan = Plan::of(launch::adapter(&qkv), sizes.head_dim);
        let groups = plan.groups(sizes);
        if groups == 0 {
            return d_qkv;
        }
        let Saved { out, lse, .. } = saved;
        let forward = plan.params(sizes);
        match plan.backward {
            Slopes::AtOnce(kernel, kinds) => {
                let each = groups as u32;
                let params = BackwardParams { forward, each };
                launch(
                    kernel,
                    &[&qkv, out, lse, &gradient],
                    &[&d_qkv],
                    params,
                    grid(kinds * groups),
                );
            }
            Slopes::InTurn { queries, keys } => {
                let delta = launch::empty(&qkv, lse.shape());
                let inputs = [&qkv, out, lse, &gradient];
                launch(queries, &inputs, &[&d_qkv, &delta], forward, grid(groups));
                let inputs = [&qkv, lse, &delta, &gradient];
                launch(keys, &inputs, &[&d_qkv], forward, grid(groups));
            }
        }
        d_qkv
    }
}

impl Attention for Flex {
    fn attention_forward(qkv: &FlexTensor, sizes: Sizes) -> (FlexTensor, FlexTensor) {
        let qkv = host::contiguous(qkv.clone());
        let (out, lse) = cpu::attention::forward(host::floats(&qkv), sizes);
        (
            host::tensor(out, [sizes.batch, sizes.tokens, sizes.inner()]),
            host::tensor(lse, [sizes.batch, sizes.heads, sizes.tokens]),
        )
    }

    fn attention_backward(saved: &Saved<Self>, gradient: FlexTensor, sizes: Sizes) -> FlexTensor {
        let qkv = host::contiguous(saved.qkv.clone());
        let gradient = host::contiguous(gradient);
        let [qkv_floats, out, lse, d_out] = [&qkv, &saved.out, &saved.lse, &gradient].map(host::floats);
        host::tensor(
            cpu::attention::backward(qkv_floats, out, lse, d_out, sizes),
            qkv.shape(),
        )
    }
}
