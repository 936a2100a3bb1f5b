//! Comparisons and logic, and the choice by a mask. On the device, truth values are 0 and 1.

use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor, get_device_settings};
use burn::tensor::BoolDType;
use std::cmp::Ordering;

use crate::pass::{Call, Kind, Made, one};
use crate::value::{Floats, Value};

pub(super) const KINDS: &[Kind] = &[
    Kind::onnx("Equal", (2, 2), |call| {
        compare(call, Ordering::is_eq, Dispatch::float_equal)
    }),
    Kind::onnx("Greater", (2, 2), |call| {
        compare(call, Ordering::is_gt, Dispatch::float_greater)
    }),
    Kind::onnx("GreaterOrEqual", (2, 2), |call| {
        compare(call, Ordering::is_ge, Dispatch::float_greater_equal)
    }),
    Kind::onnx("Less", (2, 2), |call| {
        compare(call, Ordering::is_lt, Dispatch::float_lower)
    }),
    Kind::onnx("LessOrEqual", (2, 2), |call| {
        compare(call, Ordering::is_le, Dispatch::float_lower_equal)
    }),
    Kind::onnx("And", (2, 2), |call| {
        logic(call, |a, b| a && b, Dispatch::float_mul)
    }),
    Kind::onnx("Or", (2, 2), |call| {
        logic(
            call,
            |a, b| a || b,
            |a, b| {
                let both = Dispatch::float_mul(a.clone(), b.clone());
                Dispatch::float_sub(Dispatch::float_add(a, b), both)
            },
        )
    }),
    Kind::onnx("Xor", (2, 2), |call| {
        let device = |a, b| Dispatch::float_abs(Dispatch::float_sub(a, b));
        logic(call, |a, b| a != b, device)
    }),
    Kind::onnx("Not", (1, 1), negate),
    Kind::onnx("Where", (3, 3), choose),
];

type OfTwo = fn(DispatchTensor, DispatchTensor) -> DispatchTensor;

/// Two tensors on the device, of one shape.
fn pair(
    call: &mut Call,
    a: Value,
    b: Value,
    shape: &[usize],
) -> Result<(DispatchTensor, DispatchTensor), String> {
    call.reserve(shape)?;
    let (a, b) = (call.numbers(a)?, call.numbers(b)?);
    Ok((a.expanded(shape).tensor(), b.expanded(shape).tensor()))
}

fn compare(
    call: &mut Call,
    order: fn(Ordering) -> bool,
    device: fn(DispatchTensor, DispatchTensor, BoolDType) -> DispatchTensor,
) -> Made {
    let (a, b) = (call.value(0)?, call.value(1)?);
    let shape = call.broadcast(a.shape(), b.shape())?;
    if let (Value::Host(a), Value::Host(b)) = (&a, &b) {
        let (a, b) = (call.expand_host(a, &shape)?, call.expand_host(b, &shape)?);
        return one(a.compared(&b, order)?);
    }
    let (a, b) = pair(call, a, b, &shape)?;
    let element = get_device_settings::<Dispatch>(call.pass.device).bool_dtype;
    one(call.truth(device(a, b, element), shape))
}

fn logic(call: &mut Call, host: fn(bool, bool) -> bool, device: OfTwo) -> Made {
    let (a, b) = (call.value(0)?, call.value(1)?);
    let shape = call.broadcast(a.shape(), b.shape())?;
    if let (Value::Host(a), Value::Host(b)) = (&a, &b) {
        let (a, b) = (call.expand_host(a, &shape)?, call.expand_host(b, &shape)?);
        return one(a.logic(&b, host)?);
    }
    let (a, b) = pair(call, a, b, &shape)?;
    one(Floats::shaped(device(a, b), shape))
}

fn negate(call: &mut Call) -> Made {
    match call.value(0)? {
        Value::Host(x) => {
            call.reserve_host(x.shape())?;
            one(x.map_booleans(|x| !x)?)
        }
        Value::Device(x) => {
            let shape = x.shape().to_vec();
            call.reserve(&shape)?;
            let made = Dispatch::float_add_scalar(Dispatch::float_neg(x.tensor()), 1.0.into());
            one(Floats::shaped(made, shape))
        }
    }
}

fn choose(call: &mut Call) -> Made {
    let (mask, a, b) = (call.value(0)?, call.value(1)?, call.value(2)?);
    let shape = call.broadcast(a.shape(), b.shape())?;
    let shape = call.broadcast(&shape, mask.shape())?;
    let mask = match mask {
        Value::Host(mask) => {
            if let (Value::Host(a), Value::Host(b)) = (&a, &b) {
                let (a, b) = (call.expand_host(a, &shape)?, call.expand_host(b, &shape)?);
                let mask = call.expand_host(&mask, &shape)?;
                return one(a.chosen(mask.booleans()?, &b)?);
            }
            call.reserve(&shape)?;
            if mask.len() == 1 {
                let chosen = if mask.booleans()?[0] { a } else { b };
                return one(call.numbers(chosen)?.expanded(&shape));
            }
            call.upload_mask(&mask, &shape)?
        }
        Value::Device(mask) => {
            call.reserve(&shape)?;
            call.is_true_of(mask.expanded(&shape))
        }
    };
    let (a, b) = (
        call.numbers(a)?.expanded(&shape),
        call.numbers(b)?.expanded(&shape),
    );
    one(Floats::shaped(
        Dispatch::float_mask_where(b.tensor(), mask, a.tensor()),
        shape,
    ))
}
