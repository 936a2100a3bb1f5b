//! One synthetic peer: a real protocol, driver and link, with a thread in place of a device.

use super::Error;
use super::plan::{Pace, PeerMessage, Plan, Role, RoundTiming, SHARE, Spec, TASK, WARM_UP};
use super::process;
use crate::data::fetch::fetch_manifest;
use crate::net::addresses::own_addresses;
use crate::net::config::QuicConfig;
use crate::net::identity::Identity;
use crate::net::link::LinkEvent;
use crate::net::quic::QuicLink;
use crate::net::ticket::{Secret, Ticket};
use crate::participant::driver::{Driver, Traffic};
use crate::participant::host::{self, Host};
use crate::trainer::Share;
use annulus_core::interface::SpanWork;
use annulus_core::invitation::{self, Invitation};
use annulus_core::parts::Parts;
use annulus_core::peer::{Change, Commit, Event};
use annulus_core::shuffle::Shuffle;
use annulus_core::{Contact, Exit, Input, Manifest, Peer, Round, Settings, State, Time};
use std::iter;
use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::ControlFlow;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// How long a leaving peer waits for frames in flight.
const DRAIN: Duration = Duration::from_secs(3);

/// Runs a peer until the run ends or it is told to leave. Returns the run's plan.
pub async fn run(
    spec: Spec,
    mut leave: UnboundedReceiver<()>,
    mut say: impl FnMut(PeerMessage),
) -> Result<Plan, Error> {
    let identity = Identity::generate();
    let listen = spec
        .listen
        .to_socket_addrs()
        .ok()
        .and_then(|mut found| found.next());
    let listen = listen.ok_or_else(|| Error::Address(spec.listen.clone()))?;
    let (mut driver, mut host) = match &spec.role {
        Role::Found(plan) => {
            let run_key = Secret::generate();
            let manifest = Arc::new(Manifest {
                key: run_key.key().peer(),
                ..plan.manifest()
            });
            manifest.check()?;
            let (all, root) = (Invitation::of_run(run_key.key()), manifest.root());
            let ticket = Ticket::made_from(&all, root, invitation::Role::Member, None, None)?;
            let (link, settings, ticket) = open(&identity, listen, &manifest, ticket)?;
            // Numbers of both signs and several magnitudes, like gradients.
            let value = |i: usize| ((i % 2039) as f32 - 1019.0) / 1024.0;
            let state = State::new((0..plan.elements).map(value).collect(), &manifest);
            say_ready(&mut say, &settings, &ticket);
            let peer = Peer::found(manifest.clone(), settings, state, Time(0));
            BenchHost::start(
                peer,
                link,
                &manifest,
                plan.clone(),
                spec.every,
                &mut leave,
                &mut say,
            )
        }
        Role::Join(text) => {
            let ticket: Ticket = text.parse()?;
            let (sponsor, manifest) = fetch_manifest(&ticket, iter::empty(), &identity).await?;
            let manifest = Arc::new(Manifest::decode(&manifest)?);
            if manifest.task != TASK {
                return Err(Error::NoBench(manifest.task.clone()));
            }
            let plan: Plan = serde_json::from_str(&manifest.task_config)
                .map_err(|_| Error::NoBench("bench of another release".into()))?;
            let (link, settings, own) = open(&identity, listen, &manifest, ticket)?;
            say_ready(&mut say, &settings, &own);
            let (via, contact) = (sponsor.peer, &sponsor.contact);
            let peer = Peer::join(manifest.clone(), settings, via, contact, Time(0));
            BenchHost::start(peer, link, &manifest, plan, spec.every, &mut leave, &mut say)
        }
    };
    host::run(&mut host, &mut driver).await;
    driver.link().drain(DRAIN).await;
    let plan = host.plan;
    let memory = process::memory().unwrap_or_default();
    say(PeerMessage::Done { memory });
    Ok(plan)
}

fn say_ready(say: &mut impl FnMut(PeerMessage), settings: &Settings, ticket: &Ticket) {
    say(PeerMessage::Ready {
        peer: settings.me.to_hex(),
        ticket: ticket.to_string(),
    });
}

/// Opens the socket, and reports its address.
fn open(
    identity: &Identity,
    listen: SocketAddr,
    manifest: &Manifest,
    ticket: Ticket,
) -> Result<(QuicLink, Settings, Ticket), Error> {
    let admission = ticket.right().admit(identity.peer(), ticket.root.run);
    let config = QuicConfig::new(ticket.root, ticket.right(), manifest.encode().into());
    let link = QuicLink::start(identity, QuicConfig { listen, ..config })?;
    let mut addrs = own_addresses(link.local_addr());
    addrs.truncate(Contact::LIMIT);
    let contact: Vec<String> = addrs.iter().map(ToString::to_string).collect();
    link.advertise(contact.clone());
    let settings = Settings::new(identity.key(), admission, Contact(contact));
    Ok((link, settings, Ticket { addrs, ..ticket }))
}

