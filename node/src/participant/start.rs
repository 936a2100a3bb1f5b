//! One participant from its start: puts task, device, link, peer and disk together and lets them run.

use crate::data::cache::{self, Place};
use crate::data::fetch::{Guest, fetch_manifest};
use crate::data::provision::{Answer, FetchError, News, Source, fetch};
use crate::data::serve::ServedData;
use crate::events::{self, Event, Sink};
use crate::net::config::QuicConfig;
use crate::net::hello::addresses;
use crate::net::identity::Identity;
use crate::net::link::bulk_queue;
use crate::net::quic::{QuicLink, own_addresses};
use crate::net::ticket::{Secret, Ticket};
use crate::options::{JoinOptions, Local, Start, TrainOptions};
use crate::participant::error::Error;
use crate::participant::native::Participant;
use crate::participant::run_setup::{RunSetup, check_data, prepare};
use crate::store::checkpoint::RunWriter;
use crate::store::run_dir::RunDir;
use crate::task_factory::TaskFactory;
use crate::web::{self, About, Site};
use annulus_core::config::ManifestError;
use annulus_core::{Contact, DataSource, Manifest, Peer, Settings, State, Time};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Instant;
use tokio::net::TcpListener;

/// Starts or resumes a run and takes part in it until it ends or this peer is asked to leave (Ctrl-C).
pub async fn train(options: TrainOptions, factories: &[TaskFactory], sink: Sink<'_>) -> Result<(), Error> {
    let local = options.local;
    let (manifest, setup, from) = match options.start {
        Start::New(run) => {
            RunDir::check_free(&local.out)?;
            let (setup, manifest) = prepare(&run, &local, factories)?;
            (manifest, setup, None)
        }
        Start::Resume(dir) => {
            let (writer, loaded) = RunWriter::open(&dir)?;
            for message in &loaded.warnings {
                sink(Event::Warning {
                    message: message.clone(),
                });
            }
            let setup = RunSetup::of(&loaded.manifest, &local, factories)?;
            (loaded.manifest.clone(), setup, Some((writer, loaded)))
        }
    };
    let manifest = Arc::new(manifest);
    let secret = Secret::generate();
    let home = listen(&local, &manifest, secret, &setup)?;
    let ticket = Ticket {
        addrs: dialable(&home.settings.contact),
        run: manifest.run_id(),
        secret,
    };
    let (site, link, settings) = home.open(&local, &manifest, &ticket, &setup, sink)?;
    let sink = &mut told_to(&site, sink);
    let start = Instant::now();
    let (peer, writer) = match from {
        None => {
            let state = State::new(setup.worker.init(), &manifest);
            (Peer::found(manifest.clone(), settings, state, Time(0)), None)
        }
        Some((mut writer, loaded)) => {
            let peer = Peer::resume(manifest.clone(), settings, loaded.state, loaded.head, Time(0));
            writer.resume(peer.head().members[0].clone())?;
            (peer, Some(writer))
        }
    };
    let begin = writer.is_none();
    let mut node = Participant::new(peer, link, manifest, setup, local, writer, start, sink);
    if begin {
        node.begin_record();
    } else {
        node.resume_record();
    }
    node.run().await
}

