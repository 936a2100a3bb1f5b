//! Tensors out of nothing, and other types for the same numbers.

use crate::host::{self, Element, HostTensor, Numbers};
use crate::onnx::Attribute;
use crate::pass::{Call, Kind, Made, Type, one};
use crate::value::{Floats, Value};
use burn::backend::Dispatch;
use burn::backend::ops::FloatTensorOps;

pub(super) const KINDS: &[Kind] = &[
    Kind::onnx("Constant", (0, 0), constant).with(&[
        ("value", Type::Tensor),
        ("value_float", Type::Float),
        ("value_floats", Type::Floats),
        ("value_int", Type::Integer),
        ("value_ints", Type::Integers),
    ]),
    Kind::onnx("ConstantOfShape", (1, 1), constant_of_shape).with(&[("value", Type::Tensor)]),
    Kind::onnx("Range", (3, 3), range),
    Kind::onnx("CumSum", (2, 2), cumulative_sum)
        .with(&[("exclusive", Type::Integer), ("reverse", Type::Integer)]),
    Kind::onnx("Trilu", (1, 2), triangle).with(&[("upper", Type::Integer)]),
    Kind::onnx("Cast", (1, 1), cast).with(&[("to", Type::Integer), ("saturate", Type::Integer)]),
    Kind::onnx("CastLike", (2, 2), |call| {
        let to = call.value(1)?.element();
        cast_to(call, to)
    }),
    Kind {
        of_shapes: true,
        ..Kind::onnx("Shape", (1, 1), shape).with(&[("start", Type::Integer), ("end", Type::Integer)])
    },
    Kind {
        of_shapes: true,
        ..Kind::onnx("Size", (1, 1), |call| {
            let count = call.shape(0)?.iter().product::<usize>();
            one(HostTensor::scalar(Numbers::Integers(vec![count as i64])))
        })
    },
];

fn constant(call: &mut Call) -> Made {
    let Some((_, value)) = call.node.attributes.first() else {
        return Err("it has no value".into());
    };
    one(match value.clone() {
        Attribute::Tensor(tensor) => tensor,
        Attribute::Float(x) => HostTensor::scalar(Numbers::Floats(vec![x])),
        Attribute::Floats(x) => HostTensor::new(vec![x.len()], Numbers::Floats(x))?,
        Attribute::Integer(x) => HostTensor::scalar(Numbers::Integers(vec![x])),
        Attribute::Integers(x) => HostTensor::vector(x),
        Attribute::Text(_) => return Err("text is no number".into()),
    })
}

fn constant_of_shape(call: &mut Call) -> Made {
    let shape = call.host(0)?.sizes()?;
    let count = call.reserve_host(&shape)?;
    let zero = Numbers::Floats(vec![0.0]);
    let value = call.tensor("value").map_or(&zero, HostTensor::numbers);
    let numbers = value.repeated(count).ok_or("its value is empty")?;
    one(HostTensor::new(shape, numbers)?)
}

fn range(call: &mut Call) -> Made {
    let (start, end, step) = (call.host(0)?, call.host(1)?, call.host(2)?);
    let (first, behind, each) = (start.number()?, end.number()?, step.number()?);
    let count = ((behind - first) / each).ceil().max(0.0);
    if !count.is_finite() {
        return Err(format!("steps of {each} from {first} to {behind}"));
    }
    // A conversion from a float that is too large gives the largest integer, which the bound refuses.
    let count = call.reserve_host(&[count as usize])?;
    let numbers = match start.element() {
        Element::Float => {
            let values = (0..count).map(|i| (first + i as f64 * each) as f32);
            Numbers::Floats(values.collect())
        }
        _ => {
            let (first, each) = (start.integers()?[0], step.integers()?[0]);
            let values = (0..count).map(|i| first.wrapping_add((i as i64).wrapping_mul(each)));
            Numbers::Integers(values.collect())
        }
    };
    one(HostTensor::new(vec![count], numbers)?)
}

