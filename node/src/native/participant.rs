//! One participant from start to end: puts task, device, link, peer and disk together and runs the loop.

use super::checkpoint::Writer;
use super::identity::{Identity, IdentityError};
use super::quic::{QuicConfig, QuicLink, StartError, fetch_manifest, own_addresses};
use super::recompute::{self, Progress, recompute};
use super::run_dir::{CheckpointError, RunDir};
use super::scribe::{Scribe, Written};
use super::ticket::{Secret, Ticket, TicketError};
use super::workers::{Report, Workers};
use crate::device::{self, DeviceChoice, DeviceError, OpenDevice};
use crate::driver::{Driver, Todo};
use crate::events::{self, Event};
use crate::link::{DialError, next_event};
use crate::options::{self, JoinOptions, Length, Local, NewRun, Start, TrainOptions};
use crate::recipe::{Loaded, Maker, Recipe};
use crate::task::{Eval, TaskError};
use crate::trainer::{TrainerOptions, Worker, WorkerError};
use annulus_core::codec::Codec;
use annulus_core::config::ManifestError;
use annulus_core::ledger::Member;
use annulus_core::optim::{OptimError, Optimizer, Schedule};
use annulus_core::peer::{Change, Commit, Event as PeerEvent};
use annulus_core::shuffle::Shuffle;
use annulus_core::{Contact, Digest, Exit, Input, Manifest, Peer, PeerId, Round, Settings, State, Time};
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroU64;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Takes what the run tells, as it happens.
pub type Sink<'a> = &'a mut (dyn FnMut(Event) + Send);

/// What a newcomer's device is tried out on: enough to even out the clock, little enough to be quick.
const WARM_SAMPLES: u64 = 32;

/// How long frames that were sent may still travel when a peer goes.
const DRAIN: Duration = Duration::from_secs(3);

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
    /// The ticket.
    Ticket(TicketError),
    /// No member could be reached or none would talk.
    Dial(DialError),
    /// The run's data is not here.
    NoData {
        /// Where the founder has it.
        hint: String,
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
            Self::Ticket(error) => write!(f, "{error}"),
            Self::Dial(error) => write!(f, "{error}"),
            Self::NoData { hint } => write!(
                f,
                "the data that this run trains on is not on this machine. Copy it from the machine that started the \
                 run, where it is {hint}, and name it with --data"
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

macro_rules! from {
    ($($error:ty => $variant:ident),* $(,)?) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })*
    };
}

from! {
    TaskError => Task, OptimError => Optimizer, ManifestError => Manifest, DeviceError => Device,
    WorkerError => Worker, IdentityError => Identity, StartError => Start, TicketError => Ticket,
    DialError => Dial, CheckpointError => Checkpoint,
}

/// Starts or resumes a run and takes part in it until it ends or this peer is asked to leave (Ctrl-C).
pub async fn train(options: TrainOptions, recipes: &[Recipe], sink: Sink<'_>) -> Result<(), Error> {
    let local = options.local;
    let (manifest, kit, from) = match options.start {
        Start::New(run) => {
            RunDir::check_free(&local.out)?;
            let (kit, manifest) = prepare(&run, &local, recipes)?;
            (manifest, kit, None)
        }
        Start::Resume(dir) => {
            let (writer, loaded) = Writer::open(&dir)?;
            for message in &loaded.warnings {
                sink(Event::Warning {
                    message: message.clone(),
                });
            }
            let kit = Kit::of(&loaded.manifest, &local, recipes)?;
            (loaded.manifest.clone(), kit, Some((writer, loaded)))
        }
    };
    let manifest = Arc::new(manifest);
    let secret = Secret::generate();
    let (link, settings) = listen(&local, &manifest, secret)?;
    let peer_id = settings.me;
    let ticket = Ticket {
        addrs: dialable(&settings.contact),
        run: manifest.run_id(),
        secret,
    }
    .to_string();
    sink(ready(peer_id, &manifest, &ticket, &kit));
    if let Some(message) = &kit.device.note {
        sink(Event::Warning {
            message: message.clone(),
        });
    }
    let start = Instant::now();
    let (peer, writer) = match from {
        None => {
            let state = State::new(kit.worker.init(), &manifest);
            (Peer::found(manifest.clone(), settings, state, Time(0)), None)
        }
        Some((mut writer, loaded)) => {
            let peer = Peer::resume(manifest.clone(), settings, loaded.state, loaded.head, Time(0));
            writer.resume(peer.head().members[0].clone())?;
            (peer, Some(writer))
        }
    };
    let begin = writer.is_none();
    let mut node = Running::new(peer, link, manifest, kit, local, writer, start, sink);
    if begin {
        node.begin_record();
    } else {
        node.recorded = Some(node.head());
    }
    node.run().await
}

