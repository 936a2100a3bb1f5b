//! A tab's way through a run: from the ticket to the last round.

use crate::answers::Answers;
use crate::compute::{Compute, ComputeBackend, Job};
use crate::device::{self, Backend, Gpu};
use crate::dial::{LocalPeer, dial};
use crate::fetch::fetch_data;
use crate::identity;
use crate::inner_worker::InnerWorkerHandle;
use crate::js;
use crate::link::TabLink;
use crate::model_file::Held;
use crate::page::{Failure, Kind, Page, State};
use crate::page_server::PageServer;
use crate::queue::Queue;
use crate::run_task::{compare, failed, find, fits, load, load_inner, room, trainer_options};
use crate::tab::{Command, Going, Tab};
use crate::text_generator::TextGenerator;
use annulus::data::Data;
use annulus::data::provision::{Source, TAB_LIMIT};
use annulus::device::{DeviceKind, OpenDevice};
use annulus::events::{self, Event};
use annulus::net::hello::{Purpose, named as named_contact};
use annulus::net::link::DialError;
use annulus::net::ticket::{Ticket, TicketError};
use annulus::participant::driver::Driver;
use annulus::participant::host;
use annulus::task::Layer;
use annulus::task_factory::{Drawing, LoadedTask, TaskFactory, Writing};
use annulus::trainer::Contributor;
use annulus_core::invitation::Role;
use annulus_core::ledger::Member;
use annulus_core::shuffle::Shuffle;
use annulus_core::{Contact, DataSource, Exit, Initial, Manifest, Peer, PeerId, Room, Settings, Time};
use futures_lite::future::or;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Why a ticket is not enough.
const ONLY_CONTRIBUTES: &str = "the run's model is split over its members, and this ticket makes nobody a member: it lets a peer \
                                contribute to whole models alone. A link from the page of a member will do";

/// A tab's task.
pub struct Options {
    /// The ticket, and behind it perhaps the peer to dial first.
    pub link: String,
    /// What the volunteer wants to be called.
    pub name: Option<String>,
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
    let (ticket, named) = options
        .link
        .split_once('&')
        .unwrap_or((options.link.as_str(), ""));
    let ticket: Ticket = ticket
        .parse()
        .map_err(|error: TicketError| Failure::new(Kind::Ticket, error.to_string()))?;
    let server = PageServer::of(named).await.map_err(|why| {
        let message = format!("the node that serves this page does not answer: {why}");
        Failure::new(Kind::Unreachable, message)
    })?;
    let key = identity::generate();
    let admission = ticket.right().admit(key.peer(), ticket.root.run);
    let me = || LocalPeer {
        key: key.clone(),
        root: ticket.root,
        admission: admission.clone(),
        instance: getrandom::u64().expect("browsers give random bytes"),
    };
    let addresses: Vec<String> = ticket.addrs.iter().map(ToString::to_string).collect();
    let contact = server.contact(&addresses);
    let manifest = Arc::new(fetch_manifest(&me(), &server, &contact).await?);
    let here = Source {
        peer: server.peer,
        contact: Contact(contact),
    };
    let room = match &manifest.split {
        None => Room::default(),
        Some(_) if admission.role() < Role::Member => {
            return Err(Failure::new(Kind::Refused, ONLY_CONTRIBUTES));
        }
        Some(split) => room(&manifest, split)?,
    };
    let made = make_task(&me, here, factories, &manifest, commands, page).await?;
    let Some((loaded, data, sponsor)) = made else {
        page.state(State::Left, "");
        return Ok(());
    };
    let on = match &manifest.split {
        None => options.backend,
        Some(_) => on_processor(options.backend, page),
    };
    let stepping = manifest.local.is_some().then_some(Layer::LocalSteps);
    let layers: Vec<Layer> = loaded.layers.iter().copied().chain(stepping).collect();
    let device = device::open(on, &layers, gpu, page).await?;
    let backend = backend(&device, gpu, &loaded, data.as_ref(), &manifest, page).await?;
    let factory = loaded.worker_factory(device.clone(), trainer_options(&manifest));
    if loaded.writing != Writing::Never && manifest.split.is_none() {
        page.generates();
    }
    page.event(&Event::Ready(events::Ready {
        peer: key.peer().to_hex(),
        run: manifest.run_id().to_hex(),
        code: None,
        // The page has it already, and its log may be shown to others.
        ticket: None,
        ticket_file: String::new(),
        url: None,
        share_url: None,
        takes_tabs: false,
        title: manifest.title.clone(),
        about: manifest.about.clone(),
        task: manifest.task.clone(),
        device: device.name.clone(),
        parameters: manifest.layout.len as u64,
        target: manifest.target.get(),
    }));
    let drawing = manifest.split.as_ref().map(|_| loaded.drawing());
    let predicts = find(factories, &manifest)?.predicts.is_some();
    let answers = Answers::new(
        TextGenerator::start(factory, page.clone()),
        (loaded, predicts),
        manifest.clone(),
        page.clone(),
    );
    let participant = Participant {
        me: &me,
        contact: named_contact(Contact::default(), options.name.as_deref()),
        room,
        initial: drawing.map(|drawing| initial(drawing, manifest.seed)),
        server: server.peer,
        sponsor,
        compute: Compute::start(backend, manifest.layout.len, options.power),
        manifest,
        answers,
        commands,
        page,
    };
    participant.run().await?;
    page.state(State::Left, "");
    Ok(())
}

