//! Attention on a GPU: which kernels, and their launches.

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::backend::wgpu::{CubeBackend, CubeTensor};
use burn::tensor::FloatDType;
use bytemuck::{Pod, Zeroable};

use super::{Attention, Operands, Saved, steps};
use crate::cpu::attention::{Place, Sizes};
use crate::kernel::{
    ATTENTION_BACKWARD, ATTENTION_BACKWARD_KEYS, ATTENTION_BACKWARD_KEYS_NARROW,
    ATTENTION_BACKWARD_KEYS_SLIM, ATTENTION_BACKWARD_MASKED, ATTENTION_BACKWARD_MASKED_NARROW,
    ATTENTION_BACKWARD_NARROW, ATTENTION_BACKWARD_QUERIES, ATTENTION_BACKWARD_QUERIES_NARROW,
    ATTENTION_BACKWARD_QUERIES_SLIM, ATTENTION_BACKWARD_TILED, ATTENTION_BACKWARD_TILED_MASKED,
    ATTENTION_FORWARD, ATTENTION_FORWARD_MASKED, ATTENTION_FORWARD_MASKED_NARROW, ATTENTION_FORWARD_NARROW,
    ATTENTION_FORWARD_TILED, ATTENTION_FORWARD_TILED_MASKED, ATTENTION_FORWARD_UNROLLED,
    ATTENTION_FORWARD_UNROLLED_NARROW, ATTENTION_FORWARD_UNROLLED_SLIM, Kernel,
};
use crate::launch::{self, Adapter, grid, launch};
use crate::ops::dropout::halves;
use crate::ops::heads::{Order, placed};

const CAUSAL: u32 = 1;
const BIASED: u32 = 2;
const DROPPED: u32 = 4;

#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct Params {
    q: [u32; 4],
    k: [u32; 4],
    v: [u32; 4],
    out: [u32; 4],
    d_out: [u32; 4],
    d_q: [u32; 4],
    d_k: [u32; 4],
    d_v: [u32; 4],
    mask: [u32; 4],
    queries: u32,
    keys: u32,
    heads: u32,
    group: u32,
    width: u32,
    pairs: u32,
    chunks: u32,
    flags: u32,
    scale: f32,
    each: u32,
    kept: f32,
    threshold: u32,
    seed: [u32; 2],
    offset: [u32; 2],
}

/// A place in vec4, as kernels take it.
fn quads(place: Place) -> [u32; 4] {
    [place.start, place.batch, place.head, place.token].map(|numbers| (numbers / 4) as u32)
}

/// Kernels and the tile that a unit of their work makes.
struct Plan {
    forward: &'static Kernel,
    backward: Slopes,
    rows: usize,
    columns: usize,
    units_per_group: usize,
}

/// What makes the slopes.
enum Slopes {
    /// One launch: workgroups for queries, and so many kinds of them for keys and values.
    AtOnce(&'static Kernel, usize),
    /// One for the queries' and one for the keys' and values', where half of the workgroups would wait for the
    /// other half's branch. Only of packed operands without a mask.
    InTurn {
        queries: &'static Kernel,
        keys: &'static Kernel,
    },
}

/// For CPUs that play a GPU.
static SERIAL: Plan = Plan {
    forward: &ATTENTION_FORWARD,
    backward: Slopes::AtOnce(&ATTENTION_BACKWARD, 1),
    rows: 4,
    columns: 32,
    units_per_group: 8,
};

/// [`SERIAL`] for heads of one unit's columns.
static NARROW: Plan = Plan {
    forward: &ATTENTION_FORWARD_NARROW,
    backward: Slopes::AtOnce(&ATTENTION_BACKWARD_NARROW, 1),
    ..SERIAL
};

/// [`SERIAL`] with masks and dropout.
static SERIAL_MASKED: Plan = Plan {
    forward: &ATTENTION_FORWARD_MASKED,
    backward: Slopes::AtOnce(&ATTENTION_BACKWARD_MASKED, 1),
    ..SERIAL
};

/// [`NARROW`] with masks and dropout.
static NARROW_MASKED: Plan = Plan {
    forward: &ATTENTION_FORWARD_MASKED_NARROW,
    backward: Slopes::AtOnce(&ATTENTION_BACKWARD_MASKED_NARROW, 1),
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
    backward: Slopes::AtOnce(&ATTENTION_BACKWARD_TILED, 2),
    rows: 32,
    columns: 64,
    units_per_group: 1,
};

/// [`TILED`] with masks and dropout.
static TILED_MASKED: Plan = Plan {
    forward: &ATTENTION_FORWARD_TILED_MASKED,
    backward: Slopes::AtOnce(&ATTENTION_BACKWARD_TILED_MASKED, 2),
    ..TILED
};

/// The form of an attention, which decides its kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Packed operands.
    Packed,
    /// Separate ones.
    Separate,
    /// Separate ones with a mask or dropout.
    Masked,
}

