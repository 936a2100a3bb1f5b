//! Losses for classes.

use annulus_shaders::ops::cross_entropy::cross_entropy;
use burn::backend::Dispatch;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{Int, Tensor, TensorData};

use crate::pass::{Call, Kind, Made, Type, one};
use crate::value::Floats;

const ATTRIBUTES: &[(&str, Type)] = &[("ignore_index", Type::Integer), ("reduction", Type::Text)];

pub(super) const KINDS: &[Kind] = &[
    Kind::onnx("SoftmaxCrossEntropyLoss", (2, 2), |call| {
        let (logits, targets) = classes(call)?;
        // An id that is no class; the operation leaves its rows out.
        let ids = call.upload_integers(&targets.ids, &[targets.ids.len()]);
        let ids = Tensor::<1, Int>::from_dispatch(ids);
        let loss = cross_entropy::<2, 1>(logits.any(), ids, Some(targets.ignored as i32));
        one(Floats::scalar(loss.into_dispatch()))
    })
    .with(ATTRIBUTES),
    Kind::onnx("NegativeLogLikelihoodLoss", (2, 2), negative_log_likelihood).with(ATTRIBUTES),
];

/// The classes of rows.
struct Targets {
    ids: Vec<usize>,
    /// The id of rows that do not count.
    ignored: usize,
}

/// Rows `[rows, classes]` from `[batch, classes, ..]`, and the class of each.
fn classes(call: &mut Call) -> Result<(Floats, Targets), String> {
    if !matches!(call.text("reduction"), None | Some("mean")) {
        return Err("a loss that is not the mean over the samples".into());
    }
    let (x, ids) = (call.floats(0)?, call.host(1)?);
    let &[batch, classes, ref rest @ ..] = x.shape() else {
        return Err(format!("logits of shape {:?}, which have no classes", x.shape()));
    };
    let expected = [&[batch], rest].concat();
    if ids.shape() != expected {
        return Err(format!(
            "targets of shape {:?} for logits {:?}",
            ids.shape(),
            x.shape()
        ));
    }
    let ignore = call.integer("ignore_index");
    let class = |id: &i64| match usize::try_from(*id) {
        _ if Some(*id) == ignore => Ok(classes),
        Ok(class) if class < classes => Ok(class),
        _ => Err(format!("the target {id}, which is none of {classes} classes")),
    };
    let ids = ids.integers()?.iter().map(class).collect::<Result<Vec<_>, _>>()?;
    call.reserve(x.shape())?;
    let rows = vec![ids.len(), classes];
    let x = match x.shape().len() {
        2 => x,
        rank => {
            call.reserve(x.shape())?;
            let order: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
            Floats::new(Dispatch::float_permute(x.tensor(), &order)).reshaped(rows)
        }
    };
    Ok((
        x,
        Targets {
            ids,
            ignored: classes,
        },
    ))
}

/// Takes logarithms of shares, which another node has computed.
fn negative_log_likelihood(call: &mut Call) -> Made {
    let (logs, Targets { ids, ignored }) = classes(call)?;
    let counted = ids.iter().filter(|id| **id != ignored).count().max(1);
    let weight = |id: &usize| {
        if *id == ignored {
            0.0
        } else {
            -1.0 / counted as f32
        }
    };
    let weights: Vec<f32> = ids.iter().map(weight).collect();
    let shape = [ids.len(), 1];
    // A row that does not count needs some class.
    let ids: Vec<usize> = ids
        .iter()
        .map(|id| if *id == ignored { 0 } else { *id })
        .collect();
    let ids = call.upload_integers(&ids, &shape);
    let picked = Dispatch::float_gather(1, logs.tensor(), ids);
    let weights = Dispatch::float_from_data(TensorData::new(weights, shape), call.pass.device);
    let loss = Dispatch::float_sum(Dispatch::float_mul(picked, weights));
    one(Floats::scalar(loss))
}
