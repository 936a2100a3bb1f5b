//! The handshake above TLS: who may come in, and why not.
//!
//! The words are those of [`hello`](crate::hello), bound to this TLS session by its exported keying material. It must
//! not know which links exist; that is the endpoint's business.

use crate::hello::{
    HEAD, Hello, MAX_HELLO, MAX_MANIFEST, Purpose, Role, Unread, Welcome, body_len, bounded, decode, encode,
    proof, proves,
};
use crate::link::{DialError, Refusal};
use crate::ticket::Secret;
use annulus_core::{Contact, PeerId, RunId};
use bytes::Bytes;
use quinn::{Connection, ConnectionError, RecvStream, SendStream, VarInt};
use serde::de::DeserializeOwned;
use std::sync::Mutex;

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
        proof: prove(me, connection, Role::Dialler, me.peer, acceptor).ok_or(DialError::Unproven)?,
    };
    let lost = |_| dial_error(closed(connection));
    send.write_all(&encode(&hello)).await.map_err(lost)?;
    let welcome: Welcome = match read_message(&mut recv, MAX_HELLO + MAX_MANIFEST).await {
        Ok(welcome) => welcome,
        Err(Unread::Version) => return Err(DialError::Refused(Refusal::AnotherVersion)),
        Err(Unread::Garbled) => {
            return Err(DialError::Broken("the answer makes no sense".to_owned()));
        }
        // The close says why; it may arrive a little after the stream's end.
        Err(Unread::Lost) => return Err(dial_error(connection.closed().await)),
    };
    let expected = prove(me, connection, Role::Acceptor, me.peer, acceptor);
    if !expected.is_some_and(|expected| proves(expected, welcome.proof)) {
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
    let expected = prove(me, connection, Role::Dialler, dialler, me.peer);
    if !expected.is_some_and(|expected| proves(expected, hello.proof)) {
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
        proof: prove(me, connection, Role::Acceptor, dialler, me.peer).ok_or(Refusal::WrongSecret)?,
    };
    send.write_all(&encode(&welcome))
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

/// Shows knowledge of the secret to the other end of this very TLS session. `None` if the session cannot
/// export keying material, which a finished TLS 1.3 handshake always can.
fn prove(
    me: &Me,
    connection: &Connection,
    role: Role,
    dialler: PeerId,
    acceptor: PeerId,
) -> Option<[u8; 32]> {
    let mut session = [0; 32];
    connection
        .export_keying_material(&mut session, b"EXPORTER-annulus-1", &me.run.0)
        .ok()?;
    Some(proof(&me.secret, &session, role, dialler, acceptor, me.run))
}

/// Reads one message of at most `max` bytes; memory grows with what arrives, not with what is announced.
async fn read_message<T: DeserializeOwned>(recv: &mut RecvStream, max: usize) -> Result<T, Unread> {
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