impl Plan {
    fn of(adapter: Adapter, form: Form, head_dim: usize) -> &'static Self {
        let narrow = head_dim <= NARROW.columns;
        match (adapter, form) {
            (Adapter::Gpu, Form::Masked) => &TILED_MASKED,
            (Adapter::Gpu, _) => &TILED,
            (Adapter::SwiftShader, Form::Packed) if head_dim <= UNROLLED_SLIM.columns => &UNROLLED_SLIM,
            (Adapter::SwiftShader, Form::Packed) if narrow => &UNROLLED_NARROW,
            (Adapter::SwiftShader, Form::Packed) => &UNROLLED,
            (_, Form::Masked) if narrow => &NARROW_MASKED,
            (_, Form::Masked) => &SERIAL_MASKED,
            _ if narrow => &NARROW,
            _ => &SERIAL,
        }
    }

    /// Workgroups for so many tokens of so many heads.
    fn groups(&self, tokens: usize, heads: usize, sizes: Sizes) -> usize {
        let blocks = tokens.div_ceil(self.rows) * sizes.head_dim.div_ceil(self.columns);
        (sizes.batch * heads * blocks).div_ceil(self.units_per_group)
    }
}

/// The kernels for heads of `head_dim` numbers.
pub(crate) fn kernels(adapter: Adapter, form: Form, head_dim: usize) -> Vec<&'static Kernel> {
    let plan = Plan::of(adapter, form, head_dim);
    match plan.backward {
        Slopes::AtOnce(backward, _) => vec![plan.forward, backward],
        Slopes::InTurn { queries, keys } => vec![plan.forward, queries, keys],
    }
}

/// Operands on a GPU, and how to compute with them.
struct Inputs {
    qkv: [CubeTensor; 3],
    places: [Place; 3],
    mask: Option<CubeTensor>,
    sizes: Sizes,
    order: Order,
    plan: &'static Plan,
}

impl Inputs {
    fn new(operands: &Operands<CubeBackend>, mask: Option<&CubeTensor>, sizes: Sizes) -> Self {
        let (form, (qkv, places)) = match operands {
            Operands::Packed(qkv) => {
                let qkv = launch::contiguous(qkv.clone());
                let all = [qkv.clone(), qkv.clone(), qkv];
                (Form::Packed, (all, Place::packed(sizes)))
            }
            Operands::Separate(qkv) => {
                let [q, k, v] = qkv.each_ref().map(|tensor| placed(tensor, 4));
                let form = if mask.is_some() || sizes.dropout.is_some() {
                    Form::Masked
                } else {
                    Form::Separate
                };
                (form, ([q.0, k.0, v.0], [q.1, k.1, v.1]))
            }
        };
        Self {
            plan: Plan::of(launch::adapter(&qkv[0]), form, sizes.head_dim),
            order: Order::of(places[0]),
            qkv,
            places,
            mask: mask.cloned(),
            sizes,
        }
    }

    fn params(&self) -> Params {
        let Self { sizes, .. } = *self;
        let flag = |condition: bool, flag: u32| if condition { flag } else { 0 };
        let [q, k, v] = self.places.map(quads);
        let dropout = sizes.dropout.map(|mask| Params {
            kept: mask.scale(),
            threshold: mask.threshold(),
            seed: halves(mask.seed),
            offset: halves(mask.offset),
            ..Params::default()
        });
        let mask = self
            .mask
            .as_ref()
            .map(|mask| steps(&mask.shape(), mask.meta.strides()));
        Params {
            q,
            k,
            v,
            out: quads(self.of_output()),
            mask: mask.unwrap_or_default().map(|step| step as u32),
            queries: sizes.queries as u32,
            keys: sizes.keys as u32,
            heads: sizes.heads as u32,
            group: sizes.group as u32,
            width: (sizes.head_dim / 4) as u32,
            pairs: (sizes.batch * sizes.heads) as u32,
            chunks: sizes.head_dim.div_ceil(self.plan.columns) as u32,
            flags: flag(sizes.causal, CAUSAL)
                | flag(self.mask.is_some(), BIASED)
                | flag(sizes.dropout.is_some(), DROPPED),
            scale: sizes.scale as f32,
            ..dropout.unwrap_or_default()
        }
    }

    fn of_output(&self) -> Place {
        let Sizes {
            queries,
            heads,
            head_dim,
            ..
        } = self.sizes;
        self.order.place(queries, heads, head_dim)
    }

    /// All that kernels of separate operands read of them.
    fn buffers(&self) -> [&CubeTensor; 4] {
        let [q, k, v] = &self.qkv;
        // One without a mask reads none, but is bound one.
        [q, k, v, self.mask.as_ref().unwrap_or(q)]
    }

