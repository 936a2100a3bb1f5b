//! How the contributions of an attempt's members become one sum that all hold, bit for bit.
//!
//! - [`Cut`]: whose share of the vector is which range of elements, and what of it travels in one frame.
//! - [`Plan`]: who adds what to what, in which order, and whom the finished ranges go to. A pure function of members
//!   and sizes, and the only place that knows one topology from another.
//! - [`Run`]: carries a plan out for one member, piece by piece, and says who broke it.
//! - [`Assembly`]: the finished pieces. [`Assembly::serial`] makes the same of all contributions in one place.
//! - [`Kept`]: how it is cut, and whom sums pass, where members keep parts of the moments.
//! - [`Lanes`]: who gives which gradients of a piece, where a model is split over the members.
//! - `headers`: how each member's header reaches all, whatever the plan.
//! - `seals`: what owners sign of what they finish, where they could tell each member something else.
//!
//! Nothing here knows of rounds, time, deadlines or failures: an attempt that does not end is somebody else's business.

mod assembly;
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
pub use cut::Cut;
pub use kept::Kept;
pub use lanes::Lanes;
pub(crate) use lanes::add_up;
pub use plan::Plan;
pub use run::{Held, Run};
pub use step::{Sends, Violation, Wrong};

#[cfg(test)]
mod tests;
