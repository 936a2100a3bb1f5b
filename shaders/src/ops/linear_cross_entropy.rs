//! The scores of a linear layer and their cross-entropy in one, where the scores are too many to exist at once.
//!
//! A language model scores each token of its vocabulary at each position: for 12 windows of GPT-2 that is 618 million
//! numbers, 2.5 GB. So rows are taken some at a time. Their scores are computed, in training their gradients at once, and
//! then forgotten, as Liger Kernel does (Hsu et al., 2024). Nothing is computed twice. Chunks are added up in order, so
//! bits repeat.
//!
//! Weights may come in several pieces, each with scores of its own, where one buffer does not hold them all.
//!
//! With `most` scores at once, for `n` rows of `d` inputs, no buffer holds more than the largest of `most` numbers, `n d`,
//! a piece of the weights, and one row's scores. So what bounds the model's own tensors bounds these too. A piece's
//! gradient is read and written once for each chunk.

use std::array::from_fn;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::ops::NodeGuard;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::wgpu::CubeBackend;
use burn::backend::{
    Autodiff, Backend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind,
    ExtensionType, Flex, TensorMetadata, backend_extension,
};
use burn::tensor::{FloatDType, Int, Shape, Tensor};

use super::cross_entropy::{Losses, cross_entropy};
use super::gradients::differentiable;
use super::linear::{Products, Rest, Weight, WeightLayout, linear};

/// Scores to hold at once: 64 MiB, half of what WebGPU promises to bind. A guess; products of some hundred rows are as fast
/// as larger ones.
pub const MOST_SCORES: usize = 1 << 24;

/// Pieces of weights, at most.
pub const MOST_PIECES: usize = 8;

/// The inputs, and the pieces of weights.
const PARENTS: usize = 1 + MOST_PIECES;

/// Settings of [`linear_cross_entropy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossOptions {
    /// How each piece of the weights lies.
    pub layout: WeightLayout,
    /// Rows with this target do not count.
    pub ignore: Option<i32>,
    /// Scores to hold at once; but always those of a row.
    pub most: usize,
}

impl Default for LossOptions {
    fn default() -> Self {
        Self {
            layout: WeightLayout::InputsFirst,
            ignore: None,
            most: MOST_SCORES,
        }
    }
}

/// [`cross_entropy`] of the scores `x w`: x `[rows, inputs]`, targets `[rows]`. Each of the weights has scores for some
/// classes, in order; it is `[inputs, classes]`, or turned as the layout says.
///
/// # Panics
///
/// If there are no weights or more than [`MOST_PIECES`], and as [`cross_entropy`] does.
pub fn linear_cross_entropy(
    x: Tensor<2>,
    weights: &[Tensor<2>],
    targets: Tensor<1, Int>,
    options: LossOptions,
) -> Tensor<1> {
    let pieces = 1..=MOST_PIECES;
    assert!(
        pieces.contains(&weights.len()),
        "{} pieces of weights",
        weights.len()
    );
    let classes: usize = weights
        .iter()
        .map(|weight| weight.dims()[classes_axis(options.layout)])
        .sum();
    if let [weight] = weights
        && x.dims()[0] * classes <= options.most
    {
        let scores = linear(x, weight.clone(), None, None, options.layout);
        return cross_entropy(scores, targets, options.ignore);
    }
    let weights = weights.iter().map(|weight| weight.clone().into_dispatch());
    let (x, weights) = (x.into_dispatch(), Pieces(weights.collect()));
    Tensor::from_dispatch(Dispatch::loss_in_chunks(
        x,
        weights,
        targets.into_dispatch(),
        options,
    ))
}

fn classes_axis(layout: WeightLayout) -> usize {
    match layout {
        WeightLayout::InputsFirst => 1,
        WeightLayout::OutputsFirst => 0,
    }
}

/// How many of these rows to take at once.
fn rows_at_once(rows: usize, classes: usize, most: usize) -> usize {
    // Slices that begin at multiples of 256 bytes are views.
    const VIEW: usize = 64;
    let most = (most / classes.max(1)).max(1);
    let most = if most < VIEW { most } else { most - most % VIEW };
    let even = rows.div_ceil(rows.div_ceil(most).max(1)).max(1);
    let aligned = even.next_multiple_of(VIEW);
    if aligned <= most { aligned } else { even }
}

