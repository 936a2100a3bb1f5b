//! A tab's way through a run: from the ticket to the last round.

use crate::compute::{Compute, ComputeBackend, ComputeResult, Job, TextGenerator};
use crate::device::{self, Backend, Gpu};
use crate::dial::{LocalPeer, dial};
use crate::fetch::fetch_data;
use crate::identity::Identity;
use crate::inner_worker::{InnerWorkerHandle, trainer_options};
use crate::js;
use crate::link::TabLink;
use crate::page::{Failure, Kind, Page, State};
use crate::page_server::PageServer;
use crate::queue::Queue;
use annulus::data::Data;
use annulus::data::provision::Source;
use annulus::device::{DeviceKind, OpenDevice};
use annulus::events::{self, Event};
use annulus::net::hello::Purpose;
use annulus::net::link::{DialError, LinkEvent, next_event};
use annulus::net::ticket::Ticket;
use annulus::participant::driver::{Driver, Todo};
use annulus::participant::event_translator::EventTranslator;
use annulus::task::Prompt;
use annulus::task_factory::{LoadedTask, TaskFactory};
use annulus::trainer::{Worker, WorkerError};
use annulus_core::ledger::Member;
use annulus_core::peer::Event as PeerEvent;
use annulus_core::shuffle::Shuffle;
use annulus_core::{Contact, Exit, Input, Manifest, Peer, Settings, Time};
use futures_lite::future::or;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Most samples that a newcomer's device is tried out on: enough to even out the clock.
const WARM_SAMPLES: u64 = 32;

/// Samples whose gradients the device and the CPU are compared on.
const TRIAL_SAMPLES: u64 = 4;

/// How far the device's gradient may be from the CPU's, relative to its length. Sums in another order differ by about
/// 1e-6 to 1e-5 here; what is wrong differs by more than one.
const TRIAL_TOLERANCE: f64 = 1e-3;

/// WASM's memory ends at 4 GiB; what is not the model's needs some of it.
const MEMORY: u64 = 3 << 30;

/// Copies of the parameters beside the state: contribution, sum, pieces under way, and those of the trainer.
const COPIES: u64 = 6;

/// What the volunteer says.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Out of the ring for now.
    Pause,
    /// Back into it.
    Resume,
    /// Out of the ring.
    Leave,
    /// Share of the time that the device may be busy.
    Power(f64),
    /// Write something.
    Write(Prompt),
}

/// What a tab is to do.
pub struct Options {
    /// The ticket's text.
    pub ticket: String,
    /// What computes.
    pub backend: Backend,
    /// Share of the time that the device may be busy.
    pub power: f64,
}

