//! One participant from its start: puts task, device, link, peer and disk together and lets them run.

use super::checkpoint::Writer;
use super::failure::Error;
use super::identity::Identity;
use super::kit::{Kit, prepare};
use super::quic::{QuicConfig, QuicLink, fetch_manifest, own_addresses};
use super::run_dir::RunDir;
use super::running::{Running, Sink};
use crate::events::{self, Event};
use crate::options::{JoinOptions, Local, Start, TrainOptions};
use crate::recipe::Recipe;
use crate::ticket::{Secret, Ticket};
use annulus_core::config::ManifestError;
use annulus_core::{Contact, Manifest, Peer, PeerId, Settings, State, Time};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Instant;

/// What a newcomer's device is tried out on: enough to even out the clock, little enough to be quick.
const WARM_SAMPLES: u64 = 32;

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
        node.resume_record();
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
    node.warm(init, samples);
    node.run().await
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
