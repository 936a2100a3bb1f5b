//! The kernels of attention.

use super::bench::{Bench, SENTINEL, numbers, spare};
use annulus_shaders::cpu::attention::{self, Bias, Given, Passed, Place, Placed, Sizes};
use annulus_shaders::cpu::dropout::Mask;
use annulus_shaders::kernel::*;

/// An attention, and what the twin makes of it.
struct Attention {
    what: String,
    sizes: Sizes,
    packed: bool,
    qkv: [Vec<f32>; 3],
    places: [Place; 3],
    to: Place,
    mask: Option<(Vec<f32>, [usize; 4])>,
    d_out: Vec<f32>,
    out: Vec<f32>,
    lse: Vec<f32>,
    slopes: Vec<f32>,
    slope_places: [Place; 3],
}

impl Attention {
    /// Packed operands.
    fn packed(sizes: Sizes) -> Self {
        let qkv = numbers(sizes.batch * sizes.queries * 3 * sizes.inner(), 3);
        let to = Place::tokens_first(sizes.queries, sizes.heads, sizes.head_dim);
        let places = Place::packed(sizes);
        let lengths = [qkv.len()];
        let slopes = places.map(|place| (0, place));
        let qkv = [qkv.clone(), qkv.clone(), qkv];
        Self::new(sizes, qkv, places, to, None, &lengths, slopes)
    }

    /// Queries, keys and values of their own, each with its tokens or its heads first, and some numbers before.
    fn separate(sizes: Sizes, tokens_first: bool, mask: Option<[usize; 4]>) -> Self {
        let place = |tokens, heads| match tokens_first {
            true => Place::tokens_first(tokens, heads, sizes.head_dim),
            false => Place::heads_first(tokens, heads, sizes.head_dim),
        };
        let [tokens, heads] = [sizes.tokens(), sizes.heads_of()];
        let dense = [0, 1, 2].map(|kind| place(tokens[kind], heads[kind]));
        let places = [0, 1, 2].map(|kind| Place {
            start: 4 * kind,
            ..dense[kind]
        });
        let lengths = [0, 1, 2].map(|kind| sizes.batch * dense[kind].batch);
        let qkv = [0, 1, 2].map(|kind| numbers(places[kind].start + lengths[kind], kind as u64 + 3));
        let mask = mask.map(|shape| {
            // Some keys of some rows are hidden, and all of some rows.
            let hide = |(at, x): (usize, f32)| match at % 7 {
                3 => f32::NEG_INFINITY,
                _ if shape[3] > 1 && at / shape[3] % 5 == 2 => -1e30,
                _ => x,
            };
            let mask = numbers(shape.iter().product(), 7);
            (mask.into_iter().enumerate().map(hide).collect(), shape)
        });
        let slopes = [0, 1, 2].map(|kind| (kind, dense[kind]));
        Self::new(sizes, qkv, places, dense[0], mask, &lengths, slopes)
    }

    fn new(
        sizes: Sizes,
        qkv: [Vec<f32>; 3],
        places: [Place; 3],
        to: Place,
        mask: Option<(Vec<f32>, [usize; 4])>,
        lengths: &[usize],
        slopes: [(usize, Place); 3],
    ) -> Self {
        let [q, k, v] = [0, 1, 2].map(|kind| Placed {
            numbers: &qkv[kind][..],
            place: places[kind],
        });
        let bias = mask.as_ref().map(|(numbers, shape)| Bias {
            numbers,
            steps: steps(*shape),
        });
        let given = Given { q, k, v, bias };
        let d_out = numbers(sizes.batch * sizes.queries * sizes.inner(), 9);
        let (out, lse) = attention::forward(given, to, sizes);
        let [of_out, of_d_out] = [&out, &d_out].map(|numbers| Placed { numbers, place: to });
        let passed = Passed {
            out: of_out,
            d_out: of_d_out,
            lse: &lse,
        };
        let made = attention::backward(given, passed, lengths, slopes, sizes).concat();
        let slope_places = slopes.map(|(buffer, place)| Place {
            start: place.start + lengths[..buffer].iter().sum::<usize>(),
            ..place
        });
        Self {
            what: format!("{sizes:?} {:?} {to:?}", mask.as_ref().map(|(_, shape)| *shape)),
            sizes,
            packed: lengths.len() == 1,
            qkv,
            places,
            to,
            mask,
            d_out,
            out,
            lse,
            slopes: made,
            slope_places,
        }
    }

