//! Why a participant could not start or continue, with advice.

use crate::data::provision::FetchError;
use crate::device::DeviceError;
use crate::net::identity::IdentityError;
use crate::net::line::NoLine;
use crate::net::link::DialError;
use crate::net::quic::StartError;
use crate::net::ticket::TicketError;
use crate::store::run_dir::CheckpointError;
use crate::task::TaskError;
use crate::trainer::WorkerError;
use crate::trainer::span::InferenceError;
use crate::web::TlsError;
use annulus_core::config::ManifestError;
use annulus_core::invitation::ChainError;
use annulus_core::optim::OptimError;
use annulus_core::tickets::Barred;
use annulus_core::{DataSource, Digest, Round};
use annulus_net::files::FileError;
use std::path::PathBuf;

/// Why a participant could not start or continue, with advice.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No task of that name.
    #[error("there is no task {name:?} in this program; it knows {}", .known.join(", "))]
    UnknownTask {
        /// The name.
        name: String,
        /// The names of all tasks.
        known: Vec<&'static str>,
    },
    /// The task could not be set up.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// A setting of the optimizer.
    #[error(transparent)]
    Optimizer(#[from] OptimError),
    /// The settings contradict each other.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// No such device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device or model failed.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The peer's key.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The value of `--line` is invalid.
    #[error(transparent)]
    Line(#[from] NoLine),
    /// The value of `--listen` or `--advertise` is invalid.
    #[error("{text:?} is no address to use: {why}. Write HOST:PORT, such as 192.0.2.7:4433, or a port alone")]
    Address {
        /// The value.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// The socket.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Not even one sample fits into the allowed memory.
    #[error(
        "this run needs {:.0} MB of the GPU's memory even with one sample at a time, and --gpu-memory allows {:.0}: allow \
         more, or compute on the processor with --device cpu",
        .need.div_ceil(1_000_000), .limit / 1_000_000
    )]
    GpuMemory {
        /// Bytes that it needs.
        need: u64,
        /// Bytes that it may take.
        limit: u64,
    },
    /// The whole model does not fit into the allowed memory.
    #[error(
        "this model takes about {:.0} MB of memory, and this process can have {:.0}: the least of --memory, `ulimit -d`, the \
         limit of its container, service or job, and what is free. Split it over several machines: `annulus train \
         split=auto`, which others join",
        .need.div_ceil(1_000_000), .limit / 1_000_000
    )]
    Memory {
        /// Bytes that it needs.
        need: u64,
        /// Bytes that it may take.
        limit: u64,
    },
    /// A batch has more samples than there are.
    #[error("batch={batch} is not possible: the data has {samples} samples. Write batch={samples} or less")]
    Batch {
        /// Samples of a batch.
        batch: u64,
        /// Samples of the data.
        samples: u64,
    },
    /// A batch has more samples than memory can hold the numbers of.
    #[error("batch={batch} is not possible: its samples do not fit into the {:.0} MB of memory that there are. Write less", .limit / 1_000_000)]
    BatchMemory {
        /// Samples of a batch.
        batch: u64,
        /// Bytes that may be taken.
        limit: u64,
    },
    /// The results of a pass over a batch do not fit beside the model.
    #[error(
        "this model takes about {:.0} MB of memory for {samples} samples at once, and this process can have {:.0}: write \
         micro_batch=N or batch=N with fewer samples, or allow more with --memory",
        .need.div_ceil(1_000_000), .limit / 1_000_000
    )]
    PassMemory {
        /// Samples at once.
        samples: u32,
        /// Bytes that it needs.
        need: u64,
        /// Bytes that it may take.
        limit: u64,
    },
    /// Not even one step fits.
    #[error(
        "the largest step of this model takes about {:.0} MB of memory by itself, and {:.0} may be taken: allow more with \
         --memory, or train with a smaller micro_batch",
        .need.div_ceil(1_000_000), .limit / 1_000_000
    )]
    NoSplit {
        /// Bytes that it needs.
        need: u64,
        /// Bytes that may be taken.
        limit: u64,
    },
    /// Not even one span fits here.
    #[error(
        "a span of this run's model takes about {:.0} MB of memory, and this process may take {:.0}: allow more with --memory, \
         or have the run begun anew with more spans (split=N)",
        .need.div_ceil(1_000_000), .limit / 1_000_000
    )]
    NoRoom {
        /// Bytes that it needs.
        need: u64,
        /// Bytes that may be taken.
        limit: u64,
    },
    /// Not even one step can be computed again.
    #[error(
        "step {step} of this model's {steps} takes about {:.0} MB of memory to be computed again, and this process may take {:.0}: \
         the least of --memory, `ulimit -d` and the limit of its container, service or job. Allow more",
        .need.div_ceil(1_000_000), .limit / 1_000_000
    )]
    NoStep {
        /// Its number, from 1 on.
        step: usize,
        /// How many there are.
        steps: usize,
        /// Bytes that it needs.
        need: u64,
        /// Bytes that may be taken.
        limit: u64,
    },
    /// A model could not be evaluated, or cannot generate text, a few steps at a time.
    #[error(transparent)]
    Inference(#[from] InferenceError),
    /// More spans than there are steps.
    #[error("split={asked} is not possible: this model has {steps} steps, and each span has one at least")]
    Spans {
        /// How many were asked for.
        asked: usize,
        /// How many steps there are.
        steps: usize,
    },
    /// The spans do not cover all steps.
    #[error("split={asked} is of {} steps, and this model has {steps}", .asked.split('+').filter_map(|n| n.parse::<usize>().ok()).sum::<usize>())]
    Cut {
        /// What was asked for.
        asked: String,
        /// How many steps there are.
        steps: usize,
    },
    /// `--gpu-memory` is for whole models.
    #[error(
        "--gpu-memory changes how many samples a device works on at once, and in a run whose model is split that is the run's \
         micro_batch: leave it out"
    )]
    GpuMemoryOfSpans,
    /// Members of a split model save at the same rounds.
    #[error(
        "the model of this run is split over its members, which can only go back to a round that all of them saved: give \
         checkpoint_every=N in rounds, the same everywhere, not a time"
    )]
    SavesByTime,
    /// The command needs the whole model, which nobody in this run has.
    #[error(
        "the model of this run is split over its members, and this command needs all of it: write one file first, with \
         `annulus export RUN1 model.safetensors --with RUN2`, and name that"
    )]
    Split,
    /// The process cannot be bound to some cores.
    #[error("this system does not keep a process to some of its cores ({0}): leave --cores out")]
    Cores(std::io::Error),
    /// The system does not tell what an option needs.
    #[error(
        "this system does not tell {0}: leave out the option that asks for it (--hours, --only-plugged-in, --only-idle)"
    )]
    Senseless(&'static str),
    /// The system does not report requests to end.
    #[error("this system does not tell when a process is asked to end: {0}")]
    Requests(std::io::Error),
    /// The page's certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// There is no page where it was said to be.
    #[error(
        "--page {dir} holds no page (no index.html): name the folder that `cargo xtask browser` made, or leave --page out",
        dir = .0.display()
    )]
    Page(PathBuf),
    /// A setting has no such value, or there is none of that name.
    #[error("{0}")]
    Setting(String),
    /// The system starts no thread.
    #[error("this system does not start the run's thread: {0}")]
    Thread(std::io::Error),
    /// The settings of a new run contradict each other.
    #[error("these settings are not possible: {0}")]
    Settings(&'static str),
    /// A file that is neither of a run nor of a page.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file system has no locks.
    #[error(
        "{path} cannot be locked ({1}), and without a lock two peers could found the run at once: mount the file system with \
         locks, or name a file elsewhere after --meet file:",
        path = .0.display()
    )]
    NoLocks(PathBuf, std::io::Error),
    /// The meeting file's folder is missing.
    #[error(
        "the folder {} does not exist, so no other peer can meet this one there: mount the file system that all machines share, \
         make the folder, or name another file after --meet file:",
        .0.display()
    )]
    NoMeetingFolder(PathBuf),
    /// The meeting file is something else.
    #[error("{path} is no ticket of a run ({1}): name another file after --meet file:", path = .0.display())]
    NoMeetingFile(PathBuf, TicketError),
    /// There is no secret.
    #[error("to meet by names all peers need the same secret: name its file with --secret-file")]
    NoSecret,
    /// The secret can be guessed.
    #[error(
        "the secret in {path} is too short to be one: `head -c 32 /dev/urandom | base64 > {path}` makes a good one, for all \
         machines",
        path = .0.display()
    )]
    ShortSecret(PathBuf),
    /// Another run uses the same meeting place.
    #[error(
        "{path} is of another run by now: name a file of its own for each run after --meet file:",
        path = .0.display()
    )]
    MeetingTaken(PathBuf),
    /// The command differs from that of the run's founder.
    #[error(
        "the run that meets at {path} has other settings or data than this command says: give the same command on all \
         machines, or name another file after --meet file:",
        path = .0.display()
    )]
    OtherSettings(PathBuf),
    /// The ticket.
    #[error(transparent)]
    Ticket(#[from] TicketError),
    /// A ticket cannot be made.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The members no longer admit this peer.
    #[error(transparent)]
    Barred(Barred),
    /// A peer that may not go on alone has waited in vain for those that may.
    #[error(
        "no full member of the run has been there for minutes, and this peer's ticket is not for going on without one. What \
         it holds is in {dir}: `annulus resume {dir}` waits again",
        dir = .0.display()
    )]
    NoMember(PathBuf),
    /// The folder has nothing that would admit this peer again.
    #[error(
        "the ticket in {dir} is gone, and without one no member lets this peer in: get another, and go on by \
         `annulus join TICKET --out {dir}`",
        dir = .0.display()
    )]
    NoTicket(PathBuf),
    /// No member could be reached, or none accepted.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The run's data is not here.
    #[error(
        "the data that this run trains on is not on this machine{}: name where it is with --data, or copy it from the machine \
         that started the run. A peer that finds others of the run fetches it from them",
        looked_at(.0)
    )]
    NoData(Vec<PathBuf>),
    /// The run's data is not here, and could not be fetched.
    #[error(
        "the data that this run trains on is not on this machine, and it could not be fetched: {why}. Copy it from \
         the machine that started the run, and name it with --data"
    )]
    NotFetched {
        /// Why it could not be fetched.
        why: FetchError,
    },
    /// The data here is not the run's.
    #[error(
        "this run trains on other data than this machine has (digest {wanted}, here {found}). {}",
        where_from(*.data_source)
    )]
    OtherData {
        /// Hash of the run's data.
        wanted: Digest,
        /// Hash of the data here.
        found: Digest,
        /// Where the run's comes from.
        data_source: DataSource,
    },
    /// The model here is not the run's.
    #[error(
        "this program builds another model from the run's settings than its founder did. Use the same version \
         of the program on all peers"
    )]
    OtherModel,
    /// The task has no held-out data.
    #[error("the task {0} holds no data out, so there is nothing to evaluate on")]
    NothingHeldOut(String),
    /// The task's models come as no ONNX file.
    #[error(
        "this run's task is {0}, whose model came as no ONNX file: write a file that ends in .safetensors"
    )]
    NoOnnx(String),
    /// The task has no generator.
    #[error("this run's task is {0}, which writes nothing. A task that does, as gpt, has a generator")]
    WritesNothing(String),
    /// The run directory.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The run's state is lost.
    #[error(
        "nobody that can be reached holds the run's state any more. If there is a checkpoint in {dir}, \
         `annulus resume {dir}` goes on from it; so does any other peer's",
        dir = .dir.display()
    )]
    StateLost {
        /// The run directory.
        dir: PathBuf,
    },
    /// All contributions had values that are not finite.
    #[error(
        "the training has diverged: after round {round} no member's contribution was finite{}. Nothing that was \
         committed is lost: the state is in {}. Start again with a lower lr or with clip=1",
        .why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default(),
        .dir.display()
    )]
    NotFinite {
        /// The last round that changed the state.
        round: Round,
        /// The run directory.
        dir: PathBuf,
        /// The last reason on this peer.
        why: Option<WorkerError>,
    },
}

/// The places where the data was before.
fn looked_at(places: &[PathBuf]) -> String {
    let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    match places.is_empty() {
        true => String::new(),
        false => format!(" (it is no longer at {})", places.join(" or at ")),
    }
}

/// Where the right data is to be had.
fn where_from(source: DataSource) -> &'static str {
    match source {
        DataSource::Made => "Its data is made by the task itself: use the same version of this program",
        DataSource::Given { .. } => {
            "Name the run's own data with --data, or leave --data out: then a peer fetches it from another of the run"
        }
    }
}
