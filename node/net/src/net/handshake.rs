//! The handshake above TLS: who may come in, and why not.
//!
//! Its messages are those of [`hello`](crate::net::hello). Between native peers TLS proves identities. In a tab's
//! session two signatures do, over the certificate that the tab pinned and a nonce. Which links exist is the endpoint's
//! business.

use crate::net::certificates::{Certificates, Fingerprint};
use crate::net::connection::{REASON, close, is_tab};
use crate::net::gate::Gate;
use crate::net::hello::{
    CERTIFICATE, HEAD, Hello, MAX_HELLO, MAX_MANIFEST, Purpose, Role, TabHello, TabWelcome, Unread, Welcome,
    body_len, bounded, decode, encode, signed, tab_session,
};
use crate::net::link::{DialError, LinkKind, Refusal};
use crate::net::observed::Observed;
use crate::net::transport::peer_at;
use crate::printable::printable_line;
use annulus_core::id::TicketId;
use annulus_core::invitation::{Admission, Root};
use annulus_core::signature::{Key, Scheme};
use annulus_core::{Contact, Digest, PeerId};
use bytes::Bytes;
use quinn::{Connection, ConnectionError};
use serde::de::DeserializeOwned;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};
use web_transport_quinn::{RecvStream, SendStream, Session};

/// What a peer says of itself in every handshake.
pub(crate) struct LocalPeer {
    pub peer: PeerId,
    pub root: Root,
    /// What let us in.
    pub admission: Admission,
    /// Decides which peers may come in.
    pub gate: Mutex<Gate>,
    pub instance: u64,
    /// Where others can dial us.
    pub addresses: Mutex<Vec<String>>,
    /// Our addresses as others see them.
    pub observed: Mutex<Observed>,
    /// Set on peers that can be dialled.
    pub host: Option<TabHost>,
}

/// What is needed to answer tabs.
pub(crate) struct TabHost {
    pub key: Key,
    pub certificates: Arc<Certificates>,
}

impl LocalPeer {
    /// From now on announces these addresses for dialling.
    pub(crate) fn advertise(&self, addresses: Vec<String>) {
        *self
            .addresses
            .lock()
            .expect("nobody panics while holding the addresses") = addresses;
    }

    /// Notes that another peer sees us at this address.
    fn hear(&self, by: PeerId, at: SocketAddr) {
        self.observed().hear(by, at);
    }

    /// Decides who may come in.
    pub(crate) fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().expect("nobody panics at the gate")
    }

    /// The chain of tickets that a peer came by.
    pub(crate) fn tickets(&self, admission: &Admission) -> Vec<TicketId> {
        admission.chain.ids(self.root.run)
    }

    /// Our addresses as others see them.
    pub(crate) fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed
            .lock()
            .expect("nobody panics while holding what others see")
    }

    /// Our addresses for dialling, and the certificates that tabs will find there.
    pub(crate) fn contact(&self) -> Contact {
        let addresses = self
            .addresses
            .lock()
            .expect("nobody panics while holding the addresses")
            .clone();
        let fingerprints = self.host.as_ref().map(|host| host.certificates.fingerprints());
        let certificates: Vec<String> = fingerprints.iter().flatten().map(announced).collect();
        let mut contact = bounded(Contact(addresses));
        contact.0.truncate(Contact::LIMIT - certificates.len());
        contact.0.extend(certificates);
        contact
    }
}

/// An address in the usual form: IPv4 addresses as IPv4, whatever the socket reports.
pub(crate) fn canonical(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip().to_canonical(), at.port())
}

/// How a contact names a certificate.
fn announced(fingerprint: &Fingerprint) -> String {
    format!("{CERTIFICATE}{}", Digest(*fingerprint).to_hex())
}

/// A contact with the address at which the peer was seen, between its addresses and its certificates.
pub(crate) fn seen_at(contact: Contact, address: String) -> Contact {
    let is_certificate = |entry: &String| entry.starts_with(CERTIFICATE);
    let (mut certificates, mut entries): (Vec<_>, Vec<_>) = contact.0.into_iter().partition(is_certificate);
    certificates.truncate(Contact::LIMIT - 1);
    entries.truncate(Contact::LIMIT - certificates.len());
    if !entries.contains(&address) {
        entries.truncate(Contact::LIMIT - certificates.len() - 1);
        entries.push(address);
    }
    entries.extend(certificates);
    Contact(entries)
}

