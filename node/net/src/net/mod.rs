//! Connects peers: links, the handshake, tickets, and natively everything about QUIC.

pub mod gate;
pub mod hello;
pub mod link;
pub mod refusal;
pub mod ticket;

#[cfg(feature = "native")]
pub mod addresses;
#[cfg(feature = "native")]
pub mod certificates;
#[cfg(feature = "native")]
pub mod config;
#[cfg(feature = "native")]
pub mod congestion;
#[cfg(feature = "native")]
pub(crate) mod connect;
#[cfg(feature = "native")]
pub(crate) mod connection;
#[cfg(feature = "native")]
pub(crate) mod endpoint;
#[cfg(feature = "native")]
pub(crate) mod handshake;
#[cfg(feature = "native")]
pub mod identity;
#[cfg(feature = "native")]
pub(crate) mod inbox;
#[cfg(feature = "native")]
pub mod line;
#[cfg(feature = "native")]
pub mod mapping;
#[cfg(feature = "native")]
pub mod nearby;
#[cfg(feature = "native")]
pub(crate) mod observed;
#[cfg(feature = "native")]
pub(crate) mod pcp;
#[cfg(feature = "native")]
pub(crate) mod pinholes;
#[cfg(feature = "native")]
pub mod quic;
#[cfg(feature = "native")]
pub(crate) mod quota;
#[cfg(feature = "native")]
pub mod reach;
#[cfg(feature = "native")]
pub(crate) mod roaming;
#[cfg(feature = "native")]
pub mod slots;
#[cfg(feature = "native")]
pub(crate) mod socket;
#[cfg(all(test, feature = "native"))]
mod tab_tests;
#[cfg(feature = "native")]
pub(crate) mod transport;
