//! Where data lies, data sets in memory, readers for the formats they come in, and how a run's data reaches peers that
//! lack it.

mod error;
pub mod files;
pub mod idx;
mod images;
pub mod provision;
pub mod strokes;

#[cfg(feature = "native")]
pub(crate) mod cache;
#[cfg(feature = "native")]
pub(crate) mod fetch;
#[cfg(feature = "native")]
pub mod serve;

pub use error::DataError;
pub use files::{Contents, Data, DataFile};
pub use images::{Images, Split};