/// Several tensors as one argument of an operation.
pub struct Pieces<B: Backend>(Vec<FloatTensor<B>>);

impl<B: Backend> ExtensionType<B> for Pieces<B> {
    type Target = Pieces<Dispatch>;

    fn map_to_dispatch<F>(self, map_kind: F, autodiff: DispatchAutodiffContext) -> Self::Target
    where
        F: Fn(BackendTensor<B>) -> DispatchTensorKind,
    {
        let pieces = self.0.into_iter().map(|piece| DispatchTensor {
            kind: map_kind(BackendTensor::Float(piece)),
            autodiff,
        });
        Pieces(pieces.collect())
    }

    fn map_from_dispatch<F>(target: Self::Target, unwrap_kind: F) -> Self
    where
        F: Fn(DispatchTensor) -> BackendTensor<B>,
    {
        let pieces = target.0.into_iter();
        Self(pieces.map(|piece| unwrap_kind(piece).float()).collect())
    }

    fn routing_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first()
    }

    fn routing_float_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first()
    }

    fn autodiff_context(target: &Self::Target) -> DispatchAutodiffContext {
        let contexts = target.0.iter().map(|piece| piece.autodiff);
        contexts.fold(DispatchAutodiffContext::Disabled, DispatchAutodiffContext::merge)
    }
}

/// The differentiable operation.
#[backend_extension(Cube, Flex, Autodiff)]
pub trait LinearCrossEntropyOps: Backend {
    /// See [`linear_cross_entropy`].
    fn loss_in_chunks(
        x: FloatTensor<Self>,
        #[extension_type] weights: Pieces<Self>,
        targets: IntTensor<Self>,
        options: LossOptions,
    ) -> FloatTensor<Self>;
}

macro_rules! plain {
    ($backend:ty) => {
        impl LinearCrossEntropyOps for $backend {
            fn loss_in_chunks(
                x: FloatTensor<Self>,
                weights: Pieces<Self>,
                targets: IntTensor<Self>,
                options: LossOptions,
            ) -> FloatTensor<Self> {
                mean_loss::<Self>(&x, weights, &targets, options, false).0
            }
        }
    };
}

plain!(CubeBackend);
plain!(Flex);

impl<B: LinearCrossEntropyOps + Losses + Products, C: CheckpointStrategy> LinearCrossEntropyOps
    for Autodiff<B, C>
{
    fn loss_in_chunks(
        x: FloatTensor<Self>,
        weights: Pieces<Self>,
        targets: IntTensor<Self>,
        options: LossOptions,
    ) -> FloatTensor<Self> {
        // Where there is no piece, another parent stands in, and gets no gradient.
        let node = |parent: usize| parent.checked_sub(1).and_then(|piece| weights.0.get(piece));
        let nodes: [NodeGuard; PARENTS] = from_fn(|parent| node(parent).unwrap_or(&x).node());
        let weights = weights.0.into_iter().map(|weight| weight.into_primitive());
        let weights = Pieces(weights.collect());
        differentiable::<B, C, _, PARENTS>(
            nodes,
            |tracked| mean_loss::<B>(&x.into_primitive(), weights, &targets, options, tracked),
            |Slopes { of_sum, count }, upstream, wanted| {
                let scale = B::float_div(B::float_reshape(upstream, Shape::new([1, 1])), count);
                let mut of_sum = of_sum.into_iter();
                wanted.map(|wanted| {
                    let slope = of_sum.next().filter(|_| wanted)?;
                    Some(B::float_mul(slope, scale.clone()))
                })
            },
        )
    }
}

/// What the backward pass needs.
#[derive(Clone, Debug)]
struct Slopes<B: Backend> {
    /// Gradients of the sum of the losses for the inputs and for each piece of the weights; none if nothing is tracked.
    of_sum: Vec<FloatTensor<B>>,
    /// How many losses there are, but at least 1: `[1, 1]`.
    count: FloatTensor<B>,
}

