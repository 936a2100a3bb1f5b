//! What is done with a run that is on disk: audit, inspect, replay, export, sample.

pub mod replay;

#[cfg(feature = "native")]
pub mod audit;
#[cfg(feature = "native")]
pub mod evaluate;
#[cfg(feature = "native")]
pub mod export;
#[cfg(feature = "native")]
pub mod inspect;
#[cfg(feature = "native")]
pub mod recompute;
#[cfg(feature = "native")]
pub(crate) mod sample;
#[cfg(feature = "native")]
pub mod whole;
