//! Tensors `[batch, heads, tokens, head_dim]` in any order of memory.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::backend::ops::FloatTensorOps;
use burn::backend::wgpu::{CubeBackend, CubeTensor};

use super::host;
use crate::cpu::attention::Place;
use crate::launch;

/// How the numbers of heads follow each other in what is made.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// `[batch, heads, tokens, head_dim]`.
    HeadsFirst,
    /// `[batch, tokens, heads, head_dim]`.
    TokensFirst,
}

impl Order {
    /// The order of what is placed so.
    pub fn of(place: Place) -> Self {
        if place.head < place.token {
            Self::TokensFirst
        } else {
            Self::HeadsFirst
        }
    }

    /// Where heads are, without gaps.
    pub fn place(self, tokens: usize, heads: usize, head_dim: usize) -> Place {
        match self {
            Self::HeadsFirst => Place::heads_first(tokens, heads, head_dim),
            Self::TokensFirst => Place::tokens_first(tokens, heads, head_dim),
        }
    }

    /// The shape in memory.
    pub fn shape(self, [batch, heads, tokens, head_dim]: [usize; 4]) -> [usize; 4] {
        match self {
            Self::HeadsFirst => [batch, heads, tokens, head_dim],
            Self::TokensFirst => [batch, tokens, heads, head_dim],
        }
    }

    /// A tensor that has this order and shape in memory, as `[batch, heads, tokens, head_dim]`.
    pub fn heads_first(self, tensor: CubeTensor) -> CubeTensor {
        match self {
            Self::HeadsFirst => tensor,
            Self::TokensFirst => CubeBackend::float_swap_dims(tensor, 1, 2),
        }
    }

    /// Numbers in this order as a tensor `[batch, heads, tokens, head_dim]` of this shape.
    pub fn on_host(self, numbers: Vec<f32>, shape: [usize; 4]) -> FlexTensor {
        let tensor = host::tensor(numbers, self.shape(shape));
        match self {
            Self::HeadsFirst => tensor,
            Self::TokensFirst => tensor.transpose(1, 2),
        }
    }
}

/// Where heads lie, given a tensor's steps; none if rows have gaps, or steps are no multiples.
fn place(strides: &[usize], start: usize, multiple: usize) -> Option<Place> {
    let &[batch, head, token, 1] = strides else {
        return None;
    };
    let steps = [batch, head, token];
    let whole = steps.iter().all(|step| step.is_multiple_of(multiple));
    whole.then_some(Place {
        start,
        batch,
        head,
        token,
    })
}

/// A tensor as kernels can read it: as it lies if its rows have no gaps and its steps are multiples of some number, which
/// must divide the rows' length.
pub fn placed(tensor: &CubeTensor, multiple: usize) -> (CubeTensor, Place) {
    if !tensor.meta.is_tiled()
        && let Some(place) = place(tensor.meta.strides(), 0, multiple)
    {
        return (tensor.clone(), place);
    }
    let tensor = launch::contiguous(tensor.clone());
    let [_, heads, tokens, head_dim] = tensor.shape().dims();
    (tensor, Place::heads_first(tokens, heads, head_dim))
}

/// A tensor as loops in memory can read it: as it lies if its rows have no gaps.
pub fn placed_on_host(tensor: &FlexTensor) -> (FlexTensor, Place) {
    let place_of = |tensor: &FlexTensor| {
        let strides = tensor.layout().strides().iter();
        let strides: Result<Vec<usize>, _> = strides.map(|step| usize::try_from(*step)).collect();
        place(&strides.ok()?, tensor.layout().start_offset(), 1)
    };
    if let Some(place) = place_of(tensor) {
        return (tensor.clone(), place);
    }
    let tensor = host::contiguous(tensor.clone());
    let [_, heads, tokens, head_dim] = tensor.shape().dims();
    let start = tensor.layout().start_offset();
    let place = Place::heads_first(tokens, heads, head_dim);
    (tensor, Place { start, ..place })
}
