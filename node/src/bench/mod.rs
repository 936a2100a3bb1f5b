//! `annulus bench`: what the real path costs on this machine and network, with synthetic peers in the place of
//! training ones. Each is a process of its own with a protocol, a driver and links like any participant's; only
//! its contributions are made up and its optimizer has a learning rate of 0.
//!
//! Only `step` and `kernels`, which measure training itself, know tasks and devices.

pub mod allreduce;
pub mod join;
pub mod kernels;
pub mod memory;
pub mod peer;
pub mod process;
pub mod rates;
pub mod step;
pub mod swarm;

use crate::net::link::DialError;
use crate::net::quic::StartError;
use crate::net::ticket::TicketError;
use annulus_core::config::ManifestError;
use std::fmt;

/// Why a measurement could not be made.
#[derive(Debug)]
pub enum Error {
    /// The sizes asked for fit no run.
    Manifest(ManifestError),
    /// The ticket.
    Ticket(TicketError),
    /// The ticket is of a run that is no benchmark.
    NoBench(String),
    /// The address to listen on is none.
    Address(String),
    /// The socket.
    Start(StartError),
    /// No member could be reached or none would talk.
    Dial(DialError),
    /// A process could not be started, or its output not be read.
    Process(std::io::Error),
    /// A peer's process ended too early, or said what it cannot say.
    Peer {
        /// Which, in the order of starting.
        number: usize,
        /// What happened.
        why: String,
    },
    /// There is no such device.
    Device(String),
    /// A program that takes steps ended too early, or answered what it should not.
    Contestant(String),
    /// The run went another way than a healthy one does, so that its times say nothing.
    Disturbed(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manifest(error) => write!(f, "{error}"),
            Self::Ticket(error) => write!(f, "{error}"),
            Self::NoBench(task) => write!(
                f,
                "this ticket is of a run of the task {task:?}: take part in it with `annulus join`"
            ),
            Self::Address(text) => write!(
                f,
                "{text:?} is no address to use: write HOST:PORT, such as 0.0.0.0:4433"
            ),
            Self::Start(error) => write!(f, "{error}"),
            Self::Dial(error) => write!(f, "{error}"),
            Self::Process(error) => write!(f, "a peer's process could not be run: {error}"),
            Self::Peer { number, why } => write!(f, "peer {number} of the benchmark failed: {why}"),
            Self::Device(why) => f.write_str(why),
            Self::Contestant(name) => write!(
                f,
                "{name} does not take its steps: what it says on standard error tells why"
            ),
            Self::Disturbed(why) => write!(f, "the measurement was disturbed ({why}): run it again"),
        }
    }
}

impl std::error::Error for Error {}

wraps! { Error:
    ManifestError => Manifest, TicketError => Ticket, StartError => Start, DialError => Dial,
    std::io::Error => Process,
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
