//! Links over QUIC: one UDP endpoint that dials and accepts, and decides which connection to a peer stands.
//!
//! **Two kinds of peers.** Native peers show a certificate of their own in TLS. Browsers' tabs speak HTTP/3 and
//! WebTransport on the same port, see one of our [`Certificates`], and prove their identity above TLS. They are never
//! dialled. After the handshake both kinds are the same: two streams of frames.
//!
//! **One link per pair.** The dialler asks, the acceptor decides, and its welcome is final: the welcomed connection
//! replaces any other with that peer. If two peers dial each other at once, the one with the smaller id lets the
//! other's hello wait until its own dial has ended. So the connection dialled by the smaller id stands, and neither
//! side sees a second one. A link that is up gives way to a new connection if the peer's process was restarted, or if
//! the link no longer answers.
//!
//! **Silence.** A link is down after 10 s of silence by default. Keep-alives are sent after 3 s, so on a healthy link
//! three in a row must get lost. A shorter timeout would take a machine that swaps or compiles for dead. The protocol
//! above has its own adaptive deadlines for slow peers. The same holds for tabs, since browsers acknowledge
//! keep-alives: Chromium 156 was missed 11 s after SIGKILL, and stayed connected while it said nothing.
//!
//! **Bounds.** Sending: each member's bulk queue holds [`QuicConfig::bulk_queue_bytes`], and QUIC itself 16 MiB per lane
//! that are not yet acknowledged. Another peer's queue holds [`QuicConfig::guest_queue_bytes`]; all of these together
//! hold [`QuicConfig::guests_queue_bytes`], and if they are full, the longest is cut off. Receiving: frames that the owner
//! has not yet taken hold [`QuicConfig::inbox_bytes`] per lane over all members, and a quarter over all others. Beyond
//! that the streams are not read, and flow control (16 MiB per lane) stops the senders. Members' frames go first. If all
//! links are taken, a newcomer gets one of those whose ticket holds more than a quarter.
//! A peer that has not yet proved that it belongs to the run can make us hold 64 KiB. At most [`MAX_HANDSHAKES`] such
//! connections exist at once, each for at most [`HANDSHAKE_TIMEOUT`]. At most [`HANDSHAKES_PER_ADDRESS`] of them come
//! from one address, and [`HANDSHAKES_OF_KNOWN`] are reserved for addresses of peers. From half of all on, the oldest
//! unknown one gives way to the next.
//!
//! **Speed.** Within one machine datagrams grow to 64 KiB. Four processes that pass frames of 64 to 512 KiB around a
//! ring move 1.2 to 1.35 GB of frames per second of processor time, both ends counted (two Xeon cores, release build,
//! one thread per process). Frame size and a window of 4 to 64 frames make no difference beyond noise, nor do fewer
//! acknowledgements; two threads per process cost a tenth. A ring of four on two busy cores made 1.2 to 1.5 GB/s in
//! sum. A fifth of the time is page faults of the allocator: with `MALLOC_MMAP_THRESHOLD_` and `MALLOC_TRIM_THRESHOLD_`
//! at 1 GB it is 1.5 GB per second of processor time. For networks, see the numbers at [`Congestion`].
//!
//! It knows nothing of what frames mean.

use crate::net::addresses::own_addresses;
use crate::net::certificates::Certificates;
use crate::net::config::QuicConfig;
#[cfg(doc)]
use crate::net::config::{HANDSHAKE_TIMEOUT, HANDSHAKES_OF_KNOWN, HANDSHAKES_PER_ADDRESS, MAX_HANDSHAKES};
#[cfg(doc)]
use crate::net::congestion::Congestion;
use crate::net::connection::{LEFT, TAKES_NOTHING, Wire};
use crate::net::endpoint::Shared;
use crate::net::gate::Gate;
use crate::net::handshake::{LocalPeer, TabHost};
use crate::net::hello::MAX_MANIFEST;
use crate::net::identity::Identity;
use crate::net::inbox::{ConnectionEvent, Inbox};
use crate::net::link::{Frame, Lane, Link, LinkEvent, SendError, Traffic, next_event};
use crate::net::mapping::{Mapping, Outside};
use crate::net::roaming::Roaming;
use crate::net::slots::Known;
use crate::net::socket::Pace;
use crate::net::transport::{self, Configs, Path};
use annulus_core::{Contact, PeerId};
use quinn::VarInt;
use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    num::NonZeroU16,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, timeout_at},
};

/// How long closing waits for the last packets. QUIC asks for three probe timeouts: a tenth of a second within a
/// machine, a third on a path of 50 ms, but three seconds if nobody has answered yet.
const CLOSING: Duration = Duration::from_millis(500);

/// How long to wait for a router's answer before other peers are told our addresses. Most routers answer within a tenth
/// of it.
const ROUTER: Duration = Duration::from_millis(1500);