    /// A buffer for slopes, where in it they are placed, and the tensors that it then is.
    fn slopes(&self, packed: bool) -> (CubeTensor, [Place; 3], Operands<CubeBackend>) {
        let Self { sizes, order, .. } = *self;
        let like = &self.qkv[0];
        if packed {
            let slopes = launch::empty(like, like.shape());
            return (slopes.clone(), self.places, Operands::Packed(slopes));
        }
        // Each begins where a binding may.
        let align = like.client.properties().memory.alignment as usize / size_of::<f32>();
        let lengths = [0, 1, 2].map(|kind| {
            let numbers = sizes.batch * sizes.tokens()[kind] * sizes.heads_of()[kind] * sizes.head_dim;
            (numbers, numbers.next_multiple_of(align.max(4)))
        });
        let slopes = launch::empty(like, [lengths.iter().map(|(_, padded)| padded).sum::<usize>()]);
        let mut start = 0;
        let parts = [0, 1, 2].map(|kind| {
            let (tokens, heads) = (sizes.tokens()[kind], sizes.heads_of()[kind]);
            let place = Place {
                start,
                ..order.place(tokens, heads, sizes.head_dim)
            };
            let shape = order.shape([sizes.batch, heads, tokens, sizes.head_dim]);
            let part = launch::part(&slopes, start, shape);
            start += lengths[kind].1;
            (place, order.heads_first(part))
        });
        let places = parts.each_ref().map(|(place, _)| *place);
        (slopes, places, Operands::Separate(parts.map(|(_, part)| part)))
    }
}

impl Attention for CubeBackend {
    fn attention_forward(
        operands: &Operands<Self>,
        mask: Option<&CubeTensor>,
        sizes: Sizes,
    ) -> (CubeTensor, CubeTensor) {
        let inputs = Inputs::new(operands, mask, sizes);
        let like = &inputs.qkv[0];
        let order = inputs.order;
        let shape = order.shape([sizes.batch, sizes.heads, sizes.queries, sizes.head_dim]);
        let out = match sizes.is_empty() {
            true => Self::float_zeros(shape.into(), &like.device, FloatDType::F32),
            false => launch::empty(like, shape),
        };
        let lse = launch::empty(like, [sizes.batch, sizes.heads, sizes.queries]);
        if !sizes.is_empty() {
            let groups = grid(inputs.plan.groups(sizes.queries, sizes.heads, sizes));
            let buffers: &[&CubeTensor] = match inputs.plan.backward {
                Slopes::InTurn { .. } => &[like],
                Slopes::AtOnce(..) => &inputs.buffers(),
            };
            launch(
                inputs.plan.forward,
                buffers,
                &[&out, &lse],
                inputs.params(),
                groups,
            );
        }
        let out = match operands {
            Operands::Packed(_) => launch::reshaped(out, [sizes.batch, sizes.queries, sizes.inner()].into()),
            Operands::Separate(_) => order.heads_first(out),
        };
        (out, lse)
    }

    fn attention_backward(saved: &Saved<Self>, gradient: CubeTensor, sizes: Sizes) -> Operands<Self> {
        let inputs = Inputs::new(&saved.operands, saved.mask.as_ref(), sizes);
        let packed = matches!(saved.operands, Operands::Packed(_));
        let (slopes, [d_q, d_k, d_v], parts) = inputs.slopes(packed);
        if sizes.is_empty() {
            let zeros = |part: &CubeTensor| Self::float_zeros(part.shape(), &part.device, FloatDType::F32);
            return match &parts {
                Operands::Packed(part) => Operands::Packed(zeros(part)),
                Operands::Separate(parts) => Operands::Separate(parts.each_ref().map(zeros)),
            };
        }
        let (d_out, d_out_place) = match packed {
            true => (launch::contiguous(gradient), inputs.of_output()),
            false => placed(&gradient, 4),
        };
        let Saved { out, lse, .. } = saved;
        let plan = inputs.plan;
        let each = plan.groups(sizes.queries, sizes.heads, sizes);
        let params = Params {
            d_out: quads(d_out_place),
            d_q: quads(d_q),
            d_k: quads(d_k),
            d_v: quads(d_v),
            each: each as u32,
            ..inputs.params()
        };
        match plan.backward {
            Slopes::AtOnce(kernel, kinds) => {
                let of_keys = plan.groups(sizes.keys, sizes.key_heads(), sizes);
                let [q, k, v, mask] = inputs.buffers();
                let buffers = [q, k, v, mask, out, lse, &d_out];
                launch(kernel, &buffers, &[&slopes], params, grid(each + kinds * of_keys));
            }
            Slopes::InTurn { queries, keys } => {
                let qkv = &inputs.qkv[0];
                let delta = launch::empty(qkv, lse.shape());
                let groups = grid(each);
                launch(
                    queries,
                    &[qkv, out, lse, &d_out],
                    &[&slopes, &delta],
                    params,
                    groups,
                );
                launch(keys, &[qkv, lse, &delta, &d_out], &[&slopes], params, groups);
            }
        }
        parts
    }
}
