//! Which peers can be reached, by which way, and how fast they answer.

pub(crate) mod allowance;
pub(crate) mod checks;
pub mod detector;
pub(crate) mod laggard;
pub(crate) mod links;
pub(crate) mod pauses;
pub(crate) mod probation;
pub(crate) mod ways;
