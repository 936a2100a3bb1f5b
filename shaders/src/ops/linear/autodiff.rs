//! The differentiable operations, on top of any backend's products.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::wgpu::CubeBackend;
use burn::backend::{Autodiff, Backend, Flex};

use super::{LinearOps, Products, Rest, Weight, WeightLayout};
use crate::cpu::activation::Activation;
use crate::ops::gradients::give;
use crate::ops::optional::{Optional, Parent, wanted};

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
                        activation,
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
    activation: Activation,
    keep: bool,
) -> (FloatTensor<B>, Option<FloatTensor<B>>, FloatTensor<B>) {
    let first = Rest {
        bias: up_bias,
        activation,
        keep,
        residual: None,
    };
    let (hidden, sums) = B::affine(&x, up, WeightLayout::InputsFirst, first);
    let second = Rest::adding(down_bias, residual);
    let (out, _) = B::affine(&hidden, down, WeightLayout::InputsFirst, second);
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
        #[derive(Debug)]
        struct LinearBackward {
            layout: WeightLayout,
            bias: bool,
            residual: bool,
        }

        impl<B: Products> Backward<B, 4> for LinearBackward {
            type State = (FloatTensor<B>, Weight<B>);

            fn backward(self, ops: Ops<Self::State, 4>, gradients: &mut Gradients, _: &mut Checkpointer) {
                let [on_x, on_weight, on_bias, on_residual] =
                    ops.parents.map(|parent| parent.map(|node| node.id));
                let (on_bias, on_residual) = (wanted(on_bias, self.bias), wanted(on_residual, self.residual));
                let (x, weight) = ops.state;
                let gradient = gradients.consume::<B>(&ops.node);
                give::<B>(gradients, on_x, || {
                    B::affine_input_gradient(&gradient, &weight, self.layout, None)
                });
                if on_weight.is_some() || on_bias.is_some() {
                    let (to_weight, to_bias) =
                        B::affine_weight_gradient(&x, &gradient, self.layout, on_bias.is_some());
                    give::<B>(gradients, on_weight, || to_weight);
                    if let Some(to_bias) = to_bias {
                        give::<B>(gradients, on_bias, || to_bias);
                    }
                }
                give::<B>(gradients, on_residual, || gradient);
            }
        }

        let (bias, residual) = (Parent::new(bias, &x), Parent::new(residual, &x));
        let step = LinearBackward {
            layout,
            bias: bias.is_given(),
            residual: residual.is_given(),
        };
        let nodes = [x.node(), weight.node(), bias.node, residual.node];
        let (x, weight) = (x.into_primitive(), B::weight(weight.into_primitive()));
        let rest = Rest::adding(bias.inner, residual.inner);
        let (out, _) = B::affine(&x, &weight, layout, rest);
        match step.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish((x, weight), out),
            OpsKind::UnTracked(prepared) => prepared.finish(out),
        }
    }

    fn mlp(
        x: FloatTensor<Self>,
        up: FloatTensor<Self>,
        up_bias: Optional<Self>,
        down: FloatTensor<Self>,
        down_bias: Optional<Self>,
        residual: Optional<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct MlpBackward {
            activation: Activation,
            up_bias: bool,
            down_bias: bool,
            residual: bool,
        }

        #[derive(Clone, Debug)]
        struct Saved<B: Backend> {
            x: FloatTensor<B>,
            up: Weight<B>,
            down: Weight<B>,
            sums: FloatTensor<B>,
            hidden: FloatTensor<B>,
        }

        impl<B: Products> Backward<B, 6> for MlpBackward {
            type State = Saved<B>;

            fn backward(self, ops: Ops<Self::State, 6>, gradients: &mut Gradients, _: &mut Checkpointer) {
                let layout = WeightLayout::InputsFirst;
                let [on_x, on_up, on_up_bias, on_down, on_down_bias, on_residual] =
                    ops.parents.map(|parent| parent.map(|node| node.id));
                let on_up_bias = wanted(on_up_bias, self.up_bias);
                let on_down_bias = wanted(on_down_bias, self.down_bias);
                let on_residual = wanted(on_residual, self.residual);
                let saved = ops.state;
                let gradient = gradients.consume::<B>(&ops.node);
                if on_down.is_some() || on_down_bias.is_some() {
                    let (to_down, to_bias) =
                        B::affine_weight_gradient(&saved.hidden, &gradient, layout, on_down_bias.is_some());
                    give::<B>(gradients, on_down, || to_down);
                    if let Some(to_bias) = to_bias {
                        give::<B>(gradients, on_down_bias, || to_bias);
                    }
                }
                let slope = Some((self.activation, &saved.sums));
                let inner = B::affine_input_gradient(&gradient, &saved.down, layout, slope);
                if on_up.is_some() || on_up_bias.is_some() {
                    let (to_up, to_bias) =
                        B::affine_weight_gradient(&saved.x, &inner, layout, on_up_bias.is_some());
                    give::<B>(gradients, on_up, || to_up);
                    if let Some(to_bias) = to_bias {
                        give::<B>(gradients, on_up_bias, || to_bias);
                    }
                }
                give::<B>(gradients, on_x, || {
                    B::affine_input_gradient(&inner, &saved.up, layout, None)
                });
                give::<B>(gradients, on_residual, || gradient);
            }
        }

        let up_bias = Parent::new(up_bias, &x);
        let (down_bias, residual) = (Parent::new(down_bias, &x), Parent::new(residual, &x));
        let step = MlpBackward {
            activation,
            up_bias: up_bias.is_given(),
            down_bias: down_bias.is_given(),
            residual: residual.is_given(),
        };
        let nodes = [
            x.node(),
            up.node(),
            up_bias.node,
            down.node(),
            down_bias.node,
            residual.node,
        ];
        let x = x.into_primitive();
        let (up, down) = (B::weight(up.into_primitive()), B::weight(down.into_primitive()));
        let (up_bias, down_bias, residual) = (up_bias.inner, down_bias.inner, residual.inner);
        let forward = |keep| {
            mlp_forward::<B>(
                x.clone(),
                &up,
                up_bias,
                &down,
                down_bias,
                residual,
                activation,
                keep,
            )
        };
        match step.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let (out, sums, hidden) = forward(true);
                let sums = sums.expect("asked for");
                let saved = Saved {
                    x: x.clone(),
                    up: up.clone(),
                    down: down.clone(),
                    sums,
                    hidden,
                };
                prepared.finish(saved, out)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(forward(false).0),
        }
    }
}
