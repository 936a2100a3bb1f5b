//! What needs an operating system: the identity on disk, tickets, and QUIC. It must know nothing of the
//! protocol that runs over its links.

mod congestion;
mod connection;
mod endpoint;
mod handshake;
pub mod identity;
pub mod quic;
pub mod ticket;
mod transport;
