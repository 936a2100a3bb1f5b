//! Optimizers that run on the GPU, for steps that a peer takes alone between two rounds.
//!
//! Shared state is never computed here: these are the formulas of the run's optimizers, with a GPU's rounding.

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::wgpu::CubeTensor;
use burn::tensor::{Device, Tensor, TensorData};
use bytemuck::{Pod, Zeroable};

use crate::flat::{ALIGNMENT, FlatLayout, FlatVector};
use crate::kernel::{ADAMW, Kernel, MOMENTUM, SGD, SQUARED_NORM, SQUARED_NORM_TOTAL};
use crate::launch::{empty, from_raw, grid, launch, raw};
use crate::split::{SplitLayout, SplitVector};

/// How a gradient changes the parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Stochastic gradient descent.
    Sgd {
        /// L2 penalty, added to the gradient.
        weight_decay: f32,
    },
    /// SGD with momentum.
    Momentum {
        /// How much of the velocity stays from one step to the next.
        momentum: f32,
        /// Look ahead by one step of the velocity.
        nesterov: bool,
        /// L2 penalty, added to the gradient.
        weight_decay: f32,
    },
    /// Adam and AdamW.
    Adam {
        /// Smoothing of the gradients.
        beta1: f32,
        /// Smoothing of the squared gradients.
        beta2: f32,
        /// Keeps the denominator from zero; outside the square root.
        eps: f32,
        /// Weight decay.
        weight_decay: f32,
        /// AdamW: parameters shrink by themselves; else the gradient gains an L2 penalty.
        decoupled: bool,
    },
}

impl Rule {
    /// Vectors of state, each as long as the parameters and 0 before the first step.
    pub fn slots(self) -> usize {
        match self {
            Self::Sgd { .. } => 0,
            Self::Momentum { .. } => 1,
            Self::Adam { .. } => 2,
        }
    }
}

/// What differs from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Learning rate.
    pub lr: f32,
    /// Number of this step; the first is 1.
    pub number: u64,
    /// The gradient is this times the sum of gradients: one over the samples.
    pub scale: f32,
    /// Largest norm of the gradient.
    pub clip: Option<f32>,
}

/// What [`LocalOptimizer`] and [`Totals`] launch.
pub(crate) fn kernels() -> Vec<&'static Kernel> {
    vec![&SGD, &MOMENTUM, &ADAMW, &SQUARED_NORM, &SQUARED_NORM_TOTAL]
}

/// An optimizer and its state, on one GPU.
#[derive(Debug)]
pub struct LocalOptimizer {
    rule: Rule,
    layout: Arc<SplitLayout>,
    parts: Vec<Part>,
}

/// What goes with one part of the parameters.
#[derive(Debug)]
struct Part {
    state: Vec<FlatVector>,
    /// For each block of [`ALIGNMENT`] elements 1 if it decays, else 0.
    decays: CubeTensor,
}

impl Part {
    fn new(rule: Rule, layout: &Arc<FlatLayout>, decays: &[bool], device: &Device) -> Option<Self> {
        let blocks = layout.places().iter().zip(decays).flat_map(|(place, decays)| {
            std::iter::repeat_n(f32::from(u8::from(*decays)), place.padded() / ALIGNMENT)
        });
        let blocks: Vec<f32> = blocks.collect();
        let shape = [blocks.len()];
        let state: Option<Vec<FlatVector>> = (0..rule.slots())
            .map(|_| FlatVector::zeros(layout, device))
            .collect();
        Some(Self {
            state: state?,
            decays: raw(Tensor::<1>::from_data(TensorData::new(blocks, shape), device))?,
        })
    }
}

impl LocalOptimizer {
    /// State of 0 for parameters of this layout, and for each of them whether it decays; nothing if
    /// `device` is no GPU.
    ///
    /// # Panics
    ///
    /// If the decays are not as many as the tensors.
    pub fn new(rule: Rule, layout: &Arc<SplitLayout>, decays: &[bool], device: &Device) -> Option<Self> {
        let parts = layout.shares(decays);
        let parts = parts.map(|(part, decays)| Part::new(rule, part, decays, device));
        Some(Self {
            rule,
            layout: Arc::clone(layout),
            parts: parts.collect::<Option<_>>()?,
        })
    }

    /// The rule that it follows.
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// The state's vectors, of each part of the parameters.
    pub fn state(&self) -> impl Iterator<Item = &[FlatVector]> {
        self.parts.iter().map(|part| &part.state[..])
    }

    /// Changes the parameters in place: all views of them see it. With `totals` of these gradients,
    /// which clipping needs, a gradient that is not finite changes nothing.
    ///
    /// `gradients` may go on behind the parameters' places.
    ///
    /// # Panics
    ///
    /// If the vectors do not fit, or clipping is asked for without totals.
    pub fn step(
        &mut self,
        params: &mut SplitVector,
        gradients: &SplitVector,
        totals: Option<&Totals>,
        step: Step,
    ) {
        assert_eq!(params.layout(), &self.layout, "layout of the parameters");
        assert!(step.clip.is_none() || totals.is_some(), "clipping needs the norm");
        assert!(
            gradients.parts().len() >= self.parts.len(),
            "parts of the gradients"
        );
        let vectors = params.parts().iter().zip(gradients.parts());
        for (part, (params, gradients)) in self.parts.iter().zip(vectors) {
            assert!(
                gradients.layout().places().starts_with(params.layout().places()),
                "layout of the gradients"
            );
            step_part(self.rule, part, params, gradients, totals, step);
        }
    }
}

