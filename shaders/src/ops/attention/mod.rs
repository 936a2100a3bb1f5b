//! Attention without a matrix of all scores (Dao et al., 2022, "FlashAttention"; Dao, 2023, "FlashAttention-2"), of
//! queries, keys and values that are separate tensors or lie side by side in one.

mod cpu;
mod gpu;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::wgpu::CubeBackend;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Shape, Tensor};

use super::dropout::check_rate;
use super::gradients::differentiable;
use super::optional::{Optional, optional};
use crate::cpu::attention::{Sizes, usual_scale};
use crate::cpu::dropout::Mask;

pub(crate) use self::gpu::{Form, kernels};

/// Options of [`attention`](attention()). By default every query sees every key.
#[derive(Clone, Debug, Default)]
pub struct AttentionOptions {
    /// Query i sees no keys behind key i.
    pub causal: bool,
    /// Added to the scores: `[batch, heads, queries, keys]`, where an axis may have length 1. Numbers of -1e30 and less
    /// hide a key from a query. A mask gets no gradient.
    pub mask: Option<Tensor<4>>,
    /// The factor of the scores; if none is given, 1 over the square root of a head's width.
    pub scale: Option<f64>,
    /// Drops weights after the softmax. Which ones follows from the mask's seed and offset alone, on all devices.
    pub dropout: Option<Mask>,
}

/// Attention of queries `[batch, heads, queries, head_dim]` to keys and values `[batch, key heads, keys, head_dim]`, each
/// head of which is shared by as many heads of queries, one after the other. The output is as the queries are.
///
/// A query that sees no key gets an output of 0. Tensors whose axes were swapped are read as they lie: for numbers in the
/// order `[batch, tokens, heads, head_dim]` swap axes 1 and 2 before and after, which copies nothing.
///
/// # Panics
///
/// If shapes do not fit, `head_dim` is no multiple of 4, a dropout rate is not from 0 to below 1, or the mask needs a
/// gradient.
pub fn attention(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, options: AttentionOptions) -> Tensor<4> {
    let AttentionOptions {
        causal,
        mask,
        scale,
        dropout,
    } = options;
    let sizes = separate_sizes([q.dims(), k.dims(), v.dims()], causal, scale, dropout);
    if let Some(mask) = &mask {
        let whole = [sizes.batch, sizes.heads, sizes.queries, sizes.keys];
        let fits = mask
            .dims()
            .iter()
            .zip(whole)
            .all(|(axis, size)| *axis == 1 || *axis == size);
        assert!(fits, "a mask {:?} for scores {whole:?}", mask.dims());
    }
    let [q, k, v] = [q, k, v].map(Tensor::into_dispatch);
    Tensor::from_dispatch(Dispatch::separate_attention(q, k, v, optional(mask), sizes))
}

fn separate_sizes(
    [q, k, v]: [[usize; 4]; 3],
    causal: bool,
    scale: Option<f64>,
    dropout: Option<Mask>,
) -> Sizes {
    let [batch, heads, queries, head_dim] = q;
    let [_, key_heads, keys, _] = k;
    assert!(
        k == v && k[0] == batch && k[3] == head_dim && key_heads > 0 && heads.is_multiple_of(key_heads),
        "queries {q:?}, keys {k:?} and values {v:?} do not fit"
    );
    check_head_dim(head_dim);
    Sizes {
        batch,
        queries,
        keys,
        heads,
        group: heads / key_heads,
        head_dim,
        causal,
        scale: scale.unwrap_or_else(|| usual_scale(head_dim)),
        dropout: dropout.filter(|mask| check_rate(mask.rate) > 0.0),
    }
}

/// Attention of each of `heads` heads: `qkv` `[batch, tokens, 3 * heads * head_dim]` holds queries,
/// keys and values side by side, as one linear layer makes them, each `heads` times `head_dim`. The
/// output is `[batch, tokens, heads * head_dim]`. If `causal`, no token sees a later one.
///
/// # Panics
///
/// As [`head_dim`] does.
pub fn packed_attention(qkv: Tensor<3>, heads: usize, causal: bool) -> Tensor<3> {
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
    check_head_dim(head_dim);
    head_dim
}

fn check_head_dim(head_dim: usize) {
    assert!(
        head_dim > 0 && head_dim.is_multiple_of(4),
        "heads of {head_dim} numbers: attention needs a multiple of 4"
    );
}

/// Queries, keys and values, or the slopes along them.
#[derive(Clone, Debug)]
pub enum Operands<B: Backend> {
    /// Side by side, `[batch, tokens, 3 * heads * head_dim]`.
    Packed(FloatTensor<B>),
    /// Each `[batch, heads, tokens, head_dim]`.
    Separate([FloatTensor<B>; 3]),
}

impl<B: Backend> Operands<B> {
    fn into_packed(self) -> FloatTensor<B> {
        match self {
            Self::Packed(qkv) => qkv,
            Self::Separate(_) => panic!("slopes are as the operands were: packed"),
        }
    }

