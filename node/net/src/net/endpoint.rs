//! The endpoint behind the links: it accepts, dials, and decides which connection to a peer stands.
//!
//! It knows nothing of frames, nor of the owner of a link.

mod dial;
mod verdict;

use self::verdict::{Verdict, judge};
use crate::data::provision::{MAX_OTHERS, Source};
use crate::data::serve::{Counter, LinkTraffic};
use crate::net::config::{
    HANDSHAKE_TIMEOUT, HANDSHAKES_OF_KNOWN, HANDSHAKES_PER_ADDRESS, MAX_HANDSHAKES, QuicConfig,
};
use crate::net::congestion::suit_tab;
use crate::net::connection::{Bounds, H3_NO_ERROR, Shown, Streams, Wire};
use crate::net::gate::Gate;
use crate::net::handshake::{Caller, LocalPeer, canonical, listen, refuse, seen_at, welcome};
use crate::net::hello::{PATH, Purpose};
use crate::net::inbox::{ConnectionEvent, Inbox};
use crate::net::link::{LinkKind, Refusal};
use crate::net::nearby::visit;
use crate::net::quota::{Held, gives_way};
use crate::net::slots::{Known, Limits, Slots};
use crate::net::socket::Pace;
use crate::net::transport::{Configs, Path, brings_code, speaks_http3};
use annulus_core::id::TicketId;
use annulus_core::{Contact, PeerId};
use quinn::{Connection, Endpoint, Incoming};
use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};
use web_transport_quinn::{Request, Session, http::StatusCode};

/// If a peer that we are dialling says hello, its hello waits this long for our dial: a few round trips on a path that
/// works.
const CROSSING: Duration = Duration::from_millis(1500);

/// Round trips of at least this are long: a millisecond or two at each end is a twentieth of them.
const LONG: Duration = Duration::from_millis(20);

/// How often the endpoint checks whether all its links are long.
const LOOK: Duration = Duration::from_millis(200);

/// State that all tasks of an endpoint share.
pub(crate) struct Shared {
    pub me: LocalPeer,
    pub endpoint: Endpoint,
    pub(super) configs: Configs,
    pub config: QuicConfig,
    pub(super) inbox: Inbox<Arc<Wire>>,
    /// The connection that stands with each peer. Its `Up` may still wait for its predecessor's `Down`.
    links: Mutex<HashMap<PeerId, Arc<Wire>>>,
    /// The contacts of those peers that can be dialled.
    contacts: Mutex<HashMap<PeerId, Contact>>,
    /// Our own addresses.
    places: Mutex<Places>,
    /// Hands out data.
    counter: Counter,
    /// Slots for incoming connections until they have shown who they are.
    slots: Arc<Slots>,
    /// The addresses at which peers of the run are or were.
    pub known: Arc<Known>,
    /// Our running dials. A receiver sees its sender go when the dial is over.
    dials: Mutex<HashMap<PeerId, watch::Receiver<()>>>,
}

/// The addresses of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places {
    /// This machine's own addresses.
    pub own: Vec<SocketAddr>,
    /// The address of a port mapping that a router has given us.
    pub mapped: Option<SocketAddr>,
}

impl Shared {
    pub(crate) fn new(
        me: LocalPeer,
        endpoint: Endpoint,
        configs: Configs,
        config: QuicConfig,
        inbox: Inbox<Arc<Wire>>,
    ) -> Arc<Self> {
        let known = Arc::<Known>::default();
        let limits = Limits {
            all: MAX_HANDSHAKES,
            each: HANDSHAKES_PER_ADDRESS,
            kept: HANDSHAKES_OF_KNOWN,
            displace: true,
        };
        Arc::new(Self {
            me,
            endpoint,
            configs,
            config,
            inbox,
            links: Mutex::default(),
            contacts: Mutex::default(),
            places: Mutex::default(),
            counter: Counter::new(),
            slots: Slots::new(limits, known.clone()),
            known,
            dials: Mutex::default(),
        })
    }