/// The host of a synthetic peer.
struct BenchHost<'a, S> {
    plan: Plan,
    every: u64,
    clock: Clock,
    jobs: mpsc::Sender<Job>,
    made: UnboundedReceiver<Job>,
    leave: &'a mut UnboundedReceiver<()>,
    say: &'a mut S,
    /// The round's start and period, and the processor time at the start.
    began: Option<(f64, f64, f64)>,
    /// When the protocol last got an input.
    fed: f64,
    /// The last round's time, which the next contribution reports to the others.
    took: f64,
    /// The longest time that any member has reported since the first rounds.
    worst: f64,
    /// Seconds between slots, once known.
    period: Option<f64>,
    traffic: Traffic,
}

/// Events beside those of the link.
enum Happening {
    Made(Job),
    Leave,
}

/// A contribution to make at a time of the shared clock.
struct Job {
    round: Round,
    buffer: Vec<f32>,
    samples: u32,
    due: f64,
    period: f64,
}

/// The clock that all peers of a machine share. It is read once; from there on a monotonic clock continues it.
#[derive(Clone, Copy)]
struct Clock {
    start: Instant,
    wall: f64,
}

impl Clock {
    fn now(&self) -> f64 {
        self.wall + self.start.elapsed().as_secs_f64()
    }

    fn time(&self) -> Time {
        Time(self.start.elapsed().as_micros() as u64)
    }
}

impl<'a, S: FnMut(PeerMessage)> BenchHost<'a, S> {
    fn start(
        peer: Peer,
        link: QuicLink,
        manifest: &Manifest,
        plan: Plan,
        every: u64,
        leave: &'a mut UnboundedReceiver<()>,
        say: &'a mut S,
    ) -> (Driver<QuicLink>, Self) {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let clock = Clock {
            start: Instant::now(),
            wall: wall.as_secs_f64(),
        };
        let (jobs, queue) = mpsc::channel::<Job>();
        let (to_loop, made) = unbounded_channel();
        thread::spawn(move || {
            while let Ok(job) = queue.recv() {
                thread::sleep(Duration::from_secs_f64((job.due - clock.now()).max(0.0)));
                if to_loop.send(job).is_err() {
                    return;
                }
            }
        });
        let mut driver = Driver::new(peer, link, Shuffle::of(manifest));
        let speed = f64::from(SHARE) * 1000.0 / plan.nominal().as_secs_f64();
        driver.handle(Input::Warm { speed: speed as u64 }, Time(0));
        let host = Self {
            plan,
            every,
            clock,
            jobs,
            made,
            leave,
            say,
            began: None,
            fed: clock.now(),
            took: 0.0,
            worst: 0.0,
            period: None,
            traffic: Traffic::default(),
        };
        (driver, host)
    }

    fn give(&mut self, job: Job, driver: &mut Driver<QuicLink>) {
        let from = if job.period > 0.0 {
            job.due
        } else {
            self.clock.now()
        };
        self.began = Some((from, job.period, process::cpu_seconds().unwrap_or(0.0)));
        let contribution = Input::Contribution {
            round: job.round,
            gradient: job.buffer,
            weight: job.samples,
            loss: self.took as f32,
            compute: self.plan.nominal() * job.samples / SHARE,
            late: false,
        };
        self.feed(contribution, driver);
    }

    fn committed(&mut self, commit: &Commit, driver: &Driver<QuicLink>) {
        let step = driver.peer().head().steps;
        let headers = &commit.record.headers;
        let traffic = driver.traffic();
        let before = std::mem::replace(&mut self.traffic, traffic);
        // Rounds before all members were there have no vector.
        let Some((from, period, cpu)) = self.began.take().filter(|_| commit.record.weight() > 0) else {
            return;
        };
        self.took = self.fed - from;
        let took_before: Vec<f64> = headers.iter().map(|h| f64::from(h.loss)).collect();
        if step > 2 {
            self.worst = took_before.iter().copied().fold(self.worst, f64::max);
        }
        if step >= WARM_UP {
            // All members know this number, so all have the same slots. It leaves room for commit and noise.
            self.period = Some(1.5 * self.worst + 0.25);
        }
        if step.is_multiple_of(self.every.max(1)) {
            (self.say)(PeerMessage::Round(Box::new(RoundTiming {
                step,
                undisturbed: commit.record.attempt == 0,
                members: headers.iter().map(|h| h.peer.to_hex()).collect(),
                period,
                took: self.took,
                took_before,
                total: commit.total.as_secs_f64(),
                commit: self.clock.now() - self.fed,
                cpu: process::cpu_seconds().unwrap_or(0.0) - cpu,
                sent: traffic.sent - before.sent,
                received: traffic.received - before.received,
                memory: process::memory().unwrap_or_default(),
                fetched: traffic.fetched,
                kept: kept(driver.peer()),
            })));
        }
    }
}