/// Says hello, then waits for the welcome and checks it.
pub(crate) async fn propose(
    me: &LocalPeer,
    purpose: Purpose,
    session: &Session,
    acceptor: PeerId,
) -> Result<(Welcome, SendStream, RecvStream), DialError> {
    let lost = || dial_error(closed(session));
    let (mut send, mut recv) = session.open_bi().await.map_err(|_| lost())?;
    let hello = Hello {
        purpose,
        run: me.root.run.0,
        instance: me.instance,
        contact: me.contact(),
        admission: me.admission.clone(),
        dialled: canonical(session.remote_address()),
    };
    send.write_all(&encode(&hello)).await.map_err(|_| lost())?;
    let welcome: Welcome = match read_message(&mut recv, MAX_HELLO + MAX_MANIFEST).await {
        Ok(welcome) => welcome,
        Err(Unread::Version) => return Err(DialError::Refused(Refusal::AnotherVersion)),
        Err(Unread::Garbled) => {
            return Err(DialError::Broken("the answer makes no sense".to_owned()));
        }
        // The close has the reason, and may arrive shortly after the stream's end.
        Err(Unread::Lost) => return Err(dial_error(Connection::closed(session).await)),
    };
    if !welcome.admission.is_of(acceptor, me.root, Scheme::Ed25519) {
        return Err(DialError::Unproven);
    }
    me.hear(acceptor, welcome.seen);
    Ok((
        Welcome {
            contact: bounded(welcome.contact.clone()),
            ..welcome
        },
        send,
        recv,
    ))
}

/// A dialler with a valid hello.
pub(crate) struct Caller {
    pub peer: PeerId,
    pub purpose: Purpose,
    pub instance: u64,
    /// Empty for a tab, which cannot be dialled.
    pub contact: Contact,
    /// The chain of tickets that it came by.
    pub tickets: Vec<TicketId>,
    /// The address at which it dialled us, if it says so.
    pub dialled: Option<SocketAddr>,
    pub send: SendStream,
    pub recv: RecvStream,
    /// A value that is unique to a tab's session.
    pub binding: Option<[u8; 32]>,
}

/// Reads and checks a hello.
pub(crate) async fn listen(me: &LocalPeer, session: &Session) -> Result<Caller, Refusal> {
    // A native peer must have a certificate; otherwise there is nothing to wait for.
    let native = if is_tab(session) {
        None
    } else {
        Some(peer_at(session).ok_or(Refusal::BadHandshake)?)
    };
    let (send, mut recv) = session.accept_bi().await.map_err(|_| Refusal::BadHandshake)?;
    match native {
        Some(peer) => {
            let hello: Hello = read_hello(&mut recv).await?;
            belongs(me, peer, hello.run, &hello.admission)?;
            me.hear(peer, hello.dialled);
            Ok(Caller {
                peer,
                purpose: hello.purpose,
                instance: hello.instance,
                contact: bounded(hello.contact),
                tickets: me.tickets(&hello.admission),
                dialled: Some(hello.dialled),
                send,
                recv,
                binding: None,
            })
        }
        None => {
            let hello: TabHello = read_hello(&mut recv).await?;
            let host = me.host.as_ref().ok_or(Refusal::BadHandshake)?;
            let peer = PeerId(hello.peer);
            let binding = tab_session(&hello.certificate, &hello.nonce);
            belongs(me, peer, hello.run, &hello.admission)?;
            let ours =
                hello.acceptor == me.peer.0 && host.certificates.fingerprints().contains(&hello.certificate);
            let said = signed(&binding, Role::Dialler, peer, me.peer, me.root.run);
            if !ours || !Scheme::Ed25519.verifies(peer, &said, &hello.signature) {
                return Err(Refusal::BadHandshake);
            }
            Ok(Caller {
                peer,
                purpose: hello.purpose,
                instance: hello.instance,
                contact: Contact::default(),
                tickets: me.tickets(&hello.admission),
                dialled: None,
                send,
                recv,
                binding: Some(binding),
            })
        }
    }
}

/// Whether a dialler means this run and may come in.
fn belongs(me: &LocalPeer, dialler: PeerId, run: [u8; 32], admission: &Admission) -> Result<(), Refusal> {
    if dialler == me.peer {
        return Err(Refusal::Ourselves);
    }
    if run != me.root.run.0 {
        return Err(Refusal::AnotherRun);
    }
    if !admission.is_of(dialler, me.root, Scheme::Ed25519) {
        return Err(Refusal::WrongTicket);
    }
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(me
        .gate()
        .check(dialler, admission, me.root.run, since_1970.as_secs())?)
}

