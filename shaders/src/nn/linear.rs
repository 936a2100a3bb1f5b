//! Linear layers, alone and in pairs.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Tensor};

use crate::cpu::activation::Activation;
use crate::ops::linear::{MlpWeights, WeightLayout, linear, mlp};

/// How a [`Linear`] layer is made.
#[derive(Clone, Debug)]
pub struct LinearConfig {
    inner: burn::nn::LinearConfig,
}

impl LinearConfig {
    /// A layer from `inputs` to `outputs` numbers, with a bias, initialized as Burn's.
    pub fn new(inputs: usize, outputs: usize) -> Self {
        Self {
            inner: burn::nn::LinearConfig::new(inputs, outputs),
        }
    }

    /// With a bias or without.
    pub fn with_bias(self, bias: bool) -> Self {
        Self {
            inner: self.inner.with_bias(bias),
        }
    }

    /// With other initial numbers.
    pub fn with_initializer(self, initializer: Initializer) -> Self {
        Self {
            inner: self.inner.with_initializer(initializer),
        }
    }

    /// The layer with its initial numbers.
    pub fn init(&self, device: &Device) -> Linear {
        let burn::nn::Linear { weight, bias } = self.inner.init(device);
        Linear { weight, bias }
    }
}

/// `x w + b`.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[inputs, outputs]`.
    pub weight: Param<Tensor<2>>,
    /// `[outputs]`.
    pub bias: Option<Param<Tensor<1>>>,
}

impl Linear {
    /// `[.., inputs]` to `[.., outputs]`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.apply(x, None)
    }

    /// `x w + b + residual`, in one launch.
    pub fn forward_add<const D: usize>(&self, x: Tensor<D>, residual: Tensor<D>) -> Tensor<D> {
        self.apply(x, Some(residual))
    }

    /// `f(x w + b) w' + b'` with the layer `next`, in two launches: the activation costs none, forward
    /// or backward.
    pub fn forward_then<const D: usize>(
        &self,
        x: Tensor<D>,
        activation: Activation,
        next: &Self,
        residual: Option<Tensor<D>>,
    ) -> Tensor<D> {
        let weights = MlpWeights {
            up: self.weight.val(),
            up_bias: self.bias_value(),
            down: next.weight.val(),
            down_bias: next.bias_value(),
            layout: WeightLayout::InputsFirst,
        };
        mlp(x, weights, residual, activation)
    }

    fn apply<const D: usize>(&self, x: Tensor<D>, residual: Option<Tensor<D>>) -> Tensor<D> {
        linear(
            x,
            self.weight.val(),
            self.bias_value(),
            residual,
            WeightLayout::InputsFirst,
        )
    }

    fn bias_value(&self) -> Option<Tensor<1>> {
        self.bias.as_ref().map(Param::val)
    }
}

/// The feed-forward part of a transformer: up, activation, down.
#[derive(Module, Debug)]
pub struct Mlp {
    /// To the hidden numbers.
    pub up: Linear,
    /// From the hidden numbers.
    pub down: Linear,
}

impl Mlp {
    /// `down(f(up(x)))`, plus `residual` if given.
    pub fn forward<const D: usize>(
        &self,
        x: Tensor<D>,
        activation: Activation,
        residual: Option<Tensor<D>>,
    ) -> Tensor<D> {
        self.up.forward_then(x, activation, &self.down, residual)
    }
}
