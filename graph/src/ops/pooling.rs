//! Maxima and means over windows of one and two axes.

use annulus_shaders::ops::pool::{self as ops, Windows};
use burn::backend::Dispatch;
use burn::backend::ops::FloatTensorOps;

use super::convolution::explicit_border;
use crate::pass::{Call, Kind, Made, Type, one};
use crate::value::Floats;

pub(super) const KINDS: &[Kind] = &[
    Kind::onnx("MaxPool", (1, 1), |call| pool(call, true)).with(&[
        ("auto_pad", Type::Text),
        ("ceil_mode", Type::Integer),
        ("dilations", Type::Integers),
        ("kernel_shape", Type::Integers),
        ("pads", Type::Integers),
        ("storage_order", Type::Integer),
        ("strides", Type::Integers),
    ]),
    Kind::onnx("AveragePool", (1, 1), |call| pool(call, false)).with(&[
        ("auto_pad", Type::Text),
        ("ceil_mode", Type::Integer),
        ("count_include_pad", Type::Integer),
        ("kernel_shape", Type::Integers),
        ("pads", Type::Integers),
        ("strides", Type::Integers),
    ]),
    Kind::onnx("GlobalAveragePool", (1, 1), global_average),
];

/// Pools `[batch, channels, height, width]`, or the same without a height.
fn pool(call: &mut Call, maximum: bool) -> Made {
    let x = call.floats(0)?;
    let axes = match x.shape().len() {
        3 => 1,
        4 => 2,
        _ => {
            return Err(format!(
                "an input of shape {:?}; pooling works over 1 or 2 axes",
                x.shape()
            ));
        }
    };
    explicit_border(call)?;
    let kernel = call.sizes("kernel_shape", 0, axes)?;
    let strides = call.sizes("strides", 1, axes)?;
    let dilations = call.sizes("dilations", 1, axes)?;
    let pads = call.sizes("pads", 0, 2 * axes)?;
    let up = call.flag("ceil_mode");
    let (before, behind) = pads.split_at(axes);
    if before != behind || (0..axes).any(|axis| before[axis] * 2 > kernel[axis]) {
        return Err(format!("a border of {pads:?} around a kernel of {kernel:?}"));
    }
    let mut shape = x.shape()[..2].to_vec();
    for axis in 0..axes {
        let length = x.shape()[2 + axis];
        shape.push(windows(
            length,
            kernel[axis],
            strides[axis],
            before[axis],
            dilations[axis],
            up,
        )?);
    }
    let count = call.reserve(&shape)?;
    call.multiply(&[&[count], &kernel[..]].concat())?;
    // One axis is two, the first of which has length 1.
    let widened = |sizes: &[usize], lead: usize| match axes {
        1 => [lead, sizes[0]],
        _ => [sizes[0], sizes[1]],
    };
    let flat = x.shape().to_vec();
    let x = if axes == 1 {
        x.reshaped(vec![flat[0], flat[1], 1, flat[2]])
    } else {
        x
    };
    let kind = match maximum {
        true => ops::Kind::Maximum,
        false if call.flag("count_include_pad") => ops::Kind::MeanWithBorder,
        false => ops::Kind::Mean,
    };
    let windows = Windows {
        kernel: widened(&kernel, 1),
        strides: widened(&strides, 1),
        before: widened(before, 0),
        dilations: widened(&dilations, 1),
        count: widened(&shape[2..], 1),
        kind,
    };
    let made = ops::pool::<1>(x.any(), windows).into_dispatch();
    one(Floats::shaped(made, shape))
}

/// How many windows fit along an axis, as PyTorch counts: with `up`, one more for what is left, if it begins inside of
/// the input.
fn windows(
    length: usize,
    kernel: usize,
    stride: usize,
    border: usize,
    dilation: usize,
    up: bool,
) -> Result<usize, String> {
    if [kernel, stride, dilation].contains(&0) {
        return Err("a kernel, stride or dilation of 0".into());
    }
    let extent = (kernel - 1).checked_mul(dilation).and_then(|n| n.checked_add(1));
    let room = extent.and_then(|extent| (length + 2 * border).checked_sub(extent));
    let room = room.ok_or_else(|| format!("a window of {kernel} along an axis of {length}"))?;
    let count = room / stride + 1;
    let more = up && !room.is_multiple_of(stride) && count * stride < length + border;
    Ok(count + usize::from(more))
}

fn global_average(call: &mut Call) -> Made {
    let x = call.floats(0)?;
    let mut shape = x.shape().to_vec();
    if shape.len() < 3 {
        return Err(format!(
            "an input of shape {shape:?}, which has nothing to average"
        ));
    }
    call.reserve(&shape)?;
    shape[2..].fill(1);
    let mut x = x.tensor();
    for axis in 2..shape.len() {
        x = Dispatch::float_mean_dim(x, axis);
    }
    one(Floats::shaped(x, shape))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_counted_as_pytorch_does() {
        assert_eq!(windows(28, 2, 2, 0, 1, false), Ok(14));
        assert_eq!(windows(7, 3, 2, 1, 1, false), Ok(4));
        assert_eq!(windows(6, 3, 2, 0, 1, false), Ok(2));
        assert_eq!(windows(6, 3, 2, 0, 1, true), Ok(3));
        // The last window would begin in the border behind the input.
        assert_eq!(windows(4, 2, 2, 1, 1, true), Ok(3));
        assert!(windows(2, 3, 1, 0, 1, true).is_err());
        assert!(windows(2, 2, 0, 0, 1, false).is_err());
        assert!(windows(2, usize::MAX, 1, 0, 2, false).is_err());
    }
}
