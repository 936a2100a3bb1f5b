//! What training computes: parameters, optimizer state, and how a committed round changes them.

pub(crate) mod apply;
pub(crate) mod block;
pub(crate) mod flow;
pub(crate) mod lineage;
pub mod moments;
pub(crate) mod parameters;
pub mod pass;
pub mod recompute;

pub use parameters::{State, plan};
pub(crate) use parameters::{encode_update, joined, plan_by, root};