/// Joins a run and takes part in it until it ends or this peer is asked to leave (Ctrl-C).
pub async fn join(options: JoinOptions, recipes: &[Recipe], sink: Sink<'_>) -> Result<(), Error> {
    let local = options.local;
    let ticket: Ticket = options.ticket.parse()?;
    RunDir::check_free(&local.out)?;
    let identity = own_identity(&local)?;
    let (sponsor, manifest) = fetch_manifest(&ticket, &identity).await?;
    let manifest = Arc::new(Manifest::decode(&manifest)?);
    if manifest.run_id() != ticket.run {
        return Err(ManifestError("it is not the one that the ticket names").into());
    }
    let kit = Kit::of(&manifest, &local, recipes)?;
    let (link, settings) = listen(&local, &manifest, ticket.secret)?;
    let own = Ticket {
        addrs: dialable(&settings.contact),
        ..ticket.clone()
    }
    .to_string();
    sink(ready(settings.me, &manifest, &own, &kit));
    if let Some(message) = &kit.device.note {
        sink(Event::Warning {
            message: message.clone(),
        });
    }
    let contact = Contact(
        ticket
            .addrs
            .iter()
            .take(Contact::LIMIT)
            .map(ToString::to_string)
            .collect(),
    );
    let start = Instant::now();
    let peer = Peer::join(manifest.clone(), settings, sponsor, &contact, Time(0));
    let init = kit.worker.init();
    let node = Running::new(peer, link, manifest.clone(), kit, local, None, start, sink);
    let samples = (0..manifest.samples.min(WARM_SAMPLES)).collect();
    node.workers.warm(init, samples);
    node.run().await
}

/// What a run would need, without starting it.
pub fn plan(options: &TrainOptions, recipes: &[Recipe]) -> Result<(Manifest, String), Error> {
    let (manifest, kit) = match &options.start {
        Start::New(run) => {
            let (kit, manifest) = prepare(run, &options.local, recipes)?;
            (manifest, kit)
        }
        Start::Resume(dir) => {
            let manifest = RunDir::open(dir)?.manifest().clone();
            let kit = Kit::of(&manifest, &options.local, recipes)?;
            (manifest, kit)
        }
    };
    Ok((manifest, kit.worker.device_name().to_owned()))
}

/// Evaluates the newest checkpoint of a run's folder.
pub fn evaluate(
    dir: &Path,
    data: Option<&Path>,
    device: &str,
    recipes: &[Recipe],
) -> Result<(Round, Eval), Error> {
    let loaded = RunDir::open(dir)?.load_latest()?;
    let mut kit = Kit::on(&loaded.manifest, data, device, recipes)?;
    let eval = kit.worker.evaluate(&loaded.state.params)?;
    eval.map(|eval| (loaded.head.round, eval))
        .ok_or(Error::NothingHeldOut(loaded.manifest.task))
}

/// Recomputes the run in a folder from its ledger.
pub fn replay(
    dir: &Path,
    data: Option<&Path>,
    device: &str,
    tolerance: f32,
    recipes: &[Recipe],
    progress: &mut dyn FnMut(&Progress),
) -> Result<recompute::Report, Box<dyn std::error::Error + Send + Sync>> {
    let dir = RunDir::open(dir)?;
    let mut kit = Kit::on(dir.manifest(), data, device, recipes)?;
    let shuffle = shuffle(dir.manifest());
    let contribute = |params: &[f32], positions: &[Range<u64>]| {
        let samples: Vec<u64> = positions
            .iter()
            .cloned()
            .flatten()
            .map(|p| shuffle.index(p))
            .collect();
        kit.worker
            .contribute(params.to_vec(), &samples)
            .map(|made| made.gradient)
    };
    Ok(recompute(&dir, tolerance, contribute, progress)?)
}

fn shuffle(manifest: &Manifest) -> Shuffle {
    let samples = NonZeroU64::new(manifest.samples).expect("a checked manifest");
    Shuffle {
        seed: manifest.seed,
        samples,
    }
}

