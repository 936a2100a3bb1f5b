//! A session with a native peer: WebTransport, and the handshake on its first stream.
//!
//! It must know nothing of links and frames.

use crate::js::{self, BidirectionalStream, WebTransport, bytes, field, object, words};
use annulus::net::hello::{
    HEAD, MAX_HELLO, MAX_MANIFEST, PATH, Purpose, Role, TabHello, TabWelcome, Unread, Welcome, addresses,
    body_len, bounded, certificates, decode, encode, signed, tab_session,
};
use annulus::net::link::{DialError, Refusal};
use annulus_core::PeerId;
use annulus_core::invitation::{Admission, Root};
use annulus_core::signature::{Key, Scheme};
use js_sys::{Array, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::{ReadableStreamDefaultReader, WritableStreamDefaultWriter};

/// How long one address may take.
const TIMEOUT_MS: f64 = 6000.0;

/// What a tab says of itself in every handshake.
pub struct LocalPeer {
    /// Its key.
    pub key: Key,
    /// The run.
    pub root: Root,
    /// What lets it in.
    pub admission: Admission,
    /// Random per start.
    pub instance: u64,
}

/// A stream, both ways.
pub struct Stream {
    /// Towards us.
    pub reader: ReadableStreamDefaultReader,
    /// From us.
    pub writer: WritableStreamDefaultWriter,
    /// Bytes that were read beyond those asked for.
    pub rest: Vec<u8>,
}

/// A session whose handshake is done.
pub struct Session {
    /// The session.
    pub transport: WebTransport,
    /// The stream on which the handshake ran.
    pub control: Stream,
    /// What the acceptor said.
    pub welcome: Welcome,
}

/// Dials a peer at any of its addresses, one after the other.
///
/// # Errors
///
/// The last address's, if none leads anywhere.
pub async fn dial(
    me: &LocalPeer,
    peer: PeerId,
    contact: &[String],
    purpose: Purpose,
) -> Result<Session, DialError> {
    let pinned = certificates(contact);
    if pinned.is_empty() {
        return Err(DialError::NoAddress(
            "it announces no certificate for tabs".to_owned(),
        ));
    }
    let mut failure = DialError::NoAddress("it has no address".to_owned());
    for address in addresses(contact) {
        for certificate in &pinned {
            match connect(me, peer, address, certificate, purpose).await {
                Ok(session) => return Ok(session),
                Err(error @ (DialError::Refused(_) | DialError::Unproven)) => return Err(error),
                Err(error) => failure = error,
            }
        }
    }
    Err(failure)
}

async fn connect(
    me: &LocalPeer,
    peer: PeerId,
    address: &str,
    certificate: &[u8; 32],
    purpose: Purpose,
) -> Result<Session, DialError> {
    let unreachable = |error: JsValue| DialError::Unreachable(format!("{address} ({})", words(&error)));
    let hash = object(&[
        ("algorithm", "sha-256".into()),
        ("value", bytes(certificate).into()),
    ]);
    let options = object(&[
        ("serverCertificateHashes", Array::of1(&hash).into()),
        ("congestionControl", "throughput".into()),
    ]);
    let transport = WebTransport::new(&format!("https://{address}{PATH}"), &options).map_err(unreachable)?;
    // Nobody else may look at this promise, and one that fails unseen is taken for a bug of the page.
    let closed = JsFuture::from(transport.closed());
    wasm_bindgen_futures::spawn_local(async move { drop(closed.await) });
    let whole = async {
        JsFuture::from(transport.ready()).await.map_err(unreachable)?;
        shake_hands(me, peer, certificate, purpose, &transport).await
    };
    let shaken = match futures_lite::future::or(async { Some(whole.await) }, async {
        js::sleep(TIMEOUT_MS).await;
        None
    })
    .await
    {
        Some(shaken) => shaken,
        None => Err(DialError::Unreachable(format!(
            "no answer within {} s",
            TIMEOUT_MS / 1000.0
        ))),
    };
    match shaken {
        Ok((welcome, control)) => Ok(Session {
            transport,
            control,
            welcome,
        }),
        Err(error) => {
            transport.close(&object(&[]));
            Err(error)
        }
    }
}

async fn shake_hands(
    me: &LocalPeer,
    acceptor: PeerId,
    certificate: &[u8; 32],
    purpose: Purpose,
    transport: &WebTransport,
) -> Result<(Welcome, Stream), DialError> {
    let broken = |error: JsValue| DialError::Broken(words(&error));
    let dialler = me.key.peer();
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).expect("browsers give random bytes");
    let session = tab_session(certificate, &nonce);
    let message = signed(&session, Role::Dialler, dialler, acceptor, me.root.run);
    let hello = TabHello {
        purpose,
        run: me.root.run.0,
        instance: me.instance,
        acceptor: acceptor.0,
        certificate: *certificate,
        nonce,
        peer: dialler.0,
        admission: me.admission.clone(),
        signature: me.key.sign_bytes(&message),
    };
    let mut stream = open(transport).await.map_err(broken)?;
    JsFuture::from(stream.writer.write_with_chunk(&bytes(&encode(&hello))))
        .await
        .map_err(broken)?;
    let answer = async {
        let head: [u8; HEAD] = stream.take(HEAD).await?.try_into().expect("as long as asked for");
        let len = body_len(&head, MAX_HELLO + MAX_MANIFEST)?;
        decode::<TabWelcome>(&stream.take(len).await?)
    };
    let answer = match answer.await {
        Ok(answer) => answer,
        Err(Unread::Version) => return Err(DialError::Refused(Refusal::AnotherVersion)),
        Err(Unread::Garbled) => return Err(DialError::Broken("the answer makes no sense".to_owned())),
        Err(Unread::Lost) => return Err(why_closed(transport).await),
    };
    if PeerId(answer.peer) != acceptor {
        return Err(DialError::AnotherPeer(PeerId(answer.peer)));
    }
    let message = signed(&session, Role::Acceptor, dialler, acceptor, me.root.run);
    let good = Scheme::Ed25519.verifies(acceptor, &message, &answer.signature);
    if !good || !answer.welcome.admission.is_of(acceptor, me.root, Scheme::Ed25519) {
        return Err(DialError::Unproven);
    }
    let contact = bounded(answer.welcome.contact.clone());
    Ok((
        Welcome {
            contact,
            ..answer.welcome
        },
        stream,
    ))
}