    fn params(&self, columns: usize, each: usize) -> [u32; 52] {
        let quads = |place: Place| [place.start, place.batch, place.head, place.token].map(|x| x as u32 / 4);
        let [q, k, v] = self.places.map(quads);
        let [d_q, d_k, d_v] = self.slope_places.map(quads);
        let out = quads(self.to);
        let mask = self.mask.as_ref().map_or([0; 4], |(_, shape)| steps(*shape));
        let sizes = self.sizes;
        let dropout = sizes.dropout.map_or([0; 6], |mask| {
            let [seed, offset] = [mask.seed, mask.offset].map(|word| [word as u32, (word >> 32) as u32]);
            [
                mask.scale().to_bits(),
                mask.threshold(),
                seed[0],
                seed[1],
                offset[0],
                offset[1],
            ]
        });
        let flags = u32::from(sizes.causal)
            | if self.mask.is_some() { 2 } else { 0 }
            | if sizes.dropout.is_some() { 4 } else { 0 };
        let [queries, keys, heads, group, width] = [
            sizes.queries,
            sizes.keys,
            sizes.heads,
            sizes.group,
            sizes.head_dim / 4,
        ]
        .map(|size| size as u32);
        let pairs = (sizes.batch * sizes.heads) as u32;
        let chunks = sizes.head_dim.div_ceil(columns) as u32;
        let scale = (sizes.scale as f32).to_bits();
        let places = [q, k, v, out, out, d_q, d_k, d_v, mask.map(|step| step as u32)];
        let counts = [
            queries,
            keys,
            heads,
            group,
            width,
            pairs,
            chunks,
            flags,
            scale,
            each as u32,
        ];
        let mut words = places.concat();
        words.extend(counts);
        words.extend(dropout);
        words.try_into().expect("as many words as there are parameters")
    }

    /// Compares a kernel of each pass with the twin.
    async fn compare(&self, bench: &mut Bench, kernels: &Kernels) {
        let Kernels {
            forward,
            backward,
            rows,
            columns,
            units,
        } = *kernels;
        let (sizes, what) = (self.sizes, &self.what);
        let groups = |tokens: usize, heads: usize| {
            let blocks = tokens.div_ceil(rows) * sizes.head_dim.div_ceil(columns);
            (sizes.batch * heads * blocks).div_ceil(units)
        };
        let each = groups(sizes.queries, sizes.heads);
        let of_keys = groups(sizes.keys, sizes.key_heads());
        let params = self.params(columns, each);
        let [q, k, v] = self.qkv.each_ref().map(Vec::as_slice);
        let mask = self.mask.as_ref().map_or(q, |(mask, _)| mask);
        let expected = [self.out.as_slice(), &self.lse];
        // Some workgroups too many.
        let surplus = spare(each);
        let Some(backward) = backward else {
            bench
                .case(forward, what, &[q], &expected, 1e-5, params, surplus)
                .await;
            self.compare_in_turn(bench, columns, params, surplus).await;
            return;
        };
        bench
            .case(forward, what, &[q, k, v, mask], &expected, 1e-5, params, surplus)
            .await;
        let kinds = if units == 1 { 2 } else { 1 };
        let inputs = [q, k, v, mask, &self.out, &self.lse, &self.d_out];
        let surplus = spare(each + kinds * of_keys);
        bench
            .case(backward, what, &inputs, &[&self.slopes], 1e-5, params, surplus)
            .await;
    }

