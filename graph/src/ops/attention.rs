//! Scaled dot-product attention of separate queries, keys and values.

use annulus_shaders::ops::attention::{AttentionOptions, attention as attend};
use annulus_shaders::ops::dropout::dropout;
use annulus_shaders::ops::softmax::softmax;
use burn::backend::Dispatch;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::Tensor;

use crate::host::{HostTensor, Numbers};
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
    Kind::ours("AttentionMask", (1, 1), mask),
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
        outputs,
        ..
    } = sizes;
    let causal = call.flag("is_causal") || call.is_true(4)?;
    let mask = match call.has(3).then(|| call.value(3)).transpose()? {
        // It hides nothing.
        Some(Value::Host(mask)) if mask.number() == Ok(0.0) => None,
        Some(mask) => Some(call.on_device(mask)?.ranked(4)),
        None => None,
    };
    let scores = [batch, heads, tokens, sizes.keys];
    if let Some(mask) = &mask
        && call.broadcast(mask.shape(), &scores)? != scores
    {
        return Err(format!(
            "a mask of shape {:?} for scores {scores:?}",
            mask.shape()
        ));
    }
    call.reserve(&[batch, heads, tokens, outputs])?;
    call.multiply(&[batch, heads, tokens, sizes.keys, sizes.width + outputs])?;
    // Our kernels read four numbers of a head at once, and have no gradient for masks.
    let by_kernel = sizes.width.is_multiple_of(4)
        && sizes.width == outputs
        && !mask.as_ref().is_some_and(Floats::is_tracked);
    if !by_kernel {
        return by_scores(call, [queries, keys, values], (mask, causal), sizes);
    }
    call.reserve(&[batch, heads, tokens])?;
    let options = AttentionOptions {
        causal,
        mask: mask.map(Floats::any),
        scale: call.float("scale"),
        dropout: call.mask(call.float("dropout_p").unwrap_or(0.0))?,
    };
    let made = attend(queries.any(), keys.any(), values.any(), options);
    one(Floats::new(made.into_dispatch()))
}

/// By a matrix of all scores.
fn by_scores(
    call: &mut Call,
    [queries, keys, values]: [Floats; 3],
    (mask, causal): (Option<Floats>, bool),
    sizes: Sizes,
) -> Made {
    let Sizes {
        batch,
        heads,
        tokens,
        keys: count,
        ..
    } = sizes;
    for _ in 0..4 {
        // Scores, masked scores, shares, dropped shares.
        call.reserve(&[batch, heads, tokens, count])?;
    }
    let (keys, values) = (shared(call, keys, sizes)?, shared(call, values, sizes)?);
    let scale = call.float("scale").unwrap_or(1.0 / (sizes.width as f64).sqrt());
    let scores = Dispatch::float_matmul(queries.tensor(), Dispatch::float_swap_dims(keys.tensor(), 2, 3));
    let mut scores = Dispatch::float_mul_scalar(scores, scale.into());
    // Finite, so that a row without any key is no NaN.
    let least = f64::from(f32::MIN);
    if let Some(mask) = mask {
        scores = Dispatch::float_add(scores, Dispatch::float_clamp_min(mask.tensor(), least.into()));
    }
    if causal {
        call.reserve_host(&[tokens, count])?;
        let seen = (0..tokens * count).map(|place| place % count <= place / count);
        let bias = seen.map(|seen| if seen { 0.0 } else { f32::MIN });
        let bias = HostTensor::new(vec![1, 1, tokens, count], Numbers::Floats(bias.collect()))?;
        scores = Dispatch::float_add(scores, call.on_device(bias.into())?.tensor());
    }
    let mut shares = softmax::<4>(Tensor::from_dispatch(scores));
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

/// Makes two values of a mask: what it adds to scores, with one element along each axis where all are the same; and whether
/// it also hides later keys from each query. The first value leaves those out then. So masks of language models and of
/// padding become a row for each sequence at most.
fn mask(call: &mut Call) -> Made {
    let host = match call.value(0)? {
        Value::Host(host) => host,
        bias => {
            return Ok(vec![
                bias,
                HostTensor::scalar(Numbers::Booleans(vec![false])).into(),
            ]);
        }
    };
    let Some(lead) = 4usize.checked_sub(host.shape().len()) else {
        return Err(format!("a mask of shape {:?}", host.shape()));
    };
    call.reserve_host(host.shape())?;
    let mut shape = [1; 4];
    shape[lead..].copy_from_slice(host.shape());
    let (bias, causal) = match host.numbers() {
        Numbers::Booleans(seen) => {
            let (seen, causal) = reduced(seen.clone(), &mut shape, |seen| !seen);
            let bias = seen
                .iter()
                .map(|seen| if *seen { 0.0 } else { f32::NEG_INFINITY });
            (bias.collect(), causal)
        }
        Numbers::Floats(bias) => reduced(bias.clone(), &mut shape, |bias| bias <= HIDDEN),
        Numbers::Integers(_) => return Err("a mask of integers".into()),
    };
    let bias = HostTensor::new(shape.to_vec(), Numbers::Floats(bias))?;
    let causal = HostTensor::scalar(Numbers::Booleans(vec![causal]));
    Ok(vec![bias.into(), causal.into()])
}

/// Scores to which so little is added do not count.
const HIDDEN: f32 = -1e30;

/// A mask `[batch, heads, queries, keys]` with a single element along axes where all are the same, and whether it hides
/// later keys beside.
fn reduced<T: Copy + PartialEq>(
    mut mask: Vec<T>,
    shape: &mut [usize; 4],
    hides: impl Fn(T) -> bool,
) -> (Vec<T>, bool) {
    let mut causal = false;
    for axis in 0..4 {
        let (length, each) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
        if length < 2 || mask.is_empty() {
            continue;
        }
        let blocks = || mask.chunks_exact(length * each);
        let last = |block: &[T]| block[(length - 1) * each..].to_vec();
        let same = blocks().all(|block| {
            let last = last(block);
            block.chunks_exact(each).all(|part| part == last)
        });
        // The last query sees all keys that any query sees.
        let triangular = axis == 2
            && !same
            && blocks().all(|block| {
                let last = last(block);
                let rows = block.chunks_exact(each).enumerate();
                rows.flat_map(|(query, row)| row.iter().zip(&last).enumerate().map(move |own| (query, own)))
                    .all(|(query, (key, (own, last)))| if key <= query { own == last } else { hides(*own) })
            });
        if same || triangular {
            mask = blocks().flat_map(last).collect();
            shape[axis] = 1;
            causal |= triangular;
        }
    }
    (mask, causal)
}
