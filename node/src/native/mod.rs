//! What needs an operating system: links over QUIC, keys and tickets, run directories, threads.

/// `From` for each error that a variant of a larger one does nothing but wrap.
macro_rules! wraps {
    ($whole:ty: $($part:ty => $variant:ident),+ $(,)?) => {
        $(impl From<$part> for $whole {
            fn from(error: $part) -> Self {
                Self::$variant(error)
            }
        })+
    };
}

pub mod audit;
pub mod bench;
mod cache;
pub mod certificates;
pub mod checkpoint;
mod congestion;
mod connection;
mod endpoint;
pub mod evals;
pub mod export;
pub mod failure;
mod fetch;
mod files;
mod handshake;
pub mod identity;
pub mod inspect;
pub mod kit;
pub mod ledger_file;
pub mod machine;
pub mod participant;
pub mod quic;
pub mod recompute;
pub mod run_dir;
mod running;
mod sample;
pub mod scribe;
mod serve;
mod state_file;
#[cfg(test)]
mod tab_tests;
#[cfg(test)]
mod testing;
mod transport;
pub mod web;
pub mod workers;
