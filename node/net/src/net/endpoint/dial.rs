//! Dials, each in a task of its own. A new link may replace an old one to the same peer.

use super::{Newcomer, Shared};
use crate::net::config::DIAL_TIMEOUT;
use crate::net::connect::connect;
use crate::net::connection::{LEFT, Shown, Streams, Wire, session_end, write_end};
use crate::net::handshake::propose;
use crate::net::hello::Purpose;
use crate::net::inbox::ConnectionEvent;
use crate::net::link::{DialError, Refusal};
use annulus_core::PeerId;
use std::{net::SocketAddr, sync::Arc};
use tokio::{sync::watch, time::timeout};
use web_transport_quinn::Session;

/// Dials that may run at once.
const MAX_DIALS: usize = 64;

impl Shared {
    /// Dials in a separate task, unless there is already a link or a dial.
    pub(crate) fn start_dial(self: Arc<Self>, peer: PeerId, addresses: Vec<String>) {
        if !self.links().contains_key(&peer) {
            self.dial_anew(peer, addresses, None);
        }
    }

    /// Replaces a link to a peer that is still at the same address.
    pub(crate) fn redial(self: Arc<Self>, wire: &Arc<Wire>) {
        let known = self.contacts().get(&wire.peer).cloned().unwrap_or_default();
        let mut addresses = vec![wire.connection().remote_address().to_string()];
        addresses.extend(known.0);
        self.dial_anew(wire.peer, addresses, Some(wire.clone()));
    }

    /// Dials, unless a dial is running, even if this old link exists. The new link replaces it.
    fn dial_anew(self: Arc<Self>, peer: PeerId, addresses: Vec<String>, old: Option<Arc<Wire>>) {
        let failed = |reason| {
            self.inbox
                .tell(ConnectionEvent::DialFailed { peer, reason }, false)
        };
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
        // The peer may find us first.
        let known = addresses
            .iter()
            .filter_map(|address| address.parse::<SocketAddr>().ok());
        known.for_each(|address| self.known.add(address.ip()));
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
            // A dial that lost against the peer's own dial has not failed if that one made a link.
            let mut dials = self.dials();
            dials.remove(&peer);
            if let Some(reason) = failure
                && !self.links().contains_key(&peer)
            {
                self.inbox
                    .tell(ConnectionEvent::DialFailed { peer, reason }, false);
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
        // The peer may have found us meanwhile.
        let is_old = |wire: &Arc<Wire>| old.as_ref().is_some_and(|old| Arc::ptr_eq(old, wire));
        if self.links().get(&peer).is_some_and(|wire| !is_old(wire)) {
            connection.close(LEFT.into(), b"");
            return Err(DialError::Refused(Refusal::Duplicate));
        }
        let session = Session::raw(connection);
        let (welcome, send, recv) = propose(&self.me, Purpose::Link, &session, peer).await?;
        let broken = |error| DialError::Broken(session_end(error));
        let mut bulk = session.open_bi().await.map_err(broken)?;
        // Announces the stream to the acceptor, and confirms its welcome.
        bulk.0
            .write_all(&[0; 4])
            .await
            .map_err(|error| DialError::Broken(write_end(error)))?;
        let shown = Shown {
            peer,
            instance: welcome.instance,
            tickets: self.me.tickets(&welcome.admission),
        };
        Ok(Newcomer {
            wire: Wire::new(session, shown, true, welcome.way, self.bounds()),
            streams: Streams {
                control: (send, recv),
                bulk,
            },
            contact: welcome.contact,
        })
    }
}
