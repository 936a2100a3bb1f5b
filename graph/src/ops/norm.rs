//! Normalization over batches, channels, groups and rows.

use annulus_shaders::ops::batch_norm;
use annulus_shaders::ops::norm::{layer_norm, rms_norm};
use burn::backend::ops::{FloatTensorOps, ModuleOps};
use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::Tensor;

use crate::pass::{Call, Kind, Made, Statistic, Type, one};
use crate::value::Floats;

pub(super) const KINDS: &[Kind] = &[
    Kind::onnx("BatchNormalization", (5, 5), batch_norm).with(&[
        ("epsilon", Type::Float),
        ("momentum", Type::Float),
        ("training_mode", Type::Integer),
    ]),
    Kind::onnx("LayerNormalization", (2, 3), |call| row_norm(call, true)).with(ROWS),
    Kind::onnx("RMSNormalization", (2, 2), |call| row_norm(call, false)).with(ROWS),
    Kind::onnx("GroupNormalization", (3, 3), |call| {
        let groups = call.integer("num_groups").and_then(|n| usize::try_from(n).ok());
        group_norm(call, groups.ok_or("it does not say num_groups")?)
    })
    .with(&[
        ("epsilon", Type::Float),
        ("num_groups", Type::Integer),
        ("stash_type", Type::Integer),
    ]),
    Kind::onnx("InstanceNormalization", (3, 3), |call| {
        let channels = call.shape(0)?.get(1).copied().unwrap_or(0);
        group_norm(call, channels)
    })
    .with(&[("epsilon", Type::Float)]),
];

const ROWS: &[(&str, Type)] = &[
    ("axis", Type::Integer),
    ("epsilon", Type::Float),
    ("stash_type", Type::Integer),
];

fn epsilon(call: &Call) -> f64 {
    call.float("epsilon").unwrap_or(1e-5)
}

/// An input with one number for each channel of `[batch, channels, ..]`.
fn per_channel(call: &mut Call, input: usize, channels: usize) -> Result<Floats, String> {
    let numbers = call.floats(input)?;
    match numbers.shape() == [channels] {
        true => Ok(numbers),
        false => Err(format!("{:?} numbers for {channels} channels", numbers.shape())),
    }
}

/// In training it normalizes by the batch's own statistics, and tells them.
fn batch_norm(call: &mut Call) -> Made {
    let x = call.floats(0)?;
    let shape = x.shape().to_vec();
    let &[batch, channels, ref rest @ ..] = &shape[..] else {
        return Err(format!("an input of shape {shape:?}, which has no channels"));
    };
    let gamma = per_channel(call, 1, channels)?.tensor();
    let beta = per_channel(call, 2, channels)?.tensor();
    let mean = per_channel(call, 3, channels)?.tensor();
    let variance = per_channel(call, 4, channels)?.tensor();
    for _ in 0..3 {
        // Centered, scaled, shifted.
        call.reserve(&shape)?;
    }
    let epsilon = epsilon(call);
    if !call.flag("training_mode") || !call.pass.training {
        // A codec that rounds what members exchange can push a small variance below 0.
        let variance = Dispatch::float_clamp_min(variance, 0.0.into());
        let made = Dispatch::batch_norm(x.tensor(), gamma, beta, mean, variance, epsilon);
        return one(Floats::new(made));
    }
    let x = x.any::<1>();
    let statistics = batch_norm::statistics(x.clone());
    let [gamma, beta] = [gamma, beta].map(Tensor::from_dispatch);
    let made = batch_norm::batch_norm(x, statistics.clone(), gamma, beta, epsilon);
    let row = |row: usize| {
        statistics
            .clone()
            .slice([row..row + 1, 0..channels])
            .reshape([channels])
    };
    let rate = 1.0 - call.float("momentum").unwrap_or(0.9);
    // PyTorch keeps the unbiased variance. ONNX's text names the biased one. A single value has none: a member's share may
    // be one sample, so this is no error, and the running variance stays.
    let count = (batch * rest.iter().product::<usize>()) as f64;
    let unbiased = (count > 1.0).then(|| row(1).mul_scalar(count / (count - 1.0)));
    for (input, buffer, statistic) in [(3, mean, Some(row(0))), (4, variance, unbiased)] {
        if let Some(statistic) = statistic.filter(|_| rate > 0.0) {
            let name = call.input_name(input).to_owned();
            call.pass.follow(Statistic {
                name,
                buffer: Tensor::from_dispatch(buffer),
                value: statistic,
                rate,
            });
        }
    }
    one(Floats::new(made.into_dispatch()))
}

/// Layer norm, or RMS norm, over the last axes.
fn row_norm(call: &mut Call, centered: bool) -> Made {
    let (x, gamma) = (call.floats(0)?, call.floats(1)?);
    let beta = call.optional_floats(2)?;
    let shape = x.shape().to_vec();
    let axis = call.axis("axis", -1, shape.len())?;
    let length: usize = shape[axis..].iter().product();
    let fits = |numbers: &Floats| numbers.shape() == &shape[axis..];
    if !fits(&gamma) || !beta.as_ref().is_none_or(fits) {
        return Err(format!(
            "{:?} numbers for rows of {:?}",
            gamma.shape(),
            &shape[axis..]
        ));
    }
    call.reserve(&shape)?;
    let rows = [&shape[..axis], &[length]].concat();
    let (x, gamma) = (x.reshaped(rows), gamma.reshaped(vec![length]));
    let beta = beta.map(|beta| beta.reshaped(vec![length]).any());
    let epsilon = epsilon(call) as f32;
    let made = match centered {
        true => layer_norm::<1>(x.any(), gamma.any(), beta, epsilon),
        false => rms_norm::<1>(x.any(), gamma.any(), epsilon),
    };
    one(Floats::shaped(made.into_dispatch(), shape))
}

/// Groups of channels of `[batch, channels, ..]`, then a scale and a shift for each channel.
fn group_norm(call: &mut Call, groups: usize) -> Made {
    let x = call.floats(0)?;
    let shape = x.shape().to_vec();
    let &[batch, channels, ref rest @ ..] = &shape[..] else {
        return Err(format!("an input of shape {shape:?}, which has no channels"));
    };
    if groups == 0 || !channels.is_multiple_of(groups) {
        return Err(format!("{channels} channels in {groups} groups"));
    }
    let (scale, shift) = (per_channel(call, 1, channels)?, per_channel(call, 2, channels)?);
    for _ in 0..4 {
        // Centered, squared, scaled, shifted.
        call.reserve(&shape)?;
    }
    let each = channels / groups * rest.iter().product::<usize>();
    let normed = centered(x.reshaped(vec![batch * groups, each]).tensor(), epsilon(call));
    let mut across = vec![1; shape.len()];
    across[1] = channels;
    let normed = Floats::shaped(normed, shape).tensor();
    let scaled = Dispatch::float_mul(normed, scale.reshaped(across.clone()).tensor());
    one(Floats::new(Dispatch::float_add(
        scaled,
        shift.reshaped(across).tensor(),
    )))
}

/// Rows with mean 0 and variance 1.
fn centered(rows: DispatchTensor, epsilon: f64) -> DispatchTensor {
    let centered = Dispatch::float_sub(rows.clone(), Dispatch::float_mean_dim(rows, 1));
    let square = Dispatch::float_mul(centered.clone(), centered.clone());
    let variance = Dispatch::float_add_scalar(Dispatch::float_mean_dim(square, 1), epsilon.into());
    Dispatch::float_div(centered, Dispatch::float_sqrt(variance))
}