/// Why an endpoint could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another program, or another node, uses the port.
    #[error(
        "UDP port {port} is in use, perhaps by another node: choose another port, or 0 for any free one",
        port = .0.port()
    )]
    PortInUse(SocketAddr),
    /// The system keeps the port for itself.
    #[error(
        "port {port} is not for this user: the system keeps ports below 1024 for its own services. Take a port from 1024 on, or 0 \
         for any free one",
        port = .0.port()
    )]
    Reserved(SocketAddr),
    /// The address cannot be bound.
    #[error("cannot listen on {0}: {1}. Name an address of this machine, or [::] or 0.0.0.0 for all")]
    Bind(SocketAddr, io::Error),
    /// The manifest has this many bytes, more than anybody could fetch.
    #[error("the manifest has {0} bytes, {MAX_MANIFEST} are allowed")]
    ManifestTooLong(usize),
}

impl StartError {
    /// Why a socket could not be bound to an address.
    fn of(listen: SocketAddr, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::AddrInUse => Self::PortInUse(listen),
            io::ErrorKind::PermissionDenied if (1..1024).contains(&listen.port()) => Self::Reserved(listen),
            _ => Self::Bind(listen, error),
        }
    }
}

/// A [`Link`] over QUIC. Dropping it closes all links at once. Call [`drain`](Self::drain) first to lose nothing.
pub struct QuicLink {
    shared: Arc<Shared>,
    certificates: Arc<Certificates>,
    /// The links whose `Up` the owner has received.
    up: HashMap<PeerId, Arc<Wire>>,
    accepting: JoinHandle<()>,
    /// Decides whether the socket may be read less eagerly.
    pacing: JoinHandle<()>,
    roaming: Option<JoinHandle<()>>,
    /// The router's port that leads here.
    mapping: Option<Mapping>,
    outside: watch::Receiver<Outside>,
}

impl QuicLink {
    /// Binds the socket and starts to accept. Must be called within a tokio runtime.
    pub fn start(identity: &Identity, config: QuicConfig) -> Result<Self, StartError> {
        if config.manifest.len() > MAX_MANIFEST {
            return Err(StartError::ManifestTooLong(config.manifest.len()));
        }
        let pace = Pace::default();
        let endpoint = transport::endpoint(config.listen, config.line, config.small_packets, pace.clone());
        let endpoint = endpoint.map_err(|error| StartError::of(config.listen, error))?;
        let address = endpoint.local_addr().unwrap_or(config.listen);
        let own = own_addresses(address).into_iter().map(|address| address.ip());
        let certificates = Arc::new(Certificates::new(own));
        let configs = Configs::new(
            identity,
            config.idle,
            (config.congestion, config.line),
            Some(certificates.clone()),
        );
        let server = configs.server(Path::Network);
        endpoint.set_server_config(server.as_deref().cloned());
        let inbox = Inbox::new(config.inbox_bytes);
        let me = LocalPeer {
            peer: identity.peer(),
            root: config.root,
            admission: config.right.admit(identity.peer(), config.root.run),
            gate: Mutex::default(),
            instance: getrandom::u64().expect("the operating system gives random bytes"),
            addresses: Mutex::default(),
            observed: Mutex::default(),
            host: Some(TabHost {
                key: identity.key(),
                certificates: certificates.clone(),
            }),
        };
        let shared = Shared::new(me, endpoint, configs, config, inbox);
        let accepting = tokio::spawn(shared.clone().accept());
        let pacing = tokio::spawn(shared.clone().keep(pace));
        Ok(Self {
            shared,
            certificates,
            up: HashMap::new(),
            accepting,
            pacing,
            roaming: None,
            mapping: None,
            outside: watch::channel(Outside::Unasked).1,
        })
    }

    /// The address on which the endpoint listens, with its real port.
    pub fn local_addr(&self) -> SocketAddr {
        self.shared
            .endpoint
            .local_addr()
            .unwrap_or(self.shared.config.listen)
    }

    /// Sets the addresses (`host:port`) that we announce to every peer that comes up from now on: as many as fit into a
    /// [`Contact`] beside our certificates for tabs. On its own a peer sees only the source of our packets.
    pub fn advertise(&self, addresses: Vec<String>) {
        self.shared.me.advertise(addresses);
    }

    /// Announces the given addresses, this machine's own, and those at which others see us, now and whenever they
    /// change. Links that depend on a former address are replaced. If `map`, asks the router for a port mapping and
    /// waits for it for a short time.
    pub async fn roam(&mut self, given: Vec<String>, map: bool) {
        let at = self.local_addr();
        let port = NonZeroU16::new(at.port()).filter(|_| map && at.ip().is_unspecified());
        if let Some(port) = port {
            let mapping = self.mapping.insert(Mapping::begin(port));
            mapping.settle(ROUTER).await;
            self.outside = mapping.outside();
        }
        let roaming = Roaming::new(self.shared.clone(), at, given, self.outside.clone());
        self.roaming = Some(tokio::spawn(roaming.go_on()));
    }

    /// The state of the port mapping.
    pub fn outside(&self) -> Outside {
        self.outside.borrow().clone()
    }