fn step_part(
    rule: Rule,
    part: &Part,
    params: &FlatVector,
    gradients: &FlatVector,
    totals: Option<&Totals>,
    step: Step,
) {
    let fours = params.layout().len() / 4;
    let groups = grid(fours.div_ceil(64));
    let head = Head {
        fours: fours as u32,
        groups_per_row: groups[0],
        checked: u32::from(totals.is_some()),
        clip: step.clip.unwrap_or(f32::INFINITY).min(f32::MAX),
        scale: step.scale,
    };
    let totals = totals.map_or(gradients.buffer(), |totals| &totals.0);
    let inputs = [gradients.buffer(), &part.decays, totals];
    let state = part.state.iter().map(FlatVector::buffer);
    let outputs: Vec<&CubeTensor> = std::iter::once(params.buffer()).chain(state).collect();
    match rule {
        Rule::Sgd { weight_decay } => {
            let params = SgdParams {
                head,
                size: step.lr,
                weight_decay,
            };
            launch(&SGD, &inputs, &outputs, params, groups);
        }
        Rule::Momentum {
            momentum,
            nesterov,
            weight_decay,
        } => {
            let params = MomentumParams {
                head,
                size: step.lr,
                weight_decay,
                momentum,
                nesterov: u32::from(nesterov),
            };
            launch(&MOMENTUM, &inputs, &outputs, params, groups);
        }
        Rule::Adam {
            beta1,
            beta2,
            eps,
            weight_decay,
            decoupled,
        } => {
            let (size, second) = bias_corrected(step.lr, step.number, beta1, beta2);
            let params = AdamParams {
                head,
                size,
                second,
                eps,
                beta1,
                beta2,
                l2: if decoupled { 0.0 } else { weight_decay },
                decoupled: if decoupled { step.lr * weight_decay } else { 0.0 },
            };
            launch(&ADAMW, &inputs, &outputs, params, groups);
        }
    }
}

/// `lr / (1 - beta1^step)` and `1 / sqrt(1 - beta2^step)`, in `f64`: for the first steps the
/// differences are small.
pub fn bias_corrected(lr: f32, step: u64, beta1: f32, beta2: f32) -> (f32, f32) {
    let exponent = i32::try_from(step).unwrap_or(i32::MAX);
    let rest = |beta: f32| 1.0 - f64::from(beta).powi(exponent);
    (
        (f64::from(lr) / rest(beta1)) as f32,
        (1.0 / rest(beta2).sqrt()) as f32,
    )
}

/// The squared norm of a vector and how many of its elements are not finite, on the GPU.
#[derive(Clone, Debug)]
pub struct Totals(CubeTensor);

impl Totals {
    /// Of the first `len` elements of a vector, a multiple of 4. Elements that are not finite have no
    /// say in the norm.
    ///
    /// # Panics
    ///
    /// If the vector is shorter.
    pub fn of(vector: &FlatVector, len: usize) -> Self {
        Self::of_all(&[(vector, len)])
    }

    /// Of the gradients of these parameters' layout, whatever is behind them.
    ///
    /// # Panics
    ///
    /// If they are of another one.
    pub fn of_gradients(gradients: &SplitVector, params: &SplitLayout) -> Self {
        let parts = params.parts().iter().zip(gradients.parts());
        let parts: Vec<_> = parts.map(|(layout, vector)| (vector, layout.len())).collect();
        assert_eq!(parts.len(), params.parts().len(), "parts of the gradients");
        Self::of_all(&parts)
    }

    /// The norm of several vectors, of each the first `usize` elements.
    fn of_all(vectors: &[(&FlatVector, usize)]) -> Self {
        let groups = |len: usize| (len / 4 / 1024).clamp(1, 256);
        let counts = vectors.iter().map(|(_, len)| 64 * groups(*len));
        let layout = Arc::new(FlatLayout::new(counts.map(|count| 2 * count)));
        let like = vectors.first().expect("at least one vector").0.buffer();
        let partial = FlatVector::undefined(&layout, like);
        for (index, (vector, len)) in vectors.iter().enumerate() {
            assert!(
                len.is_multiple_of(4) && *len <= vector.layout().len(),
                "{len} elements"
            );
            let count = 64 * groups(*len);
            let params = [(len / 4) as u32, count as u32];
            let out = partial.part(index, [count, 2]);
            launch(
                &SQUARED_NORM,
                &[vector.buffer()],
                &[&out],
                params,
                [groups(*len) as u32, 1, 1],
            );
        }
        let total = empty(like, [2]);
        launch(
            &SQUARED_NORM_TOTAL,
            &[partial.buffer()],
            &[&total],
            [(layout.len() / 2) as u32],
            [1, 1, 1],
        );
        Self(total)
    }

    /// The two numbers.
    pub fn tensor(&self) -> Tensor<1> {
        debug_assert_eq!(self.0.shape().num_elements(), 2);
        from_raw(self.0.clone())
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Head {
    fours: u32,
    groups_per_row: u32,
    checked: u32,
    clip: f32,
    scale: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct SgdParams {
    head: Head,
    size: f32,
    weight_decay: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct MomentumParams {
    head: Head,
    size: f32,
    weight_decay: f32,
    momentum: f32,
    nesterov: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct AdamParams {
    head: Head,
    size: f32,
    second: f32,
    eps: f32,
    beta1: f32,
    beta2: f32,
    l2: f32,
    decoupled: f32,
}
