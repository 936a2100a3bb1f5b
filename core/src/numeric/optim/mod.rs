//! The deterministic optimizers: how a committed sum of gradients changes the flat parameter vector.
//!
//! Every peer runs this code on its CPU and must end with the same bits on x86, Arm and WASM. So: plain IEEE `f32`
//! multiplication, addition, division and square root in a fixed order, never a fused multiply-add, and nothing from
//! the platform's mathematics library. Each element stands alone: blocks (any sub-ranges of the vector) may be applied
//! at different times and in any order.
//!
//! No step leaves an infinity or a NaN behind: what overflows becomes the largest number. `inf - inf` is a NaN with one
//! sign on x86 and another on Arm, so that members would take each other's states for damaged. With such parameters no
//! member's next contribution is finite, so that all end the run in the same round.
//!
//! It must not know what the vector means, who summed the gradients, or how they travelled.
//!
//! ```
//! use annulus_core::optim::{Optimizer, Schedule, clip_scale, norm_squared};
//!
//! let optimizer: Optimizer = "adamw beta2=0.95".parse().unwrap();
//! let schedule = Schedule::Warmup { steps: 100 };
//!
//! let (mut params, mut m, mut v) = ([1.0f32; 8], [0.0f32; 8], [0.0f32; 8]);
//! let (sums, samples) = ([0.5f32; 8], 4.0f32);
//!
//! let mean = 1.0 / samples;
//! let norm = norm_squared(&sums).sqrt() * f64::from(mean);
//! let step = optimizer.step(schedule.rate(1e-3, 1), 1, mean * clip_scale(norm, 1.0));
//! // A matrix of six elements decays, the two biases behind it do not.
//! for (block, decay) in [(0..6, true), (6..8, false)] {
//!     let (m, v) = (&mut m[block.clone()], &mut v[block.clone()]);
//!     optimizer.apply(&step, &mut params[block.clone()], &mut [m, v], &sums[block], decay);
//! }
//! assert!(params.iter().all(|p| *p < 1.0));
//! ```

mod adam;
mod clip;
mod local;
mod moments;
mod parse;
mod rmsprop;
mod schedule;
mod sgd;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use clip::{CLIP, clip_scale, norm_squared, norm_squared_without};
pub use local::LocalSteps;
pub(crate) use moments::views;
pub use moments::{BLOCK, Moments, Slot, SlotMut, UnknownMoments, Values, step_coded};
pub use schedule::Schedule;

/// An optimizer and its hyper-parameters, with the semantics of its namesake in `torch.optim`.
///
/// Written and read as text ([`Display`](std::fmt::Display), [`FromStr`](std::str::FromStr)): a name, then what differs
/// from the defaults, as in `"adamw beta2=0.95 weight_decay=0.1"`. The names are `sgd`, `momentum`, `nesterov`,
/// `rmsprop`, `adam` and `adamw`; the defaults are PyTorch's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Optimizer {
    /// Stochastic gradient descent: `p -= lr (g + weight_decay p)`.
    Sgd {
        /// L2 penalty, added to the gradient.
        weight_decay: f32,
    },
    /// SGD with (heavy-ball or Nesterov) momentum, without dampening.
    Momentum {
        /// How much of the velocity stays from one step to the next.
        momentum: f32,
        /// Look ahead by one step of the velocity (Sutskever et al. 2013, in PyTorch's form).
        nesterov: bool,
        /// L2 penalty, added to the gradient.
        weight_decay: f32,
    },
    /// RMSProp (Hinton, lecture 6e, 2012), neither centred nor with momentum.
    RmsProp {
        /// Smoothing of the squared gradients.
        alpha: f32,
        /// Keeps the denominator from zero; outside the square root.
        eps: f32,
        /// L2 penalty, added to the gradient.
        weight_decay: f32,
    },
    /// Adam (Kingma and Ba 2015, algorithm 1).
    Adam {
        /// Smoothing of the gradients.
        beta1: f32,
        /// Smoothing of the squared gradients.
        beta2: f32,
        /// Keeps the denominator from zero; outside the square root.
        eps: f32,
        /// L2 penalty, added to the gradient.
        weight_decay: f32,
    },
    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2).
    AdamW {
        /// Smoothing of the gradients.
        beta1: f32,
        /// Smoothing of the squared gradients.
        beta2: f32,
        /// Keeps the denominator from zero; outside the square root.
        eps: f32,
        /// Each step also does `p *= 1 - lr weight_decay`.
        weight_decay: f32,
    },
}

