//! Pipeline parallelism as arithmetic: how a model's steps are split into spans (pipeline stages) that fit their
//! machines, and in which order a span works on microbatches (1F1B).
//!
//! A *step* is the smallest part of a model that can be computed alone. A *span* is a sequence of consecutive steps
//! on one machine. A *microbatch* is the part of a batch that goes through the spans at once. All of it is a pure
//! function of whole numbers, so that all who know the same numbers find the same plan. It knows no models, tensors
//! or links.

mod schedule;
mod split;

pub use schedule::{MORE, Work, in_flight_limit, next_work};
pub use split::{StepNeeds, Terms, fewest_spans, span_bytes, split};
