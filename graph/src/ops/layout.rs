//! The same numbers in another shape or order, in either lane.

use burn::backend::Dispatch;
use burn::backend::ops::FloatTensorOps;

use crate::host::HostTensor;
use crate::pass::{Call, Kind, Made, Type, one};
use crate::value::{Floats, Value};

pub(super) const KINDS: &[Kind] = &[
    Kind::onnx("Identity", (1, 1), |call| one(call.value(0)?)),
    Kind::onnx("Reshape", (2, 2), reshape).with(&[("allowzero", Type::Integer)]),
    Kind::onnx("Flatten", (1, 1), flatten).with(&[("axis", Type::Integer)]),
    Kind::onnx("Squeeze", (1, 2), squeeze).with(&[("axes", Type::Integers)]),
    Kind::onnx("Unsqueeze", (1, 2), unsqueeze).with(&[("axes", Type::Integers)]),
    Kind::onnx("Transpose", (1, 1), transpose).with(&[("perm", Type::Integers)]),
    Kind::onnx("Expand", (2, 2), expand),
    Kind::onnx("Tile", (2, 2), tile),
    Kind::onnx("Concat", (1, usize::MAX), concatenate).with(&[("axis", Type::Integer)]),
];

impl Value {
    /// In another shape of as many elements.
    fn reshaped(self, call: &Call, shape: Vec<usize>) -> Made {
        // Reshaping makes no elements, but it may make axes.
        call.pass.limits.on_device(&shape)?;
        if shape.iter().product::<usize>() != self.shape().iter().product::<usize>() {
            return Err(format!("the shape {:?} does not become {shape:?}", self.shape()));
        }
        match self {
            Self::Device(floats) => one(floats.reshaped(shape)),
            Self::Host(host) => one(host.reshaped(shape)),
        }
    }
}

fn reshape(call: &mut Call) -> Made {
    let x = call.value(0)?;
    let wanted = call.host(1)?;
    let (from, zero_is_zero) = (x.shape(), call.flag("allowzero"));
    let mut shape = Vec::with_capacity(wanted.len());
    let mut open = None;
    for (axis, length) in wanted.integers()?.iter().enumerate() {
        shape.push(match *length {
            0 if !zero_is_zero => *from.get(axis).ok_or("an axis that its input does not have")?,
            -1 if open.is_none() => {
                open = Some(axis);
                1
            }
            length => usize::try_from(length).map_err(|_| format!("an axis of length {length}"))?,
        });
    }
    if let Some(axis) = open {
        let rest = call.pass.limits.on_device(&shape)?;
        let count: usize = from.iter().product();
        shape[axis] = count
            .checked_div(rest)
            .ok_or("an open axis beside one of length 0")?;
    }
    x.reshaped(call, shape)
}

fn flatten(call: &mut Call) -> Made {
    let x = call.value(0)?;
    // The axis may also be the one behind the last.
    let axis = call.axis("axis", 1, x.shape().len() + 1)?;
    let (outer, inner) = x.shape().split_at(axis);
    let shape = vec![outer.iter().product(), inner.iter().product()];
    x.reshaped(call, shape)
}

fn squeeze(call: &mut Call) -> Made {
    let x = call.value(0)?;
    let shape = x.shape().to_vec();
    let dropped = match call.axes(1, shape.len())? {
        Some(axes) => axes,
        None => (0..shape.len()).filter(|axis| shape[*axis] == 1).collect(),
    };
    if let Some(axis) = dropped.iter().find(|axis| shape[**axis] != 1) {
        return Err(format!("axis {axis} of {shape:?} is not of length 1"));
    }
    let rest = (0..shape.len()).filter(|axis| !dropped.contains(axis));
    x.reshaped(call, rest.map(|axis| shape[axis]).collect())
}

fn unsqueeze(call: &mut Call) -> Made {
    let x = call.value(0)?;
    let count = match call.integers("axes") {
        Some(axes) => axes.len(),
        None => call.host(1)?.len(),
    };
    let rank = x.shape().len() + count;
    let new = call.axes(1, rank)?.ok_or("it does not say which axes")?;
    let mut old = x.shape().iter();
    let length = |axis: usize| match new.contains(&axis) {
        true => Some(1),
        false => old.next().copied(),
    };
    let shape = (0..rank).filter_map(length).collect();
    x.reshaped(call, shape)
}