fn cumulative_sum(call: &mut Call) -> Made {
    if call.flag("exclusive") || call.flag("reverse") {
        return Err("a sum that is exclusive or backwards".into());
    }
    let (x, along) = (call.value(0)?, call.host(1)?.number()?);
    let shape = x.shape().to_vec();
    let axis = host::axis(along as i64, shape.len())?;
    let x = match x {
        Value::Host(x) if x.element() == Element::Integer => x,
        x => {
            let x = call.numbers(x)?;
            call.reserve(&shape)?;
            return one(Floats::shaped(Dispatch::float_cumsum(x.tensor(), axis), shape));
        }
    };
    call.reserve_host(&shape)?;
    let (stride, length) = (host::strides(&shape)[axis], shape[axis]);
    let mut values = x.integers()?.to_vec();
    for place in 0..values.len() {
        if place / stride % length > 0 {
            let sum = values[place].checked_add(values[place - stride]);
            values[place] = sum.ok_or("integers that overflow")?;
        }
    }
    one(HostTensor::new(shape, Numbers::Integers(values))?)
}

fn triangle(call: &mut Call) -> Made {
    let x = call.host(0)?;
    let shift = match call.optional_host(1)? {
        Some(shift) => *shift.integers()?.first().ok_or("an empty diagonal")?,
        None => 0,
    };
    let upper = call.integer("upper").unwrap_or(1) != 0;
    let [.., rows, columns] = *x.shape() else {
        return Err("a tensor of fewer than 2 axes".into());
    };
    call.reserve_host(x.shape())?;
    let kept = |place: usize| {
        let (row, column) = ((place / columns % rows) as i64, (place % columns) as i64);
        let diagonal = column.saturating_sub(row).saturating_sub(shift);
        if upper { diagonal >= 0 } else { diagonal <= 0 }
    };
    let numbers = match x.numbers() {
        Numbers::Floats(values) => Numbers::Floats(keep(values, kept)),
        Numbers::Integers(values) => Numbers::Integers(keep(values, kept)),
        Numbers::Booleans(values) => Numbers::Booleans(keep(values, kept)),
    };
    one(HostTensor::new(x.shape().to_vec(), numbers)?)
}

/// Zeros in place of all that is not kept.
fn keep<T: Copy + Default>(values: &[T], kept: impl Fn(usize) -> bool) -> Vec<T> {
    let values = values.iter().enumerate();
    values
        .map(|(place, value)| if kept(place) { *value } else { T::default() })
        .collect()
}

fn cast(call: &mut Call) -> Made {
    let to = Element::of_onnx(call.integer("to").ok_or("it does not say to which type")?)?;
    cast_to(call, to)
}

fn cast_to(call: &mut Call, to: Element) -> Made {
    match call.value(0)? {
        Value::Device(x) if to == Element::Float => one(x),
        Value::Device(x) => {
            let shape = x.shape().to_vec();
            call.reserve(&shape)?;
            one(match to {
                Element::Boolean => call.truth(call.is_true_of(x), shape),
                _ => Floats::shaped(Dispatch::float_trunc(Dispatch::float_detach(x.tensor())), shape),
            })
        }
        Value::Host(x) => {
            call.reserve_host(x.shape())?;
            one(x.cast(to))
        }
    }
}

fn shape(call: &mut Call) -> Made {
    let shape = call.shape(0)?;
    let rank = shape.len() as i64;
    let at = |place: i64| {
        (if place < 0 {
            place.saturating_add(rank)
        } else {
            place
        })
        .clamp(0, rank) as usize
    };
    let start = at(call.integer("start").unwrap_or(0));
    let end = at(call.integer("end").unwrap_or(rank)).max(start);
    one(HostTensor::vector(
        shape[start..end].iter().map(|n| *n as i64).collect(),
    ))
}
