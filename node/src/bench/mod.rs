//! `annulus bench`: what the real path costs on this machine and network, with synthetic peers in the place of
//! training ones. Each is a process of its own with a protocol, a driver and links like any participant's; only
//! its contributions are made up and its optimizer has a learning rate of 0.
//!
//! Only `step`, `kernels` and `learning`, which measure training itself, know tasks and devices.

pub mod allreduce;
pub mod join;
pub mod kernels;
pub mod learning;
pub mod memory;
pub mod peer;
pub mod plan;
pub mod process;
pub mod rates;
pub mod step;
pub mod swarm;

use crate::net::link::DialError;
use crate::net::quic::StartError;
use crate::net::ticket::TicketError;
use annulus_core::config::ManifestError;
use annulus_core::invitation::ChainError;

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The sizes asked for fit no run.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The ticket.
    #[error(transparent)]
    Ticket(#[from] TicketError),
    /// A ticket cannot be made.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The ticket is of a run that is no benchmark.
    #[error("this ticket is of a run of the task {0:?}: take part in it with `annulus join`")]
    NoBench(String),
    /// The address to listen on is none.
    #[error("{0:?} is no address to use: write HOST:PORT, such as 0.0.0.0:4433")]
    Address(String),
    /// The socket.
    #[error(transparent)]
    Start(#[from] StartError),
    /// No member could be reached or none would talk.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// A process could not be started, or its output not be read.
    #[error("a peer's process could not be run: {0}")]
    Process(#[from] std::io::Error),
    /// A peer's process ended too early, or said what it cannot say.
    #[error("peer {number} of the benchmark failed: {why}")]
    Peer {
        /// Which, in the order of starting.
        number: usize,
        /// What happened.
        why: String,
    },
    /// There is no such device.
    #[error("{0}")]
    Device(String),
    /// A program that takes steps ended too early, or answered what it should not.
    #[error("{0} does not take its steps: what it says on standard error tells why")]
    Contestant(String),
    /// There is no such run, or its model cannot be trained or evaluated.
    #[error("{0}")]
    Training(String),
    /// The run went another way than a healthy one does, so that its times say nothing.
    #[error("the measurement was disturbed ({0}): run it again")]
    Disturbed(String),
}

/// The middle of some numbers; not a number if there are none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}
