//! Convolutions over one to three axes.

use annulus_shaders::ops::convolution::{self as ops, transposed_convolution};
use std::array;

use crate::pass::{Call, Kind, Made, Type, one};
use crate::value::Floats;

const WINDOW: &[(&str, Type)] = &[
    ("auto_pad", Type::Text),
    ("dilations", Type::Integers),
    ("group", Type::Integer),
    ("kernel_shape", Type::Integers),
    ("pads", Type::Integers),
    ("strides", Type::Integers),
];

pub(super) const KINDS: &[Kind] = &[
    Kind::onnx("Conv", (2, 3), convolution).with(WINDOW),
    Kind::onnx("ConvTranspose", (2, 3), transposed).with(&[
        ("auto_pad", Type::Text),
        ("dilations", Type::Integers),
        ("group", Type::Integer),
        ("kernel_shape", Type::Integers),
        ("output_padding", Type::Integers),
        ("pads", Type::Integers),
        ("strides", Type::Integers),
    ]),
];

/// How a kernel moves over the axes behind `[batch, channels]`.
struct Window {
    strides: Vec<usize>,
    before: Vec<usize>,
    behind: Vec<usize>,
    dilations: Vec<usize>,
    groups: usize,
}

impl Window {
    /// Checks the attributes, and that input and weights are for a kernel over 1 to 3 axes.
    fn of(call: &Call, x: &Floats, weight: &Floats) -> Result<Self, String> {
        let axes = match (x.shape().len(), weight.shape().len()) {
            (3, 3) => 1,
            (4, 4) => 2,
            (5, 5) => 3,
            _ => {
                let shapes = format!("{:?} with weights {:?}", x.shape(), weight.shape());
                return Err(format!(
                    "{shapes}; only convolutions over 1, 2 or 3 axes are possible"
                ));
            }
        };
        explicit_border(call)?;
        let kernel = weight.shape()[2..].iter().map(|n| Some(*n));
        if let Some(given) = call.integers("kernel_shape")
            && !given.iter().map(|n| usize::try_from(*n).ok()).eq(kernel)
        {
            return Err(format!("a kernel {given:?}, but weights {:?}", weight.shape()));
        }
        let pads = call.sizes("pads", 0, 2 * axes)?;
        let (before, behind) = pads.split_at(axes);
        let groups = usize::try_from(call.integer("group").unwrap_or(1)).unwrap_or(0);
        let window = Self {
            strides: call.sizes("strides", 1, axes)?,
            before: before.to_vec(),
            behind: behind.to_vec(),
            dilations: call.sizes("dilations", 1, axes)?,
            groups,
        };
        match groups == 0
            || [&window.strides, &window.dilations]
                .iter()
                .any(|list| list.contains(&0))
        {
            true => Err("a stride, dilation or group count of 0".into()),
            false => Ok(window),
        }
    }

    /// As the operation takes it; `extra` are numbers behind a transpose's last.
    fn moves(&self, extra: &[usize]) -> ops::Window {
        let last = |of: &[usize], otherwise: usize| {
            let missing = 3 - of.len();
            array::from_fn(|axis| axis.checked_sub(missing).map_or(otherwise, |axis| of[axis]))
        };
        ops::Window {
            strides: last(&self.strides, 1),
            before: last(&self.before, 0),
            behind: last(&self.behind, 0),
            dilations: last(&self.dilations, 1),
            groups: self.groups,
            extra: last(extra, 0),
        }
    }

    /// From the first to the last number that a kernel covers along an axis.
    fn extent(&self, axis: usize, kernel: usize) -> Result<usize, String> {
        let extent = kernel
            .checked_sub(1)
            .and_then(|n| n.checked_mul(self.dilations[axis]));
        extent.ok_or_else(|| "an empty kernel".into())
    }
}

/// Refuses borders that follow from sizes instead of standing in the file.
pub(super) fn explicit_border(call: &Call) -> Result<(), String> {
    match call.text("auto_pad") {
        None | Some("NOTSET") => Ok(()),
        Some(other) => Err(format!("auto_pad is {other}; export it with explicit pads")),
    }
}

/// The bias, if it has one number for each output channel.
fn bias(call: &mut Call, channels: usize) -> Result<Option<Floats>, String> {
    let bias = call.optional_floats(2)?;
    match &bias {
        Some(bias) if bias.shape() != [channels] => Err(format!(
            "a bias of shape {:?} for {channels} channels",
            bias.shape()
        )),
        _ => Ok(bias),
    }
}