/// What computes.
struct Kit {
    device: OpenDevice,
    worker: Box<dyn Worker>,
    maker: Maker,
}

impl Kit {
    /// For a run that exists: checks that data and model here are the run's.
    fn of(manifest: &Manifest, local: &Local, recipes: &[Recipe]) -> Result<Self, Error> {
        Self::on(manifest, local.data.as_deref(), &local.device, recipes)
    }

    fn on(manifest: &Manifest, data: Option<&Path>, device: &str, recipes: &[Recipe]) -> Result<Self, Error> {
        let recipe = find(recipes, &manifest.task)?;
        let hint = Path::new(&manifest.data_hint);
        let hint = (!manifest.data_hint.is_empty() && hint.exists()).then_some(hint);
        let data = data.or(hint);
        if data.is_none() && !manifest.data_hint.is_empty() {
            return Err(Error::NoData {
                hint: manifest.data_hint.clone(),
            });
        }
        let loaded = (recipe.load)(&manifest.task_config, data)?;
        if loaded.data != manifest.data {
            let (wanted, found) = (manifest.data, loaded.data);
            return Err(Error::OtherData {
                wanted,
                found,
                hint: manifest.data_hint.clone(),
            });
        }
        let kit = Self::new(&loaded, device, manifest.seed, manifest.micro_batch)?;
        if *kit.worker.layout() != manifest.layout {
            return Err(Error::OtherModel);
        }
        Ok(kit)
    }

    fn new(loaded: &Loaded, device: &str, seed: u64, micro_batch: u32) -> Result<Self, Error> {
        let device = device::open(device.parse::<DeviceChoice>()?)?;
        let maker = loaded.maker(
            device.clone(),
            TrainerOptions {
                seed,
                micro_batch: micro_batch as usize,
            },
        );
        Ok(Self {
            worker: maker()?,
            device,
            maker,
        })
    }
}

fn find<'a>(recipes: &'a [Recipe], name: &str) -> Result<&'a Recipe, Error> {
    let known = || recipes.iter().map(|r| r.name).collect();
    let found = recipes.iter().find(|r| r.name == name);
    found.ok_or_else(|| Error::UnknownTask {
        name: name.into(),
        known: known(),
    })
}

/// A new run's manifest, and what computes.
fn prepare(run: &NewRun, local: &Local, recipes: &[Recipe]) -> Result<(Kit, Manifest), Error> {
    let recipe = find(recipes, &run.task)?;
    let mut config = (recipe.defaults)();
    config.extend(run.task_config.clone());
    let loaded = (recipe.load)(
        &serde_json::Value::Object(config).to_string(),
        local.data.as_deref(),
    )?;
    let kit = Kit::new(&loaded, &local.device, run.seed, run.micro_batch)?;
    let target = match run.length {
        Length::Epochs(n) => n.saturating_mul(loaded.samples),
        Length::Rounds(n) => n.saturating_mul(u64::from(run.batch)),
    };
    let steps = target.div_ceil(u64::from(run.batch.max(1)));
    let data_hint = match &local.data {
        Some(path) => std::path::absolute(path)
            .unwrap_or_else(|_| path.clone())
            .display()
            .to_string(),
        None => String::new(),
    };
    let manifest = Manifest {
        task: run.task.clone(),
        task_config: loaded.config.clone(),
        seed: run.seed,
        samples: loaded.samples,
        data: loaded.data,
        data_hint,
        target,
        batch: run.batch,
        micro_batch: run.micro_batch,
        layout: kit.worker.layout().clone(),
        optimizer: run.optimizer.parse::<Optimizer>()?,
        lr: run.lr,
        schedule: match run.schedule {
            options::Schedule::Constant => Schedule::Constant,
            options::Schedule::Warmup => Schedule::Warmup { steps: run.warmup },
            options::Schedule::Cosine => Schedule::Cosine {
                warmup: run.warmup,
                total: steps,
                floor: 0.1,
            },
        },
        clip: run.clip,
        codec: match run.codec {
            options::Codec::F32 => Codec::F32,
            options::Codec::F16 => Codec::F16,
        },
        piece: Manifest::PIECE,
        min_peers: run.min_peers,
    };
    manifest.check()?;
    Ok((kit, manifest))
}

