//! Pipeline parallelism as arithmetic: how a model's steps are split into spans (pipeline stages) that fit their
//! machines, and in which order a span works on microbatches (1F1B).
//!
//! A *step* is the smallest part of a model that can be computed alone; a *span* is a run of consecutive steps on one
//! machine; a *microbatch* is what of a batch goes through the spans at once. All of it is a pure function of whole
//! numbers, so that all who know the same numbers come to the same plan. It knows no models, tensors or links.

mod schedule;
mod split;

pub use schedule::{MORE, Work, in_flight_limit, next_work};
pub use split::{StepNeeds, Terms, fewest_spans, span_bytes, split};
