//! A participant at work: the driver of the protocol, the threads that compute, and the loop around them.

pub mod driver;
pub mod event_translator;
pub mod trace;

#[cfg(feature = "native")]
pub mod error;
#[cfg(feature = "native")]
pub mod run_setup;
#[cfg(feature = "native")]
mod running;
#[cfg(feature = "native")]
pub mod start;
#[cfg(feature = "native")]
pub mod workers;
