//! Matrix products and linear layers.

use annulus_shaders::ops::linear::{WeightLayout, linear};
use burn::backend::Dispatch;
use burn::backend::ops::FloatTensorOps;

use crate::pass::{Call, Kind, Made, Type, one};
use crate::value::Floats;

pub(super) const KINDS: &[Kind] = &[
    Kind::ours("Linear", (2, 4), |call| {
        let (x, weight, bias) = (call.floats(0)?, call.floats(1)?, call.optional_floats(2)?);
        let (residual, layout) = (call.optional_floats(3)?, layout(call));
        one(affine(call, x, weight, (bias, residual), layout)?)
    })
    .with(&[("outputs_first", Type::Integer)]),
    Kind::onnx("MatMul", (2, 2), matmul),
    Kind::onnx("Gemm", (2, 3), gemm).with(&[
        ("alpha", Type::Float),
        ("beta", Type::Float),
        ("transA", Type::Integer),
        ("transB", Type::Integer),
    ]),
];

/// How weights lie, by an attribute.
pub(super) fn layout(call: &Call) -> WeightLayout {
    match call.flag("outputs_first") {
        true => WeightLayout::OutputsFirst,
        false => WeightLayout::InputsFirst,
    }
}

/// The number of outputs, if the weights and the bias fit this many inputs.
pub(super) fn outputs(
    inputs: usize,
    weight: &Floats,
    bias: Option<&Floats>,
    layout: WeightLayout,
) -> Result<usize, String> {
    let (expected, outputs) = match (weight.shape(), layout) {
        (&[inputs, outputs], WeightLayout::InputsFirst)
        | (&[outputs, inputs], WeightLayout::OutputsFirst) => (inputs, outputs),
        (shape, _) => return Err(format!("weights of shape {shape:?}, which is no matrix")),
    };
    if expected != inputs {
        return Err(format!("weights {:?} for {inputs} inputs", weight.shape()));
    }
    match bias {
        Some(bias) if bias.shape() != [outputs] => Err(format!(
            "a bias of shape {:?} for {outputs} outputs",
            bias.shape()
        )),
        _ => Ok(outputs),
    }
}

/// `x w + b + r`: x `[.., inputs]` to `[.., outputs]`.
pub(super) fn affine(
    call: &mut Call,
    x: Floats,
    weight: Floats,
    (bias, residual): (Option<Floats>, Option<Floats>),
    layout: WeightLayout,
) -> Result<Floats, String> {
    let Some((inputs, lead)) = x.shape().split_last() else {
        return Err("an input without axes".into());
    };
    let outputs = outputs(*inputs, &weight, bias.as_ref(), layout)?;
    let (inputs, shape) = (*inputs, [lead, &[outputs]].concat());
    let count = call.reserve(&shape)?;
    call.multiply(&[count, inputs])?;
    if let Some(residual) = &residual
        && residual.shape() != shape
    {
        return Err(format!(
            "a residual of shape {:?} for {shape:?}",
            residual.shape()
        ));
    }
    // Our operation takes rows; one alone needs an axis for it.
    let rows = |x: Floats, width: usize| {
        if shape.len() == 1 {
            x.reshaped(vec![1, width])
        } else {
            x
        }
    };
    let x = rows(x, inputs).any();
    let residual = residual.map(|residual| rows(residual, outputs).any());
    let made = linear::<1>(x, weight.any(), bias.map(Floats::any), residual, layout);
    Ok(Floats::shaped(made.into_dispatch(), shape))
}

fn matmul(call: &mut Call) -> Made {
    let (a, b) = (call.floats(0)?, call.floats(1)?);
    if b.shape().len() == 2 && !a.shape().is_empty() {
        return one(affine(call, a, b, (None, None), WeightLayout::InputsFirst)?);
    }
    let ([.., rows, inner], [.., same, columns]) = (a.shape(), b.shape()) else {
        return Err(format!("a product of {:?} and {:?}", a.shape(), b.shape()));
    };
    if inner != same {
        return Err(format!("a product of {:?} and {:?}", a.shape(), b.shape()));
    }
    let lead = |x: &Floats| x.shape()[..x.shape().len() - 2].to_vec();
    let mut shape = call.broadcast(&lead(&a), &lead(&b))?;
    shape.extend([*rows, *columns]);
    let count = call.reserve(&shape)?;
    call.multiply(&[count, *inner])?;
    let (a, b) = (a.ranked(shape.len()), b.ranked(shape.len()));
    one(Floats::shaped(
        Dispatch::float_matmul(a.tensor(), b.tensor()),
        shape,
    ))
}

/// `alpha * a b + beta * c`, where a and b may be transposed.
fn gemm(call: &mut Call) -> Made {
    let (a, b, c) = (call.floats(0)?, call.floats(1)?, call.optional_floats(2)?);
    let (alpha, beta) = (
        call.float("alpha").unwrap_or(1.0),
        call.float("beta").unwrap_or(1.0),
    );
    if a.shape().len() != 2 {
        return Err(format!("a product of {:?} and {:?}", a.shape(), b.shape()));
    }
    let a = match call.flag("transA") {
        true => Floats::new(Dispatch::float_swap_dims(a.tensor(), 0, 1)),
        false => a,
    };
    let layout = match call.flag("transB") {
        true => WeightLayout::OutputsFirst,
        false => WeightLayout::InputsFirst,
    };
    if (alpha, beta) == (1.0, 1.0) && c.as_ref().is_none_or(|c| c.shape().len() == 1) {
        return one(affine(call, a, b, (c, None), layout)?);
    }
    let product = affine(call, a, b, (None, None), layout)?;
    let shape = product.shape().to_vec();
    let product = Dispatch::float_mul_scalar(product.tensor(), alpha.into());
    let Some(c) = c else {
        return one(Floats::new(product));
    };
    if call.broadcast(c.shape(), &shape)? != shape {
        return Err(format!("{:?} added to {shape:?}", c.shape()));
    }
    let c = Dispatch::float_mul_scalar(c.ranked(2).tensor(), beta.into());
    one(Floats::shaped(Dispatch::float_add(product, c), shape))
}
