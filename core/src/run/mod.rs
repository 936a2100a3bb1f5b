//! The immutable facts of a run: its manifest, how its samples are shuffled, how its model is cut.

pub mod config;
pub mod initial;
pub mod parts;
pub mod room;
pub(crate) mod settings;
pub mod shuffle;
pub mod split;
pub(crate) mod waits;
