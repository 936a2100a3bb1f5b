//! Where a peer can be reached: its socket, its page, and the addresses of both.

use crate::data::Stock;
use crate::data::cache::{self, Place};
use crate::data::serve::ServedData;
use crate::events::{self, Event, Sink};
use crate::net::addresses::everywhere;
use crate::net::config::QuicConfig;
use crate::net::hello::{addresses, named};
use crate::net::identity::Identity;
use crate::net::nearby::door::{Door, News};
use crate::net::quic::QuicLink;
use crate::options::{Local, Page};
use crate::participant::error::Error;
use crate::participant::folder::Folder;
use crate::participant::memory;
use crate::participant::permission;
use crate::participant::pool;
use crate::participant::right::Right;
use crate::participant::run_setup::RunSetup;
use crate::participant::split;
use crate::web::hosts::Hosts;
use crate::web::pause::Switch;
use crate::web::{self, About, Site};
use annulus_core::invitation::Role;
use annulus_core::{Contact, DataSource, Initial, Manifest, Settings, Waits};
use annulus_net::printable::printable_line;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::net::TcpListener;
use tokio::sync::mpsc::UnboundedReceiver;

/// Where a peer can be reached.
pub(crate) struct Home {
    link: QuicLink,
    served: ServedData,
    pub settings: Settings,
    /// The listener of the page, if one is wanted and the port is free.
    page: Option<TcpListener>,
    /// What differs from the request.
    warnings: Vec<String>,
    /// The code that admits peers on this network.
    code: Option<String>,
    /// Admits peers with a code, and reports about it.
    pub door: Option<(Arc<Door>, UnboundedReceiver<News>)>,
}

/// How many other ports are tried if any will do and one is taken for TCP.
const OTHER_PORTS: usize = 8;

/// Opens the sockets. If any port will do, prefers the one by which others know this peer.
pub(crate) async fn listen(
    identity: &Identity,
    local: &Local,
    manifest: &Manifest,
    right: &Right,
    setup: &RunSetup,
    former: u16,
) -> Result<Home, Error> {
    let listen = match local.listen.parse() {
        Ok(port) => everywhere(port),
        Err(_) => resolve(&local.listen)?,
    };
    for text in &local.advertise {
        resolve(text)?;
    }
    let run = manifest.run_id();
    let place = cache::folder().map(|folder| Place::new(folder, manifest.data));
    if let (Some(path), Some(place)) = (&local.data, &place) {
        // For the next peer on this machine that needs the data. If this fails, it is fetched or named again.
        let _ = place
            .note(path)
            .and_then(|()| place.share_with(run, !local.keep_data));
    }
    // Data that lay on this machine was not named for this run, whose manifest needs no more than its digest.
    let is_shared = local.data.is_some() || place.is_none_or(|place| place.is_shared_with(run));
    let config = QuicConfig::new(manifest.root(), right.invitation(), manifest.encode().into())
        .sized_for(manifest.state_bytes(), manifest.layout.len);
    let served = match (&setup.files, manifest.data_source) {
        (Some(_), _) if local.keep_data || !is_shared => ServedData::Kept,
        (Some(stock), DataSource::Given { files }) => ServedData::Files(stock.clone(), files),
        _ => ServedData::Empty,
    };
    served.prepare();
    let door = local
        .announce
        .filter(|_| !listen.ip().is_loopback())
        .and_then(|role| Door::new(right.invitation(), manifest.root(), role))
        .map(|(door, news)| (Arc::new(door), news));
    let config = QuicConfig {
        door: door.as_ref().map(|(door, _)| door.clone()),
        served: served.clone(),
        small_packets: memory::is_tight(local.memory),
        line: local.line.as_deref().map(str::parse).transpose()?,
        ..config
    };
    let mut at = listen;
    if listen.port() == 0 {
        at.set_port(former);
    }
    let mut tries = OTHER_PORTS;
    let found = setup.files.as_ref().filter(|_| !is_shared);
    let mut warnings: Vec<String> = found.map(found_here).into_iter().collect();
    let (mut link, page) = loop {
        let link = match QuicLink::start(
            identity,
            QuicConfig {
                listen: at,
                ..config.clone()
            },
        ) {
            Err(error) if at != listen => {
                warnings.push(format!(
                    "UDP port {former}, where others look for this peer, is taken ({error}). It listens on another, and tickets \
                     that name that port do not lead here"
                ));
                at = listen;
                continue;
            }
            started => started?,
        };
        if local.page.is_none() {
            break (link, None);
        }
        match web::bind(link.local_addr()) {
            Ok(listener) => break (link, Some(listener)),
            Err(_) if at.port() == 0 && tries > 0 => tries -= 1,
            Err(error) => {
                warnings.push(format!(
                    "there is no page for browsers: TCP port {} cannot be had ({error}). Choose another port with \
                     --listen, or say --no-page",
                    link.local_addr().port()
                ));
                break (link, None);
            }
        }
    };
    link.roam(local.advertise.clone(), local.map_port).await;
    let contact = named(link.contact(), local.name.as_deref());
    let own = Settings::new(identity.key(), right.admission(identity.peer()), contact);
    warnings.extend(page.as_ref().and_then(|_| not_for_tabs(manifest)));
    Ok(Home {
        link,
        served,
        settings: settings(own, manifest, local)?,
        page,
        warnings,
        code: door.as_ref().map(|(door, _)| door.code().to_string()),
        door,
    })
}

/// Tells of data that lay on this machine and does not go to other peers.
fn found_here(files: &Stock) -> String {
    let path = printable_line(&files.path().display().to_string(), 4096);
    format!(
        "the run's data was found on this machine: {path}. Other peers cannot fetch it from here, as it was not named for this run; \
         name it to hand it out: --data {path}"
    )
}

