//! The all-reduce: turns the contributions of an attempt's members into one sum that all hold, bit for bit.
//!
//! - [`Cut`]: which member owns which range of the vector, and the pieces that travel in one frame.
//! - [`Plan`]: who adds what to what, in which order, and where finished ranges go. A pure function of members and
//!   sizes, and the only place that distinguishes topologies.
//! - [`Run`]: carries a plan out for one member, piece by piece, and reports a member that breaks it.
//! - [`Assembly`]: the finished pieces. [`Assembly::serial`] computes the same from all contributions in one place.
//! - [`Kept`]: the pieces, and the keepers that sums pass, if members keep parts of the moments.
//! - [`Lanes`]: who sends which gradients of a piece, if a model is split over the members.
//! - `headers`: brings each member's header to all, whatever the plan.
//! - `seals`: the owners' signatures on the chunks that they finish.
//! - [`Scale`]: how long guests' contributions may be.
//!
//! Nothing here knows of rounds, time, deadlines or failures. `peer` deals with an attempt that does not end.

mod assembly;
mod bound;
mod cut;
mod headers;
mod kept;
mod lanes;
mod plan;
#[cfg(any(test, feature = "sim"))]
pub(crate) mod reference;
mod run;
mod seals;
mod step;
mod sum;

pub use assembly::Assembly;
pub(crate) use assembly::finished_piece;
pub use bound::Scale;
pub use cut::Cut;
pub use kept::Kept;
pub use lanes::Lanes;
pub(crate) use lanes::add_up;
pub use plan::Plan;
pub use run::{Held, Run};
pub use step::{Sends, Violation, Wrong};

#[cfg(test)]
mod tests;
