//! Sums, means and extremes along axes, and softmax.

use annulus_shaders::ops::softmax::softmax as our_softmax;
use burn::backend::ops::{ActivationOps, FloatTensorOps};
use burn::backend::{Dispatch, DispatchTensor};

use crate::host::{HostTensor, Numbers};
use crate::pass::{Call, Kind, Made, Type, one};
use crate::value::{Floats, Value};

const REDUCTION: &[(&str, Type)] = &[
    ("axes", Type::Integers),
    ("keepdims", Type::Integer),
    ("noop_with_empty_axes", Type::Integer),
];

pub(super) const KINDS: &[Kind] = &[
    Kind::onnx("ReduceMean", (1, 2), |call| {
        reduce(call, None, Dispatch::float_mean_dim)
    })
    .with(REDUCTION),
    Kind::onnx("ReduceSum", (1, 2), |call| {
        reduce(call, Some(i64::checked_add), Dispatch::float_sum_dim)
    })
    .with(REDUCTION),
    Kind::onnx("ReduceMax", (1, 2), |call| {
        reduce(call, Some(|a, b| Some(a.max(b))), Dispatch::float_max_dim)
    })
    .with(REDUCTION),
    Kind::onnx("ReduceMin", (1, 2), |call| {
        reduce(call, Some(|a, b| Some(a.min(b))), Dispatch::float_min_dim)
    })
    .with(REDUCTION),
    Kind::onnx("Softmax", (1, 1), softmax).with(&[("axis", Type::Integer)]),
    Kind::onnx("LogSoftmax", (1, 1), |call| {
        let x = call.floats(0)?;
        let axis = call.axis("axis", -1, x.shape().len())?;
        call.reserve(x.shape())?;
        one(Floats::new(Dispatch::log_softmax(x.tensor(), axis)))
    })
    .with(&[("axis", Type::Integer)]),
];

fn reduce(
    call: &mut Call,
    integers: Option<fn(i64, i64) -> Option<i64>>,
    floats: fn(DispatchTensor, usize) -> DispatchTensor,
) -> Made {
    let x = call.value(0)?;
    let shape = x.shape().to_vec();
    let all = || (0..shape.len()).collect::<Vec<_>>();
    let axes = match call.axes(1, shape.len())? {
        Some(axes) if axes.is_empty() && call.flag("noop_with_empty_axes") => return one(x),
        Some(axes) if axes.is_empty() => all(),
        Some(axes) => axes,
        None => all(),
    };
    let keep = call.integer("keepdims").unwrap_or(1) != 0;
    let reduced = (0..shape.len()).filter(|axis| keep || !axes.contains(axis));
    let reduced = reduced.map(|axis| if axes.contains(&axis) { 1 } else { shape[axis] });
    let reduced: Vec<usize> = reduced.collect();
    match (x, integers) {
        (Value::Host(x), Some(combine)) if x.integers().is_ok() => {
            call.reserve_host(&shape)?;
            one(reduce_integers(&x, &axes, reduced, combine)?)
        }
        (x, _) => {
            let x = call.on_device(x)?;
            call.reserve(x.shape())?;
            let mut x = x.tensor();
            for axis in axes {
                x = floats(x, axis);
            }
            one(Floats::shaped(x, reduced))
        }
    }
}

fn reduce_integers(
    x: &HostTensor,
    axes: &[usize],
    reduced: Vec<usize>,
    combine: fn(i64, i64) -> Option<i64>,
) -> Result<HostTensor, String> {
    let kept = (0..x.shape().len()).filter(|axis| !axes.contains(axis));
    let order: Vec<usize> = kept.chain(axes.iter().copied()).collect();
    let each: usize = axes.iter().map(|axis| x.shape()[*axis]).product();
    if each == 0 {
        return Err("a reduction of nothing".into());
    }
    let x = x.permuted(&order);
    let values = x.integers()?.chunks(each).map(|chunk| {
        let mut chunk = chunk.iter().copied();
        let first = chunk.next();
        first.and_then(|first| chunk.try_fold(first, combine))
    });
    let values = values.collect::<Option<_>>().ok_or("integers that overflow")?;
    HostTensor::new(reduced, Numbers::Integers(values))
}

fn softmax(call: &mut Call) -> Made {
    let x = call.floats(0)?;
    let rank = x.shape().len();
    let axis = call.axis("axis", -1, rank)?;
    call.reserve(x.shape())?;
    one(Floats::new(match axis + 1 == rank {
        true => our_softmax(x.any::<1>()).into_dispatch(),
        false => Dispatch::softmax(x.tensor(), axis),
    }))
}