/// The mean loss, and its gradients if they will be wanted.
fn mean_loss<B: Losses + Products>(
    x: &FloatTensor<B>,
    weights: Pieces<B>,
    targets: &IntTensor<B>,
    options: LossOptions,
    tracked: bool,
) -> (FloatTensor<B>, Slopes<B>) {
    let [rows, inputs] = [x.shape()[0], x.shape()[1]];
    let axis = classes_axis(options.layout);
    let classes: Vec<usize> = weights.0.iter().map(|weight| weight.shape()[axis]).collect();
    let weights: Vec<Weight<B>> = weights.0.into_iter().map(B::weight).collect();
    let at_once = rows_at_once(rows, classes.iter().sum(), options.most);
    let one = |shape: &[usize]| B::float_ones(Shape::from(shape.to_vec()), &x.device(), FloatDType::F32);
    let (one, ones) = (one(&[1]), one(&[1, 2]));

    let mut sums: Option<FloatTensor<B>> = None;
    let mut to_x = Vec::new();
    let mut to_weights: Vec<Option<FloatTensor<B>>> = vec![None; weights.len()];
    for start in (0..rows).step_by(at_once) {
        let chunk = start..rows.min(start + at_once);
        let x = B::float_slice(x.clone(), &[chunk.clone().into(), (0..inputs).into()]);
        let targets = B::int_slice(targets.clone(), &[chunk.clone().into()]);
        let scores = weights
            .iter()
            .map(|weight| B::affine(&x, weight, options.layout, Rest::adding(None, None)).0);
        let (_, mut saved) = B::mean_loss(joined::<B>(scores.collect(), 1), targets, options.ignore);
        add::<B>(&mut sums, saved.sums);
        if !tracked {
            continue;
        }
        // The gradient of their sum, not of their mean.
        saved.sums = ones.clone();
        let gradient = B::logits_gradient(&saved, &one);
        let mut to_chunk = None;
        let mut first = 0;
        for ((weight, count), to_weight) in weights.iter().zip(&classes).zip(&mut to_weights) {
            let gradient = B::columns(&gradient, first..first + count);
            first += count;
            add::<B>(
                &mut to_chunk,
                B::affine_input_gradient(&gradient, weight, options.layout, None),
            );
            add::<B>(
                to_weight,
                B::affine_weight_gradient(&x, &gradient, options.layout, false).0,
            );
        }
        to_x.extend(to_chunk);
    }

    let sums = sums.expect("the loss of no rows");
    let number = |at: usize| B::float_slice(sums.clone(), &[(0..1).into(), (at..at + 1).into()]);
    let count = B::float_clamp_min(number(1), 1.0.into());
    let mean = B::float_reshape(B::float_div(number(0), count.clone()), Shape::new([1]));
    let to_x = tracked.then(|| joined::<B>(to_x, 0));
    let of_sum = to_x.into_iter().chain(to_weights.into_iter().flatten());
    let of_sum = of_sum.collect();
    (mean, Slopes { of_sum, count })
}

/// Tensors side by side; no copy where there is one.
fn joined<B: Backend>(mut tensors: Vec<FloatTensor<B>>, axis: usize) -> FloatTensor<B> {
    match tensors.len() {
        1 => tensors.remove(0),
        _ => B::float_cat(tensors, axis),
    }
}

fn add<B: Backend>(sum: &mut Option<FloatTensor<B>>, more: FloatTensor<B>) {
    *sum = Some(match sum.take() {
        Some(sum) => B::float_add(sum, more),
        None => more,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_even_aligned_and_not_too_large() {
        for (rows, classes, most, expected) in [
            (12_288, 50_304, MOST_SCORES, 320),
            (1024, 50_304, MOST_SCORES, 256),
            (6144, 256, MOST_SCORES, 6144),
            (100, 50_304, MOST_SCORES, 128),
            (10, 7, 30, 4),
            (10, 70, 30, 1),
            (1, 1 << 25, MOST_SCORES, 1),
        ] {
            assert_eq!(
                rows_at_once(rows, classes, most),
                expected,
                "{rows} {classes} {most}"
            );
        }
    }
}