    fn links(&self) -> MutexGuard<'_, HashMap<PeerId, Arc<Wire>>> {
        self.links.lock().expect("nobody panics while holding the links")
    }

    fn contacts(&self) -> MutexGuard<'_, HashMap<PeerId, Contact>> {
        self.contacts
            .lock()
            .expect("nobody panics while holding the contacts")
    }

    fn dials(&self) -> MutexGuard<'_, HashMap<PeerId, watch::Receiver<()>>> {
        self.dials.lock().expect("nobody panics while holding the dials")
    }

    /// Accepts connections until the endpoint fails or is closed.
    pub(crate) async fn accept(self: Arc<Self>) {
        while let Some(incoming) = self.endpoint.accept().await {
            let from = incoming.remote_address().ip();
            // When slots are scarce, a caller must prove its address first, so that nobody can take the slots of
            // others.
            if self.slots.is_scarce(from) && incoming.may_retry() && !incoming.remote_address_validated() {
                // Cannot fail: this was just checked.
                let _ = incoming.retry();
                continue;
            }
            let Some(slot) = self.slots.take(from) else {
                incoming.refuse();
                continue;
            };
            let shared = self.clone();
            tokio::spawn(async move {
                // A caller that is displaced finds its connection closed.
                let greeted = tokio::select! {
                    greeted = shared.receive(incoming) => greeted,
                    () = slot.displaced() => None,
                };
                drop(slot);
                match greeted {
                    Some((session, Greeted::Guest(caller))) => shared.hand_out(&session, caller).await,
                    Some((session, Greeted::Newcomer(newcomer))) => {
                        if let Err(refusal) = shared.adopt(newcomer) {
                            refuse(&session, refusal);
                        }
                    }
                    None => {}
                }
            });
        }
        self.inbox.tell(ConnectionEvent::Stopped, false);
    }

    /// Lets the socket be read less eagerly while all links are long ones. Runs for ever.
    pub(crate) async fn keep(self: Arc<Self>, pace: Pace) {
        loop {
            sleep(LOOK).await;
            let shortest = self.links().values().map(|wire| wire.connection().rtt()).min();
            pace.set_unhurried(shortest.is_some_and(|rtt| rtt >= LONG));
        }
    }

    /// The session of a caller that may go on, and its wish.
    async fn receive(&self, incoming: Incoming) -> Option<(Session, Greeted)> {
        let until = Instant::now() + HANDSHAKE_TIMEOUT;
        let path = Path::between(incoming.local_ip(), incoming.remote_address().ip());
        let connecting = incoming.accept_with(self.configs.server(path)?).ok()?;
        // An error of TLS, of which TLS has told the other side.
        let connection = timeout_at(until, connecting).await.ok()?.ok()?;
        if brings_code(&connection) {
            let door = self.config.door.as_deref();
            match timeout_at(until, visit::receive(&self.me, door, &connection)).await {
                Ok(Ok(())) => {}
                Ok(Err(refusal)) => visit::refuse(&connection, refusal),
                Err(_) => visit::refuse(&connection, Refusal::TooSlow),
            }
            return None;
        }
        let session = if speaks_http3(&connection) {
            suit_tab(&connection, self.config.local_tab_window);
            match timeout_at(until, admit(connection.clone())).await {
                Ok(Some(session)) => session,
                // Before there is a session, only HTTP/3's codes are understood.
                _ => {
                    connection.close(H3_NO_ERROR, b"");
                    return None;
                }
            }
        } else {
            Session::raw(connection)
        };
        let greeted = timeout_at(until, self.greet(&session)).await;
        match greeted.unwrap_or(Err(Refusal::TooSlow)) {
            Ok(greeted) => Some((session, greeted?)),
            Err(refusal) => {
                refuse(&session, refusal);
                None
            }
        }
    }

    /// The acceptor's side of a handshake, up to the decision. Nothing if the caller has got what it wanted.
    async fn greet(&self, session: &Session) -> Result<Option<Greeted>, Refusal> {
        let mut caller = listen(&self.me, session).await?;
        let peer = caller.peer;
        let seen = (session.remote_address(), self.way_of(&caller));
        if caller.purpose == Purpose::Manifest {
            welcome(&self.me, &mut caller, Some(&self.config.manifest), seen).await?;
            // The peer closes when it has read everything.
            session.closed().await;
            return Ok(None);
        }
        if caller.purpose == Purpose::Data {
            welcome(&self.me, &mut caller, None, seen).await?;
            return Ok(Some(Greeted::Guest(caller)));
        }
        if self.me.peer < peer {
            let dial = self.dials().get(&peer).cloned();
            if let Some(mut dial) = dial {
                // An error is the expected result: the dial is over. If the dial takes long, it found no path.
                let _ = timeout(CROSSING, dial.changed()).await;
            }
        }
        let old = self.links().get(&peer).cloned();
        match old {
            Some(old) => {
                let verdict = match caller.binding {
                    None => judge(
                        old.dialled_by_us,
                        old.instance == caller.instance,
                        self.me.peer < peer,
                    ),
                    // The page was loaded again. A browser lets one tab at a time use an identity.
                    Some(_) => Verdict::Replace,
                };
                match verdict {
                    Verdict::Probe if old.answers().await => return Err(Refusal::Duplicate),
                    // The last packets of a process that has just ended may still arrive once.
                    Verdict::Doubt if old.answers().await && old.answers().await => {
                        return Err(Refusal::InUse);
                    }
                    Verdict::Probe | Verdict::Doubt | Verdict::Replace => {}
                }
            }
            None => drop(self.room(&self.links(), &caller.tickets)?),
        }
        welcome(&self.me, &mut caller, None, seen).await?;
        let bulk = session.accept_bi().await.map_err(|_| Refusal::BadHandshake)?;
        let shown = Shown {
            peer,
            instance: caller.instance,
            tickets: caller.tickets,
        };
        Ok(Some(Greeted::Newcomer(Newcomer {
            wire: Wire::new(session.clone(), shown, false, seen.1, self.bounds()),
            streams: Streams {
                control: (caller.send, caller.recv),
                bulk,
            },
            contact: caller.contact,
        })))
    }

    /// How a peer that dialled us has reached us.
    fn way_of(&self, caller: &Caller) -> LinkKind {
        let Some(dialled) = caller.dialled else {
            return LinkKind::Direct;
        };
        let places = self.places().clone();
        if Some(dialled) == places.mapped {
            LinkKind::Mapped
        } else if !places.own.contains(&dialled) && self.dials().contains_key(&caller.peer) {
            LinkKind::Punched
        } else {
            LinkKind::Direct
        }
    }

    /// Our addresses, to read or change.
    pub(crate) fn places(&self) -> MutexGuard<'_, Places> {
        self.places
            .lock()
            .expect("nobody panics while holding the places")
    }

    /// Sends the run's data to a peer that asked for it.
    async fn hand_out(&self, session: &Session, caller: Caller) {
        let contacts = self.contacts().clone();
        let others = contacts.into_iter().filter(|(peer, _)| *peer != caller.peer);
        let others = others.map(|(peer, contact)| Source { peer, contact });
        let others = others.take(MAX_OTHERS).collect();
        let ring = || {
            let links = self.links();
            LinkTraffic {
                sent: links
                    .values()
                    .map(|wire| wire.connection().stats().udp_tx.bytes)
                    .sum(),
                delay: links.values().map(|wire| wire.delay()).max().unwrap_or_default(),
            }
        };
        let served = self.config.served.clone();
        self.counter.serve(session, caller, served, others, ring).await;
    }

    /// The links to native peers.
    pub(crate) fn native(&self) -> Vec<Arc<Wire>> {
        let links = self.links();
        links.values().filter(|wire| !wire.is_tab()).cloned().collect()
    }

    /// The bounds of a link.
    fn bounds(&self) -> Bounds {
        Bounds {
            bulk_queues: [self.config.bulk_queue_bytes, self.config.guest_queue_bytes],
            receive_window: self.config.receive_window,
        }
    }

    /// Whether a peer that came by these tickets can have a link. If all are taken: the peer, not a member, that gives way to it.
    fn room(&self, links: &HashMap<PeerId, Arc<Wire>>, asks: &[TicketId]) -> Result<Option<PeerId>, Refusal> {
        let open = || links.values().filter(|wire| wire.is_open());
        if open().count() < self.config.max_peers {
            return Ok(None);
        }
        let held = open().filter(|wire| !wire.is_member()).map(|wire| Held {
            by: &wire.tickets,
            progress: wire.traffic().sent_bytes,
            key: wire.peer,
        });
        let gives_way = gives_way(asks, self.config.max_peers, held);
        gives_way.map(Some).ok_or(Refusal::TooManyPeers)
    }

    /// From now on the ledger says this about those who knock, and who is a member.
    pub(crate) fn judge_by(&self, gate: Gate) {
        *self.me.gate() = gate;
        let links = self.links();
        let gate = self.me.gate();
        let we_are = gate.has(self.me.peer);
        links
            .values()
            .for_each(|wire| wire.set_members(gate.has(wire.peer), we_are));
    }

    /// Makes a connection after its handshake the link to its peer, replacing any other.
    fn adopt(self: Arc<Self>, newcomer: Newcomer) -> Result<(), Refusal> {
        let Newcomer {
            wire,
            streams,
            mut contact,
        } = newcomer;
        let old = {
            let mut links = self.links();
            if !wire.dialled_by_us
                && !links.contains_key(&wire.peer)
                && let Some(peer) = self.room(&links, &wire.tickets)?
            {
                let full = Refusal::TooManyPeers;
                links[&peer].cut_off((full.code(), &full.to_string()));
            }
            let gate = self.me.gate();
            wire.set_members(gate.has(wire.peer), gate.has(self.me.peer));
            drop(gate);
            links.insert(wire.peer, wire.clone())
        };
        self.known.add(wire.connection().remote_address().ip());
        if !wire.is_tab() {
            let seen = canonical(wire.connection().remote_address());
            contact = seen_at(contact, seen.to_string());
            self.contacts().insert(wire.peer, contact.clone());
        }
        tokio::spawn(async move {
            if let Some(old) = old {
                old.replace();
                // An error is the expected result: the old link's `Down` was reported.
                let _ = old.gone.acquire().await;
            }
            let up = ConnectionEvent::Up {
                peer: wire.peer,
                wire: wire.clone(),
                contact,
            };
            self.inbox.tell(up, wire.is_member());
            let reason = wire.run(streams, &self.inbox).await;
            let mut links = self.links();
            if links
                .get(&wire.peer)
                .is_some_and(|standing| Arc::ptr_eq(standing, &wire))
            {
                links.remove(&wire.peer);
                self.contacts().remove(&wire.peer);
            }
            // Under the lock, so that a successor's `Up` cannot come first.
            let peer = wire.peer;
            self.inbox
                .tell(ConnectionEvent::Down { peer, reason }, wire.is_member());
            drop(links);
            wire.gone.close();
        });
        Ok(())
    }
}

/// The session that a browser asks for, if its path is ours.
async fn admit(connection: Connection) -> Option<Session> {
    let request = Request::accept(connection.clone()).await.ok()?;
    if request.url.path() == PATH {
        return request.ok().await.ok();
    }
    request.reject(StatusCode::NOT_FOUND).await.ok()?;
    // Until the browser has read the answer.
    connection.closed().await;
    None
}

/// The result of a handshake.
enum Greeted {
    /// The caller wants data.
    Guest(Caller),
    /// The caller wants a link.
    Newcomer(Newcomer),
}

/// A connection after its handshake.
struct Newcomer {
    wire: Arc<Wire>,
    streams: Streams,
    contact: Contact,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_dial_that_may_have_crossed_ours_or_is_another_process_is_worth_a_probe() {
        for (old_dialled_by_us, same_instance, we_are_smaller, expected) in [
            (true, true, true, Verdict::Probe),
            (true, true, false, Verdict::Replace),
            (false, true, true, Verdict::Replace),
            (false, true, false, Verdict::Replace),
            (true, false, true, Verdict::Doubt),
            (false, false, false, Verdict::Doubt),
        ] {
            assert_eq!(judge(old_dialled_by_us, same_instance, we_are_smaller), expected);
        }
    }
}
