//! A participant in a run. [`driver`] carries out what the protocol asks for, [`host`] is the loop around it, and
//! [`compute`] defines the jobs of a device. Natively `start` assembles a participant and `native` is its host.

pub mod compute;
pub mod driver;
pub mod event_translator;
mod heap;
pub mod host;
pub mod room;
pub mod trace;

#[cfg(feature = "native")]
mod budget;
#[cfg(feature = "native")]
mod cgroup;
#[cfg(feature = "native")]
pub mod error;
#[cfg(feature = "native")]
mod external;
#[cfg(feature = "native")]
pub(crate) mod folder;
#[cfg(feature = "native")]
pub mod gpu_memory;
#[cfg(feature = "native")]
pub(crate) mod home;
#[cfg(feature = "native")]
pub(crate) mod initial;
#[cfg(feature = "native")]
pub mod limits;
#[cfg(feature = "native")]
pub(crate) mod meeting;
#[cfg(feature = "native")]
pub mod memory;
#[cfg(feature = "native")]
pub(crate) mod native;
#[cfg(feature = "native")]
pub mod permission;
#[cfg(feature = "native")]
pub mod planning;
#[cfg(feature = "native")]
mod pool;
#[cfg(feature = "native")]
pub mod requests;
#[cfg(feature = "native")]
pub(crate) mod right;
#[cfg(feature = "native")]
pub(crate) mod run_data;
#[cfg(feature = "native")]
pub mod run_setup;
#[cfg(feature = "native")]
pub mod senses;
#[cfg(feature = "native")]
pub mod split;
#[cfg(feature = "native")]
pub mod start;
#[cfg(feature = "native")]
pub mod try_out;
#[cfg(feature = "native")]
pub mod workers;