/// What the end of a session during the handshake means.
async fn why_closed(transport: &WebTransport) -> DialError {
    match JsFuture::from(transport.closed()).await {
        Ok(info) => {
            let code = field(&info, "closeCode").as_f64().unwrap_or_default() as u64;
            match Refusal::from_code(code) {
                Some(refusal) => DialError::Refused(refusal),
                None => DialError::Broken("the peer is shutting down".to_owned()),
            }
        }
        Err(error) => DialError::Broken(words(&error)),
    }
}

/// Opens a stream.
pub async fn open(transport: &WebTransport) -> Result<Stream, JsValue> {
    let stream = JsFuture::from(transport.create_bidirectional_stream()).await?;
    let stream: BidirectionalStream = stream.unchecked_into();
    Ok(Stream {
        reader: stream.readable().get_reader().unchecked_into(),
        writer: stream.writable().get_writer()?,
        rest: Vec::new(),
    })
}

impl Stream {
    /// The next `len` bytes.
    async fn take(&mut self, len: usize) -> Result<Vec<u8>, Unread> {
        while self.rest.len() < len {
            let chunk = next_chunk(&self.reader)
                .await
                .ok()
                .flatten()
                .ok_or(Unread::Lost)?;
            self.rest.extend(chunk.to_vec());
        }
        let after = self.rest.split_off(len);
        Ok(std::mem::replace(&mut self.rest, after))
    }
}

/// What arrived; nothing at the stream's end.
pub async fn next_chunk(reader: &ReadableStreamDefaultReader) -> Result<Option<Uint8Array>, JsValue> {
    let result = JsFuture::from(reader.read()).await?;
    if field(&result, "done").is_truthy() {
        return Ok(None);
    }
    field(&result, "value").dyn_into().map(Some)
}