/// This peer's settings: what the machine and the user say.
fn settings(own: Settings, manifest: &Manifest, local: &Local) -> Result<Settings, Error> {
    // With a clock before 1970, this peer may miss relayed frames for a while.
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut settings = Settings {
        started: started.as_micros() as u64,
        epoch_s: started.as_secs(),
        jobs: pool::jobs(manifest),
        waits: waits(std::env::var(WAITS).ok().as_deref()),
        ..own
    };
    if let Some(split) = &manifest.split {
        settings.room = split::room(manifest, split, local.memory, local.spans)?;
        settings.saves_every = local.checkpoint_every.rounds;
        if settings.saves_every == 0 && local.checkpoint_every.time.is_some() {
            return Err(Error::SavesByTime);
        }
    }
    Ok(settings)
}

/// The environment variable by which tests shorten how long a peer waits for others, in tenths of what is usual.
const WAITS: &str = "ANNULUS_WAITS_TENTHS";

/// How long to wait for others, by the variable.
fn waits(tenths: Option<&str>) -> Waits {
    let tenths = tenths.and_then(|tenths| tenths.parse().ok());
    tenths.map_or_else(Waits::default, Waits::scaled)
}

/// Why browsers' tabs cannot take part in a run, if they cannot.
fn not_for_tabs(manifest: &Manifest) -> Option<String> {
    let spans = manifest.split.as_ref().map(|split| split.spans.len());
    spans.filter(|spans| *spans < 3).map(|_| {
        "browsers' tabs can take no part: they hold spans between the ends of a model, and this run's has none. split=3 makes \
         one"
        .to_owned()
    })
}

impl Home {
    /// The port.
    pub fn port(&self) -> u16 {
        self.link.local_addr().port()
    }

    /// Sets the initial weights of a split model.
    pub fn begin_with(&mut self, initial: Option<Initial>) {
        self.settings.initial = initial;
    }

    /// The addresses for a ticket.
    pub fn dialable(&self) -> Vec<SocketAddr> {
        dialable(&self.settings.contact)
    }

    /// Serves the page and reports the first event.
    pub fn open(
        self,
        local: &Local,
        manifest: &Manifest,
        right: &Right,
        setup: &RunSetup,
        sink: Sink<'_>,
    ) -> Result<(Option<Site>, QuicLink, Settings), Error> {
        let addresses: Vec<String> = addresses(&self.settings.contact.0).cloned().collect();
        let at = self.link.local_addr();
        let for_guests = right
            .for_guests(manifest.split.is_some())
            .map(|ticket| ticket.to_string());
        let (url, share_url) = match self.page {
            Some(_) => web::urls(at, &addresses, for_guests.as_deref()),
            None => (None, None),
        };
        let me = self.settings.me.to_hex();
        let copy = local.page.as_ref().and_then(|page| page.copy.as_ref());
        let copied = copy.zip(for_guests.as_ref());
        let copied = copied.map(|(copy, ticket)| {
            web::link_to_copy((copy, &manifest.title), ticket, &me, &self.link.certificates())
        });
        let share_url = copied.or(share_url);
        let dir = match &local.page {
            Some(page) => page_folder(page)?,
            None => None,
        };
        let ready = Event::Ready(events::Ready {
            peer: me.clone(),
            run: manifest.run_id().to_hex(),
            code: self.code,
            ticket: (right.role() == Role::Member).then(|| right.ticket.to_string()),
            ticket_file: Folder::ticket_file(&local.out).display().to_string(),
            url,
            share_url,
            takes_tabs: dir.is_some() && !setup.elsewhere,
            title: manifest.title.clone(),
            about: manifest.about.clone(),
            task: manifest.task.clone(),
            device: setup.device.name.clone(),
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
                    peer: me,
                    run: manifest.run_id().to_hex(),
                    certificates,
                    port: at.port(),
                    addresses,
                    title: manifest.title.clone(),
                    about: manifest.about.clone(),
                    task: manifest.task.clone(),
                    parameters: manifest.layout.len as u64,
                    state_bytes: manifest.state_bytes(),
                    data_bytes: self.served.size(),
                    spans: manifest.split.as_ref().map_or(0, |split| split.spans.len()),
                };
                let hosts = Hosts::new(page.hosts.iter().chain(&local.advertise));
                let switch = Switch::new(&permission::file(&local.out));
                let known = self.link.known();
                Some(Site::start(listener, tls, hosts, dir, about, Some(switch), known))
            }
            _ => None,
        };
        let mut told = told_to(&site, sink);
        told(ready);
        for message in setup.device.note.iter().cloned().chain(self.warnings) {
            told(Event::Warning { message });
        }
        drop(told);
        Ok((site, self.link, self.settings))
    }
}

/// Where the page for browsers is; none if it was not built.
fn page_folder(page: &Page) -> Result<Option<PathBuf>, Error> {
    match &page.dir {
        None => Ok(web::usual_folder()),
        Some(dir) if dir.join("index.html").is_file() => Ok(Some(dir.clone())),
        Some(dir) => Err(Error::Page(dir.clone())),
    }
}

/// A sink that tells the page too.
pub(crate) fn told_to<'a>(site: &'a Option<Site>, sink: Sink<'a>) -> impl FnMut(Event) + Send + 'a {
    move |event| {
        if let Some(site) = site {
            site.view().take(&event, web::unix_ms());
        }
        sink(event);
    }
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

/// A contact's addresses for a ticket.
pub(crate) fn dialable(contact: &Contact) -> Vec<SocketAddr> {
    addresses(&contact.0)
        .filter_map(|text| text.to_socket_addrs().ok()?.next())
        .collect()
}
