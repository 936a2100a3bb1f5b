//! The words that two peers exchange before a link stands: who may come in, and why not.
//!
//! The dialler says [`Hello`] on the first stream, the acceptor answers [`Welcome`] or closes the connection
//! with a [`Refusal`]. Each proves that it knows the ticket's secret by a keyed hash over this TLS session's
//! exported keying material and both ids, so a proof is of no use on any other connection and the secret
//! itself never crosses the wire. It must not know which links exist; that is the endpoint's business.

use super::ticket::Secret;
use crate::link::{DialError, Refusal};
use annulus_core::{Contact, PeerId, RunId};
use bytes::Bytes;
use quinn::{Connection, ConnectionError, RecvStream, SendStream, VarInt};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::sync::Mutex;

/// Version of the handshake and all that follows. The only thing that a later version must not move.
const VERSION: u16 = 1;

/// Longest manifest that is served or fetched.
pub(super) const MAX_MANIFEST: usize = 1 << 20;

/// Longest hello: all addresses at their longest, and room for the rest.
const MAX_HELLO: usize = Contact::LIMIT * (Contact::ADDRESS_LIMIT + 4) + 256;

/// What the dialler wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Purpose {
    /// To become and stay a neighbour.
    Link,
    /// To read the run's manifest and go.
    Manifest,
}

/// What the dialler says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub purpose: Purpose,
    pub run: [u8; 32],
    /// Random per start of the process: tells a restarted peer from one that dials twice.
    pub instance: u64,
    pub contact: Contact,
    proof: [u8; 32],
}

/// What the acceptor answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Welcome {
    pub instance: u64,
    pub contact: Contact,
    /// Only for [`Purpose::Manifest`].
    pub manifest: Option<Vec<u8>>,
    proof: [u8; 32],
}

/// What a peer says of itself in every handshake.
pub(super) struct Me {
    pub peer: PeerId,
    pub run: RunId,
    pub secret: Secret,
    pub instance: u64,
    /// Where others can dial us.
    pub contact: Mutex<Contact>,
}

impl Me {
    fn contact(&self) -> Contact {
        bounded(
            self.contact
                .lock()
                .expect("nobody panics while holding the contact")
                .clone(),
        )
    }
}

/// Says hello and waits for the welcome, which it checks.
pub(super) async fn propose(
    me: &Me,
    purpose: Purpose,
    connection: &Connection,
    acceptor: PeerId,
) -> Result<(Welcome, SendStream, RecvStream), DialError> {
    let (mut send, mut recv) = connection.open_bi().await.map_err(dial_error)?;
    let hello = Hello {
        purpose,
        run: me.run.0,
        instance: me.instance,
        contact: me.contact(),
        proof: proof(me, connection, Role::Dialler, me.peer, acceptor)
            .ok_or(DialError::Unproven)?
            .into(),
    };
    let lost = |_| dial_error(closed(connection));
    send.write_all(&message(&hello)).await.map_err(lost)?;
    let welcome: Welcome = match read_message(&mut recv, MAX_HELLO + MAX_MANIFEST).await {
        Ok(welcome) => welcome,
        Err(Unread::Version) => return Err(DialError::Refused(Refusal::AnotherVersion)),
        Err(Unread::Garbled) => {
            return Err(DialError::Broken("the answer makes no sense".to_owned()));
        }
        // The close says why; it may arrive a little after the stream's end.
        Err(Unread::Lost) => return Err(dial_error(connection.closed().await)),
    };
    let expected = proof(me, connection, Role::Acceptor, me.peer, acceptor);
    // Comparing hashes takes the same time wherever they differ.
    if expected != Some(blake3::Hash::from_bytes(welcome.proof)) {
        return Err(DialError::Unproven);
    }
    Ok((
        Welcome {
            contact: bounded(welcome.contact.clone()),
            ..welcome
        },
        send,
        recv,
    ))
}

/// Reads and checks the hello of `dialler`.
pub(super) async fn listen(
    me: &Me,
    connection: &Connection,
    dialler: PeerId,
) -> Result<(Hello, SendStream, RecvStream), Refusal> {
    let (send, mut recv) = connection.accept_bi().await.map_err(|_| Refusal::BadHandshake)?;
    let hello: Hello = read_message(&mut recv, MAX_HELLO)
        .await
        .map_err(|unread| match unread {
            Unread::Version => Refusal::AnotherVersion,
            Unread::Garbled | Unread::Lost => Refusal::BadHandshake,
        })?;
    if dialler == me.peer {
        return Err(Refusal::Ourselves);
    }
    if hello.run != me.run.0 {
        return Err(Refusal::AnotherRun);
    }
    let expected = proof(me, connection, Role::Dialler, dialler, me.peer);
    if expected != Some(blake3::Hash::from_bytes(hello.proof)) {
        return Err(Refusal::WrongSecret);
    }
    Ok((
        Hello {
            contact: bounded(hello.contact.clone()),
            ..hello
        },
        send,
        recv,
    ))
}