/// Opens the socket.
fn listen(local: &Local, manifest: &Manifest, secret: Secret) -> Result<(QuicLink, Settings), Error> {
    let identity = own_identity(local)?;
    let listen = resolve(&local.listen)?;
    for text in &local.advertise {
        resolve(text)?;
    }
    let config = QuicConfig::new(manifest.run_id(), secret, manifest.encode().into());
    let link = QuicLink::start(&identity, QuicConfig { listen, ..config })?;
    let own = own_addresses(link.local_addr())
        .into_iter()
        .map(|a| a.to_string());
    let mut addresses = local.advertise.clone();
    addresses.extend(own);
    addresses.truncate(Contact::LIMIT);
    link.advertise(addresses.clone());
    let settings = Settings::new(identity.peer(), Contact(addresses));
    Ok((link, settings))
}

/// The key of this peer, kept in the run directory so that it has the same name after a restart.
fn own_identity(local: &Local) -> Result<Identity, Error> {
    std::fs::create_dir_all(&local.out).map_err(|error| Error::Out(local.out.clone(), error))?;
    Ok(Identity::load_or_create(&local.out.join("identity"))?)
}

fn resolve(text: &str) -> Result<SocketAddr, Error> {
    let error = |why: String| Error::Address {
        text: text.into(),
        why,
    };
    let mut found = text.to_socket_addrs().map_err(|e| error(e.to_string()))?;
    found
        .next()
        .ok_or_else(|| error("the name has no address".into()))
}

/// A contact's addresses as a ticket holds them.
fn dialable(contact: &Contact) -> Vec<SocketAddr> {
    contact
        .0
        .iter()
        .filter_map(|text| text.to_socket_addrs().ok()?.next())
        .collect()
}

fn ready(me: PeerId, manifest: &Manifest, ticket: &str, kit: &Kit) -> Event {
    Event::Ready(events::Ready {
        peer: me.to_hex(),
        run: manifest.run_id().to_hex(),
        ticket: ticket.to_owned(),
        url: None,
        task: manifest.task.clone(),
        device: kit.worker.device_name().to_owned(),
        parameters: manifest.layout.len as u64,
        target: manifest.target,
    })
}

/// A participant at work.
struct Running<'a> {
    driver: Driver<QuicLink>,
    workers: Workers,
    reports: UnboundedReceiver<Report>,
    scribe: Scribe,
    written: UnboundedReceiver<Written>,
    local: Local,
    start: Instant,
    sink: Sink<'a>,
    traffic: (u64, u64),
    last_loss: f32,
    last_eval: Option<(Round, Eval)>,
    refused: Option<WorkerError>,
    failure: Option<Error>,
    /// The head that the ledger on disk ends with: only its state may be saved.
    recorded: Option<(Round, Digest)>,
    /// Percent of the state that was last told.
    synced: Option<u64>,
}

impl<'a> Running<'a> {
    #[expect(clippy::too_many_arguments, reason = "put together once")]
    fn new(
        peer: Peer,
        link: QuicLink,
        manifest: Arc<Manifest>,
        kit: Kit,
        local: Local,
        writer: Option<Writer>,
        start: Instant,
        sink: Sink<'a>,
    ) -> Self {
        let (to_loop, reports) = unbounded_channel();
        let (to_us, written) = unbounded_channel();
        let shuffle = shuffle(&manifest);
        let keep = local.keep as usize;
        Self {
            driver: Driver::new(peer, link, shuffle),
            workers: Workers::start(kit.worker, kit.maker, to_loop),
            reports,
            scribe: Scribe::start(local.out.clone(), manifest, keep, writer, to_us),
            written,
            local,
            start,
            sink,
            traffic: (0, 0),
            last_loss: f32::NAN,
            last_eval: None,
            refused: None,
            failure: None,
            recorded: None,
            synced: None,
        }
    }

    fn now(&self) -> Time {
        Time(self.start.elapsed().as_micros() as u64)
    }

    async fn run(mut self) -> Result<(), Error> {
        let exit = self.turn().await;
        self.driver.link().drain(DRAIN).await;
        if exit == Exit::NotFinite {
            let round = self.driver.peer().head().round;
            let why = self.refused.take();
            self.failure.get_or_insert(Error::NotFinite {
                round,
                dir: self.local.out.clone(),
                why,
            });
        }
        self.close().await
    }

