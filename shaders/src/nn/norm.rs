//! Normalization of each row of the last axis.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use crate::ops::norm::{layer_norm, rms_norm};

/// How a [`LayerNorm`] is made.
#[derive(Clone, Debug)]
pub struct LayerNormConfig {
    inner: burn::nn::LayerNormConfig,
}

impl LayerNormConfig {
    /// For rows of `width` numbers, with a shift.
    pub fn new(width: usize) -> Self {
        Self {
            inner: burn::nn::LayerNormConfig::new(width),
        }
    }

    /// With a shift or without.
    pub fn with_bias(self, bias: bool) -> Self {
        Self {
            inner: self.inner.with_bias(bias),
        }
    }

    /// With another number added to the variance; 1e-5 if nothing is said.
    pub fn with_epsilon(self, epsilon: f64) -> Self {
        Self {
            inner: self.inner.with_epsilon(epsilon),
        }
    }

    /// The layer: it scales by 1 and shifts by 0 at first.
    pub fn init(&self, device: &Device) -> LayerNorm {
        let layer = self.inner.init(device);
        LayerNorm {
            gamma: layer.gamma,
            beta: layer.beta,
            epsilon: self.inner.epsilon,
        }
    }
}

/// Layer normalization (Ba, Kiros and Hinton, 2016).
#[derive(Module, Debug)]
pub struct LayerNorm {
    /// Scales, `[width]`.
    pub gamma: Param<Tensor<1>>,
    /// Shifts, `[width]`.
    pub beta: Option<Param<Tensor<1>>>,
    epsilon: f64,
}

impl LayerNorm {
    /// `[.., width]` to the same.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let beta = self.beta.as_ref().map(Param::val);
        layer_norm(x, self.gamma.val(), beta, self.epsilon as f32)
    }
}

/// How an [`RmsNorm`] is made.
#[derive(Clone, Debug)]
pub struct RmsNormConfig {
    inner: burn::nn::RmsNormConfig,
}

impl RmsNormConfig {
    /// For rows of `width` numbers.
    pub fn new(width: usize) -> Self {
        Self {
            inner: burn::nn::RmsNormConfig::new(width),
        }
    }

    /// With another number added to the mean square; 1e-5 if nothing is said.
    pub fn with_epsilon(self, epsilon: f64) -> Self {
        Self {
            inner: self.inner.with_epsilon(epsilon),
        }
    }

    /// The layer: it scales by 1 at first.
    pub fn init(&self, device: &Device) -> RmsNorm {
        let burn::nn::RmsNorm { gamma, epsilon } = self.inner.init(device);
        RmsNorm { gamma, epsilon }
    }
}

/// Normalization by the root of the mean square (Zhang and Sennrich, 2019).
#[derive(Module, Debug)]
pub struct RmsNorm {
    /// Scales, `[width]`.
    pub gamma: Param<Tensor<1>>,
    epsilon: f64,
}

impl RmsNorm {
    /// `[.., width]` to the same.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        rms_norm(x, self.gamma.val(), self.epsilon as f32)
    }
}
