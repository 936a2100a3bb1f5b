//! What a device computes of a split model, and its result.

use crate::base::id::Round;
use std::ops::Range;
use std::time::Duration;

/// A computation of a span in a round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpanWork {
    /// The round.
    pub round: Round,
    /// The span.
    pub span: usize,
    /// Its steps in this round.
    pub steps: Range<usize>,
    /// The computation.
    pub pass: Pass,
}

/// One pass of one microbatch through a sequence of steps, such as a span.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pass {
    /// Whether it is the backward pass. For the last steps it is both.
    pub back: bool,
    /// Positions of the microbatch's samples in the stream, in order. The first steps compute from these, and so do
    /// the last. Empty if the device should only load the weights while the first microbatch is on its way.
    pub positions: Vec<Range<u64>>,
    /// The weights that the [steps use](crate::run::split::Split::used_by), one range after the other. `None` if
    /// the device has them from the last pass of these steps.
    pub weights: Option<Vec<f32>>,
    /// The output of the steps before; empty for the first.
    pub input: Vec<f32>,
    /// For a backward pass, the gradient of the output; empty for the last.
    pub gradient: Vec<f32>,
    /// For a backward pass, the sum that the gradients are added to, those of each step one after the other.
    pub sum: Vec<f32>,
}

/// The result of a pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpanDone {
    /// The output or, for a backward pass, the gradient of the input, which is empty for the first span.
    pub output: Vec<f32>,
    /// For a backward pass, the sum with this microbatch's gradients.
    pub sum: Vec<f32>,
    /// For the last span, the sum of the samples' losses.
    pub loss: f32,
    /// The compute time.
    pub compute: Duration,
}
