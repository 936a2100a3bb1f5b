//! Where the largest or the smallest elements along an axis are.

use burn::backend::ops::{FloatTensorOps, IntTensorOps};
use burn::backend::{Dispatch, get_device_settings};
use std::cmp::Ordering;

use crate::host::{self, HostTensor, Numbers, strides};
use crate::pass::{Call, Kind, Type, one};
use crate::value::{Floats, Value};

/// Of floats on the device. Each one takes a pass over all of them; no kernel sorts.
const MOST_ON_DEVICE: usize = 64;

pub(super) const KINDS: &[Kind] = &[
    Kind::onnx("ArgMax", (1, 1), |call| {
        let x = call.value(0)?;
        let axis = call.axis("axis", 0, x.shape().len())?;
        let mut shape = x.shape().to_vec();
        let places = places(call, x, axis, 1, true)?;
        match call.integer("keepdims").unwrap_or(1) {
            0 => shape.remove(axis),
            _ => std::mem::replace(&mut shape[axis], 1),
        };
        one(match places {
            Value::Host(host) => Value::from(host.reshaped(shape)),
            Value::Device(floats) => floats.reshaped(shape).into(),
        })
    })
    .with(&[("axis", Type::Integer), ("keepdims", Type::Integer)]),
    Kind::ours("TopPlaces", (2, 2), |call| {
        let (x, count) = (call.value(0)?, call.host(1)?.sizes()?);
        let axis = call.axis("axis", -1, x.shape().len())?;
        let [count] = count[..] else {
            return Err("how many is not one number".into());
        };
        let largest = call.integer("largest").unwrap_or(1) != 0;
        one(places(call, x, axis, count, largest)?)
    })
    .with(&[("axis", Type::Integer), ("largest", Type::Integer)]),
];

/// Finds the places of the `count` most extreme elements, the most extreme one first.
fn places(call: &mut Call, x: Value, axis: usize, count: usize, largest: bool) -> Result<Value, String> {
    let length = x.shape()[axis];
    if count == 0 || count > length {
        return Err(format!("{count} places of {length}"));
    }
    match x {
        Value::Host(x) => on_host(call, &x, axis, count, largest).map(Value::from),
        Value::Device(x) if count <= MOST_ON_DEVICE => on_device(call, x, axis, count, largest),
        Value::Device(_) => Err(format!(
            "{count} places of floats of the model; at most {MOST_ON_DEVICE} are possible"
        )),
    }
}

fn on_host(
    call: &mut Call,
    x: &HostTensor,
    axis: usize,
    count: usize,
    largest: bool,
) -> Result<HostTensor, String> {
    let (own, length) = (strides(x.shape()), x.shape()[axis]);
    let mut shape = x.shape().to_vec();
    call.reserve_host(&shape)?;
    shape[axis] = count;
    let order = |a: usize, b: usize| -> Ordering {
        match x.numbers() {
            Numbers::Floats(values) => values[a].total_cmp(&values[b]),
            Numbers::Integers(values) => values[a].cmp(&values[b]),
            Numbers::Booleans(values) => values[a].cmp(&values[b]),
        }
    };
    let made = strides(&shape);
    let mut places = vec![0i64; shape.iter().product()];
    let mut first = shape.clone();
    first[axis] = 1;
    let rows = |strides: &[usize]| {
        let steps = strides.iter().map(|stride| *stride as isize).collect();
        host::walk(&first, 0, steps).collect::<Vec<usize>>()
    };
    for (from, to) in rows(&own).into_iter().zip(rows(&made)) {
        let mut sorted: Vec<usize> = (0..length).collect();
        sorted.sort_by(|a, b| {
            let order = order(from + a * own[axis], from + b * own[axis]);
            if largest { order.reverse() } else { order }
        });
        for (rank, place) in sorted.into_iter().take(count).enumerate() {
            places[to + rank * made[axis]] = place as i64;
        }
    }
    HostTensor::new(shape, Numbers::Integers(places))
}

fn on_device(call: &mut Call, x: Floats, axis: usize, count: usize, largest: bool) -> Result<Value, String> {
    let shape = x.shape().to_vec();
    call.reserve(&[&[count], &shape[..]].concat())?;
    let settings = get_device_settings::<Dispatch>(call.pass.device);
    let mut rest = Dispatch::float_detach(x.tensor());
    if !largest {
        rest = Dispatch::float_neg(rest);
    }
    let numbered: Vec<f32> = (0..shape[axis]).map(|place| place as f32).collect();
    let mut across = vec![1; shape.len()];
    across[axis] = shape[axis];
    let numbered = HostTensor::new(across, Numbers::Floats(numbered))?;
    let numbered = call.numbers(numbered.into())?.expanded(&shape).tensor();
    let mut made = Vec::with_capacity(count);
    for rank in 0..count {
        let place = Dispatch::float_argmax(rest.clone(), axis, settings.int_dtype);
        let place = Floats::new(Dispatch::int_into_float(place, settings.float_dtype));
        made.push(place.clone().tensor());
        if rank + 1 < count {
            let taken = place.expanded(&shape).tensor();
            let taken = Dispatch::float_equal(numbered.clone(), taken, settings.bool_dtype);
            rest = Dispatch::float_mask_fill(rest, taken, f64::from(f32::NEG_INFINITY).into());
        }
    }
    Ok(Floats::new(match made.len() {
        1 => made.remove(0),
        _ => Dispatch::float_cat(made, axis),
    })
    .into())
}
