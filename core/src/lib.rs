//! The protocol of Annulus, pure: no sockets, clocks, threads or files.

pub mod codec;
pub mod optim;
pub mod shuffle;