    /// One kernel writes the queries' slopes, the other one the rest, and neither touches the other's.
    async fn compare_in_turn(&self, bench: &mut Bench, columns: usize, params: [u32; 52], groups: [u32; 3]) {
        let Self { sizes, what, .. } = self;
        let (tokens, heads, head_dim) = (sizes.queries, sizes.heads, sizes.head_dim);
        let [for_queries, for_keys] = match columns {
            16 => [&ATTENTION_BACKWARD_QUERIES_SLIM, &ATTENTION_BACKWARD_KEYS_SLIM],
            _ if head_dim <= columns => [
                &ATTENTION_BACKWARD_QUERIES_NARROW,
                &ATTENTION_BACKWARD_KEYS_NARROW,
            ],
            _ => [&ATTENTION_BACKWARD_QUERIES, &ATTENTION_BACKWARD_KEYS],
        };
        let is_query = |at: usize| (at / sizes.inner()).is_multiple_of(3);
        let part = |queries: bool| -> Vec<f32> {
            let there = self.slopes.iter().enumerate();
            there
                .map(|(at, x)| if is_query(at) == queries { *x } else { SENTINEL })
                .collect()
        };
        let delta: Vec<f32> = (0..self.lse.len())
            .map(|at| {
                let (pair, token) = (at / tokens, at % tokens);
                let row = (pair / heads * tokens + token) * heads + pair % heads;
                let columns = row * head_dim..(row + 1) * head_dim;
                let products = self.out[columns.clone()].iter().zip(&self.d_out[columns]);
                products.map(|(x, y)| x * y).sum()
            })
            .collect();
        let qkv = self.qkv[0].as_slice();
        let expected = [&part(true)[..], &delta];
        let inputs = [qkv, &self.out, &self.lse, &self.d_out];
        bench
            .case(for_queries, what, &inputs, &expected, 1e-5, params, groups)
            .await;
        let inputs = [qkv, &self.lse, &delta, &self.d_out];
        bench
            .case(for_keys, what, &inputs, &[&part(false)], 1e-5, params, groups)
            .await;
    }
}

/// The steps of a mask of this shape.
fn steps(shape: [usize; 4]) -> [usize; 4] {
    [0, 1, 2, 3].map(|axis| match shape[axis] {
        1 => 0,
        _ => shape[axis + 1..].iter().product(),
    })
}

/// Kernels of attention, the tokens and columns of a unit of their work, and units in a workgroup. Those for SwiftShader have
/// two for slopes, which follow from the columns.
#[derive(Clone, Copy)]
struct Kernels {
    forward: &'static Kernel,
    backward: Option<&'static Kernel>,
    rows: usize,
    columns: usize,
    units: usize,
}

const fn kernels(
    forward: &'static Kernel,
    backward: Option<&'static Kernel>,
    [rows, columns, units]: [usize; 3],
) -> Kernels {
    Kernels {
        forward,
        backward,
        rows,
        columns,
        units,
    }
}

/// Without masks; those of the second list are for packed operands alone.
static PLAIN: [Kernels; 3] = [
    kernels(&ATTENTION_FORWARD, Some(&ATTENTION_BACKWARD), [4, 32, 8]),
    kernels(
        &ATTENTION_FORWARD_NARROW,
        Some(&ATTENTION_BACKWARD_NARROW),
        [4, 32, 8],
    ),
    kernels(
        &ATTENTION_FORWARD_TILED,
        Some(&ATTENTION_BACKWARD_TILED),
        [32, 64, 1],
    ),
];
static UNROLLED: [Kernels; 3] = [
    kernels(&ATTENTION_FORWARD_UNROLLED, None, [4, 32, 8]),
    kernels(&ATTENTION_FORWARD_UNROLLED_NARROW, None, [4, 32, 8]),
    kernels(&ATTENTION_FORWARD_UNROLLED_SLIM, None, [4, 16, 8]),
];
static MASKED: [Kernels; 3] = [
    kernels(
        &ATTENTION_FORWARD_MASKED,
        Some(&ATTENTION_BACKWARD_MASKED),
        [4, 32, 8],
    ),
    kernels(
        &ATTENTION_FORWARD_MASKED_NARROW,
        Some(&ATTENTION_BACKWARD_MASKED_NARROW),
        [4, 32, 8],
    ),
    kernels(
        &ATTENTION_FORWARD_TILED_MASKED,
        Some(&ATTENTION_BACKWARD_TILED_MASKED),
        [32, 64, 1],
    ),
];

