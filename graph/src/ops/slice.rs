//! Parts of tensors, and tensors with a border, in either lane.

use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, Slice};
use burn::tensor::TensorData;

use crate::host::{self, HostTensor, Range};
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
    for (axis, (before, behind)) in axes.iter().zip(before.iter().zip(behind)) {
        let mut wide = x.shape().to_vec();
        for width in [before, behind] {
            let length = wide[*axis].checked_add(*width);
            wide[*axis] = length.ok_or("a border that is too wide")?;
        }
        let border = |width: usize| {
            let mut shape = wide.clone();
            shape[*axis] = width;
            (width > 0).then_some(shape)
        };
        let borders = [border(*before), border(*behind)];
        x = bordered(call, &x, *axis, borders, value, &wide)?;
    }
    Ok(vec![x])
}

/// A tensor between two borders of one number along an axis. `wide` is the shape of all three.
fn bordered(
    call: &mut Call,
    x: &Value,
    axis: usize,
    [before, behind]: [Option<Vec<usize>>; 2],
    value: f64,
    wide: &[usize],
) -> Result<Value, String> {
    match x {
        Value::Host(x) => {
            call.reserve_host(wide)?;
            let border = |shape: Vec<usize>| HostTensor::filled(shape, x.element(), value);
            let parts = [before.map(border), Some(x.clone()), behind.map(border)];
            let parts: Vec<HostTensor> = parts.into_iter().flatten().collect();
            Ok(HostTensor::concatenated(&parts, axis)?.into())
        }
        Value::Device(x) => {
            call.reserve(wide)?;
            let device = call.pass.device;
            let border = |shape: Vec<usize>| {
                let count = shape.iter().product();
                Dispatch::float_from_data(TensorData::new(vec![value as f32; count], shape), device)
            };
            let parts = [before.map(border), Some(x.clone().tensor()), behind.map(border)];
            let parts = parts.into_iter().flatten().collect();
            Ok(Floats::shaped(Dispatch::float_cat(parts, axis), wide.to_vec()).into())
        }
    }
}

/// Columns of rows, for layers that compute several things in one product.
pub(super) fn columns(x: &Floats, start: usize, count: usize) -> Floats {
    let rows = x.shape()[0];
    let ranges = [
        Range::all(rows),
        Range {
            start,
            count,
            step: 1,
        },
    ];
    Floats::new(Dispatch::float_slice(
        x.clone().tensor(),
        &ranges.each_ref().map(burn_slice),
    ))
}

/// Rows of a matrix.
pub(super) fn rows(x: &Floats, start: usize, count: usize) -> Floats {
    let width = x.shape()[1];
    let ranges = [
        Range {
            start,
            count,
            step: 1,
        },
        Range::all(width),
    ];
    Floats::new(Dispatch::float_slice(
        x.clone().tensor(),
        &ranges.each_ref().map(burn_slice),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostTensor;

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