async fn fetch_manifest(
    me: &LocalPeer,
    server: &PageServer,
    contact: &[String],
) -> Result<Manifest, Failure> {
    let session = dial(me, server.peer, contact, Purpose::Manifest).await;
    let session = session.map_err(|error| {
        let kind = match error {
            DialError::Refused(_) | DialError::Unproven | DialError::AnotherPeer(_) => Kind::Refused,
            _ => Kind::Unreachable,
        };
        Failure::new(kind, error.to_string())
    })?;
    session.transport.close(&js::object(&[]));
    let bytes = session.welcome.manifest.unwrap_or_default();
    let refused = |message: String| Failure::new(Kind::Refused, message);
    let manifest = Manifest::decode(&bytes).map_err(|error| refused(error.to_string()))?;
    if manifest.root() != me.root {
        return Err(refused("the run is not the one that the ticket names".into()));
    }
    Ok(manifest)
}

/// The run's task with its data, fetched if it has to be, and a peer to follow; nothing if the volunteer leaves meanwhile.
async fn make_task(
    me: &impl Fn() -> LocalPeer,
    here: Source,
    factories: &[TaskFactory],
    manifest: &Manifest,
    commands: &Queue<Command>,
    page: &Page,
) -> Result<Option<(LoadedTask, Option<Data>, Source)>, Failure> {
    let factory = find(factories, manifest)?;
    if manifest.split.is_some() && factory.inner.is_none() {
        page.state(State::Checking, "preparing a part of the model");
        js::next_task().await;
        let inner = load_inner(factory, manifest, None);
        let inner = inner.map_err(|error| Failure::new(Kind::Internal, error.to_string()))?;
        return Ok(Some((inner, None, here)));
    }
    let room = match manifest.split {
        // Spans take their room later, and WASM's memory tells if there is none.
        Some(_) => TAB_LIMIT,
        None => fits(manifest)?,
    };
    let DataSource::Given { files } = manifest.data_source else {
        page.state(State::Checking, "reading the data");
        js::next_task().await;
        return Ok(Some((load(factory, manifest, None)?, None, here)));
    };
    let fetching = async { Some(fetch_data(me, (here, files), factory, manifest, room, page).await) };
    let early = RefCell::default();
    let fetched = or(fetching, async {
        until_leave(commands, &early).await;
        None
    });
    let Some(fetched) = fetched.await else {
        return Ok(None);
    };
    early
        .into_inner()
        .into_iter()
        .for_each(|command| commands.push(command));
    let ((loaded, data), sponsor) = fetched?;
    Ok(Some((loaded, Some(data), sponsor)))
}

/// The computing device: a GPU here, once it has passed its tests, or the processor in a worker of its own.
async fn backend(
    device: &OpenDevice,
    gpu: &Gpu,
    loaded: &LoadedTask,
    data: Option<&Data>,
    manifest: &Manifest,
    page: &Page,
) -> Result<ComputeBackend, Failure> {
    if device.kind == DeviceKind::Cpu {
        let worker = InnerWorkerHandle::start(gpu, manifest, data).await;
        let worker = worker.map_err(|why| Failure::new(Kind::Internal, why))?;
        return Ok(match manifest.split {
            None => ComputeBackend::InnerWorker(worker),
            Some(_) => ComputeBackend::Spans(worker),
        });
    }
    page.state(State::Checking, "comparing the device with the CPU");
    let worker = |device: OpenDevice| {
        let made = loaded.worker_factory(device, trainer_options(manifest))();
        made.map_err(failed)
    };
    let mut here = worker(device.clone())?;
    if *here.layout() != manifest.layout {
        let message = "this page builds another model than the run's: page and run are of different releases";
        return Err(Failure::new(Kind::Refused, message));
    }
    let mut twin = worker(OpenDevice::cpu())?;
    compare(&mut *here, &mut *twin, manifest).await?;
    Ok(ComputeBackend::Here(here, Contributor::new(manifest)))
}

/// Spans are computed on the processor, which the page is told if something else was wanted.
fn on_processor(wanted: Backend, page: &Page) -> Backend {
    if wanted == Backend::Gpu {
        let message =
            "the model is split over the members, and a tab computes its part on the processor only"
                .to_owned();
        page.event(&Event::Warning { message });
    }
    Backend::Cpu
}