/// Tokens 1, around tiles' edges and odd; heads' widths of every kind: within a chunk of 32, a whole one, more.
fn packed_attentions() -> Vec<Attention> {
    let sizes = [
        (1, 1, 1, 4, true),
        (2, 3, 2, 8, true),
        (1, 5, 3, 12, false),
        (1, 64, 2, 32, true),
        (3, 63, 1, 16, true),
        (1, 65, 2, 28, true),
        (2, 7, 5, 40, true),
        (1, 33, 2, 64, true),
        (1, 13, 1, 100, false),
        (1, 66, 1, 128, true),
        (5, 17, 7, 20, false),
        (1, 130, 2, 24, true),
    ];
    let sizes = sizes.map(|(batch, tokens, heads, head_dim, causal)| {
        Sizes::of_tokens(batch, tokens, heads, head_dim, causal)
    });
    sizes.map(Attention::packed).into()
}

/// Fewer queries than keys and more, heads that share keys and such that do not, masks of every kind.
fn separate_attentions() -> Vec<Attention> {
    let sizes = |batch, [queries, keys]: [usize; 2], heads, group, head_dim, causal, dropped| Sizes {
        queries,
        keys,
        group,
        scale: 0.3,
        dropout: [None, Some(DROPOUT_OF_WEIGHTS)][usize::from(dropped)],
        ..Sizes::of_tokens(batch, queries, heads, head_dim, causal)
    };
    let of = Attention::separate;
    vec![
        of(sizes(1, [1, 1], 1, 1, 4, false, false), false, None),
        of(sizes(2, [3, 6], 4, 2, 8, false, false), true, None),
        of(sizes(1, [7, 5], 6, 3, 16, true, false), false, None),
        of(sizes(2, [33, 70], 2, 1, 40, true, false), true, None),
        of(sizes(1, [66, 31], 4, 4, 64, true, false), false, None),
        of(sizes(1, [5, 9], 2, 1, 100, false, false), true, None),
        of(sizes(2, [3, 6], 4, 2, 8, false, false), true, Some([2, 1, 1, 6])),
        of(sizes(2, [9, 7], 2, 1, 12, true, false), false, Some([2, 2, 9, 7])),
        of(
            sizes(1, [35, 67], 2, 2, 36, false, true),
            true,
            Some([1, 1, 35, 67]),
        ),
        of(sizes(3, [5, 6], 3, 1, 20, true, true), false, None),
        of(
            sizes(1, [40, 40], 4, 2, 68, false, true),
            true,
            Some([1, 4, 40, 1]),
        ),
    ]
}

const DROPOUT_OF_WEIGHTS: Mask = Mask {
    rate: 0.3,
    seed: 1 << 40 | 5,
    offset: 1 << 33 | 6,
};

/// All of them.
pub async fn all(bench: &mut Bench) {
    for attention in packed_attentions().into_iter().chain(separate_attentions()) {
        let masked = attention.mask.is_some() || attention.sizes.dropout.is_some();
        let fitting: Vec<&Kernels> = match (attention.packed, masked) {
            (true, _) => PLAIN.iter().chain(&UNROLLED).collect(),
            (_, true) => MASKED.iter().collect(),
            // Kernels with masks take what has none, too.
            _ => PLAIN.iter().chain(&MASKED).collect(),
        };
        for kernels in fitting {
            // Narrow and slim texts are for heads of one chunk of columns.
            let name = kernels.forward.name;
            let one_chunk = name.ends_with("_narrow") || name.ends_with("_slim");
            if !one_chunk || attention.sizes.head_dim <= kernels.columns {
                attention.compare(bench, kernels).await;
            }
        }
    }
}