    fn into_separate(self) -> [FloatTensor<B>; 3] {
        match self {
            Self::Separate(qkv) => qkv,
            Self::Packed(_) => panic!("slopes are as the operands were: separate"),
        }
    }
}

/// Attention and its slopes, not differentiable.
pub trait Attention: Backend {
    /// The output and the logarithms of the softmax's sums, `[batch, heads, queries]`.
    fn attention_forward(
        operands: &Operands<Self>,
        mask: Option<&FloatTensor<Self>>,
        sizes: Sizes,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The slopes along the operands, given those along the output.
    fn attention_backward(saved: &Saved<Self>, gradient: FloatTensor<Self>, sizes: Sizes) -> Operands<Self>;
}

/// What the backward pass needs of the forward pass.
#[derive(Clone, Debug)]
pub struct Saved<B: Backend> {
    /// The input.
    pub operands: Operands<B>,
    /// What was added to the scores.
    pub mask: Option<FloatTensor<B>>,
    /// The output.
    pub out: FloatTensor<B>,
    /// The logarithms of the softmax's sums.
    pub lse: FloatTensor<B>,
}

/// The differentiable operations.
#[backend_extension(Cube, Flex, Autodiff)]
pub trait AttentionOps: Backend {
    /// See [`packed_attention`](packed_attention()).
    fn packed_attention(qkv: FloatTensor<Self>, heads: usize, causal: bool) -> FloatTensor<Self>;

    /// See [`attention`](attention()).
    fn separate_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        #[extension_type] mask: Optional<Self>,
        sizes: Sizes,
    ) -> FloatTensor<Self>;
}

macro_rules! plain {
    ($backend:ty) => {
        impl AttentionOps for $backend {
            fn packed_attention(qkv: FloatTensor<Self>, heads: usize, causal: bool) -> FloatTensor<Self> {
                let sizes = packed_sizes(&qkv.shape(), heads, causal);
                Self::attention_forward(&Operands::Packed(qkv), None, sizes).0
            }

            fn separate_attention(
                q: FloatTensor<Self>,
                k: FloatTensor<Self>,
                v: FloatTensor<Self>,
                mask: Optional<Self>,
                sizes: Sizes,
            ) -> FloatTensor<Self> {
                let mask = mask.into_option();
                Self::attention_forward(&Operands::Separate([q, k, v]), mask.as_ref(), sizes).0
            }
        }
    };
}

plain!(CubeBackend);
plain!(Flex);

impl<B: AttentionOps + Attention, C: CheckpointStrategy> AttentionOps for Autodiff<B, C> {
    fn packed_attention(qkv: FloatTensor<Self>, heads: usize, causal: bool) -> FloatTensor<Self> {
        let node = qkv.node();
        let qkv = qkv.into_primitive();
        let sizes = packed_sizes(&qkv.shape(), heads, causal);
        let forward = |_| passed_forward::<B>(Operands::Packed(qkv), None, sizes);
        differentiable::<B, C, _, 1>([node], forward, |(saved, sizes), gradient, _| {
            [Some(B::attention_backward(&saved, gradient, sizes).into_packed())]
        })
    }

    fn separate_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        mask: Optional<Self>,
        sizes: Sizes,
    ) -> FloatTensor<Self> {
        let nodes = [q.node(), k.node(), v.node()];
        let operands = Operands::Separate([q, k, v].map(|tensor| tensor.into_primitive()));
        let mask = mask.into_option().map(|mask| {
            assert!(
                !mask.is_tracked(),
                "a mask of attention gets no gradient, but needs one"
            );
            mask.into_primitive()
        });
        let forward = |_| passed_forward::<B>(operands, mask, sizes);
        differentiable::<B, C, _, 3>(nodes, forward, |(saved, sizes), gradient, _| {
            let slopes = B::attention_backward(&saved, gradient, sizes);
            slopes.into_separate().map(Some)
        })
    }
}

fn passed_forward<B: Attention>(
    operands: Operands<B>,
    mask: Option<FloatTensor<B>>,
    sizes: Sizes,
) -> (FloatTensor<B>, (Saved<B>, Sizes)) {
    let (out, lse) = B::attention_forward(&operands, mask.as_ref(), sizes);
    let saved = Saved {
        operands,
        mask,
        out: out.clone(),
        lse,
    };
    (out, (saved, sizes))
}

fn packed_sizes(qkv: &Shape, heads: usize, causal: bool) -> Sizes {
    Sizes::of_tokens(qkv[0], qkv[1], heads, head_dim(qkv[2], heads), causal)
}

/// The steps of a mask, 0 along axes of length 1.
fn steps(shape: &Shape, strides: &[usize]) -> [usize; 4] {
    std::array::from_fn(|axis| if shape[axis] == 1 { 0 } else { strides[axis] })
}
