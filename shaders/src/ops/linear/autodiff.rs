//! The differentiable operations, on top of any backend's products.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::wgpu::CubeBackend;
use burn::backend::{Autodiff, Backend, Flex};

use super::{LinearOps, Products, Rest, Weight, WeightLayout};
use crate::cpu::activation::Activation;
use crate::ops::gradients::differentiable;
use crate::ops::optional::{Optional, Parent};

macro_rules! plain {
    ($backend:ty) => {
        impl LinearOps for $backend {
            fn linear_layer(
                x: FloatTensor<Self>,
                weight: FloatTensor<Self>,
                bias: Optional<Self>,
                residual: Optional<Self>,
                layout: WeightLayout,
            ) -> FloatTensor<Self> {
                let rest = Rest::adding(bias.into_option(), residual.into_option());
                Self::affine(&x, &Self::weight(weight), layout, rest).0
            }

            fn mlp(
                x: FloatTensor<Self>,
                up: FloatTensor<Self>,
                up_bias: Optional<Self>,
                down: FloatTensor<Self>,
                down_bias: Optional<Self>,
                residual: Optional<Self>,
                activation: Activation,
                layout: WeightLayout,
            ) -> FloatTensor<Self> {
                {
                    let (up_bias, down_bias) = (up_bias.into_option(), down_bias.into_option());
                    mlp_forward::<Self>(
                        x,
                        &Self::weight(up),
                        up_bias,
                        &Self::weight(down),
                        down_bias,
                        residual.into_option(),
                        (activation, layout),
                        false,
                    )
                }
                .0
            }
        }
    };
}

plain!(CubeBackend);
plain!(Flex);

/// The output, what the activation was applied to (if `keep`), and its result.
#[allow(clippy::too_many_arguments)]
fn mlp_forward<B: Products>(
    x: FloatTensor<B>,
    up: &Weight<B>,
    up_bias: Option<FloatTensor<B>>,
    down: &Weight<B>,
    down_bias: Option<FloatTensor<B>>,
    residual: Option<FloatTensor<B>>,
    (activation, layout): (Activation, WeightLayout),
    keep: bool,
) -> (FloatTensor<B>, Option<FloatTensor<B>>, FloatTensor<B>) {
    let first = Rest {
        bias: up_bias,
        activation,
        keep,
        residual: None,
    };
    let (hidden, sums) = B::affine(&x, up, layout, first);
    let second = Rest::adding(down_bias, residual);
    let (out, _) = B::affine(&hidden, down, layout, second);
    (out, sums, hidden)
}

impl<B: LinearOps + Products, C: CheckpointStrategy> LinearOps for Autodiff<B, C> {
    fn linear_layer(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Optional<Self>,
        residual: Optional<Self>,
        layout: WeightLayout,
    ) -> FloatTensor<Self> {
        let (bias, residual) = (Parent::new(bias, &x), Parent::new(residual, &x));
        let given = [bias.inner.is_some(), residual.inner.is_some()];
        let nodes = [x.node(), weight.node(), bias.node, residual.node];
        let forward = |_| {
            let (x, weight) = (x.into_primitive(), B::weight(weight.into_primitive()));
            let rest = Rest::adding(bias.inner, residual.inner);
            let (out, _) = B::affine(&x, &weight, layout, rest);
            (out, (x, weight, layout, given))
        };
        differentiable::<B, C, _, 4>(nodes, forward, |(x, weight, layout, given), gradient, wanted| {
            let [bias, residual] = given;
            let [on_x, on_weight, on_bias, on_residual] = wanted;
            let to_x = on_x.then(|| B::affine_input_gradient(&gradient, &weight, layout, None));
            let (to_weight, to_bias) =
                weight_gradients::<B>(&x, &gradient, layout, [on_weight, bias && on_bias]);
            [
                to_x,
                to_weight,
                to_bias,
                (residual && on_residual).then_some(gradient),
            ]
        })
    }

    fn mlp(
        x: FloatTensor<Self>,
        up: FloatTensor<Self>,
        up_bias: Optional<Self>,
        down: FloatTensor<Self>,
        down_bias: Optional<Self>,
        residual: Optional<Self>,
        activation: Activation,
        layout: WeightLayout,
    ) -> FloatTensor<Self> {
        #[derive(Clone, Debug)]
        struct Saved<B: Backend> {
            x: FloatTensor<B>,
            up: Weight<B>,
            down: Weight<B>,
            sums: Option<FloatTensor<B>>,
            hidden: FloatTensor<B>,
            activation: Activation,
            layout: WeightLayout,
            /// Bias up, bias down, residual.
            given: [bool; 3],
        }

        let up_bias = Parent::new(up_bias, &x);
        let (down_bias, residual) = (Parent::new(down_bias, &x), Parent::new(residual, &x));
        let nodes = [
            x.node(),
            up.node(),
            up_bias.node,
            down.node(),
            down_bias.node,
            residual.node,
        ];
        let forward = |keep| {
            let x = x.into_primitive();
            let (up, down) = (B::weight(up.into_primitive()), B::weight(down.into_primitive()));
            let rest = [up_bias.inner, down_bias.inner, residual.inner];
            let given = rest.each_ref().map(Option::is_some);
            let [up_bias, down_bias, residual] = rest;
            let (out, sums, hidden) = mlp_forward::<B>(
                x.clone(),
                &up,
                up_bias,
                &down,
                down_bias,
                residual,
                (activation, layout),
                keep,
            );
            let saved = Saved {
                x,
                up,
                down,
                sums,
                hidden,
                activation,
                layout,
                given,
            };
            (out, saved)
        };
        differentiable::<B, C, Saved<B>, 6>(nodes, forward, |saved, gradient, wanted| {
            let layout = saved.layout;
            let [up_bias, down_bias, residual] = saved.given;
            let [on_x, on_up, on_up_bias, on_down, on_down_bias, on_residual] = wanted;
            let wanted = [on_down, down_bias && on_down_bias];
            let (to_down, to_down_bias) = weight_gradients::<B>(&saved.hidden, &gradient, layout, wanted);
            let sums = saved.sums.expect("kept for this");
            let inner =
                B::affine_input_gradient(&gradient, &saved.down, layout, Some((saved.activation, &sums)));
            let wanted = [on_up, up_bias && on_up_bias];
            let (to_up, to_up_bias) = weight_gradients::<B>(&saved.x, &inner, layout, wanted);
            let to_x = on_x.then(|| B::affine_input_gradient(&inner, &saved.up, layout, None));
            let to_residual = (residual && on_residual).then_some(gradient);
            [to_x, to_up, to_up_bias, to_down, to_down_bias, to_residual]
        })
    }
}

/// The gradients for a layer's weights and bias, of those that are wanted.
fn weight_gradients<B: Products>(
    x: &FloatTensor<B>,
    gradient: &FloatTensor<B>,
    layout: WeightLayout,
    [on_weight, on_bias]: [bool; 2],
) -> (Option<FloatTensor<B>>, Option<FloatTensor<B>>) {
    if !on_weight && !on_bias {
        return (None, None);
    }
    let (to_weight, to_bias) = B::affine_weight_gradient(x, gradient, layout, on_bias);
    (Some(to_weight), to_bias)
}