/// Takes part in a run until it ends or the volunteer wants no more.
///
/// # Errors
///
/// If the tab cannot take part, or no longer.
pub async fn take_part(
    factories: &[TaskFactory],
    options: Options,
    commands: &Queue<Command>,
    gpu: &Gpu,
    page: &Rc<Page>,
) -> Result<(), Failure> {
    page.state(State::Connecting, "asking for the run");
    let ticket: Ticket = options
        .ticket
        .parse()
        .map_err(|error: annulus::net::ticket::TicketError| Failure::new(Kind::Ticket, error.to_string()))?;
    let host = PageServer::ask().await.map_err(|why| {
        let message = format!("the node that serves this page does not answer: {why}");
        Failure::new(Kind::Unreachable, message)
    })?;
    let identity = Identity::generate()
        .await
        .map_err(|why| Failure::new(Kind::Internal, why))?;
    let me = || LocalPeer {
        identity: identity.clone(),
        run: ticket.run,
        secret: ticket.secret,
        instance: getrandom::u64().expect("browsers give random bytes"),
    };
    let addresses: Vec<String> = ticket.addrs.iter().map(ToString::to_string).collect();
    let contact = host.contact(&addresses);
    let manifest = Arc::new(fetch_manifest(&me(), &host, &contact).await?);

    let factory = find(factories, &manifest)?;
    let room = fits(&manifest)?;
    let here = Source {
        peer: host.peer,
        contact: Contact(contact),
    };
    let (loaded, data, sponsor) = if manifest.data_hint.is_empty() {
        page.state(State::Checking, "reading the data");
        js::next_task().await;
        (load(factory, &manifest, None)?, None, here)
    } else {
        let fetching = async { Some(fetch_data(me, here, factory, &manifest, room, page).await) };
        let early = RefCell::default();
        let fetched = or(fetching, async {
            until_leave(commands, &early).await;
            None
        });
        let Some(fetched) = fetched.await else {
            page.state(State::Left, "");
            return Ok(());
        };
        early
            .into_inner()
            .into_iter()
            .for_each(|command| commands.push(command));
        let ((loaded, data), sponsor) = fetched?;
        (loaded, Some(data), sponsor)
    };
    let device = device::open(options.backend, gpu, page).await?;
    let worker_factory =
        |device: &OpenDevice| loaded.worker_factory(device.clone(), trainer_options(&manifest));
    let here = worker_factory(&device);
    let hand = if device.kind == DeviceKind::Cpu {
        let processor = InnerWorkerHandle::start(gpu, &manifest, data.as_ref()).await;
        ComputeBackend::Processor(processor.map_err(|why| Failure::new(Kind::Internal, why))?)
    } else {
        page.state(State::Checking, "comparing the device with the CPU");
        let mut worker_here = here().map_err(failed)?;
        if *worker_here.layout() != manifest.layout {
            let message = "the model made here is not the run's: the page is of another release than the run";
            return Err(Failure::new(Kind::Refused, message));
        }
        let mut twin = worker_factory(&OpenDevice::cpu())().map_err(failed)?;
        compare(&mut *worker_here, &mut *twin, manifest.samples).await?;
        ComputeBackend::Here(worker_here)
    };
    let compute = Compute::start(hand, manifest.layout.len, options.power);
    let text_generator = TextGenerator::start(here, page.clone());
    page.event(&Event::Ready(events::Ready {
        peer: identity.peer.to_hex(),
        run: manifest.run_id().to_hex(),
        // The page has it already, and its log may be shown to others.
        ticket: String::new(),
        url: None,
        share_url: None,
        task: manifest.task.clone(),
        device: device.name.clone(),
        parameters: manifest.layout.len as u64,
        target: manifest.target,
    }));
    // Where others were found, for the next time: the host may be gone by then.
    let mut others: Vec<Member> = Vec::new();
    loop {
        page.state(State::Connecting, "looking for the ring");
        let now = Time(js::now());
        let settings = Settings::new(identity.peer, Contact::default());
        let mut peer = Peer::join(manifest.clone(), settings, sponsor.peer, &sponsor.contact, now);
        for other in others.iter().filter(|other| other.peer != sponsor.peer) {
            peer.know(other.peer, &other.contact);
        }
        let samples = (0..manifest.samples.min(WARM_SAMPLES)).collect();
        compute.jobs.push(Job::Warm { samples });
        let mut tab = Tab {
            driver: Driver::new(
                peer,
                TabLink::new(me(), host.peer, manifest.layout.len),
                Shuffle::of(&manifest),
            ),
            compute: &compute,
            text_generator: &text_generator,
            commands,
            page,
            translator: EventTranslator::default(),
            member: false,
            going: None,
            broken: None,
        };
        let exit = tab.run().await;
        let (going, broken) = (tab.going, tab.broken.take());
        others.clone_from(&tab.driver.peer().head().members);
        drop(tab);
        if let Some(failure) = broken {
            return Err(failure);
        }
        match exit {
            Exit::Finished => {
                page.state(State::Ended, "every sample was counted");
                return Ok(());
            }
            Exit::NotFinite => {
                let message =
                    "the loss is not finite on any member: the run's settings need a lower learning rate";
                return Err(Failure::new(Kind::Internal, message));
            }
            Exit::Left if going == Some(Going::Back) => {}
            Exit::Left if going != Some(Going::Aside) => {
                page.state(State::Left, "");
                return Ok(());
            }
            Exit::Left => {
                page.state(State::Paused, "");
                loop {
                    match commands.next().await {
                        Command::Resume => break,
                        Command::Power(power) => compute.power.set(power),
                        Command::Pause | Command::Write(_) => {}
                        Command::Leave => {
                            page.state(State::Left, "");
                            return Ok(());
                        }
                    }
                }
            }
        }
    }
}

async fn fetch_manifest(me: &LocalPeer, host: &PageServer, contact: &[String]) -> Result<Manifest, Failure> {
    let session = dial(me, host.peer, contact, Purpose::Manifest).await;
    let session = session.map_err(|error| {
        let kind = match error {
            DialError::Refused(_) | DialError::Unproven | DialError::AnotherPeer(_) => Kind::Refused,
            _ => Kind::Unreachable,
        };
        Failure::new(kind, error.to_string())
    })?;
    session.transport.close(&js::object(&[]));
    let bytes = session.welcome.manifest.unwrap_or_default();
    let manifest = Manifest::decode(&bytes);
    let refused = |message: String| Failure::new(Kind::Refused, message);
    let manifest = manifest.map_err(|error| refused(error.to_string()))?;
    if manifest.run_id() != me.run {
        return Err(refused("the run is not the one that the ticket names".into()));
    }
    Ok(manifest)
}

