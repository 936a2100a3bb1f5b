//! Elements by their indices. Each index on the host is checked; those that follow from floats stay within the axis.

use annulus_shaders::ops::embedding::embedding;
use burn::backend::Dispatch;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{Int, Tensor};

use super::slice::burn_slice;
use crate::host::{self, HostTensor, Range, indices, strides};
use crate::pass::{Call, Kind, Made, Type, one};
use crate::value::{Floats, Value};

pub(super) const KINDS: &[Kind] = &[
    Kind::onnx("Gather", (2, 2), gather).with(&[("axis", Type::Integer)]),
    Kind::onnx("GatherElements", (2, 2), gather_elements).with(&[("axis", Type::Integer)]),
    Kind::ours("Index", (2, usize::MAX), index),
];

/// Whole entries of an axis.
fn gather(call: &mut Call) -> Made {
    let (x, index) = (call.value(0)?, call.value(1)?);
    let axis = call.axis("axis", 0, x.shape().len())?;
    let length = x.shape()[axis];
    let (before, behind) = (&x.shape()[..axis], &x.shape()[axis + 1..]);
    let shape = [before, index.shape(), behind].concat();
    let index = match index {
        Value::Host(index) => index,
        Value::Device(index) => {
            call.reserve(&shape)?;
            let count = index.shape().iter().product();
            let places = call.places(&index.reshaped(vec![count]).into(), length)?;
            let made = Dispatch::float_select(call.numbers(x)?.tensor(), axis, places);
            return one(Floats::shaped(made, shape));
        }
    };
    let picked = indices(index.integers()?, length)?;
    match x {
        Value::Host(x) => {
            call.reserve_host(&shape)?;
            one(entries(&x, axis, &picked, shape))
        }
        Value::Device(x) => {
            call.reserve(&shape)?;
            let made = match *x.shape() {
                // The rows of a table: our operation has a fast backward pass.
                [_, _] if axis == 0 && picked.len() > 1 => {
                    let ids = call.upload_integers(&picked, &[1, picked.len()]);
                    embedding(Tensor::<2, Int>::from_dispatch(ids), x.any(), None).into_dispatch()
                }
                _ => {
                    let ids = call.upload_integers(&picked, &[picked.len()]);
                    Dispatch::float_select(x.tensor(), axis, ids)
                }
            };
            one(Floats::shaped(made, shape))
        }
    }
}

fn entries(x: &HostTensor, axis: usize, picked: &[usize], shape: Vec<usize>) -> HostTensor {
    let stride = strides(x.shape())[axis];
    let block = stride * x.shape()[axis];
    let blocks = x.len().checked_div(block).unwrap_or(0);
    let places = (0..blocks).flat_map(|outer| {
        picked
            .iter()
            .flat_map(move |entry| (0..stride).map(move |inner| outer * block + entry * stride + inner))
    });
    x.pick(shape, places)
}

/// One element for each index: `x[..][index[..][i][..]][..]` along an axis.
fn gather_elements(call: &mut Call) -> Made {
    let (x, index) = (call.value(0)?, call.value(1)?);
    let axis = call.axis("axis", 0, x.shape().len())?;
    let same_rank = index.shape().len() == x.shape().len();
    let fits = |a: usize| a == axis || index.shape()[a] <= x.shape()[a];
    if !same_rank || !(0..x.shape().len()).all(fits) {
        return Err(format!("indices {:?} into {:?}", index.shape(), x.shape()));
    }
    let shape = index.shape().to_vec();
    match (x, &index) {
        (Value::Host(x), Value::Host(index)) => {
            call.reserve_host(&shape)?;
            let picked = indices(index.integers()?, x.shape()[axis])?;
            let mut own: Vec<isize> = strides(x.shape()).iter().map(|s| *s as isize).collect();
            let along = std::mem::replace(&mut own[axis], 0) as usize;
            let places = host::walk(&shape, 0, own).zip(&picked);
            one(x.pick(shape.clone(), places.map(|(place, entry)| place + entry * along)))
        }
        (x, index) => {
            call.reserve(&shape)?;
            let x = call.numbers(x)?;
            let ids = call.places(index, x.shape()[axis])?;
            // The other axes begin with what the indices pick from.
            let range = |a: usize| Range::all(if a == axis { x.shape()[a] } else { shape[a] });
            let slices: Vec<_> = (0..shape.len()).map(|a| burn_slice(&range(a))).collect();
            let whole = (0..shape.len()).all(|a| range(a).count == x.shape()[a]);
            let x = match whole {
                true => x.tensor(),
                false => Dispatch::float_slice(x.tensor(), &slices),
            };
            one(Floats::shaped(Dispatch::float_gather(axis, x, ids), shape))
        }
    }
}

/// PyTorch's `x[a, b, ..]` with a tensor of integers for each of the first axes.
fn index(call: &mut Call) -> Made {
    let x = call.host(0)?;
    let given = (1..call.node.inputs.len()).map(|input| call.host(input));
    let given = given.collect::<Result<Vec<_>, _>>()?;
    if given.len() > x.shape().len() {
        return Err(format!("{} indices into {} axes", given.len(), x.shape().len()));
    }
    let mut lead = Vec::new();
    for index in &given {
        lead = call.broadcast(&lead, index.shape())?;
    }
    let own = strides(x.shape());
    let rows = call.reserve_host(&lead)?;
    let mut places = vec![0; rows];
    for (axis, index) in given.iter().enumerate() {
        let index = call.expand_host(index, &lead)?;
        let picked = indices(index.integers()?, x.shape()[axis])?;
        for (place, entry) in places.iter_mut().zip(picked) {
            *place += entry * own[axis];
        }
    }
    let rest = &x.shape()[given.len()..];
    let shape = [&lead[..], rest].concat();
    call.reserve_host(&shape)?;
    let block: usize = rest.iter().product();
    let places = places.into_iter().flat_map(|place| place..place + block);
    one(x.pick(shape, places))
}
