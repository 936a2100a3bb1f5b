//! The endpoint behind the links: accepts, dials, and decides which connection to a peer stands.
//!
//! It must know nothing of frames, nor of who owns the link.

use crate::data::provision::{MAX_OTHERS, Source};
use crate::data::serve::{Counter, LinkTraffic};
use crate::net::config::{
    DIAL_TIMEOUT, HANDSHAKE_TIMEOUT, HANDSHAKES_OF_KNOWN, HANDSHAKES_PER_ADDRESS, MAX_HANDSHAKES, QuicConfig,
};
use crate::net::congestion::suit_tab;
use crate::net::connect::connect;
use crate::net::connection::{ConnectionEvent, H3_NO_ERROR, Inbox, LEFT, Streams, Wire};
use crate::net::handshake::{Caller, LocalPeer, canonical, listen, propose, refuse, seen_at, welcome};
use crate::net::hello::{PATH, Purpose};
use crate::net::link::{DialError, LinkKind, Refusal};
use crate::net::nearby::visit;
use crate::net::slots::{Slot, Slots};
use crate::net::socket::Pace;
use crate::net::transport::{Configs, Path, brings_code, speaks_http3};
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

/// The hello of one that we are dialling waits so long for that dial: some round trips of a way on which it does get through.
const CROSSING: Duration = Duration::from_millis(1500);

/// Round trips of at least this are long: a millisecond or two more at each end is a twentieth of them.
const LONG: Duration = Duration::from_millis(20);

/// Between two looks at how long links are.
const LOOK: Duration = Duration::from_millis(200);

/// Dials that may run at once.
const MAX_DIALS: usize = 64;

/// What all tasks of an endpoint share.
pub(crate) struct Shared {
    pub me: LocalPeer,
    pub endpoint: Endpoint,
    pub(super) configs: Configs,
    pub config: QuicConfig,
    inbox: Inbox,
    /// The connection that stands with each peer. Its `Up` may still wait for its predecessor's `Down`.
    links: Mutex<HashMap<PeerId, Arc<Wire>>>,
    /// Where those of them can be dialled that can.
    contacts: Mutex<HashMap<PeerId, Contact>>,
    /// Where we are.
    places: Mutex<Places>,
    /// Hands out data.
    counter: Counter,
    /// Places for those who come in, until they have shown who they are.
    slots: Arc<Slots>,
    /// Our dials that run; each receiver sees its sender go when the dial is over.
    dials: Mutex<HashMap<PeerId, watch::Receiver<()>>>,
}

/// Where an endpoint is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places {
    /// By this machine's own addresses.
    pub own: Vec<SocketAddr>,
    /// Where a router passes on what is for us, since we have asked for it.
    pub mapped: Option<SocketAddr>,
}

/// What the acceptor does with a good hello from a peer with which it has a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The old link is dead on the other side: take the new connection.
    Replace,
    /// Both may have dialled at once: keep the old link if it still answers.
    Probe,
}

/// A peer dials only while it has no link with us. So either it lost the old one, or its dial crossed ours; and
/// the latter only if ours made the old link and we are the smaller one, since the smaller one's hello is never
/// kept waiting while the larger one's is.
fn judge(old_dialled_by_us: bool, same_instance: bool, we_are_smaller: bool) -> Verdict {
    if same_instance && old_dialled_by_us && we_are_smaller {
        Verdict::Probe
    } else {
        Verdict::Replace
    }
}