/// Joins a run and takes part in it until it ends or this peer is asked to leave (Ctrl-C).
pub async fn join(options: JoinOptions, factories: &[TaskFactory], sink: Sink<'_>) -> Result<(), Error> {
    let local = options.local;
    let ticket: Ticket = options.ticket.parse()?;
    RunDir::check_free(&local.out)?;
    let identity = own_identity(&local)?;
    let (sponsor, manifest) = fetch_manifest(&ticket, &identity).await?;
    let manifest = Arc::new(Manifest::decode(&manifest)?);
    if manifest.run_id() != ticket.run {
        return Err(ManifestError::Unusable("it is not the one that the ticket names").into());
    }
    let contact = Contact(
        ticket
            .addrs
            .iter()
            .take(Contact::LIMIT)
            .map(ToString::to_string)
            .collect(),
    );
    let here = Source {
        peer: sponsor,
        contact,
    };
    let (setup, sponsor) = match RunSetup::of(&manifest, &local, factories) {
        Err(Error::NoData | Error::OtherData { .. } | Error::Task(_))
            if local.data.is_none() && manifest.data_source == DataSource::Given =>
        {
            let guest = Guest::new(&ticket, &identity)?;
            fetch_data(guest, here, &manifest, &local, factories, sink).await?
        }
        found => (found?, here),
    };
    let home = listen(&local, &manifest, ticket.secret, &setup)?;
    let own = Ticket {
        addrs: dialable(&home.settings.contact),
        ..ticket.clone()
    };
    let (site, link, settings) = home.open(&local, &manifest, &own, &setup, sink)?;
    let sink = &mut told_to(&site, sink);
    let start = Instant::now();
    let peer = Peer::join(
        manifest.clone(),
        settings,
        sponsor.peer,
        &sponsor.contact,
        Time(0),
    );
    let node = Participant::new(peer, link, manifest, setup, local, None, start, sink);
    node.warm();
    node.run().await
}

/// Most data that is fetched from other peers: more is better copied by hand.
const FETCH_LIMIT: u64 = 64 << 30;

/// Fetches the run's data to where it is kept for the next time, and makes of it what computes. Also gives a peer that is
/// still there.
async fn fetch_data(
    mut guest: Guest,
    first: Source,
    manifest: &Manifest,
    local: &Local,
    factories: &[TaskFactory],
    sink: Sink<'_>,
) -> Result<(RunSetup, Source), Error> {
    let failed = |why| Error::NotFetched { why };
    let folder = cache::folder().unwrap_or_else(|| local.out.join("data"));
    let place = Place::new(folder, manifest.data);
    let wait = || {
        let message = "waiting for another process on this machine, which fetches the same data".into();
        sink(Event::Warning { message });
    };
    let fetching = place.fetching(wait).await;
    let fetching = fetching.map_err(|error| failed(FetchError::Here(error.to_string())))?;
    let setup = |path| {
        let local = Local {
            data: Some(path),
            ..local.clone()
        };
        RunSetup::of(manifest, &local, factories)
    };
    // Another process may have fetched it meanwhile.
    if let Some(path) = place.found()
        && let Ok(setup) = setup(path)
    {
        return Ok((setup, first));
    }
    let (mut told, mut waits) = (None, false);
    let mut tell = |news| match news {
        News::Got { bytes, total } => {
            waits = false;
            // A line for each percent is enough.
            let percent = bytes * 100 / total.max(1);
            if told.replace(percent) != Some(percent) {
                sink(Event::Fetch { bytes, total });
            }
        }
        News::Waiting if !waits => {
            waits = true;
            let message = "waiting for the run's data: all that have it are handing it to others".into();
            sink(Event::Warning { message });
        }
        News::Waiting => {}
    };
    let mut store = fetching.into_store(|path| check_data(manifest, path, factories));
    let fetched = fetch(&mut guest, &mut store, first, FETCH_LIMIT, &mut tell).await;
    guest.leave().await;
    let (path, from) = fetched.map_err(failed)?;
    Ok((setup(path)?, from))
}

/// Where a peer can be reached.
struct Home {
    link: QuicLink,
    served: ServedData,
    settings: Settings,
    /// For the page, if one is wanted and the port is free.
    page: Option<TcpListener>,
    /// Why there is none.
    warning: Option<String>,
}

/// Other ports are tried so many times where any will do and one is taken for TCP.
const OTHER_PORTS: usize = 8;

