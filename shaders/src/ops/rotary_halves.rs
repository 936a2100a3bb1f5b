//! Rotary positions of pairs that are half a head apart, as Hugging Face's models have them (Su et al., 2021, "RoFormer").

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::wgpu::{CubeBackend, CubeTensor};
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Shape, Tensor};
use bytemuck::{Pod, Zeroable};

use super::gradients::differentiable;
use super::heads::{Order, placed, placed_on_host};
use super::host;
use crate::cpu;
use crate::cpu::attention::{Place, Placed};
use crate::cpu::rotary_halves::Angles;
use crate::kernel::{Kernel, ROTARY_HALVES, ROTARY_HALVES_SCALAR, fitting};
use crate::launch::{self, grid, launch};

/// Turns the rows of x `[batch, heads, tokens, head_dim]`, number i with number `i + head_dim / 2`. Cosine and sine of the
/// angles are `[batch, tokens, head_dim]`, where the batch may be 1. In Hugging Face's words: x cosine + rotate_half(x)
/// sine. Angles get no gradient. Tensors whose axes were swapped are read as they lie.
///
/// # Panics
///
/// If shapes do not fit, `head_dim` is odd, or angles need a gradient.
pub fn rope_halves(x: Tensor<4>, cosine: Tensor<3>, sine: Tensor<3>) -> Tensor<4> {
    let [batch, _, tokens, width] = x.dims();
    for table in [cosine.dims(), sine.dims()] {
        let fits = [1, batch].contains(&table[0]) && table[1..] == [tokens, width];
        assert!(fits, "angles {table:?} for {:?}", x.dims());
    }
    assert_eq!(cosine.dims(), sine.dims(), "cosine and sine");
    assert!(width.is_multiple_of(2), "heads of {width} numbers have no halves");
    let [cosine, sine] = [cosine, sine].map(Tensor::into_dispatch);
    Tensor::from_dispatch(Dispatch::halves_turned(x.into_dispatch(), cosine, sine))
}

/// Turning, not differentiable.
pub trait RotaryHalves: Backend {
    /// The rows turned, or the backward pass of that.
    fn turn(
        x: &FloatTensor<Self>,
        cosine: &FloatTensor<Self>,
        sine: &FloatTensor<Self>,
        back: bool,
    ) -> FloatTensor<Self>;
}

/// The differentiable operation.
#[backend_extension(Cube, Flex, Autodiff)]
pub trait RotaryHalvesOps: Backend {
    /// See [`rope_halves`].
    fn halves_turned(
        x: FloatTensor<Self>,
        cosine: FloatTensor<Self>,
        sine: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}

macro_rules! plain {
    ($backend:ty) => {
        impl RotaryHalvesOps for $backend {
            fn halves_turned(
                x: FloatTensor<Self>,
                cosine: FloatTensor<Self>,
                sine: FloatTensor<Self>,
            ) -> FloatTensor<Self> {
                Self::turn(&x, &cosine, &sine, false)
            }
        }
    };
}

plain!(CubeBackend);
plain!(Flex);

impl<B: RotaryHalvesOps + RotaryHalves, C: CheckpointStrategy> RotaryHalvesOps for Autodiff<B, C> {
    fn halves_turned(
        x: FloatTensor<Self>,
        cosine: FloatTensor<Self>,
        sine: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let node = x.node();
        let [cosine, sine] = [cosine, sine].map(|table| {
            assert!(!table.is_tracked(), "angles get no gradient, but need one");
            table.into_primitive()
        });
        let forward = |_| {
            let out = B::turn(&x.into_primitive(), &cosine, &sine, false);
            (out, (cosine, sine))
        };
        differentiable::<B, C, _, 1>([node], forward, |(cosine, sine), gradient, _| {
            [Some(B::turn(&gradient, &cosine, &sine, true))]
        })
    }
}

static KERNELS: [&Kernel; 2] = [&ROTARY_HALVES, &ROTARY_HALVES_SCALAR];

/// The kernel for heads of `head_dim` numbers.
pub(crate) fn kernels(head_dim: usize) -> Vec<&'static Kernel> {
    vec![fitting(KERNELS, head_dim / 2).0]
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    x: [u32; 4],
    out: [u32; 4],
    count: u32,
    half: u32,
    tokens: u32,
    heads: u32,
    table: u32,
    back: u32,
    padding: [u32; 2],
}

/// The step of angles from a sequence to the next.
fn batch_step(table: &Shape) -> usize {
    if table[0] == 1 { 0 } else { table[1] * table[2] }
}

impl RotaryHalves for CubeBackend {
    fn turn(x: &CubeTensor, cosine: &CubeTensor, sine: &CubeTensor, back: bool) -> CubeTensor {
        let dims: [usize; 4] = x.shape().dims();
        let [batch, heads, tokens, width] = dims;
        let (kernel, half) = fitting(KERNELS, width / 2);
        // Numbers in an element.
        let each = width / 2 / half;
        let (x, place) = placed(x, each);
        let (cosine, sine) = (
            launch::contiguous(cosine.clone()),
            launch::contiguous(sine.clone()),
        );
        let order = Order::of(place);
        let out = launch::empty(&x, order.shape(dims));
        let elements = |numbers: usize| (numbers / each) as u32;
        let place_of = |place: Place| [place.start, place.batch, place.head, place.token].map(elements);
        let params = Params {
            x: place_of(place),
            out: place_of(order.place(tokens, heads, width)),
            count: (batch * heads * tokens * half) as u32,
            half: half as u32,
            tokens: tokens as u32,
            heads: heads as u32,
            table: elements(batch_step(&cosine.shape())),
            back: u32::from(back),
            padding: [0; 2],
        };
        if params.count > 0 {
            let groups = grid(params.count.div_ceil(64) as usize);
            launch(kernel, &[&x, &cosine, &sine], &[&out], params, groups);
        }
        order.heads_first(out)
    }
}

impl RotaryHalves for Flex {
    fn turn(x: &FlexTensor, cosine: &FlexTensor, sine: &FlexTensor, back: bool) -> FlexTensor {
        let dims: [usize; 4] = x.shape().dims();
        let [_, heads, tokens, width] = dims;
        let (x, place) = placed_on_host(x);
        let [cosine, sine] = [cosine, sine].map(|table| host::contiguous(table.clone()));
        let order = Order::of(place);
        let angles = Angles {
            cosine: host::floats(&cosine),
            sine: host::floats(&sine),
            batch: batch_step(&cosine.shape()),
        };
        let numbers = Placed {
            numbers: x.storage(),
            place,
        };
        let to = order.place(tokens, heads, width);
        order.on_host(cpu::rotary_halves::rotate(numbers, angles, to, dims, back), dims)
    }
}