/// Waits until the volunteer wants to leave; what else they say meanwhile is kept for later.
async fn until_leave(commands: &Queue<Command>, others: &RefCell<Vec<Command>>) {
    loop {
        match commands.next().await {
            Command::Leave => return,
            command => others.borrow_mut().push(command),
        }
    }
}

/// How the run's task is made.
pub fn find<'a>(factories: &'a [TaskFactory], manifest: &Manifest) -> Result<&'a TaskFactory, Failure> {
    factories
        .iter()
        .find(|factory| factory.name == manifest.task)
        .ok_or_else(|| {
            let known: Vec<_> = factories.iter().map(|factory| factory.name).collect();
            let message = format!(
                "this page was built for {}, and the run trains {}: the program that founded the run has to serve a page \
                 of its own",
                known.join(", "),
                manifest.task
            );
            Failure::new(Kind::OtherPage, message)
        })
}

/// The task with this data, or with what it makes itself.
pub fn load(factory: &TaskFactory, manifest: &Manifest, data: Option<&Data>) -> Result<LoadedTask, Failure> {
    let loaded = (factory.load)(&manifest.task_config, data)
        .map_err(|error| Failure::new(Kind::Internal, error.to_string()))?;
    if loaded.data != manifest.data {
        let message =
            "the data that this page carries is not the run's: the page is of another release than the run";
        return Err(Failure::new(Kind::OtherPage, message));
    }
    Ok(loaded)
}

/// Whether a model of this size has room in WASM's memory; if so, how many bytes are left for data.
fn fits(manifest: &Manifest) -> Result<u64, Failure> {
    let copies = 1 + manifest.optimizer.slots() as u64 + COPIES;
    let need = manifest.layout.len as u64 * 4 * copies;
    if need <= MEMORY {
        // Data that is not a text lies there twice for a while: as its files, and as what they hold.
        return Ok((MEMORY - need) / 2);
    }
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let message = format!(
        "the model has {:.0} million parameters, for which a tab needs {:.1} GiB; it has {:.1} GiB. The native program has no \
         such limit",
        manifest.layout.len as f64 / 1e6,
        gib(need),
        gib(MEMORY)
    );
    Err(Failure::new(Kind::TooLarge, message))
}

/// Whether the device computes what the CPU does. A browser's driver may skip what it cannot do without a word, and what
/// is read then is garbage, which would spoil the model of all.
async fn compare(device: &mut dyn Worker, twin: &mut dyn Worker, samples: u64) -> Result<(), Failure> {
    let samples: Vec<u64> = (0..samples.min(TRIAL_SAMPLES)).collect();
    let params = twin.init();
    let expected = twin.gradient(params.clone(), &samples).await.map_err(failed)?;
    js::next_task().await;
    let found = device.gradient(params, &samples).await;
    let wrong = |how: String| {
        let message = format!(
            "this device computes something else than the CPU does ({how}), so it stays out of the run: its driver or the \
             browser is at fault. Another browser may do, or the CPU"
        );
        Failure::new(Kind::WrongResults, message)
    };
    let found = match found {
        Ok(found) => found,
        Err(WorkerError::Device { reason }) => return Err(Failure::new(Kind::GpuLost, reason)),
        Err(error) => return Err(wrong(error.to_string())),
    };
    let length = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let pairs = expected.gradient.iter().zip(&found.gradient);
    let off = length(&mut pairs.map(|(a, b)| f64::from(a - b)));
    let whole = length(&mut expected.gradient.iter().map(|a| f64::from(*a)));
    let loss_off = f64::from((expected.loss_sum - found.loss_sum).abs());
    if off > TRIAL_TOLERANCE * whole {
        return Err(wrong(format!("its gradient is off by {:.1e}", off / whole)));
    }
    if loss_off > TRIAL_TOLERANCE * f64::from(expected.loss_sum.abs()) {
        return Err(wrong(format!(
            "its loss is {} and not {}",
            found.loss_sum, expected.loss_sum
        )));
    }
    Ok(())
}

fn failed(error: WorkerError) -> Failure {
    let kind = match error {
        WorkerError::Device { .. } => Kind::GpuLost,
        _ => Kind::Internal,
    };
    Failure::new(kind, error.to_string())
}

/// Why a tab is on its way out of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Going {
    /// For good.
    Away,
    /// For now.
    Aside,
    /// The volunteer has changed their mind: to come back at once.
    Back,
}

/// A tab in the ring, or on its way there.
struct Tab<'a> {
    driver: Driver<TabLink>,
    compute: &'a Compute,
    text_generator: &'a TextGenerator,
    commands: &'a Queue<Command>,
    page: &'a Page,
    translator: EventTranslator,
    member: bool,
    /// Why it is on its way out of the ring, if it is.
    going: Option<Going>,
    /// What this tab cannot go on with.
    broken: Option<Failure>,
}