/// Answers a hello that was found good.
pub(super) async fn welcome(
    me: &Me,
    connection: &Connection,
    dialler: PeerId,
    manifest: Option<&Bytes>,
    send: &mut SendStream,
) -> Result<(), Refusal> {
    let welcome = Welcome {
        instance: me.instance,
        contact: me.contact(),
        manifest: manifest.map(|bytes| bytes.to_vec()),
        proof: proof(me, connection, Role::Acceptor, dialler, me.peer)
            .ok_or(Refusal::WrongSecret)?
            .into(),
    };
    send.write_all(&message(&welcome))
        .await
        .map_err(|_| Refusal::BadHandshake)
}

/// Closes a connection with the reason, as a code for programs and as text for people with other releases.
pub(super) fn refuse(connection: &Connection, refusal: Refusal) {
    connection.close(VarInt::from_u32(refusal.code()), refusal.to_string().as_bytes());
}

/// What a connection that broke during a dial means.
pub(super) fn dial_error(error: ConnectionError) -> DialError {
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
        other => DialError::Broken(other.to_string()),
    }
}

fn closed(connection: &Connection) -> ConnectionError {
    connection.close_reason().unwrap_or(ConnectionError::Reset)
}

#[derive(Clone, Copy)]
enum Role {
    Dialler,
    Acceptor,
}

/// Shows knowledge of the secret to the other end of this very TLS session. `None` if the session cannot
/// export keying material, which a finished TLS 1.3 handshake always can.
fn proof(
    me: &Me,
    connection: &Connection,
    role: Role,
    dialler: PeerId,
    acceptor: PeerId,
) -> Option<blake3::Hash> {
    let mut session = [0; 32];
    connection
        .export_keying_material(&mut session, b"EXPORTER-annulus-1", &me.run.0)
        .ok()?;
    let key = match role {
        Role::Dialler => blake3::derive_key("annulus 1 proof of the dialler", &me.secret.0),
        Role::Acceptor => blake3::derive_key("annulus 1 proof of the acceptor", &me.secret.0),
    };
    let mut hasher = blake3::Hasher::new_keyed(&key);
    hasher
        .update(&session)
        .update(&dialler.0)
        .update(&acceptor.0)
        .update(&me.run.0);
    Some(hasher.finalize())
}

/// What of a contact is within its bounds and safe to print.
fn bounded(Contact(mut addresses): Contact) -> Contact {
    addresses.retain(|address| {
        address.len() <= Contact::ADDRESS_LIMIT && address.chars().all(|c| c.is_ascii_graphic())
    });
    addresses.truncate(Contact::LIMIT);
    Contact(addresses)
}

/// Version, length, body.
fn message(body: &impl Serialize) -> Vec<u8> {
    let body = postcard::to_allocvec(body).expect("plain data can be encoded");
    let mut bytes = VERSION.to_le_bytes().to_vec();
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(body);
    bytes
}

#[derive(Debug, PartialEq, Eq)]
enum Unread {
    Version,
    Garbled,
    Lost,
}

/// Reads one message of at most `max` bytes; memory grows with what arrives, not with what is announced.
async fn read_message<T: DeserializeOwned>(recv: &mut RecvStream, max: usize) -> Result<T, Unread> {
    let mut head = [0; 6];
    recv.read_exact(&mut head[..2]).await.map_err(|_| Unread::Lost)?;
    if u16::from_le_bytes([head[0], head[1]]) != VERSION {
        return Err(Unread::Version);
    }
    recv.read_exact(&mut head[2..]).await.map_err(|_| Unread::Lost)?;
    let len = u32::from_le_bytes([head[2], head[3], head[4], head[5]]) as usize;
    if len > max {
        return Err(Unread::Garbled);
    }
    let mut body = Vec::new();
    while body.len() < len {
        let chunk = recv
            .read_chunk(len - body.len(), true)
            .await
            .map_err(|_| Unread::Lost)?
            .ok_or(Unread::Lost)?;
        body.extend_from_slice(&chunk.bytes);
    }
    match postcard::take_from_bytes(&body) {
        Ok((value, [])) => Ok(value),
        _ => Err(Unread::Garbled),
    }
}
