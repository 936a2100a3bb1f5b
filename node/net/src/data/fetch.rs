//! Asks a peer for the run's manifest and data before there is a link.
//!
//! It does not know how the answers are used.

use crate::data::cache::{Fetching, Supplied, Whole};
use crate::data::demand::Demand;
use crate::data::files::Data;
use crate::data::gather::supply;
use crate::data::provision::{
    DataDialer, DataStream, FetchError, Pace, REST, SILENCE, Source, silent, too_slow,
};
use crate::net::config::{DIAL_TIMEOUT, HANDSHAKE_TIMEOUT};
use crate::net::congestion::Congestion;
use crate::net::connect::connect;
use crate::net::connection::{LEFT, close, read_end, write_end};
use crate::net::handshake::{LocalPeer, propose};
use crate::net::hello::Purpose;
use crate::net::identity::Identity;
use crate::net::link::{DialError, Refusal};
use crate::net::ticket::Ticket;
use crate::net::transport::{self, Configs, WINDOW, peer_at};
use annulus_core::{Contact, Digest, PeerId};
use bytes::Bytes;
use quinn::{Endpoint, VarInt};
use std::{
    iter,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};
use tokio::{
    runtime,
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, timeout, timeout_at},
};
use web_transport_quinn::{RecvStream, SendStream, Session};

/// Time between two attempts while a peer has no slot.
const KNOCK_AGAIN: Duration = Duration::from_millis(300);

/// A holder of a ticket that is not yet a peer.
pub struct Guest {
    me: LocalPeer,
    endpoint: Endpoint,
    configs: Configs,
}

impl Guest {
    /// Binds a socket. Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// If there is none available.
    pub fn new(ticket: &Ticket, identity: &Identity) -> Result<Self, DialError> {
        let configs = Configs::new(identity, HANDSHAKE_TIMEOUT, (Congestion::default(), None), None);
        let endpoint = transport::dialling_endpoint()
            .map_err(|error| DialError::NoAddress(format!("no UDP socket can be had: {error}")))?;
        let me = LocalPeer {
            peer: identity.peer(),
            root: ticket.root,
            admission: ticket.right().admit(identity.peer(), ticket.root.run),
            gate: Mutex::default(),
            instance: 0,
            addresses: Mutex::default(),
            observed: Mutex::default(),
            host: None,
        };
        Ok(Self {
            me,
            endpoint,
            configs,
        })
    }

    /// Sends the final closes, so that nobody has to wait for a timeout.
    pub async fn leave(&self) {
        let _ = timeout(Duration::from_millis(200), self.endpoint.wait_idle()).await;
    }

    /// Streams a run's data: fetches it while it is used, on a thread of its own, until the data is dropped. Returns it once the
    /// `whole` files are here, and the first piece of each other.
    ///
    /// # Errors
    ///
    /// If no peer hands it out, or there is no room here.
    pub async fn supply(
        (ticket, identity): (Ticket, Arc<Identity>),
        (first, files): (Source, Digest),
        fetching: Fetching,
        budget: u64,
        whole: Whole,
    ) -> Result<Data, FetchError> {
        let (tell, mut told) = mpsc::unbounded_channel();
        let demand = Arc::new(Demand::new(budget));
        // If this is given up meanwhile, so is the thread.
        let unless_used = Unless(Some(&demand));
        let of_thread = demand.clone();
        let work = move || {
            let began = tell.clone();
            let begun = Box::new(move |path| drop(began.send(Ok(path))));
            let mut store = Supplied::new(fetching, (of_thread.clone(), budget), whole, begun);
            let here = |why: String| FetchError::Here(why);
            let supplied = runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|why| here(why.to_string()))
                .and_then(|runtime| {
                    runtime.block_on(async {
                        let guest = Self::new(&ticket, &identity).map_err(|why| here(why.to_string()))?;
                        let supplied = supply(&guest, &mut store, &of_thread, first, files).await;
                        guest.leave().await;
                        supplied
                    })
                });
            let _ = supplied.map_err(|why| tell.send(Err(why)));
        };
        let named = thread::Builder::new().name("annulus-data".into());
        named
            .spawn(work)
            .map_err(|why| FetchError::Here(why.to_string()))?;
        let path: PathBuf = told
            .recv()
            .await
            .unwrap_or_else(|| Err(FetchError::Nobody(Vec::new())))?;
        let gone = || FetchError::Here(format!("{} is gone", path.display()));
        let data = Data::on_demand(&path, demand.clone()).ok_or_else(gone)?;
        unless_used.forget();
        Ok(data)
    }

    /// Asks the peer at these addresses for the run's manifest, again if it has no slot.
    async fn manifest(&self, contact: Contact) -> Result<(Source, Bytes), DialError> {
        let until = Instant::now() + HANDSHAKE_TIMEOUT;
        let mut told = no_answer();
        loop {
            match timeout_at(until, self.knock(&contact)).await {
                Err(_) => return Err(told),
                Ok(Err(error @ DialError::Unreachable(_))) => told = error,
                Ok(Err(error)) => return Err(error),
                Ok(Ok((peer, manifest))) => return Ok((Source { peer, contact }, manifest)),
            }
            sleep(KNOCK_AGAIN).await;
        }
    }

    async fn knock(&self, contact: &Contact) -> Result<(PeerId, Bytes), DialError> {
        let connection = connect(&self.endpoint, &self.configs, contact.0.clone(), None).await?;
        let peer = peer_at(&connection).ok_or(DialError::Unproven)?;
        let session = Session::raw(connection);
        let fetched = propose(&self.me, Purpose::Manifest, &session, peer).await;
        session.close(LEFT, b"");
        let manifest = fetched?.0.manifest;
        let manifest = manifest.ok_or(DialError::Refused(Refusal::AnotherVersion))?;
        Ok((peer, Bytes::from(manifest)))
    }
}

