//! Data sets on disk and in memory, readers for their formats, and how a run's data reaches peers that lack it.

mod contents;
#[cfg_attr(not(feature = "native"), allow(dead_code, reason = "a tab has no disk"))]
pub mod demand;
mod error;
pub mod files;
pub mod gather;
#[cfg(all(test, feature = "native"))]
mod hostile;
pub mod idx;
mod images;
mod listing;
#[cfg_attr(not(feature = "native"), allow(dead_code, reason = "a tab has no disk"))]
mod pieces;
pub mod provision;
mod stock;
pub mod strokes;
mod tree;

#[cfg(feature = "native")]
pub mod cache;
#[cfg(feature = "native")]
pub mod fetch;
#[cfg(feature = "native")]
pub mod serve;

pub use contents::Contents;
pub use error::DataError;
pub use files::{Data, DataFile};
pub use images::{Images, Split};
pub use stock::Stock;
pub use tree::{BLOCK, PIECE};
