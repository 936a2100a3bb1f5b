//! Pipeline parallel training with 1F1B: a model's steps in spans, each held by somebody else, microbatches one behind the
//! other through all of them.
//!
//! A [`Stage`] is one span: weights, moments, stashes, what it does next. It is given [`Order`]s and gives
//! [`Answer`]s, plain data both, and knows neither threads nor processes nor networks. A [`Pipeline`] hands on what stages
//! make, from one place: good for a machine and its processes. Routing by members of a run, without a master, is to take
//! its place; the stages are to stay.

mod driver;
mod message;
mod span_state;
mod stage;

pub use driver::{Pipeline, PipelineError, Port, Summed, Update, in_threads};
pub use message::{Answer, Boundary, Order, SharedSum, StageReport, read_frame, write_frame};
pub use span_state::SpanState;
pub use stage::{Stage, StageError, StageSettings};
