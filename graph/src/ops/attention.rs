//! Scaled dot-product attention of separate queries, keys and values.

use annulus_shaders::ops::dropout::dropout;
use annulus_shaders::ops::softmax::softmax;
use burn::backend::Dispatch;
use burn::backend::ops::FloatTensorOps;

use crate::host::{Element, HostTensor, Numbers};
use crate::pass::{Call, Kind, Made, Type, one};
use crate::value::{Floats, Value};

const ATTRIBUTES: &[(&str, Type)] = &[
    ("is_causal", Type::Integer),
    ("scale", Type::Float),
    ("dropout_p", Type::Float),
];

pub(super) const KINDS: &[Kind] = &[
    Kind::onnx("Attention", (3, 4), attention).with(ATTRIBUTES),
    Kind::ours("Attention", (3, 4), attention).with(ATTRIBUTES),
];

/// Sizes of queries `[batch, heads, tokens, width]`, keys `[batch, groups, keys, width]` and values
/// `[batch, groups, keys, outputs]`. Several heads may share a group's keys and values.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    heads: usize,
    tokens: usize,
    width: usize,
    groups: usize,
    keys: usize,
    outputs: usize,
}

impl Sizes {
    fn of(queries: &Floats, keys: &Floats, values: &Floats) -> Result<Self, String> {
        match (queries.shape(), keys.shape(), values.shape()) {
            (&[batch, heads, tokens, width], &[b, groups, k, w], &[c, g, v, outputs])
                if [b, c, w, g, v] == [batch, batch, width, groups, k] && heads.is_multiple_of(groups) =>
            {
                Ok(Self {
                    batch,
                    heads,
                    tokens,
                    width,
                    groups,
                    keys: k,
                    outputs,
                })
            }
            (q, k, v) => Err(format!(
                "queries {q:?}, keys {k:?} and values {v:?} do not fit together"
            )),
        }
    }
}

fn attention(call: &mut Call) -> Made {
    let (queries, keys, values) = (call.floats(0)?, call.floats(1)?, call.floats(2)?);
    let sizes = Sizes::of(&queries, &keys, &values)?;
    let Sizes {
        batch,
        heads,
        tokens,
        keys: count,
        ..
    } = sizes;
    let scores_shape = [batch, heads, tokens, count];
    let mask = call.has(3).then(|| call.value(3)).transpose()?;
    for _ in 0..4 {
        // Scores, masked scores, shares, dropped shares.
        call.reserve(&scores_shape)?;
    }
    call.reserve(&[batch, heads, tokens, sizes.outputs])?;
    let (keys, values) = (shared(call, keys, sizes)?, shared(call, values, sizes)?);
    let scale = call.float("scale").unwrap_or(1.0 / (sizes.width as f64).sqrt());
    let scores = Dispatch::float_matmul(queries.tensor(), Dispatch::float_swap_dims(keys.tensor(), 2, 3));
    let mut scores = Floats::new(Dispatch::float_mul_scalar(scores, scale.into()));
    if let Some(mask) = mask {
        scores = masked(call, scores, mask)?;
    }
    if call.flag("is_causal") {
        call.reserve_host(&[tokens, count])?;
        let seen = (0..tokens * count).map(|place| place % count <= place / count);
        let seen = HostTensor::new(vec![tokens, count], Numbers::Booleans(seen.collect()))?;
        scores = masked(call, scores, seen.into())?;
    }
    let mut shares = softmax(scores.any::<4>());
    if let Some(mask) = call.mask(call.float("dropout_p").unwrap_or(0.0))? {
        shares = dropout(shares, mask);
    }
    one(Floats::new(Dispatch::float_matmul(
        shares.into_dispatch(),
        values.tensor(),
    )))
}

/// Keys or values of each group, repeated for the heads that share it.
fn shared(call: &mut Call, x: Floats, sizes: Sizes) -> Result<Floats, String> {
    let Sizes {
        batch, heads, groups, ..
    } = sizes;
    if groups == heads {
        return Ok(x);
    }
    let &[_, _, rows, columns] = x.shape() else {
        return Err("keys without heads".into());
    };
    call.reserve(&[batch, heads, rows, columns])?;
    let x = x.reshaped(vec![batch, groups, 1, rows, columns]);
    let x = x.expanded(&[batch, groups, heads / groups, rows, columns]);
    Ok(x.reshaped(vec![batch, heads, rows, columns]))
}

/// Scores with a bias, or without those that a mask of booleans hides.
fn masked(call: &mut Call, scores: Floats, mask: Value) -> Result<Floats, String> {
    let shape = scores.shape().to_vec();
    if call.broadcast(mask.shape(), &shape)? != shape {
        return Err(format!("a mask of shape {:?} for scores {shape:?}", mask.shape()));
    }
    match mask {
        Value::Host(mask) if mask.element() == Element::Boolean => {
            call.reserve_host(mask.shape())?;
            let hidden = call.upload_mask(&mask.map_booleans(|seen| !seen)?, &shape)?;
            // Finite, so that a row without any key is no NaN.
            let least = f64::from(f32::MIN).into();
            Ok(Floats::new(Dispatch::float_mask_fill(
                scores.tensor(),
                hidden,
                least,
            )))
        }
        mask => {
            let bias = call.on_device(mask)?.ranked(4);
            Ok(Floats::new(Dispatch::float_add(scores.tensor(), bias.tensor())))
        }
    }
}
