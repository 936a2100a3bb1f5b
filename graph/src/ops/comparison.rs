//! Comparisons and logic on the host, and the choice by a mask.

use burn::backend::Dispatch;
use burn::backend::ops::FloatTensorOps;
use std::cmp::Ordering;

use crate::host::HostTensor;
use crate::pass::{Call, Kind, Made, one};
use crate::value::{Floats, Value};

pub(super) const KINDS: &[Kind] = &[
    Kind::onnx("Equal", (2, 2), |call| compare(call, Ordering::is_eq)),
    Kind::onnx("Greater", (2, 2), |call| compare(call, Ordering::is_gt)),
    Kind::onnx("GreaterOrEqual", (2, 2), |call| compare(call, Ordering::is_ge)),
    Kind::onnx("Less", (2, 2), |call| compare(call, Ordering::is_lt)),
    Kind::onnx("LessOrEqual", (2, 2), |call| compare(call, Ordering::is_le)),
    Kind::onnx("And", (2, 2), |call| logic(call, |a, b| a && b)),
    Kind::onnx("Or", (2, 2), |call| logic(call, |a, b| a || b)),
    Kind::onnx("Xor", (2, 2), |call| logic(call, |a, b| a != b)),
    Kind::onnx("Not", (1, 1), |call| {
        let x = call.host(0)?;
        call.reserve_host(x.shape())?;
        one(x.map_booleans(|x| !x)?)
    }),
    Kind::onnx("Where", (3, 3), choose),
];

/// Two host tensors in one shape.
fn pair(call: &mut Call) -> Result<[HostTensor; 2], String> {
    let (a, b) = (call.host(0)?, call.host(1)?);
    let shape = call.broadcast(a.shape(), b.shape())?;
    Ok([call.expand_host(&a, &shape)?, call.expand_host(&b, &shape)?])
}

fn compare(call: &mut Call, order: fn(Ordering) -> bool) -> Made {
    let [a, b] = pair(call)?;
    one(a.compared(&b, order)?)
}

fn logic(call: &mut Call, function: fn(bool, bool) -> bool) -> Made {
    let [a, b] = pair(call)?;
    one(a.logic(&b, function)?)
}

fn choose(call: &mut Call) -> Made {
    let mask = call.host(0)?;
    let (a, b) = (call.value(1)?, call.value(2)?);
    let shape = call.broadcast(a.shape(), b.shape())?;
    let shape = call.broadcast(&shape, mask.shape())?;
    if let (Value::Host(a), Value::Host(b)) = (&a, &b) {
        let (a, b) = (call.expand_host(a, &shape)?, call.expand_host(b, &shape)?);
        let mask = call.expand_host(&mask, &shape)?;
        return one(a.chosen(mask.booleans()?, &b)?);
    }
    call.reserve(&shape)?;
    if mask.len() == 1 {
        let chosen = if mask.booleans()?[0] { 1 } else { 2 };
        return one(call.floats(chosen)?.expanded(&shape));
    }
    let (a, b) = (call.floats(1)?.expanded(&shape), call.floats(2)?.expanded(&shape));
    let mask = call.upload_mask(&mask, &shape)?;
    one(Floats::shaped(
        Dispatch::float_mask_where(b.tensor(), mask, a.tensor()),
        shape,
    ))
}