/// Asks for the run's manifest at the ticket's addresses, and at addresses where peers of the run were before. Takes
/// the first answer.
///
/// # Errors
///
/// If nobody answers, or nobody who takes part in the run. Says what happened at the ticket's addresses, if it has any.
pub async fn fetch_manifest(
    ticket: &Ticket,
    others: impl Iterator<Item = Contact>,
    identity: &Identity,
) -> Result<(Source, Bytes), DialError> {
    let guest = Arc::new(Guest::new(ticket, identity)?);
    let named = ticket.addrs.iter().take(Contact::LIMIT);
    let named = Contact(named.map(ToString::to_string).collect());
    let mut asked = JoinSet::new();
    for (at, contact) in iter::once(named).chain(others).enumerate() {
        let guest = guest.clone();
        asked.spawn(async move { (at, guest.manifest(contact).await) });
    }
    let (mut fetched, mut first) = (Err(no_answer()), usize::MAX);
    while let Some(answer) = asked.join_next().await {
        // They neither panic nor are aborted while this set lives.
        let Ok((at, answer)) = answer else { continue };
        let done = answer.is_ok();
        if done || at < first {
            (fetched, first) = (answer, at);
        }
        if done {
            break;
        }
    }
    drop(asked);
    guest.leave().await;
    fetched
}

/// Asks at each address who is there, and reports each answer, or why there is none, as soon as it is known.
pub async fn who_is_there(
    ticket: &Ticket,
    addresses: Vec<SocketAddr>,
    identity: &Identity,
    tell: impl Fn(Result<Source, DialError>),
) {
    let guest = match Guest::new(ticket, identity) {
        Ok(guest) => Arc::new(guest),
        Err(error) => return tell(Err(error)),
    };
    let mut asked = JoinSet::new();
    for address in addresses {
        let guest = guest.clone();
        let contact = Contact(vec![address.to_string()]);
        asked.spawn(async move { Ok(guest.manifest(contact).await?.0) });
    }
    while let Some(answer) = asked.join_next().await {
        // They neither panic nor are aborted while this set lives.
        answer.into_iter().for_each(&tell);
    }
    guest.leave().await;
}

fn no_answer() -> DialError {
    DialError::Unreachable("no answer in time".to_owned())
}

/// Closes a demand that came to nothing.
struct Unless<'a>(Option<&'a Demand>);

impl Unless<'_> {
    fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for Unless<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|demand| demand.close());
    }
}

impl DataDialer for Guest {
    type DataStream = GuestStream;

    async fn dial(&self, source: &Source) -> Result<GuestStream, DialError> {
        let reach = async {
            let addresses = source.contact.0.clone();
            let connection = connect(&self.endpoint, &self.configs, addresses, Some(source.peer)).await?;
            let session = Session::raw(connection);
            let (_, send, recv) = propose(&self.me, Purpose::Data, &session, source.peer).await?;
            session.set_receive_window(VarInt::from_u32(WINDOW));
            let pace = Pace::default();
            Ok(GuestStream {
                session,
                send,
                recv,
                pace,
            })
        };
        let reached = timeout(DIAL_TIMEOUT, reach).await;
        reached.unwrap_or_else(|_| Err(no_answer()))
    }

    async fn rest(&self) {
        sleep(REST).await;
    }
}

/// A conversation with a peer that was asked for data.
pub struct GuestStream {
    session: Session,
    send: SendStream,
    recv: RecvStream,
    pace: Pace,
}

impl DataStream for GuestStream {
    async fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        let said = timeout(SILENCE, self.send.write_all(bytes)).await;
        said.map_err(|_| silent())?.map_err(write_end)
    }

    async fn receive(&mut self, most: usize) -> Result<Bytes, String> {
        let begin = Instant::now();
        let heard = timeout(SILENCE, self.recv.read_chunk(most, true)).await;
        let heard = heard.map_err(|_| silent())?.map_err(read_end)?;
        let bytes = heard.ok_or("it hung up")?.bytes;
        match self.pace.keeps(bytes.len(), begin.elapsed()) {
            true => Ok(bytes),
            false => Err(too_slow()),
        }
    }
}

impl Drop for GuestStream {
    fn drop(&mut self) {
        close(&self.session, LEFT, "");
    }
}

#[cfg(test)]
mod tests;