/// The parts of the optimizer's vectors that a peer has, and how many there are.
fn kept(peer: &Peer) -> [usize; 2] {
    match Parts::of(peer.manifest()) {
        Some(parts) => [peer.state().kept.set().len(), parts.count()],
        None => [1, 1],
    }
}

impl<S: FnMut(PeerMessage)> Host for BenchHost<'_, S> {
    type Link = QuicLink;
    type Happening = Happening;

    fn now(&self) -> Time {
        self.clock.time()
    }

    fn sleep(duration: Duration) -> impl Future<Output = ()> {
        tokio::time::sleep(duration)
    }

    async fn give_way(&mut self, busy: bool) {
        if busy {
            tokio::task::yield_now().await;
        }
    }

    async fn next(&mut self) -> Happening {
        tokio::select! {
            Some(job) = self.made.recv() => Happening::Made(job),
            Some(()) = self.leave.recv() => Happening::Leave,
            else => std::future::pending().await,
        }
    }

    fn on_happening(&mut self, happening: Happening, driver: &mut Driver<QuicLink>) -> ControlFlow<Exit> {
        match happening {
            Happening::Made(job) => self.give(job, driver),
            Happening::Leave => self.feed(Input::Leave, driver),
        }
        ControlFlow::Continue(())
    }

    /// The parameters, at the time that the pace says.
    fn compute_span(&mut self, _: Box<SpanWork>, _: Vec<u64>) {
        unreachable!("the vectors of this bench are no model to be split");
    }

    fn compute(&mut self, round: Round, share: Share) {
        let now = self.clock.now();
        let (due, period) = match (self.plan.pace, self.period) {
            (Pace::AtOnce, _) | (Pace::Slots, None) => (now, 0.0),
            (Pace::After(ms), _) => (now + ms as f64 / 1e3, 0.0),
            (Pace::Slots, Some(period)) => (((now / period).floor() + 1.0) * period, period),
        };
        let job = Job {
            round,
            buffer: share.params,
            samples: share.samples.len() as u32,
            due,
            period,
        };
        self.jobs.send(job).expect("the thread lives as long as this");
    }

    fn tell(&mut self, event: Event, driver: &Driver<QuicLink>) {
        let say = &mut *self.say;
        match event {
            Event::Committed(commit) => self.committed(&commit, driver),
            Event::Entered => say(PeerMessage::Entered {
                seconds: self.clock.start.elapsed().as_secs_f64(),
                received: driver.traffic().received,
            }),
            Event::Member {
                change: change @ (Change::Failed | Change::Evicted),
                reason,
                ..
            } => say(PeerMessage::Trouble(format!(
                "a member was lost: {change:?}, {reason}"
            ))),
            Event::Outcast { reason, .. } => {
                say(PeerMessage::Trouble(format!("this peer was cast out: {reason}")))
            }
            Event::Outlawed { peer, .. } => say(PeerMessage::Trouble(format!("{peer} was cut off"))),
            Event::NotFinite { .. } => say(PeerMessage::Trouble("a contribution was not finite".into())),
            Event::Lacking { parts, .. } => {
                say(PeerMessage::Trouble(format!("nobody keeps parts {parts:?}")))
            }
            Event::FalseWork { peer } => say(PeerMessage::Trouble(format!("{peer} sent false values"))),
            Event::FalseUpdate { peer, .. } => {
                say(PeerMessage::Trouble(format!("{peer} let a false update out")))
            }
            Event::WentBack { from, to, .. } => say(PeerMessage::Trouble(format!(
                "the run went back from round {from} to {to}"
            ))),
            Event::Continued { .. } => say(PeerMessage::Trouble("no member can be reached".into())),
            Event::TooSlow { .. } => say(PeerMessage::Trouble("a line is too slow".into())),
            Event::NoPlace { .. } => say(PeerMessage::Trouble("there is no place for this peer".into())),
            Event::Member { .. }
            | Event::Lost { .. }
            | Event::Syncing { .. }
            | Event::Pace(_)
            | Event::Aside(_)
            | Event::Shift(_)
            | Event::Waiting { .. } => {}
        }
    }

    fn on_link(&mut self, event: LinkEvent, driver: &mut Driver<QuicLink>) {
        self.fed = self.clock.now();
        driver.on_link(event, self.clock.time());
    }

    fn feed(&mut self, input: Input, driver: &mut Driver<QuicLink>) {
        self.fed = self.clock.now();
        driver.handle(input, self.clock.time());
    }
}