    /// The loop: until the peer is done.
    async fn turn(&mut self) -> Exit {
        let mut interrupts = 0;
        let mut interrupt = Box::pin(interrupted());
        loop {
            while let Some(todo) = self.driver.next_todo() {
                match todo {
                    Todo::Compute {
                        round,
                        samples,
                        buffer,
                    } => self.workers.contribute(round, samples, buffer),
                    Todo::Event(event) => self.tell(event),
                    Todo::Exit(exit) => return exit,
                }
            }
            let wake = self.driver.peer().wake_at().unwrap_or(Time(u64::MAX / 2));
            let wake = tokio::time::sleep((wake - self.now()).min(Duration::from_secs(3600)));
            tokio::select! {
                event = next_event(self.driver.link()) => match event {
                    Some(event) => {
                        let now = self.now();
                        self.driver.on_link(event, now);
                    }
                    None => return Exit::Left,
                },
                Some(report) = self.reports.recv() => self.on_report(report),
                Some(written) = self.written.recv() => self.on_written(written),
                () = wake => self.feed(Input::Tick),
                () = &mut interrupt => {
                    interrupts += 1;
                    if interrupts > 1 {
                        return Exit::Left;
                    }
                    interrupt = Box::pin(interrupted());
                    self.warn("leaving after this round; once more to leave at once".into());
                    self.feed(Input::Leave);
                }
            }
        }
    }

    fn feed(&mut self, input: Input) {
        let now = self.now();
        self.driver.handle(input, now);
    }

    fn on_report(&mut self, report: Report) {
        match report {
            Report::Warm(speed) => self.feed(Input::Warm { speed }),
            Report::Made(input) => self.feed(input),
            Report::Refused(input, why) => {
                self.warn(format!("this peer's contribution does not count: {why}"));
                self.refused = Some(why);
                self.feed(input);
            }
            Report::Failed(why) => self.fail(why.into()),
            Report::Evaluated(round, Ok(Some(eval))) => {
                self.last_eval = Some((round, eval));
                (self.sink)(Event::Eval {
                    round,
                    loss: eval.loss,
                    accuracy: eval.accuracy,
                });
            }
            Report::Evaluated(_, Ok(None)) => {}
            Report::Evaluated(_, Err(why)) => self.warn(format!("the evaluation failed: {why}")),
        }
    }

    fn on_written(&mut self, written: Written) {
        match written {
            Written::Saved { .. } => {}
            Written::Warning(message) => self.warn(message),
            Written::Failed(error) => self.fail(error.into()),
        }
    }

    /// Something this peer cannot go on with: it leaves in good order.
    fn fail(&mut self, error: Error) {
        if self.failure.is_none() {
            self.warn(format!("leaving: {error}"));
            self.failure = Some(error);
            self.feed(Input::Leave);
        }
    }

    fn warn(&mut self, message: String) {
        (self.sink)(Event::Warning { message });
    }

    fn tell(&mut self, event: PeerEvent) {
        match event {
            PeerEvent::Committed(commit) => self.committed(*commit),
            PeerEvent::Member { peer, change, reason } => {
                let round = self.driver.peer().head().round;
                let change = match change {
                    Change::Joined => events::Change::Joined,
                    Change::Left => events::Change::Left,
                    Change::Failed => events::Change::Failed,
                    Change::Evicted => events::Change::Evicted,
                };
                (self.sink)(Event::Member {
                    peer: peer.to_hex(),
                    change,
                    round,
                    reason: reason.into(),
                });
            }
            PeerEvent::Syncing { bytes, total, round } => {
                // A line for each percent is enough.
                let percent = bytes * 100 / total.max(1);
                if self.synced.replace(percent) != Some(percent) {
                    (self.sink)(Event::Sync { bytes, total, round });
                }
            }
            PeerEvent::Entered => {
                let (me, round) = (self.me(), self.head().0);
                self.begin_record();
                let reason = String::new();
                (self.sink)(Event::Member {
                    peer: me.to_hex(),
                    change: events::Change::Joined,
                    round,
                    reason,
                });
            }
            PeerEvent::Continued => {
                let founder: Member = self.driver.peer().head().members[0].clone();
                self.scribe.go_on(founder);
                self.recorded = Some(self.head());
                self.warn("no other member can be reached: this peer goes on alone".into());
            }
            PeerEvent::Outcast { reason, lost } => {
                let round = self.driver.peer().head().round;
                let peer = self.me().to_hex();
                let change = events::Change::Evicted;
                (self.sink)(Event::Member {
                    peer,
                    change,
                    round,
                    reason: reason.into(),
                });
                if lost > 0 {
                    self.warn(format!(
                        "{lost} samples that this side had counted are lost: the other side counts more"
                    ));
                }
            }
            PeerEvent::NotFinite { .. } => {}
            PeerEvent::Waiting { members } => {
                let need = self.driver.peer().manifest().min_peers;
                self.warn(format!("waiting: {members} of at least {need} members are there"));
            }
        }
    }

