//! `f(x w + b) + r`: a linear layer with all that can ride along.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::wgpu::{CubeBackend, CubeTensor};
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Shape, Tensor};

use super::gemm::{Epilogue, Operand, gemm, takes_halves};
use super::gradients::give;
use super::host;
use super::optional::{Optional, Parent, optional, wanted};
use crate::cpu;
use crate::cpu::activation::Activation;
use crate::{halves, launch};

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
    /// `[inputs, hidden]`.
    pub up: Tensor<2>,
    /// `[hidden]`.
    pub up_bias: Option<Tensor<1>>,
    /// `[hidden, outputs]`.
    pub down: Tensor<2>,
    /// `[outputs]`.
    pub down_bias: Option<Tensor<1>>,
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
    fn adding(bias: Option<FloatTensor<B>>, residual: Option<FloatTensor<B>>) -> Self {
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
    fn mlp(
        x: FloatTensor<Self>,
        up: FloatTensor<Self>,
        #[extension_type] up_bias: Optional<Self>,
        down: FloatTensor<Self>,
        #[extension_type] down_bias: Optional<Self>,
        #[extension_type] residual: Optional<Self>,
        activation: Activation,
    ) -> FloatTensor<Self>;
}

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

/// The shape of `x` with another last axis.
fn with_last(x: &Shape, last: usize) -> Shape {
    let mut shape = x.clone();
    let axis = shape.num_dims() - 1;
    shape[axis] = last;
    shape
}

impl Products for CubeBackend {
    fn weight(full: CubeTensor) -> Weight<Self> {
        let full = launch::contiguous(full);
        let [rows, columns] = [full.shape()[0], full.shape()[1]];
        let packed = halves::wanted() && takes_halves(&full, [rows, columns]);
        Weight {
            halves: packed.then(|| halves::pack(&full)),
            full,
        }
    }

    fn affine(
        x: &CubeTensor,
        weight: &Weight<Self>,
        layout: WeightLayout,
        rest: Rest<Self>,
    ) -> (CubeTensor, Option<CubeTensor>) {
        let x = launch::contiguous(x.clone());
        let residual = rest.residual.map(launch::contiguous);
        let weight = Operand::of(&weight.full).or_halves(weight.halves.as_ref());
        let weight = match layout {
            WeightLayout::InputsFirst => weight,
            WeightLayout::OutputsFirst => weight.transposed(),
        };
        let epilogue = Epilogue {
            bias: rest.bias.as_ref(),
            activation: rest.activation,
            keep: rest.keep,
            add: residual.as_ref(),
            ..Epilogue::default()
        };
        let (out, sums) = gemm(Operand::of(&x), weight, epilogue);
        let shape = with_last(&x.shape(), out.shape()[1]);
        (
            launch::reshaped(out, shape.clone()),
            sums.map(|sums| launch::reshaped(sums, shape)),
        )
    }

    fn affine_input_gradient(
        gradient: &CubeTensor,
        weight: &Weight<Self>,
        layout: WeightLayout,
        slope: Option<(Activation, &CubeTensor)>,
    ) -> CubeTensor {
        let gradient = launch::contiguous(gradient.clone());
        let weight = Operand::of(&weight.full).or_halves(weight.halves.as_ref());
        let weight = match layout {
            WeightLayout::InputsFirst => weight.transposed(),
            WeightLayout::OutputsFirst => weight,
        };
        let epilogue = Epilogue {
            slope,
            ..Epilogue::default()
        };
        let (out, _) = gemm(Operand::of(&gradient), weight, epilogue);
        let shape = with_last(&gradient.shape(), out.shape()[1]);
        launch::reshaped(out, shape)
    }

    fn affine_weight_gradient(
        x: &CubeTensor,
        gradient: &CubeTensor,
        layout: WeightLayout,
        bias: bool,
    ) -> (CubeTensor, Option<CubeTensor>) {
        let (x, gradient) = (
            launch::contiguous(x.clone()),
            launch::contiguous(gradient.clone()),
        );
        let epilogue = Epilogue {
            sums: bias,
            ..Epilogue::default()
        };
        let (x, gradient) = (Operand::of(&x), Operand::of(&gradient));
        match layout {
            WeightLayout::InputsFirst => gemm(x.transposed(), gradient, epilogue),
            WeightLayout::OutputsFirst => {
                assert!(!bias, "no layer has a bias beside weights that lie outputs first");
                gemm(gradient.transposed(), x, epilogue)
            }
        }
    }
}

impl Products for Flex {
    fn affine(
        x: &FlexTensor,
        weight: &Weight<Self>,
        layout: WeightLayout,
        rest: Rest<Self>,
    ) -> (FlexTensor, Option<FlexTensor>) {
        let shape = with_last(
            &x.shape(),
            match layout {
                WeightLayout::InputsFirst => weight.full.shape()[1],
                WeightLayout::OutputsFirst => weight.full.shape()[0],
            },
        );
        let weight = match layout {
            WeightLayout::InputsFirst => weight.full.clone(),
            WeightLayout::OutputsFirst => weight.full.transpose(0, 1),
        };
        let mut out = host::contiguous(Self::float_matmul(as_matrix(x), weight));
        if let Some(bias) = rest.bias {
            cpu::gemm::add_bias(out.storage_mut(), host::floats(&host::contiguous(bias)));
        }
        let sums = rest.keep.then(|| host::reshaped(out.clone(), shape.clone()));
        rest.activation.apply_all(out.storage_mut::<f32>());
        if let Some(residual) = rest.residual {
            let residual = host::contiguous(residual);
            for (x, r) in out.storage_mut::<f32>().iter_mut().zip(host::floats(&residual)) {
                *x += *r;
            }
        }
        (host::reshaped(out, shape), sums)
    }

    fn affine_input_gradient(
        gradient: &FlexTensor,
        weight: &Weight<Self>,
        layout: WeightLayout,
        slope: Option<(Activation, &FlexTensor)>,
    ) -> FlexTensor {
        let weight = match layout {
            WeightLayout::InputsFirst => weight.full.transpose(0, 1),
            WeightLayout::OutputsFirst => weight.full.clone(),
        };
        let shape = with_last(&gradient.shape(), weight.shape()[1]);
        let mut out = host::contiguous(Self::float_matmul(as_matrix(gradient), weight));
        if let Some((activation, input)) = slope {
            cpu::gemm::times_slope(
                out.storage_mut(),
                host::floats(&host::contiguous(input.clone())),
                activation,
            );
        }
        host::reshaped(out, shape)
    }

    fn affine_weight_gradient(
        x: &FlexTensor,
        gradient: &FlexTensor,
        layout: WeightLayout,
        bias: bool,
    ) -> (FlexTensor, Option<FlexTensor>) {
        let (x, gradient) = (as_matrix(x), as_matrix(gradient));
        let columns = gradient.shape()[1];
        let sums = bias.then(|| {
            host::tensor(
                cpu::gemm::column_sums(host::floats(&gradient), columns),
                [columns],
            )
        });
        let product = match layout {
            WeightLayout::InputsFirst => Self::float_matmul(x.transpose(0, 1), gradient),
            WeightLayout::OutputsFirst => Self::float_matmul(gradient.transpose(0, 1), x),
        };
        (product, sums)
    }
}

/// All axes but the last as rows.
fn as_matrix(x: &FlexTensor) -> FlexTensor {
    let shape = x.shape();
    let columns = shape[shape.num_dims() - 1];
    host::reshaped(x.clone(), [shape.num_elements() / columns, columns])
}