/// Answers a valid hello.
pub(crate) async fn welcome(
    me: &LocalPeer,
    caller: &mut Caller,
    manifest: Option<&Bytes>,
    (seen, way): (SocketAddr, LinkKind),
) -> Result<(), Refusal> {
    let welcome = Welcome {
        instance: me.instance,
        contact: me.contact(),
        manifest: manifest.map(|bytes| bytes.to_vec()),
        admission: me.admission.clone(),
        seen: canonical(seen),
        way,
    };
    let words = match (&me.host, &caller.binding) {
        (Some(host), Some(binding)) => {
            let said = signed(binding, Role::Acceptor, caller.peer, me.peer, me.root.run);
            encode(&TabWelcome {
                welcome,
                peer: me.peer.0,
                signature: host.key.sign_bytes(&said),
            })
        }
        _ => encode(&welcome),
    };
    caller
        .send
        .write_all(&words)
        .await
        .map_err(|_| Refusal::BadHandshake)
}

/// Closes a session with a reason that the peer can show to its user.
pub(crate) fn refuse(session: &Session, refusal: Refusal) {
    close(session, refusal.code(), &refusal.to_string());
}

/// The meaning of a connection that broke during a dial.
pub(crate) fn dial_error(error: ConnectionError) -> DialError {
    /// QUIC's code for TLS's alert `no_application_protocol`.
    const NO_COMMON_PROTOCOL: u64 = 0x100 + 120;
    match error {
        ConnectionError::ApplicationClosed(close) => {
            match Refusal::from_code(close.error_code.into_inner()) {
                Some(refusal) => DialError::Refused(refusal),
                None => DialError::Broken("the peer is shutting down".to_owned()),
            }
        }
        ConnectionError::ConnectionClosed(close) if u64::from(close.error_code) == NO_COMMON_PROTOCOL => {
            DialError::Refused(Refusal::AnotherVersion)
        }
        ConnectionError::ConnectionClosed(close)
            if close.error_code == quinn::TransportErrorCode::CONNECTION_REFUSED =>
        {
            DialError::Unreachable("turned away, as it is shutting down or too many knock at once".to_owned())
        }
        ConnectionError::VersionMismatch => DialError::Refused(Refusal::AnotherVersion),
        ConnectionError::TimedOut => DialError::Unreachable("no answer".to_owned()),
        // The other side may have written it.
        other => DialError::Broken(printable_line(&other.to_string(), REASON)),
    }
}

fn closed(connection: &Connection) -> ConnectionError {
    connection.close_reason().unwrap_or(ConnectionError::Reset)
}

async fn read_hello<T: DeserializeOwned>(recv: &mut RecvStream) -> Result<T, Refusal> {
    read_message(recv, MAX_HELLO)
        .await
        .map_err(|unread| match unread {
            Unread::Version => Refusal::AnotherVersion,
            Unread::Garbled | Unread::Lost => Refusal::BadHandshake,
        })
}

/// Reads one message of at most `max` bytes. Memory grows with what arrives, not with the announced length.
pub(crate) async fn read_message<T: DeserializeOwned>(
    recv: &mut RecvStream,
    max: usize,
) -> Result<T, Unread> {
    let mut head = [0; HEAD];
    recv.read_exact(&mut head).await.map_err(|_| Unread::Lost)?;
    let len = body_len(&head, max)?;
    let mut body = Vec::new();
    while body.len() < len {
        let chunk = recv
            .read_chunk(len - body.len(), true)
            .await
            .map_err(|_| Unread::Lost)?
            .ok_or(Unread::Lost)?;
        body.extend_from_slice(&chunk.bytes);
    }
    decode(&body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::hello::certificates;

    #[test]
    fn the_reason_of_a_connection_that_was_closed_is_safe_to_print() {
        let close = quinn::ConnectionClose {
            error_code: quinn::TransportErrorCode::NO_ERROR,
            frame_type: None,
            reason: Bytes::from_static(b"\x1b]0;PWNED\x07 \xc2\x9b31m\nnext"),
        };
        let told = dial_error(ConnectionError::ConnectionClosed(close)).to_string();
        assert!(
            told.contains("PWNED") && !told.contains(char::is_control),
            "{told:?}"
        );
    }

    #[test]
    fn where_a_peer_was_seen_never_takes_the_place_of_its_certificates() {
        let address = |i: usize| format!("192.0.2.{i}:1");
        let prints = [[0xab; 32], [0xcd; 32]];
        let full: Vec<String> = (0..6).map(address).chain(prints.iter().map(announced)).collect();
        let Contact(told) = seen_at(Contact(full.clone()), address(9));
        assert_eq!(told.len(), Contact::LIMIT);
        assert_eq!(told[4..6], [address(4), address(9)]);
        assert_eq!(certificates(&told), prints);
        assert_eq!(seen_at(Contact(full.clone()), address(3)).0, full);
        assert_eq!(seen_at(Contact::default(), address(1)).0, [address(1)]);
        let hostile = vec![announced(&prints[0]); Contact::LIMIT];
        let Contact(told) = seen_at(Contact(hostile), address(1));
        assert_eq!((told.len(), &told[0]), (Contact::LIMIT, &address(1)));
    }
}
