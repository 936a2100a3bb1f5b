//! What a device is asked to compute of a split model, and what it gives back.

use crate::base::id::Round;
use std::ops::Range;
use std::time::Duration;

/// A span, and what its device is to do in a round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpanWork {
    /// The round.
    pub round: Round,
    /// The span.
    pub span: usize,
    /// Its steps in this round.
    pub steps: Range<usize>,
    /// What is to be done.
    pub pass: Pass,
}

/// One pass of one microbatch through a run of steps, such as a span.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pass {
    /// Whether it is the backward pass. Of the last steps it is both.
    pub back: bool,
    /// Positions of the microbatch's samples in the stream, in order: the first steps compute from these, and the last. None
    /// where there is nothing to compute yet: the device takes the weights in while the first microbatch is on its way.
    pub positions: Vec<Range<u64>>,
    /// The weights that the [steps use](crate::run::split::Split::used_by), one range after the other, if they are others than were
    /// given for these steps last.
    pub weights: Option<Vec<f32>>,
    /// What the steps before have given; nothing for the first.
    pub input: Vec<f32>,
    /// The gradient of what these give, for a backward pass; nothing for the last.
    pub gradient: Vec<f32>,
    /// For a backward pass, the sum to which the gradients of the steps are to be added, those of each step one after the other.
    pub sum: Vec<f32>,
}

/// What came of a pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpanDone {
    /// What the span gives; for a backward pass the gradient of what came, nothing for the first span.
    pub output: Vec<f32>,
    /// For a backward pass, the sum with this microbatch's gradients.
    pub sum: Vec<f32>,
    /// Of the last span, the sum of the samples' losses.
    pub loss: f32,
    /// How long it took.
    pub compute: Duration,
}