/// Opens the sockets.
fn listen(local: &Local, manifest: &Manifest, secret: Secret, setup: &RunSetup) -> Result<Home, Error> {
    let identity = own_identity(local)?;
    let listen = resolve(&local.listen)?;
    for text in &local.advertise {
        resolve(text)?;
    }
    if let (Some(path), Some(folder)) = (&local.data, cache::folder()) {
        // For the next one on this machine who asks for it. If that fails, it is fetched or named again.
        let _ = Place::new(folder, manifest.data).note(path);
    }
    let config = QuicConfig::new(manifest.run_id(), secret, manifest.encode().into());
    let served = match &setup.files {
        None => ServedData::Empty,
        Some(_) if local.keep_data => ServedData::Kept,
        Some(files) => ServedData::Files(files.clone()),
    };
    let config = QuicConfig {
        listen,
        served: served.clone(),
        bulk_queue_bytes: bulk_queue(manifest.layout.len),
        ..config
    };
    let (mut tries, mut warning) = (OTHER_PORTS, None);
    let (link, page) = loop {
        let link = QuicLink::start(&identity, config.clone())?;
        if local.page.is_none() {
            break (link, None);
        }
        match web::bind(link.local_addr()) {
            Ok(listener) => break (link, Some(listener)),
            Err(_) if listen.port() == 0 && tries > 0 => tries -= 1,
            Err(error) => {
                warning = Some(format!(
                    "there is no page for browsers: TCP port {} cannot be had ({error}). Choose another port with \
                     --listen, or say --no-page",
                    link.local_addr().port()
                ));
                break (link, None);
            }
        }
    };
    let own = own_addresses(link.local_addr()).into_iter();
    let mut addresses = local.advertise.clone();
    addresses.extend(own.map(|address| address.to_string()));
    link.advertise(addresses);
    let settings = Settings::new(identity.peer(), link.contact());
    Ok(Home {
        link,
        served,
        settings,
        page,
        warning,
    })
}

impl Home {
    /// Serves the page and tells the first event.
    fn open(
        self,
        local: &Local,
        manifest: &Manifest,
        ticket: &Ticket,
        setup: &RunSetup,
        sink: Sink<'_>,
    ) -> Result<(Option<Site>, QuicLink, Settings), Error> {
        let addresses: Vec<String> = addresses(&self.settings.contact.0).cloned().collect();
        let at = self.link.local_addr();
        let (url, share_url) = match self.page {
            Some(_) => web::urls(at, &addresses, &ticket.to_string()),
            None => (None, None),
        };
        let ready = Event::Ready(events::Ready {
            peer: self.settings.me.to_hex(),
            run: manifest.run_id().to_hex(),
            ticket: ticket.to_string(),
            url,
            share_url,
            task: manifest.task.clone(),
            device: setup.worker.device_name().to_owned(),
            parameters: manifest.layout.len as u64,
            target: manifest.target.get(),
        });
        let site = match (self.page, &local.page) {
            (Some(listener), Some(page)) => {
                let certificates = self.link.certificates();
                let tls = match &page.tls {
                    Some((chain, key)) => web::tls_of(chain, key)?,
                    None => web::tls_self_signed(certificates.clone()),
                };
                let about = About {
                    peer: self.settings.me.to_hex(),
                    run: manifest.run_id().to_hex(),
                    certificates,
                    port: at.port(),
                    addresses,
                    task: manifest.task.clone(),
                    parameters: manifest.layout.len as u64,
                    state_bytes: 4 * manifest.layout.len as u64 * (1 + manifest.optimizer.slots() as u64),
                    data_bytes: match (&self.served, self.served.answer()) {
                        (ServedData::Empty, _) => Some(0),
                        (_, Answer::Files(listing)) => Some(listing.total()),
                        _ => None,
                    },
                };
                let dir = page.dir.clone().or_else(web::usual_folder);
                Some(Site::start(listener, tls, dir, about))
            }
            _ => None,
        };
        let mut told = told_to(&site, sink);
        told(ready);
        let warnings = [setup.device.note.clone(), self.warning];
        for message in warnings.into_iter().flatten() {
            told(Event::Warning { message });
        }
        drop(told);
        Ok((site, self.link, self.settings))
    }
}

/// A sink that tells the page too.
fn told_to<'a>(site: &'a Option<Site>, sink: Sink<'a>) -> impl FnMut(Event) + Send + 'a {
    move |event| {
        if let Some(site) = site {
            site.view().take(&event, web::unix_ms());
        }
        sink(event);
    }
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
    addresses(&contact.0)
        .filter_map(|text| text.to_socket_addrs().ok()?.next())
        .collect()
}
