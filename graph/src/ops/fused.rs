//! Operations that a graph gets when patterns of smaller ones are replaced.

use annulus_shaders::nn::Activation;
use annulus_shaders::ops::attention::packed_attention as attention_of_packed;
use annulus_shaders::ops::embedding::embedding;
use annulus_shaders::ops::gated::gated;
use annulus_shaders::ops::linear::{MlpWeights, mlp};
use annulus_shaders::ops::rotary_halves::rope_halves;
use burn::tensor::{Int, Tensor};

use super::product::{layout, outputs};
use crate::host::indices;
use crate::pass::{Call, Kind, Made, Type, one};
use crate::value::Floats;

pub(super) const KINDS: &[Kind] = &[
    Kind::ours("Mlp", (4, 6), two_layers)
        .with(&[("activation", Type::Text), ("outputs_first", Type::Integer)]),
    Kind::ours("PackedAttention", (1, 1), packed_attention)
        .with(&[("heads", Type::Integer), ("is_causal", Type::Integer)]),
    Kind::ours("EmbeddingAt", (3, 3), embedding_at),
    Kind::ours("Gated", (2, 2), gate).with(&[("activation", Type::Text)]),
    Kind::ours("RotaryHalves", (3, 3), rotary),
];

/// x, weights and bias up, weights and bias down, residual.
fn two_layers(call: &mut Call) -> Made {
    let (x, up, up_bias) = (call.floats(0)?, call.floats(1)?, call.optional_floats(2)?);
    let (down, down_bias, residual) = (
        call.floats(3)?,
        call.optional_floats(4)?,
        call.optional_floats(5)?,
    );
    let activation = match activation(call)? {
        kind @ (Activation::Gelu | Activation::Relu) => kind,
        other => return Err(format!("a product followed by {other:?}")),
    };
    let Some((inputs, lead)) = x.shape().split_last() else {
        return Err("an input without axes".into());
    };
    let layout = layout(call);
    let hidden = outputs(*inputs, &up, up_bias.as_ref(), layout)?;
    let shape = [lead, &[outputs(hidden, &down, down_bias.as_ref(), layout)?]].concat();
    for (width, inner) in [(&[lead, &[hidden]].concat(), *inputs), (&shape, hidden)] {
        let count = call.reserve(width)?;
        call.multiply(&[count, inner])?;
    }
    if lead.is_empty()
        || residual
            .as_ref()
            .is_some_and(|residual| residual.shape() != shape)
    {
        return Err(format!(
            "a residual that is not of the shape {shape:?}, or no rows"
        ));
    }
    let weights = MlpWeights {
        up: up.any(),
        up_bias: up_bias.map(Floats::any),
        down: down.any(),
        down_bias: down_bias.map(Floats::any),
        layout,
    };
    let made = mlp::<1>(x.any(), weights, residual.map(Floats::any), activation);
    one(Floats::shaped(made.into_dispatch(), shape))
}

/// The function that an attribute names.
fn activation(call: &Call) -> Result<Activation, String> {
    match call.text("activation") {
        Some("gelu") => Ok(Activation::Gelu),
        Some("gelu_tanh") => Ok(Activation::GeluTanh),
        Some("relu") => Ok(Activation::Relu),
        Some("silu") => Ok(Activation::Silu),
        other => Err(format!("the activation {other:?}")),
    }
}

/// f(gate) * x.
fn gate(call: &mut Call) -> Made {
    let (gate, x, kind) = (call.floats(0)?, call.floats(1)?, activation(call)?);
    let shape = x.shape().to_vec();
    if gate.shape() != shape {
        return Err(format!("gates {:?} for {shape:?}", gate.shape()));
    }
    call.reserve(&shape)?;
    let made = gated::<1>(gate.any(), x.any(), kind);
    one(Floats::shaped(made.into_dispatch(), shape))
}

/// x `[batch, heads, tokens, width]`, then cosine and sine of its angles, which are the same for all heads.
fn rotary(call: &mut Call) -> Made {
    let (x, cosine, sine) = (call.floats(0)?, call.floats(1)?, call.floats(2)?);
    let &[batch, _, tokens, width] = x.shape() else {
        return Err(format!("an input of shape {:?}", x.shape()));
    };
    let angles = |table: Floats| {
        let table = table.ranked(4);
        let of_all = [1, batch].map(|batch| [batch, 1, tokens, width]);
        if !of_all.iter().any(|own| table.shape() == own) || !width.is_multiple_of(2) || table.is_tracked() {
            let (own, shape) = (table.shape(), x.shape());
            return Err(format!("angles {own:?} for {shape:?}, or learned ones"));
        }
        let shape = vec![table.shape()[0], tokens, width];
        Ok(table.reshaped(shape).any::<3>())
    };
    let (cosine, sine) = (angles(cosine)?, angles(sine)?);
    call.reserve(x.shape())?;
    one(Floats::new(rope_halves(x.any(), cosine, sine).into_dispatch()))
}

/// Queries, keys and values side by side, `[batch, tokens, 3 * heads * width]`.
fn packed_attention(call: &mut Call) -> Made {
    let packed = call.floats(0)?;
    let heads = call
        .integer("heads")
        .and_then(|heads| usize::try_from(heads).ok())
        .unwrap_or(0);
    let &[batch, tokens, columns] = packed.shape() else {
        return Err(format!("an input of shape {:?}", packed.shape()));
    };
    // Kernels read four numbers of a head at once.
    if heads == 0 || !columns.is_multiple_of(12 * heads) {
        return Err(format!("{columns} columns for {heads} heads"));
    }
    call.reserve(&[batch, heads, tokens])?;
    call.reserve(&[batch, tokens, columns / 3])?;
    call.multiply(&[batch, tokens, tokens, columns / 3, 2])?;
    let made = attention_of_packed(packed.any(), heads, call.flag("is_causal"));
    one(Floats::new(made.into_dispatch()))
}

/// Ids `[batch, tokens]`, a table, and a table of positions: the rows of both, added.
fn embedding_at(call: &mut Call) -> Made {
    let (ids, table, positions) = (call.host(0)?, call.floats(1)?, call.floats(2)?);
    let (&[batch, tokens], &[rows, width], &[places, same]) = (ids.shape(), table.shape(), positions.shape())
    else {
        return Err("tables or ids that are no matrices".into());
    };
    if width != same || tokens > places {
        return Err(format!(
            "a table {:?} with positions {:?}",
            table.shape(),
            positions.shape()
        ));
    }
    call.reserve(&[batch, tokens, width])?;
    let ids = call.upload_integers(&indices(ids.integers()?, rows)?, &[batch, tokens]);
    let made = embedding(
        Tensor::<2, Int>::from_dispatch(ids),
        table.any(),
        Some(positions.any()),
    );
    one(Floats::new(made.into_dispatch()))
}