impl Shared {
    pub(crate) fn new(
        me: LocalPeer,
        endpoint: Endpoint,
        configs: Configs,
        config: QuicConfig,
        inbox: Inbox,
    ) -> Arc<Self> {
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
            slots: Slots::new(MAX_HANDSHAKES, HANDSHAKES_PER_ADDRESS, HANDSHAKES_OF_KNOWN),
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
            // Under pressure, make whoever knocks show first that its address is real: nobody takes another's places.
            if self.slots.is_scarce(from) && incoming.may_retry() && !incoming.remote_address_validated() {
                // Cannot fail: it was just checked that it may.
                let _ = incoming.retry();
                continue;
            }
            let Some(slot) = self.slots.take(from) else {
                incoming.refuse();
                continue;
            };
            let shared = self.clone();
            tokio::spawn(async move {
                shared.receive(incoming, slot).await;
            });
        }
        self.inbox.tell(ConnectionEvent::Stopped);
    }

    /// Lets the socket be read in a leisurely way while all links are long ones, for ever.
    pub(crate) async fn keep(self: Arc<Self>, pace: Pace) {
        loop {
            sleep(LOOK).await;
            let shortest = self.links().values().map(|wire| wire.connection().rtt()).min();
            pace.set_unhurried(shortest.is_some_and(|rtt| rtt >= LONG));
        }
    }

    async fn receive(self: Arc<Self>, incoming: Incoming, slot: Slot) {
        let until = Instant::now() + HANDSHAKE_TIMEOUT;
        let path = Path::between(incoming.local_ip(), incoming.remote_address().ip());
        let Some(config) = self.configs.server(path) else {
            return;
        };
        let Ok(connecting) = incoming.accept_with(config) else {
            return;
        };
        // A failure here is TLS's, and TLS has told the other side.
        let Ok(Ok(connection)) = timeout_at(until, connecting).await else {
            return;
        };
        if brings_code(&connection) {
            let door = self.config.door.as_deref();
            return match timeout_at(until, visit::receive(&self.me, door, &connection)).await {
                Ok(Ok(())) => {}
                Ok(Err(refusal)) => visit::refuse(&connection, refusal),
                Err(_) => visit::refuse(&connection, Refusal::TooSlow),
            };
        }
        let session = if speaks_http3(&connection) {
            suit_tab(&connection, self.config.local_tab_window);
            match timeout_at(until, admit(connection.clone())).await {
                Ok(Some(session)) => session,
                // Whoever has not got as far as a session understands HTTP/3's codes alone.
                _ => return connection.close(H3_NO_ERROR, b""),
            }
        } else {
            Session::raw(connection)
        };
        match timeout_at(until, self.greet(&session)).await {
            Err(_) => refuse(&session, Refusal::TooSlow),
            Ok(Err(refusal)) => refuse(&session, refusal),
            Ok(Ok(Greeted::Told)) => {}
            Ok(Ok(Greeted::Guest(caller))) => {
                drop(slot);
                self.hand_out(&session, caller).await;
            }
            Ok(Ok(Greeted::Newcomer(newcomer))) => {
                if let Err(refusal) = self.adopt(newcomer) {
                    refuse(&session, refusal);
                }
            }
        }
    }

    /// The acceptor's side of a handshake, up to the decision.
    async fn greet(&self, session: &Session) -> Result<Greeted, Refusal> {
        let mut caller = listen(&self.me, session).await?;
        let peer = caller.peer;
        let seen = (session.remote_address(), self.way_of(&caller));
        if caller.purpose == Purpose::Manifest {
            welcome(&self.me, &mut caller, Some(&self.config.manifest), seen).await?;
            // The peer closes when it has read all.
            session.closed().await;
            return Ok(Greeted::Told);
        }
        if caller.purpose == Purpose::Data {
            welcome(&self.me, &mut caller, None, seen).await?;
            return Ok(Greeted::Guest(caller));
        }
        if self.me.peer < peer {
            let dial = self.dials().get(&peer).cloned();
            if let Some(mut dial) = dial {
                // An error is what is waited for: the dial is over. If it takes long there is no way where it went.
                let _ = timeout(CROSSING, dial.changed()).await;
            }
        }
        let old = self.links().get(&peer).cloned();
        match old {
            Some(old) => {
                let verdict = judge(
                    old.dialled_by_us,
                    old.instance == caller.instance,
                    self.me.peer < peer,
                );
                if verdict == Verdict::Probe && old.answers().await {
                    return Err(Refusal::Duplicate);
                }
            }
            None if self.links().len() >= self.config.max_peers => {
                return Err(Refusal::TooManyPeers);
            }
            None => {}
        }
        welcome(&self.me, &mut caller, None, seen).await?;
        let bulk = session.accept_bi().await.map_err(|_| Refusal::BadHandshake)?;
        Ok(Greeted::Newcomer(Newcomer {
            wire: self.wire(session, (peer, caller.instance), false, seen.1),
            streams: Streams {
                control: (caller.send, caller.recv),
                bulk,
            },
            contact: caller.contact,
        }))
    }

    /// How one that dialled us has found to us.
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

    /// Where we are, to be looked at or changed.
    pub(crate) fn places(&self) -> MutexGuard<'_, Places> {
        self.places
            .lock()
            .expect("nobody panics while holding the places")
    }

    /// Hands the run's data to whoever asked for it.
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

    /// Dials in a task of its own, unless there is a link or a dial already.
    pub(crate) fn start_dial(self: Arc<Self>, peer: PeerId, addresses: Vec<String>) {
        if !self.links().contains_key(&peer) {
            self.dial_anew(peer, addresses, None);
        }
    }

    /// The links to native peers.
    pub(crate) fn native(&self) -> Vec<Arc<Wire>> {
        let links = self.links();
        links.values().filter(|wire| !wire.is_tab()).cloned().collect()
    }

    /// Makes a link anew whose other end is where it was.
    pub(crate) fn redial(self: Arc<Self>, wire: &Arc<Wire>) {
        let known = self.contacts().get(&wire.peer).cloned().unwrap_or_default();
        let mut addresses = vec![wire.connection().remote_address().to_string()];
        addresses.extend(known.0);
        self.dial_anew(wire.peer, addresses, Some(wire.clone()));
    }

    /// Dials, unless it is being done, even where there is this old link: the new one takes its place.
    fn dial_anew(self: Arc<Self>, peer: PeerId, addresses: Vec<String>, old: Option<Arc<Wire>>) {
        let failed = |reason| self.inbox.tell(ConnectionEvent::DialFailed { peer, reason });
        if peer == self.me.peer {
            return failed(DialError::Refused(Refusal::Ourselves));
        }
        let (over, dial) = watch::channel(());
        {
            let mut dials = self.dials();
            if dials.contains_key(&peer) {
                return;
            }
            if dials.len() >= MAX_DIALS {
                return failed(DialError::Busy);
            }
            dials.insert(peer, dial);
        }
        // Whom we look for may find us first.
        let known = addresses
            .iter()
            .filter_map(|address| address.parse::<SocketAddr>().ok());
        known.for_each(|address| self.slots.know(address.ip()));
        tokio::spawn(async move {
            let dialled = timeout(DIAL_TIMEOUT, self.dial(peer, addresses, old)).await;
            let failure = match dialled {
                Ok(Ok(newcomer)) => self.clone().adopt(newcomer).err().map(DialError::Refused),
                Ok(Err(error)) => Some(error),
                Err(_) => Some(DialError::Unreachable(format!(
                    "no answer within {} s",
                    DIAL_TIMEOUT.as_secs()
                ))),
            };
            // A dial that lost against the peer's own was no failure if that one is up.
            let mut dials = self.dials();
            dials.remove(&peer);
            if let Some(reason) = failure
                && !self.links().contains_key(&peer)
            {
                self.inbox.tell(ConnectionEvent::DialFailed { peer, reason });
            }
            drop((dials, over));
        });
    }

    async fn dial(
        &self,
        peer: PeerId,
        addresses: Vec<String>,
        old: Option<Arc<Wire>>,
    ) -> Result<Newcomer, DialError> {
        let connection = connect(&self.endpoint, &self.configs, addresses, Some(peer)).await?;
        // It may have found us meanwhile.
        let is_old = |wire: &Arc<Wire>| old.as_ref().is_some_and(|old| Arc::ptr_eq(old, wire));
        if self.links().get(&peer).is_some_and(|wire| !is_old(wire)) {
            connection.close(LEFT.into(), b"");
            return Err(DialError::Refused(Refusal::Duplicate));
        }
        let session = Session::raw(connection);
        let (welcome, send, recv) = propose(&self.me, Purpose::Link, &session, peer).await?;
        let broken = |error: web_transport_quinn::SessionError| DialError::Broken(error.to_string());
        let mut bulk = session.open_bi().await.map_err(broken)?;
        // Tells the acceptor of the stream, and that its welcome was found good.
        bulk.0
            .write_all(&[0; 4])
            .await
            .map_err(|error| DialError::Broken(error.to_string()))?;
        Ok(Newcomer {
            wire: self.wire(&session, (peer, welcome.instance), true, welcome.way),
            streams: Streams {
                control: (send, recv),
                bulk,
            },
            contact: welcome.contact,
        })
    }

    fn wire(
        &self,
        session: &Session,
        (peer, instance): (PeerId, u64),
        dialled_by_us: bool,
        way: LinkKind,
    ) -> Arc<Wire> {
        Wire::new(
            session.clone(),
            (peer, instance),
            dialled_by_us,
            way,
            self.config.bulk_queue_bytes,
            self.config.receive_window,
        )
    }

    /// Makes a connection whose handshake is done the link to its peer, in place of any other.
    fn adopt(self: Arc<Self>, newcomer: Newcomer) -> Result<(), Refusal> {
        let Newcomer {
            wire,
            streams,
            mut contact,
        } = newcomer;
        let old = {
            let mut links = self.links();
            if !wire.dialled_by_us && !links.contains_key(&wire.peer) && links.len() >= self.config.max_peers
            {
                return Err(Refusal::TooManyPeers);
            }
            links.insert(wire.peer, wire.clone())
        };
        self.slots.know(wire.connection().remote_address().ip());
        if !wire.is_tab() {
            let seen = canonical(wire.connection().remote_address());
            contact = seen_at(contact, seen.to_string());
            self.contacts().insert(wire.peer, contact.clone());
        }
        tokio::spawn(async move {
            if let Some(old) = old {
                old.replace();
                // An error is what is waited for: the old link's `Down` has been told.
                let _ = old.gone.acquire().await;
            }
            self.inbox.tell(ConnectionEvent::Up {
                wire: wire.clone(),
                contact,
            });
            let reason = wire.run(streams, &self.inbox).await;
            let mut links = self.links();
            if links
                .get(&wire.peer)
                .is_some_and(|standing| Arc::ptr_eq(standing, &wire))
            {
                links.remove(&wire.peer);
                self.contacts().remove(&wire.peer);
            }
            // Under the lock, so that a successor's `Up` cannot come before it.
            self.inbox.tell(ConnectionEvent::Down {
                peer: wire.peer,
                reason,
            });
            drop(links);
            wire.gone.close();
        });
        Ok(())
    }
}