    /// The most that this machine's line has carried, in bytes per second; 0 if that is unknown, as within one machine.
    pub fn carried(&self) -> u64 {
        self.shared.configs.carried()
    }

    /// Why newcomers cannot get the data from here any more, if they asked in vain.
    pub fn lost_data(&self) -> Option<String> {
        self.shared.config.served.lost()
    }

    /// The contact that we announce to every peer that comes up.
    pub fn contact(&self) -> Contact {
        self.shared.me.contact()
    }

    /// The certificates that tabs see.
    pub fn certificates(&self) -> Arc<Certificates> {
        self.certificates.clone()
    }

    /// Our own id.
    pub fn peer(&self) -> PeerId {
        self.shared.me.peer
    }

    /// Makes room for a frame in the queues of those who are no members. The peer with the longest queue takes less than it asks
    /// for, so it is cut off.
    fn make_room(&self, bytes: usize) {
        let guests = || self.up.values().filter(|wire| !wire.is_member());
        let queued: usize = guests().map(|wire| wire.queued()).sum();
        if queued + bytes > self.shared.config.guests_queue_bytes
            && let Some(longest) = guests().max_by_key(|wire| wire.queued())
        {
            longest.cut_off(TAKES_NOTHING);
        }
    }

    /// The addresses at which peers of the run are or were.
    pub fn known(&self) -> Arc<Known> {
        self.shared.known.clone()
    }

    /// Stops the background tasks.
    fn stop(&self) {
        let tasks = [&self.accepting, &self.pacing].into_iter().chain(&self.roaming);
        tasks.for_each(JoinHandle::abort);
    }

    /// Hangs up on all peers and waits until each has received all frames, for at most `limit`. Drops events meanwhile.
    /// Returns whether all links ended in time.
    pub async fn drain(&mut self, limit: Duration) -> bool {
        self.stop();
        if let Some(mapping) = self.mapping.take() {
            mapping.end().await;
        }
        self.up.values().for_each(|wire| wire.hang_up());
        let until = Instant::now() + limit;
        while !self.up.is_empty() {
            match timeout_at(until, next_event(self)).await {
                // A link that has just come up has nothing queued.
                Ok(Some(LinkEvent::Up { peer, .. })) => self.hang_up(peer),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return false,
            }
        }
        // The final closes are packets too, and may need to be repeated. Pending dials would delay the end most, and
        // have nothing to say.
        self.shared.endpoint.close(VarInt::from_u32(LEFT), b"");
        let _ = timeout_at(
            until.min(Instant::now() + CLOSING),
            self.shared.endpoint.wait_idle(),
        )
        .await;
        true
    }
}

impl Link for QuicLink {
    fn dial(&mut self, peer: PeerId, addresses: &[String]) {
        if !self.up.contains_key(&peer) {
            self.shared
                .clone()
                .start_dial(peer, addresses.iter().take(Contact::LIMIT).cloned().collect());
        }
    }

    fn send(&mut self, peer: PeerId, lane: Lane, frame: Frame) -> Result<(), SendError> {
        let wire = self.up.get(&peer).ok_or(SendError::NotUp)?;
        if !wire.is_member() {
            self.make_room(frame.len());
        }
        wire.send(lane, frame)
    }

    fn judge_by(&mut self, gate: Gate) {
        self.shared.judge_by(gate);
    }

    fn hang_up(&mut self, peer: PeerId) {
        if let Some(wire) = self.up.get(&peer) {
            wire.hang_up();
        }
    }

    fn queued(&self, peer: PeerId) -> usize {
        self.up.get(&peer).map_or(0, |wire| wire.queued())
    }

    fn traffic(&self, peer: PeerId) -> Option<Traffic> {
        self.up.get(&peer).map(|wire| wire.traffic())
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        Poll::Ready(match ready!(self.shared.inbox.poll(context)) {
            ConnectionEvent::Stopped => None,
            ConnectionEvent::Up { wire, contact, .. } => {
                let told = LinkEvent::Up {
                    peer: wire.peer,
                    addresses: contact.0,
                    dialled_by_us: wire.dialled_by_us,
                    way: wire.way,
                    rtt: wire.connection().rtt(),
                };
                self.up.insert(wire.peer, wire);
                Some(told)
            }
            ConnectionEvent::Down { peer, reason } => {
                self.up.remove(&peer);
                Some(LinkEvent::Down { peer, reason })
            }
            ConnectionEvent::Frame {
                peer, lane, bytes, ..
            } => Some(LinkEvent::Frame { peer, lane, bytes }),
            ConnectionEvent::DialFailed { peer, reason } => Some(LinkEvent::DialFailed { peer, reason }),
        })
    }
}

impl Drop for QuicLink {
    fn drop(&mut self) {
        self.stop();
        self.shared.endpoint.close(VarInt::from_u32(LEFT), b"");
    }
}

#[cfg(test)]
mod guests;
#[cfg(test)]
pub(crate) mod tests;
