//! How the peers of Annulus reach each other, and how a run's data reaches a peer that lacks it.
//!
//! It needs neither Burn nor a GPU, so it builds and tests in minutes:
//!
//! ```text
//! cargo test -p annulus-net
//! ```
//!
//! Read [`net`] first: links, the handshake, tickets. Then [`data`]: a run's files, and how they are served, fetched and
//! checked. Both rest on [`open`], `files` and `user_folders`, which treat every file as one that an enemy may have made,
//! and on [`printable`], which does so with text.

pub mod data;
pub mod net;
pub mod open;
pub mod printable;

#[cfg(feature = "native")]
pub mod files;
#[cfg(feature = "native")]
#[doc(hidden)]
pub mod testing;
#[cfg(feature = "native")]
pub mod user_folders;