/// The session that a browser asks for, if it is one of ours.
async fn admit(connection: Connection) -> Option<Session> {
    let request = Request::accept(connection.clone()).await.ok()?;
    if request.url.path() == PATH {
        return request.ok().await.ok();
    }
    request.reject(StatusCode::NOT_FOUND).await.ok()?;
    // Until it has read the answer.
    connection.closed().await;
    None
}

/// What came of a handshake.
enum Greeted {
    /// It was told all that it wanted to know.
    Told,
    /// It wants data.
    Guest(Caller),
    /// It wants to be a neighbour.
    Newcomer(Newcomer),
}

/// A connection whose handshake is done.
struct Newcomer {
    wire: Arc<Wire>,
    streams: Streams,
    contact: Contact,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_dial_that_may_have_crossed_ours_is_worth_a_probe() {
        for (old_dialled_by_us, same_instance, we_are_smaller, expected) in [
            (true, true, true, Verdict::Probe),
            (true, true, false, Verdict::Replace),
            (false, true, true, Verdict::Replace),
            (false, true, false, Verdict::Replace),
            (true, false, true, Verdict::Replace),
            (false, false, false, Verdict::Replace),
        ] {
            assert_eq!(judge(old_dialled_by_us, same_instance, we_are_smaller), expected);
        }
    }
}