/// The numbers of one step that are the same for every element, made by [`Optimizer::step`] for that optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Learning rate.
    pub lr: f32,
    /// Number of this step; the first is 1.
    pub step: u64,
    /// Factor from the sum of gradients to the gradient: one over the weight, times the clipping factor.
    pub scale: f32,
    /// Factor from a sum to its mean: one over the weight.
    mean: f32,
    /// Whether the sums are of parameter deltas, start minus end, rather than of gradients.
    of_deltas: bool,
    /// Adam: `lr / (1 - beta1^step)`. Others: `lr`.
    size: f32,
    /// Adam: `1 / sqrt(1 - beta2^step)`. Others: 1.
    second: f32,
}

impl Optimizer {
    /// The optimizer of that name, with PyTorch's defaults but for the settings that follow the name.
    pub fn parse(text: &str) -> Result<Self, OptimError> {
        text.parse()
    }

    /// State vectors per parameter, each as long as the parameter vector and zero before the first step.
    pub fn slots(&self) -> usize {
        self.slot_values().len()
    }

    /// The range of values of each of these vectors.
    pub fn slot_values(&self) -> &'static [Values] {
        match self {
            Self::Sgd { .. } => &[],
            Self::Momentum { .. } => &[Values::Signed],
            Self::RmsProp { .. } => &[Values::Squares],
            Self::Adam { .. } | Self::AdamW { .. } => &[Values::Signed, Values::Squares],
        }
    }

    /// Whether every hyper-parameter lies in its range. Ask this of an optimizer that came from elsewhere.
    pub fn check(&self) -> Result<(), OptimError> {
        let fraction = |x: f32| (0.0..1.0).contains(&x);
        let positive = |x: f32| x > 0.0 && x.is_finite();
        let not_negative = |x: f32| x >= 0.0 && x.is_finite();
        for (name, value) in self.settings() {
            let (fits, range) = match name {
                "eps" => (positive(value), "positive"),
                "weight_decay" => (not_negative(value), "at least 0"),
                _ => (fraction(value), "at least 0 and below 1"),
            };
            if !fits {
                return Err(OptimError::OutOfRange { name, value, range });
            }
        }
        Ok(())
    }

    /// The farthest that a vector of `len` elements comes by steps whose rates add up to `rates`, of gradients that are clipped
    /// to a norm of `clip`. Weight decay comes on top.
    pub fn farthest(&self, rates: f64, len: usize, clip: f32) -> f64 {
        let all = (len as f64).sqrt();
        rates
            * match *self {
                Self::Sgd { .. } => clip.into(),
                Self::Momentum { momentum, .. } => f64::from(clip) / (1.0 - f64::from(momentum)),
                Self::RmsProp { alpha, .. } => all / (1.0 - f64::from(alpha)).sqrt(),
                Self::Adam { beta1, beta2, .. } | Self::AdamW { beta1, beta2, .. } => {
                    // Of an element whose gradient comes after many zeros (Kingma and Ba 2015, section 2.1).
                    all * ((1.0 - f64::from(beta1)) / (1.0 - f64::from(beta2)).sqrt()).max(1.0)
                }
            }
    }

    /// Prepares step number `step` (the first is 1) at learning rate `lr`. The gradient is `scale` times the sum.
    pub fn step(&self, lr: f32, step: u64, scale: f32) -> Step {
        let (size, second) = match *self {
            Self::Adam { beta1, beta2, .. } | Self::AdamW { beta1, beta2, .. } => {
                adam::bias_corrected(lr, step, beta1, beta2)
            }
            _ => (lr, 1.0),
        };
        Step {
            lr,
            step,
            scale,
            mean: scale,
            of_deltas: false,
            size,
            second,
        }
    }

    /// Applies one step to a block: any run of the vector's elements that all decay, or all do not (as biases and
    /// the scales of norms commonly).
    ///
    /// `slots` are the same run of each of the [`slots`](Self::slots) state vectors, `grad_sums` of the summed
    /// gradients. The bits do not depend on how a block is divided into calls, nor on their order.
    ///
    /// Memory-bound: Adam on 16 Mi elements takes 19 to 21 ms, 23 GB/s at 28 bytes read or written per element
    /// (`cargo run --release -p annulus-core --example optim_rate`, on one core of a 2.3 GHz Sapphire Rapids Xeon).
    ///
    /// # Panics
    /// If the number of slots is not that of the optimizer, or not all are of one length.
    pub fn apply(
        &self,
        step: &Step,
        params: &mut [f32],
        slots: &mut [&mut [f32]],
        grad_sums: &[f32],
        decay: bool,
    ) {
        let (n, sums) = (params.len(), grad_sums);
        assert_eq!(slots.len(), self.slots(), "state vectors of {self}");
        assert!(
            slots.iter().all(|slot| slot.len() == n) && sums.len() == n,
            "a block's parts have one length"
        );

        let rate = |weight_decay: f32| if decay { weight_decay } else { 0.0 };
        match (self, slots) {
            (&Self::Sgd { weight_decay }, []) => sgd::plain(step, rate(weight_decay), params, sums),
            (
                &Self::Momentum {
                    momentum,
                    nesterov,
                    weight_decay,
                },
                [velocity],
            ) => {
                let kernel = if nesterov { sgd::nesterov } else { sgd::momentum };
                kernel(step, momentum, rate(weight_decay), params, velocity, sums);
            }
            (
                &Self::RmsProp {
                    alpha,
                    eps,
                    weight_decay,
                },
                [squares],
            ) => rmsprop::rmsprop(step, alpha, eps, rate(weight_decay), params, squares, sums),
            (
                &Self::Adam {
                    beta1,
                    beta2,
                    eps,
                    weight_decay,
                },
                [m, v],
            ) => {
                let moments = adam::Moments { beta1, beta2, eps };
                let decay = adam::Decay::l2(rate(weight_decay));
                adam::adam(step, &moments, &decay, params, m, v, sums);
            }
            (
                &Self::AdamW {
                    beta1,
                    beta2,
                    eps,
                    weight_decay,
                },
                [m, v],
            ) => {
                let moments = adam::Moments { beta1, beta2, eps };
                let decay = adam::Decay::decoupled(step.lr, rate(weight_decay));
                adam::adam(step, &moments, &decay, params, m, v, sums);
            }
            _ => unreachable!("the slots were counted above"),
        }
    }
}

