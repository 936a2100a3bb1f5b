//! Parts of tensors, and tensors with a border, in either lane.

use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, Slice};

use super::layout::joined;
use crate::host::{self, Element, HostTensor, Range};
use crate::pass::{Call, Kind, Made, Type};
use crate::value::{Floats, Value};

pub(super) const KINDS: &[Kind] = &[
    Kind::onnx("Slice", (3, 5), slice),
    Kind::onnx("Split", (1, 2), split).with(&[("axis", Type::Integer), ("num_outputs", Type::Integer)]),
    Kind::onnx("Pad", (2, 4), pad).with(&[("mode", Type::Text)]),
];

/// A part of a tensor; a range for each axis, all within it.
fn part(call: &mut Call, x: &Value, ranges: &[Range]) -> Result<Value, String> {
    let shape: Vec<usize> = ranges.iter().map(|range| range.count).collect();
    if shape == x.shape() {
        return Ok(x.clone());
    }
    Ok(match x {
        Value::Host(x) => {
            call.reserve_host(&shape)?;
            x.sliced(ranges).into()
        }
        Value::Device(x) => {
            call.reserve(&shape)?;
            let slices: Vec<Slice> = ranges.iter().map(burn_slice).collect();
            Floats::new(Dispatch::float_slice(x.clone().tensor(), &slices)).into()
        }
    })
}

/// As Burn has it: the end is behind the last element that is taken.
pub(super) fn burn_slice(range: &Range) -> Slice {
    let end = range.start + (range.count - 1) * range.step + 1;
    Slice::new(range.start as isize, Some(end as isize), range.step as isize)
}

fn slice(call: &mut Call) -> Made {
    let x = call.value(0)?;
    let (starts, ends) = (call.host(1)?, call.host(2)?);
    let (starts, ends) = (starts.integers()?, ends.integers()?);
    let axes = match call.optional_host(3)? {
        Some(axes) => axes.integers()?.to_vec(),
        None => (0..starts.len() as i64).collect(),
    };
    let steps = match call.optional_host(4)? {
        Some(steps) => steps.integers()?.to_vec(),
        None => vec![1; starts.len()],
    };
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
        return Err("starts, ends, axes and steps are not equally many".into());
    }
    let shape = x.shape();
    let mut ranges: Vec<Range> = shape.iter().map(|length| Range::all(*length)).collect();
    for (at, axis) in axes.iter().enumerate() {
        let axis = host::axis(*axis, shape.len())?;
        let step = usize::try_from(steps[at]).ok().filter(|step| *step > 0);
        let step = step.ok_or("a slice backwards")?;
        let length = shape[axis] as i64;
        let place = |place: i64| {
            let place = if place < 0 {
                place.saturating_add(length)
            } else {
                place
            };
            place.clamp(0, length) as usize
        };
        let (start, end) = (place(starts[at]), place(ends[at]));
        let count = end.saturating_sub(start).div_ceil(step);
        // A step that leads behind the end takes one element, whatever its length.
        let step = step.min(shape[axis].max(1));
        ranges[axis] = Range { start, count, step };
    }
    Ok(vec![part(call, &x, &ranges)?])
}

fn split(call: &mut Call) -> Made {
    let x = call.value(0)?;
    let shape = x.shape().to_vec();
    let axis = call.axis("axis", 0, shape.len())?;
    let counts = match call.optional_host(1)? {
        Some(counts) => counts.sizes()?,
        None => {
            let parts = call.node.outputs.len().max(1);
            let each = shape[axis].div_ceil(parts);
            (0..parts)
                .map(|n| shape[axis].saturating_sub(n * each).min(each))
                .collect()
        }
    };
    let whole = counts
        .iter()
        .try_fold(0usize, |sum, count| sum.checked_add(*count));
    if whole != Some(shape[axis]) {
        return Err(format!(
            "parts of {counts:?} do not make an axis of {}",
            shape[axis]
        ));
    }
    let mut start = 0;
    let mut parts = Vec::with_capacity(counts.len());
    for count in counts {
        let mut ranges: Vec<Range> = shape.iter().map(|length| Range::all(*length)).collect();
        ranges[axis] = Range {
            start,
            count,
            step: 1,
        };
        start += count;
        parts.push(part(call, &x, &ranges)?);
    }
    Ok(parts)
}

/// A border of one number.
fn pad(call: &mut Call) -> Made {
    if !matches!(call.text("mode"), None | Some("constant")) {
        return Err("a border that is not constant".into());
    }
    let mut x = call.value(0)?;
    let rank = x.shape().len();
    let widths = call.host(1)?.sizes()?;
    let value = call.optional_host(2)?.map_or(Ok(0.0), |value| value.number())?;
    let axes = match call.axes(3, rank)? {
        Some(axes) => axes,
        None => (0..rank).collect(),
    };
    if widths.len() != 2 * axes.len() {
        return Err(format!(
            "{} widths of a border around {} axes",
            widths.len(),
            axes.len()
        ));
    }
    let (before, behind) = widths.split_at(axes.len());
    for (axis, (before, behind)) in axes.into_iter().zip(before.iter().zip(behind)) {
        let length = before.checked_add(*behind);
        let length = length.and_then(|length| length.checked_add(x.shape()[axis]));
        length.ok_or("a border that is too wide")?;
        let parts = [
            border(call, &x, axis, *before, value)?,
            Some(x.clone()),
            border(call, &x, axis, *behind, value)?,
        ];
        x = joined(call, parts.into_iter().flatten().collect(), axis)?;
    }
    Ok(vec![x])
}

/// One number beside a tensor along an axis; none of no width.
fn border(
    call: &mut Call,
    x: &Value,
    axis: usize,
    width: usize,
    value: f64,
) -> Result<Option<Value>, String> {
    if width == 0 {
        return Ok(None);
    }
    let mut shape = x.shape().to_vec();
    shape[axis] = width;
    let element = match x {
        Value::Host(x) => {
            call.reserve_host(&shape)?;
            x.element()
        }
        Value::Device(_) => {
            call.reserve(&shape)?;
            Element::Float
        }
    };
    Ok(Some(HostTensor::filled(shape, element, value).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_of_burn_ends_behind_its_last_element() {
        let slice = burn_slice(&Range {
            start: 1,
            count: 3,
            step: 2,
        });
        assert_eq!((slice.start, slice.end, slice.step), (1, Some(6), 2));
        let x = HostTensor::vector((0..8).collect());
        let part = x.sliced(&[Range {
            start: 1,
            count: 3,
            step: 2,
        }]);
        assert_eq!(part.integers().unwrap(), [1, 3, 5]);
    }
}
