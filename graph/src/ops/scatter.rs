//! Sums by index: what messages along the edges of a graph add up to at its nodes.

use burn::backend::Dispatch;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::IndexingUpdateOp;

use crate::pass::{Call, Kind, Made, Type, one};
use crate::value::Floats;

pub(super) const KINDS: &[Kind] = &[
    Kind::onnx("ScatterElements", (3, 3), scatter)
        .with(&[("axis", Type::Integer), ("reduction", Type::Text)]),
    Kind::ours("IndexAdd", (3, 3), index_add).with(&[("axis", Type::Integer)]),
];

/// Adds one element for each index: `x[..][index[..][i][..]][..] += added[..][i][..]` along an axis.
fn scatter(call: &mut Call) -> Made {
    if call.text("reduction") != Some("add") {
        return Err("a reduction other than a sum".into());
    }
    let (x, index, added) = (call.value(0)?, call.value(1)?, call.value(2)?);
    let (x, added) = (call.numbers(x)?, call.numbers(added)?);
    let shape = x.shape().to_vec();
    let axis = call.axis("axis", 0, shape.len())?;
    let fits = |a: usize| a == axis || added.shape()[a] == shape[a];
    if index.shape() != added.shape() || added.shape().len() != shape.len() || !(0..shape.len()).all(fits) {
        let (index, added) = (index.shape(), added.shape());
        return Err(format!(
            "indices {index:?} of what is added, {added:?}, to {shape:?}"
        ));
    }
    call.reserve(&shape)?;
    let places = call.places(&index, shape[axis])?;
    let made = Dispatch::float_scatter(axis, x.tensor(), places, added.tensor(), IndexingUpdateOp::Add);
    one(Floats::shaped(made, shape))
}

/// Adds whole entries of an axis: `x[index[i]] += added[i]`.
fn index_add(call: &mut Call) -> Made {
    let (x, index, added) = (call.value(0)?, call.value(1)?, call.value(2)?);
    let (x, added) = (call.numbers(x)?, call.numbers(added)?);
    let shape = x.shape().to_vec();
    let axis = call.axis("axis", 0, shape.len())?;
    let mut expected = shape.clone();
    let [count] = *index.shape() else {
        return Err(format!("indices of shape {:?}, which are no list", index.shape()));
    };
    expected[axis] = count;
    if added.shape() != expected {
        return Err(format!(
            "{count} entries of shape {:?} to add to {shape:?}",
            added.shape()
        ));
    }
    call.reserve(&shape)?;
    let places = call.places(&index, shape[axis])?;
    let made = Dispatch::float_select_assign(x.tensor(), axis, places, added.tensor(), IndexingUpdateOp::Add);
    one(Floats::shaped(made, shape))
}