/// What the loop waits for.
enum Happening {
    Link(LinkEvent),
    ComputeResult(ComputeResult),
    Command(Command),
    Time,
}

impl Tab<'_> {
    async fn run(&mut self) -> Exit {
        let exit = self.turn().await;
        self.driver.link().drain().await;
        exit
    }

    async fn turn(&mut self) -> Exit {
        let mut since_break = js::now();
        loop {
            while let Some(todo) = self.driver.next_todo() {
                match todo {
                    Todo::Compute {
                        round,
                        samples,
                        buffer,
                    } => self.compute.jobs.push(Job::Contribute {
                        round,
                        samples,
                        buffer,
                    }),
                    Todo::Event(event) => self.tell(&event),
                    Todo::Exit(exit) => return exit,
                }
            }
            if self.driver.is_busy() {
                js::next_task().await;
                self.feed(Input::Tick);
                continue;
            }
            // Frames that wait must not keep this loop from what else the thread has to do.
            if js::now() - since_break > 20_000 {
                js::next_task().await;
                since_break = js::now();
            }
            let wake = self.driver.peer().wake_at().unwrap_or(Time(u64::MAX / 2));
            if wake <= Time(js::now()) {
                self.feed(Input::Tick);
                continue;
            }
            let wait_ms = ((wake.0 - js::now().min(wake.0)) as f64 / 1000.0).min(3.6e6);
            let link = async {
                match next_event(self.driver.link()).await {
                    Some(event) => Happening::Link(event),
                    // A tab's links never stop for good.
                    None => std::future::pending().await,
                }
            };
            let result = async { Happening::ComputeResult(self.compute.results.next().await) };
            let command = async { Happening::Command(self.commands.next().await) };
            let time = async {
                js::sleep(wait_ms.ceil()).await;
                Happening::Time
            };
            match or(or(command, result), or(link, time)).await {
                Happening::Link(event) => {
                    let down = match &event {
                        LinkEvent::Down { reason, .. } => Some(reason.to_string()),
                        _ => None,
                    };
                    self.driver.on_link(event, Time(js::now()));
                    if let Some(reason) = down.filter(|_| self.driver.link().count() == 0) {
                        self.page.state(State::Reconnecting, &reason);
                    }
                }
                Happening::ComputeResult(result) => self.on_result(result),
                Happening::Command(command) => {
                    if self.on_command(command) {
                        return Exit::Left;
                    }
                }
                Happening::Time => self.feed(Input::Tick),
            }
        }
    }

    fn feed(&mut self, input: Input) {
        self.driver.handle(input, Time(js::now()));
    }

    fn on_result(&mut self, result: ComputeResult) {
        match result {
            ComputeResult::Made(input) => self.feed(input),
            ComputeResult::Refused(input, why) => {
                let message = format!("this tab's contribution does not count: {why}");
                self.page.event(&Event::Warning { message });
                self.feed(input);
            }
            ComputeResult::Failed(why) => {
                self.broken = Some(failed(why));
                self.feed(Input::Leave);
            }
        }
    }

    /// Says whether to go at once.
    fn on_command(&mut self, command: Command) -> bool {
        match command {
            Command::Power(power) => self.compute.power.set(power),
            Command::Resume if self.going == Some(Going::Aside) => self.going = Some(Going::Back),
            Command::Resume => {}
            Command::Write(prompt) => self
                .text_generator
                .write(&self.driver.peer().state().params, prompt),
            Command::Pause => {
                if self.going.replace(Going::Aside).is_none() {
                    self.feed(Input::Leave);
                }
            }
            Command::Leave => {
                let again = self.going.replace(Going::Away).is_some();
                self.feed(Input::Leave);
                return again || !self.member;
            }
        }
        false
    }

    fn tell(&mut self, event: &PeerEvent) {
        for told in self.translator.tell(event, &self.driver) {
            self.page.event(&told);
        }
        match event {
            PeerEvent::Syncing { bytes, total, .. } if bytes < total => {
                self.page.state(State::Syncing, "fetching the state");
            }
            PeerEvent::Syncing { .. } => self.page.state(State::Following, "waiting to be let in"),
            PeerEvent::Entered | PeerEvent::Continued => self.member = true,
            PeerEvent::Outcast { reason, .. } => {
                self.member = false;
                self.page.state(State::Syncing, reason);
            }
            PeerEvent::Committed(_) if self.member => self.page.state(State::Training, ""),
            _ => {}
        }
    }
}