/// x `[batch, inputs, ..]`, weights `[outputs, inputs / groups, ..]`.
fn convolution(call: &mut Call) -> Made {
    let (x, weight) = (call.floats(0)?, call.floats(1)?);
    let window = Window::of(call, &x, &weight)?;
    let (inputs, outputs, groups) = (x.shape()[1], weight.shape()[0], window.groups);
    if weight.shape()[1].checked_mul(groups) != Some(inputs) || !outputs.is_multiple_of(groups) {
        return Err(format!(
            "{:?} with weights {:?} in {groups} groups",
            x.shape(),
            weight.shape()
        ));
    }
    let mut shape = vec![x.shape()[0], outputs];
    for (axis, (length, kernel)) in x.shape()[2..].iter().zip(&weight.shape()[2..]).enumerate() {
        let padded = length + window.before[axis] + window.behind[axis];
        let room = padded.checked_sub(window.extent(axis, *kernel)? + 1);
        let room = room.ok_or_else(|| format!("a kernel larger than the input {:?}", x.shape()))?;
        shape.push(room / window.strides[axis] + 1);
    }
    let count = call.reserve(&shape)?;
    call.multiply(&[[count].as_slice(), &weight.shape()[1..]].concat())?;
    // Backends copy the input with its border.
    call.reserve(&bordered(&x, &window))?;
    let bias = bias(call, outputs)?.map(Floats::any);
    let made = ops::convolution::<1>(x.any(), weight.any(), bias, window.moves(&[]));
    one(Floats::shaped(made.into_dispatch(), shape))
}

fn bordered(x: &Floats, window: &Window) -> Vec<usize> {
    let borders = window.before.iter().zip(&window.behind).map(|(a, b)| a + b);
    let lead = x.shape()[..2].iter().copied();
    let axes = x.shape()[2..]
        .iter()
        .zip(borders)
        .map(|(length, border)| length + border);
    lead.chain(axes).collect()
}

/// x `[batch, inputs, ..]`, weights `[inputs, outputs / groups, ..]`.
fn transposed(call: &mut Call) -> Made {
    let (x, weight) = (call.floats(0)?, call.floats(1)?);
    let window = Window::of(call, &x, &weight)?;
    let axes = window.strides.len();
    let extra = call.sizes("output_padding", 0, axes)?;
    let (inputs, groups) = (x.shape()[1], window.groups);
    if weight.shape()[0] != inputs || !inputs.is_multiple_of(groups) || window.before != window.behind {
        let shapes = format!("{:?} with weights {:?}", x.shape(), weight.shape());
        return Err(format!(
            "{shapes} in {groups} groups, or a border that is not the same on both sides"
        ));
    }
    let outputs = weight.shape()[1]
        .checked_mul(groups)
        .ok_or("channels that overflow")?;
    let mut shape = vec![x.shape()[0], outputs];
    for (axis, (length, kernel)) in x.shape()[2..].iter().zip(&weight.shape()[2..]).enumerate() {
        let stride = window.strides[axis];
        if extra[axis] >= stride.max(window.dilations[axis]) {
            return Err("an output_padding that is not below stride or dilation".into());
        }
        let steps = length.checked_sub(1).and_then(|n| n.checked_mul(stride));
        let whole = steps.map(|n| n + window.extent(axis, *kernel).unwrap_or(0) + extra[axis] + 1);
        let length = whole
            .and_then(|n| n.checked_sub(2 * window.before[axis]))
            .filter(|n| *n > 0);
        shape.push(length.ok_or("a border larger than the result")?);
        window.extent(axis, *kernel)?;
    }
    call.reserve(&shape)?;
    call.multiply(&[x.shape(), &weight.shape()[1..]].concat())?;
    // Backends make the result with its border first.
    let borders = [0, 0]
        .into_iter()
        .chain(window.before.iter().map(|border| 2 * border));
    let wide: Vec<usize> = shape
        .iter()
        .zip(borders)
        .map(|(length, border)| length + border)
        .collect();
    call.reserve(&wide)?;
    let bias = bias(call, outputs)?.map(Floats::any);
    let made = transposed_convolution::<1>(x.any(), weight.any(), bias, window.moves(&extra));
    one(Floats::shaped(made.into_dispatch(), shape))
}