/// The nearest number that is finite; the smallest for a NaN, whatever its sign. For all that a step stores.
#[inline(always)]
#[expect(clippy::manual_clamp, reason = "that would keep a NaN")]
pub(crate) fn finite(x: f32) -> f32 {
    // With a NaN, `max` returns the other.
    x.max(f32::MIN).min(f32::MAX)
}

impl Step {
    /// The same step with the gradient scaled by this factor, as [`clip_scale`] gives it.
    pub fn clipped(self, factor: f32) -> Self {
        Self {
            scale: self.scale * factor,
            ..self
        }
    }

    /// The same step by sums of samples times (parameters before - parameters after), as local steps give them.
    pub fn of_deltas(self) -> Self {
        Self {
            of_deltas: true,
            ..self
        }
    }

    /// Steps elements that follow a mean, without optimizer, clipping or decay: adds `rate` times the mean of the sums.
    /// Deltas hold the rate already, so their mean is the new value.
    ///
    /// # Panics
    /// If there are not as many sums as values.
    pub fn follow(&self, rate: f32, values: &mut [f32], sums: &[f32]) {
        assert_eq!(values.len(), sums.len(), "a block's parts have one length");
        let rate = if self.of_deltas { -1.0 } else { rate };
        for (value, sum) in values.iter_mut().zip(sums) {
            *value = finite(*value + rate * (sum * self.mean));
        }
    }
}

/// Why an optimizer or a schedule is not valid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OptimError {
    /// No optimizer has this name.
    #[error("no optimizer is called \"{0}\": use one of {names}", names = parse::NAMES.join(", "))]
    UnknownName(String),
    /// The optimizer has no such setting, or it is not written `name=number`.
    #[error("\"{text}\" is no setting: write name=number with one of {}", known.join(", "))]
    BadSetting {
        /// What was written.
        text: String,
        /// The settings that the optimizer has.
        known: Vec<&'static str>,
    },
    /// A hyper-parameter outside its range.
    #[error("{name} is {value}: it must be {range}")]
    OutOfRange {
        /// The hyper-parameter's name.
        name: &'static str,
        /// Its value.
        value: f32,
        /// What it must be.
        range: &'static str,
    },
}
