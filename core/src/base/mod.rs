//! Ids, time and randomness: plain values that every other room uses.

pub mod id;
pub mod jobs;
pub mod planted;
pub(crate) mod quotas;
pub mod random;
pub(crate) mod time;
pub(crate) mod wide;