fn transpose(call: &mut Call) -> Made {
    let x = call.value(0)?;
    let rank = x.shape().len();
    let order: Vec<usize> = match call.integers("perm") {
        Some(order) => order
            .iter()
            .filter_map(|axis| usize::try_from(*axis).ok())
            .collect(),
        None => (0..rank).rev().collect(),
    };
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..rank) {
        return Err(format!("{order:?} is no order of {rank} axes"));
    }
    match x {
        Value::Host(x) => {
            call.reserve_host(x.shape())?;
            one(x.permuted(&order))
        }
        Value::Device(x) if rank < 2 => one(x),
        Value::Device(x) => {
            call.reserve(x.shape())?;
            one(Floats::new(Dispatch::float_permute(x.tensor(), &order)))
        }
    }
}

fn expand(call: &mut Call) -> Made {
    let x = call.value(0)?;
    let wanted = call.host(1)?.sizes()?;
    let shape = call.broadcast(x.shape(), &wanted)?;
    match x {
        Value::Host(x) => one(call.expand_host(&x, &shape)?),
        Value::Device(x) => {
            call.reserve(&shape)?;
            one(x.expanded(&shape))
        }
    }
}

fn tile(call: &mut Call) -> Made {
    let x = call.value(0)?;
    let times = call.host(1)?.sizes()?;
    if times.len() != x.shape().len() || times.contains(&0) {
        return Err(format!("{times:?} repetitions of the shape {:?}", x.shape()));
    }
    // Interleaves an axis for the repetitions with each axis, which broadcasting then fills.
    let mut apart = Vec::with_capacity(2 * times.len());
    let mut wide = apart.clone();
    let mut shape = Vec::with_capacity(times.len());
    for (length, times) in x.shape().iter().zip(&times) {
        shape.push(length.checked_mul(*times).ok_or("a shape that overflows")?);
        apart.extend([1, *length]);
        wide.extend([*times, *length]);
    }
    match x {
        Value::Host(x) => {
            call.reserve_host(&shape)?;
            one(x.reshaped(apart).expanded(&wide).reshaped(shape))
        }
        Value::Device(x) => {
            call.reserve(&shape)?;
            one(x.reshaped(apart).expanded(&wide).reshaped(shape))
        }
    }
}

fn concatenate(call: &mut Call) -> Made {
    let parts = (0..call.node.inputs.len())
        .map(|input| call.value(input))
        .collect::<Result<Vec<_>, _>>()?;
    let axis = call.axis("axis", 0, parts[0].shape().len())?;
    one(joined(call, parts, axis)?)
}

/// Tensors side by side along an axis; on the host if all are there.
pub(super) fn joined(call: &mut Call, parts: Vec<Value>, axis: usize) -> Result<Value, String> {
    let first = parts[0].shape().to_vec();
    let mut shape = first.clone();
    shape[axis] = 0;
    for part in &parts {
        let other = part.shape();
        let fits = other.len() == first.len() && (0..first.len()).all(|a| a == axis || other[a] == first[a]);
        if !fits {
            return Err(format!(
                "{first:?} and {other:?} do not fit together along axis {axis}"
            ));
        }
        shape[axis] += other[axis];
    }
    let on_host = |part: &Value| match part {
        Value::Host(host) => Some(host.clone()),
        Value::Device(_) => None,
    };
    if let Some(hosts) = parts.iter().map(on_host).collect::<Option<Vec<HostTensor>>>() {
        call.reserve_host(&shape)?;
        return Ok(HostTensor::concatenated(&hosts, axis)?.into());
    }
    call.reserve(&shape)?;
    let tensors = parts.into_iter().map(|part| Ok(call.numbers(part)?.tensor()));
    let mut tensors = tensors.collect::<Result<Vec<_>, String>>()?;
    let made = match tensors.len() {
        1 => tensors.remove(0),
        _ => Dispatch::float_cat(tensors, axis),
    };
    Ok(Floats::shaped(made, shape).into())
}
