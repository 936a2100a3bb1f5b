//! `f(x w + b) + r`: a linear layer with all that can ride along.

mod autodiff;
mod cpu;
mod gpu;

use std::ops::Range;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{Shape, Tensor};

use super::optional::{Optional, optional};
use crate::cpu::activation::Activation;

/// How the weights of a linear map lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightLayout {
    /// `[inputs, outputs]`, as Burn's `Linear` has it.
    #[default]
    InputsFirst,
    /// `[outputs, inputs]`: an embedding table as the output layer that shares its weights.
    OutputsFirst,
}

/// `x w + b + r`: x `[.., inputs]` to `[.., outputs]`; the bias `[outputs]` and the residual
/// `[.., outputs]` are there if given.
pub fn linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    residual: Option<Tensor<D>>,
    layout: WeightLayout,
) -> Tensor<D> {
    let (bias, residual) = (optional(bias), optional(residual));
    Tensor::from_dispatch(Dispatch::linear_layer(
        x.into_dispatch(),
        weight.into_dispatch(),
        bias,
        residual,
        layout,
    ))
}

/// Two linear maps with an activation between them: `f(x w1 + b1) w2 + b2 + r`, the feed-forward
/// part of a transformer. Shapes as for [`linear`].
#[derive(Debug)]
pub struct MlpWeights {
    /// `[inputs, hidden]`, or turned as the layout says.
    pub up: Tensor<2>,
    /// `[hidden]`.
    pub up_bias: Option<Tensor<1>>,
    /// `[hidden, outputs]`, or turned as the layout says.
    pub down: Tensor<2>,
    /// `[outputs]`.
    pub down_bias: Option<Tensor<1>>,
    /// How both weights lie.
    pub layout: WeightLayout,
}

/// See [`MlpWeights`].
pub fn mlp<const D: usize>(
    x: Tensor<D>,
    weights: MlpWeights,
    residual: Option<Tensor<D>>,
    activation: Activation,
) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::mlp(
        x.into_dispatch(),
        weights.up.into_dispatch(),
        optional(weights.up_bias),
        weights.down.into_dispatch(),
        optional(weights.down_bias),
        optional(residual),
        activation,
        weights.layout,
    ))
}

/// The weights of a product.
#[derive(Clone, Debug)]
pub struct Weight<B: Backend> {
    /// The numbers.
    pub full: FloatTensor<B>,
    /// The same as halves, for kernels that take them so.
    pub halves: Option<FloatTensor<B>>,
}

/// Matrix products with their epilogues, not differentiable.
pub trait Products: Backend {
    /// Weights as products want them, once for both passes.
    fn weight(full: FloatTensor<Self>) -> Weight<Self> {
        Weight { full, halves: None }
    }

    /// `f(x w + b) + r`, and `x w + b` if `keep`.
    fn affine(
        x: &FloatTensor<Self>,
        weight: &Weight<Self>,
        layout: WeightLayout,
        rest: Rest<Self>,
    ) -> (FloatTensor<Self>, Option<FloatTensor<Self>>);

    /// `(gradient wᵀ) f'(z)`, where `z` is what f was applied to.
    fn affine_input_gradient(
        gradient: &FloatTensor<Self>,
        weight: &Weight<Self>,
        layout: WeightLayout,
        slope: Option<(Activation, &FloatTensor<Self>)>,
    ) -> FloatTensor<Self>;

    /// `xᵀ gradient` in the weights' layout, and the column sums of the gradient if `bias`.
    fn affine_weight_gradient(
        x: &FloatTensor<Self>,
        gradient: &FloatTensor<Self>,
        layout: WeightLayout,
        bias: bool,
    ) -> (FloatTensor<Self>, Option<FloatTensor<Self>>);

    /// Some columns of a contiguous matrix, contiguous themselves; all of them without a copy.
    fn columns(matrix: &FloatTensor<Self>, columns: Range<usize>) -> FloatTensor<Self>;
}

/// What rides along with a product.
pub struct Rest<B: Backend> {
    /// Added to each row.
    pub bias: Option<FloatTensor<B>>,
    /// Applied to the sums.
    pub activation: Activation,
    /// Whether what the activation is applied to is wanted too.
    pub keep: bool,
    /// Added at the end.
    pub residual: Option<FloatTensor<B>>,
}

impl<B: Backend> Rest<B> {
    /// No activation.
    pub fn adding(bias: Option<FloatTensor<B>>, residual: Option<FloatTensor<B>>) -> Self {
        Self {
            bias,
            activation: Activation::Identity,
            keep: false,
            residual,
        }
    }
}

/// The differentiable operations.
#[backend_extension(Cube, Flex, Autodiff)]
pub trait LinearOps: Backend {
    /// See [`linear`](linear()).
    fn linear_layer(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Optional<Self>,
        #[extension_type] residual: Optional<Self>,
        layout: WeightLayout,
    ) -> FloatTensor<Self>;

    /// See [`mlp`](mlp()).
    #[allow(
        clippy::too_many_arguments,
        reason = "what dispatches them takes tensors one by one"
    )]
    fn mlp(
        x: FloatTensor<Self>,
        up: FloatTensor<Self>,
        #[extension_type] up_bias: Optional<Self>,
        down: FloatTensor<Self>,
        #[extension_type] down_bias: Optional<Self>,
        #[extension_type] residual: Optional<Self>,
        activation: Activation,
        layout: WeightLayout,
    ) -> FloatTensor<Self>;
}

/// The shape of `x` with another last axis.
fn with_last(x: &Shape, last: usize) -> Shape {
    let mut shape = x.clone();
    let axis = shape.num_dims() - 1;
    shape[axis] = last;
    shape
}
