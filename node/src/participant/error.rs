//! Why a participant could not start or go on, in words that say what to do.

use crate::data::provision::FetchError;
use crate::device::DeviceError;
use crate::net::identity::IdentityError;
use crate::net::link::DialError;
use crate::net::quic::StartError;
use crate::net::ticket::TicketError;
use crate::store::run_dir::CheckpointError;
use crate::task::TaskError;
use crate::trainer::WorkerError;
use crate::web::TlsError;
use annulus_core::config::ManifestError;
use annulus_core::optim::OptimError;
use annulus_core::{Digest, Round};
use std::fmt;
use std::path::PathBuf;

/// Why a participant could not start or go on, in words that say what to do.
#[derive(Debug)]
pub enum Error {
    /// No task of that name.
    UnknownTask {
        /// The name.
        name: String,
        /// The names that there are.
        known: Vec<&'static str>,
    },
    /// The task could not be set up.
    Task(TaskError),
    /// A setting of the optimizer.
    Optimizer(OptimError),
    /// The settings contradict each other.
    Manifest(ManifestError),
    /// No such device.
    Device(DeviceError),
    /// The device or model failed.
    Worker(WorkerError),
    /// The run directory cannot be made.
    Out(PathBuf, std::io::Error),
    /// The peer's key.
    Identity(IdentityError),
    /// `--listen` or `--advertise` is no address.
    Address {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// The socket.
    Start(StartError),
    /// The page's certificate.
    Tls(TlsError),
    /// The ticket.
    Ticket(TicketError),
    /// No member could be reached or none would talk.
    Dial(DialError),
    /// The run's data is not here.
    NoData {
        /// Where the founder has it.
        hint: String,
    },
    /// The run's data is not here, and could not be fetched.
    NotFetched {
        /// Where the founder has it.
        hint: String,
        /// Why not.
        why: FetchError,
    },
    /// The data here is not the run's.
    OtherData {
        /// Hash of the run's data.
        wanted: Digest,
        /// Hash of the data here.
        found: Digest,
        /// Where the founder has it.
        hint: String,
    },
    /// The model here is not the run's.
    OtherModel,
    /// The task has no data to evaluate on.
    NothingHeldOut(String),
    /// The run directory.
    Checkpoint(CheckpointError),
    /// No contribution was finite.
    NotFinite {
        /// The last round that changed anything.
        round: Round,
        /// The run directory.
        dir: PathBuf,
        /// The last reason heard on this peer.
        why: Option<WorkerError>,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownTask { name, known } => {
                write!(f, "there is no task {name:?} in this program; it knows {}", known.join(", "))
            }
            Self::Task(error) => write!(f, "{error}"),
            Self::Optimizer(error) => write!(f, "{error}"),
            Self::Manifest(error) => write!(f, "{error}"),
            Self::Device(error) => write!(f, "{error}"),
            Self::Worker(error) => write!(f, "{error}"),
            Self::Out(path, error) => write!(
                f,
                "cannot make the folder {}: {error}. Name another with --out, or make room",
                path.display()
            ),
            Self::Identity(error) => write!(f, "{error}"),
            Self::Address { text, why } => write!(
                f,
                "{text:?} is no address to use: {why}. Write HOST:PORT, such as 0.0.0.0:4433"
            ),
            Self::Start(error) => write!(f, "{error}"),
            Self::Tls(error) => write!(f, "{error}"),
            Self::Ticket(error) => write!(f, "{error}"),
            Self::Dial(error) => write!(f, "{error}"),
            Self::NoData { hint } => write!(
                f,
                "the data that this run trains on is not on this machine. Copy it from the machine that started the \
                 run, where it is {hint}, and name it with --data"
            ),
            Self::NotFetched { hint, why } => write!(
                f,
                "the data that this run trains on is not on this machine, and it could not be fetched: {why}. Copy it from \
                 the machine that started the run, where it is {hint}, and name it with --data"
            ),
            Self::OtherData { wanted, found, hint } => {
                write!(f, "this run trains on other data than this machine has (digest {wanted}, here {found}). ")?;
                match hint.as_str() {
                    "" => write!(f, "Its data is made by the task itself: use the same version of this program"),
                    hint => write!(
                        f,
                        "Copy the data from the machine that started the run, where it is {hint}, and name it with --data"
                    ),
                }
            }
            Self::OtherModel => f.write_str(
                "this program builds another model from the run's settings than its founder did. Use the same version \
                 of the program on all peers",
            ),
            Self::NothingHeldOut(task) => write!(f, "the task {task} holds no data out, so there is nothing to evaluate on"),
            Self::Checkpoint(error) => write!(f, "{error}"),
            Self::NotFinite { round, dir, why } => {
                write!(f, "the training has diverged: after round {round} no member's contribution was finite")?;
                if let Some(why) = why {
                    write!(f, " ({why})")?;
                }
                write!(
                    f,
                    ". Nothing that was committed is lost: the state is in {}. Start again with a lower lr or with clip=1",
                    dir.display()
                )
            }
        }
    }
}

impl std::error::Error for Error {}

wraps! { Error:
    TaskError => Task, OptimError => Optimizer, ManifestError => Manifest, DeviceError => Device,
    WorkerError => Worker, IdentityError => Identity, StartError => Start, TlsError => Tls, TicketError => Ticket,
    DialError => Dial, CheckpointError => Checkpoint,
}