    fn me(&self) -> PeerId {
        self.driver.peer().me()
    }

    fn head(&self) -> (Round, Digest) {
        let head = self.driver.peer().head();
        (head.round, head.chain)
    }

    /// This peer's ledger begins at its present head.
    fn begin_record(&mut self) {
        let peer = self.driver.peer();
        self.scribe.begin(peer.head().clone(), peer.state().clone());
        self.recorded = Some(self.head());
    }

    fn committed(&mut self, commit: Commit) {
        let (sent, received) = self.driver.traffic();
        let before = std::mem::replace(&mut self.traffic, (sent, received));
        let round = commit.record.round;
        self.last_loss = commit.record.loss();
        let members = commit.record.headers.iter();
        let event = Event::Round(events::Round {
            round,
            view: format!("{:016x}", commit.view.id),
            members: members
                .map(|h| events::Share {
                    peer: h.peer.to_hex(),
                    weight: h.weight.into(),
                })
                .collect(),
            loss: self.last_loss,
            digest: commit.digest.to_hex(),
            samples: commit.record.weight(),
            counted: commit.samples,
            compute_seconds: commit.compute.as_secs_f64(),
            reduce_seconds: commit.reduce.as_secs_f64(),
            seconds: commit.total.as_secs_f64(),
            bytes_sent: sent - before.0,
            bytes_received: received - before.1,
        });
        (self.sink)(event);
        self.scribe.append(commit.record, commit.digest);
        self.recorded = Some(self.head());
        let due = |every: u64| every > 0 && round.is_multiple_of(every);
        let peer = self.driver.peer();
        if due(self.local.checkpoint_every) && !self.scribe.save(peer.head(), peer.state(), commit.digest) {
            let every = self.local.checkpoint_every;
            self.warn(format!(
                "the disk is slower than checkpoint_every={every}: this checkpoint is left out"
            ));
        }
        if due(self.local.eval_every) {
            let params = &self.driver.peer().state().params;
            self.workers.evaluate(round, params);
        }
    }

    /// The last checkpoint and evaluation, and the last word.
    async fn close(mut self) -> Result<(), Error> {
        let peer = self.driver.peer();
        let (round, digest) = (peer.head().round, peer.digest());
        let whole = self.recorded == Some(self.head());
        let wrote = !matches!(self.failure, Some(Error::Checkpoint(_)));
        if whole && wrote {
            while !self.scribe.save(peer.head(), peer.state(), digest) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        if whole && self.last_eval.is_none_or(|(r, _)| r != round) {
            while !self.workers.evaluate(round, &self.driver.peer().state().params) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            while let Some(report) = self.reports.recv().await {
                let last = matches!(report, Report::Evaluated(r, _) if r == round);
                if matches!(report, Report::Evaluated(..)) {
                    self.on_report(report);
                }
                if last {
                    break;
                }
            }
        }
        self.scribe.finish();
        while let Ok(written) = self.written.try_recv() {
            match written {
                Written::Failed(error) => {
                    self.failure.get_or_insert(error.into());
                }
                Written::Warning(message) => (self.sink)(Event::Warning { message }),
                Written::Saved { .. } => {}
            }
        }
        if let Some(error) = self.failure {
            return Err(error);
        }
        let eval = self.last_eval.filter(|(r, _)| *r == round).map(|(_, eval)| eval);
        (self.sink)(Event::Done(events::Done {
            round,
            digest: digest.to_hex(),
            loss: eval.map_or(self.last_loss, |e| e.loss),
            accuracy: eval.and_then(|e| e.accuracy),
            dir: self.local.out.display().to_string(),
        }));
        Ok(())
    }
}

/// Ctrl-C, or a polite request to end.
async fn interrupted() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}