/// The first weights of a split model. They are drawn again for each question, and there is one for each span that nobody has
/// trained yet.
fn initial(drawing: Drawing, seed: u64) -> Initial {
    Initial::new(move |ranges| {
        let mut values: Vec<Vec<f32>> = ranges.iter().map(|range| vec![0.0; range.len()]).collect();
        // It was drawn before, in the inner worker, where its steps were found out.
        let _ = drawing(seed, &mut |tensor, read| {
            for (range, values) in ranges.iter().zip(&mut values) {
                let both = range.start.max(tensor.start)..range.end.min(tensor.end);
                if !both.is_empty() {
                    let drawn = read();
                    // The data were just converted to this type.
                    let drawn = drawn.as_slice::<f32>().expect("f32 data");
                    values[both.start - range.start..both.end - range.start]
                        .copy_from_slice(&drawn[both.start - tensor.start..both.end - tensor.start]);
                }
            }
        });
        values
    })
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

/// A tab that has all it needs to be in the ring.
struct Participant<'a, F> {
    me: &'a F,
    /// No address: nobody can dial a tab. Perhaps a name.
    contact: Contact,
    /// The peer that serves the page.
    server: PeerId,
    /// The peer that it follows.
    sponsor: Source,
    /// Where the model is split: what it has room for, and what weights begin with.
    room: Room,
    initial: Option<Initial>,
    manifest: Arc<Manifest>,
    compute: Compute,
    answers: Answers,
    commands: &'a Queue<Command>,
    page: &'a Page,
}

impl<F: Fn() -> LocalPeer> Participant<'_, F> {
    /// Takes part until the volunteer wants no more, with pauses if they want them.
    async fn run(&self) -> Result<(), Failure> {
        // Where others were found, for the next time: the server may be gone by then.
        let mut others: Vec<Member> = Vec::new();
        loop {
            self.page.state(State::Connecting, "looking for the ring");
            let mut driver = self.driver(&others);
            let samples = self.manifest.samples.get();
            self.compute.jobs.push(Job::Warm { samples });
            let mut tab = Tab::new(&self.compute, &self.answers, self.commands, self.page);
            let exit = host::run(&mut tab, &mut driver).await;
            driver.link().drain().await;
            others.clone_from(&driver.peer().head().members);
            let peer = driver.peer();
            let (round, digest) = (peer.head().round, peer.held_digest());
            let params = peer.state().params.clone();
            let held = Held {
                params: &params,
                round,
                digest,
            };
            drop(driver);
            if let Some(failure) = tab.broken {
                return Err(failure);
            }
            match (exit, tab.going) {
                (Exit::Finished, _) => {
                    self.page.state(State::Ended, "every sample was counted");
                    while self.resumed(held).await {}
                    return Ok(());
                }
                (Exit::NotFinite, _) => {
                    let message = "no member's loss is finite any more: the run needs a lower learning rate";
                    return Err(Failure::new(Kind::Internal, message));
                }
                (Exit::Barred(why), _) => return Err(Failure::new(Kind::Refused, why.to_string())),
                (Exit::NoMember, _) => {
                    let message =
                        "no full member of the run has been there for minutes, and a tab cannot go on alone";
                    return Err(Failure::new(Kind::Unreachable, message));
                }
                (Exit::Lost, _) => {
                    let message = "no reachable peer holds the run's state any more: the run goes on once a peer resumes it";
                    return Err(Failure::new(Kind::Unreachable, message));
                }
                (Exit::Left, Some(Going::Back)) => {}
                (Exit::Left, Some(Going::Aside)) => {
                    self.page.state(State::Paused, "");
                    if !self.resumed(held).await {
                        return Ok(());
                    }
                }
                (Exit::Left, Some(Going::Away) | None) => return Ok(()),
            }
        }
    }

    /// A newcomer, on its way to whoever is there.
    fn driver(&self, others: &[Member]) -> Driver<TabLink> {
        let (manifest, me) = (&self.manifest, (self.me)());
        let settings = Settings {
            started: js::now(),
            room: self.room,
            initial: self.initial.clone(),
            epoch_s: js::epoch_s(),
            ..Settings::new(me.key.clone(), me.admission.clone(), self.contact.clone())
        };
        let Source { peer, contact } = &self.sponsor;
        let mut newcomer = Peer::join(manifest.clone(), settings, *peer, contact, Time(js::now()));
        for other in others.iter().filter(|other| other.peer != *peer) {
            newcomer.know(other.peer, &other.contact);
        }
        let link = TabLink::new(me, self.server, manifest.layout.len);
        Driver::new(newcomer, link, Shuffle::of(manifest))
    }

    /// Waits for the end of a pause, and answers by the model as it was before; says whether the volunteer wants to come back.
    async fn resumed(&self, held: Held<'_>) -> bool {
        loop {
            match self.commands.next().await {
                Command::Resume => return true,
                Command::Leave => return false,
                Command::Power(power) => self.compute.power.set(power),
                Command::Ask(question) => self.answers.answer(held, question),
                Command::Pause => {}
            }
        }
    }
}
