//! A node from the view of a browser's tab: WebTransport with a pinned certificate, and the tab's handshake. The client
//! here is another implementation; the tests of the page use a real browser.

use crate::net::config::QuicConfig;
use crate::net::hello::{
    HEAD, MAX_HELLO, PATH, Purpose, Role, TabHello, TabWelcome, VERSION, body_len, certificates, decode,
    encode, signed, tab_session,
};
use crate::net::identity::Identity;
use crate::net::link::{DownReason, FrameError, Lane, Link, LinkEvent, MAX_FRAME, Refusal, next_event};
use crate::net::quic::QuicLink;
use crate::net::quic::tests::{
    Cable, RUN, config, down, event, first_bytes, frame, start, ticket, ticket_by, up,
};
use crate::net::ticket::{Secret, Ticket};
use crate::net::transport::AnyKey;
use annulus_core::signature::{Key, Scheme};
use annulus_core::{PeerId, RunId};
use bytes::Bytes;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::time::timeout;
use url::Url;
use web_transport_quinn::{
    ClientBuilder, ClientError, RecvStream, SendStream, Session, SessionError, WebTransportError, quinn,
};

/// A browser's tab, as far as a node can tell.
struct Tab {
    key: Key,
    ticket: Ticket,
    run: RunId,
    instance: u64,
}

/// A tab's end of a link.
struct Held {
    session: Session,
    control: (SendStream, RecvStream),
    bulk: (SendStream, RecvStream),
}

impl Tab {
    fn new() -> Self {
        Self {
            key: Identity::generate().key(),
            ticket: ticket(),
            run: RUN,
            instance: 1,
        }
    }

    fn peer(&self) -> PeerId {
        self.key.peer()
    }

    fn hello(&self, host: &QuicLink, purpose: Purpose) -> TabHello {
        let certificate = host.certificates().fingerprints()[0];
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).unwrap();
        let binding = tab_session(&certificate, &nonce);
        let (me, acceptor) = (self.peer(), host.peer());
        TabHello {
            purpose,
            run: self.run.0,
            instance: self.instance,
            acceptor: acceptor.0,
            certificate,
            nonce,
            peer: me.0,
            admission: self.ticket.right().admit(me, RUN),
            signature: self
                .key
                .sign_bytes(&signed(&binding, Role::Dialler, me, acceptor, self.run)),
        }
    }

    /// Says hello and checks the answer as a tab does.
    async fn greet(
        &self,
        host: &QuicLink,
        at: SocketAddr,
        hello: &TabHello,
    ) -> Result<(Session, (SendStream, RecvStream), TabWelcome), SessionError> {
        let session = open(host, at, PATH).await.unwrap();
        let (mut send, mut recv) = session.open_bi().await.unwrap();
        send.write_all(&encode(hello)).await.unwrap();
        let mut head = [0; HEAD];
        if recv.read_exact(&mut head).await.is_err() {
            return Err(session.closed().await);
        }
        let mut body = vec![0; body_len(&head, MAX_HELLO + (1 << 20)).unwrap()];
        recv.read_exact(&mut body).await.unwrap();
        let welcome: TabWelcome = decode(&body).unwrap();
        let (me, acceptor) = (self.peer(), host.peer());
        assert_eq!(PeerId(welcome.peer), acceptor);
        let binding = tab_session(&hello.certificate, &hello.nonce);
        let said = signed(&binding, Role::Acceptor, me, acceptor, self.run);
        assert!(Scheme::Ed25519.verifies(acceptor, &said, &welcome.signature));
        let root = self.ticket.root;
        assert!(welcome.welcome.admission.is_of(acceptor, root, Scheme::Ed25519));
        assert_eq!(
            certificates(&welcome.welcome.contact.0),
            host.certificates().fingerprints()
        );
        Ok((session, (send, recv), welcome))
    }

    async fn link_at(&self, host: &QuicLink, at: SocketAddr) -> Held {
        let hello = self.hello(host, Purpose::Link);
        let (session, control, welcome) = self.greet(host, at, &hello).await.unwrap();
        assert_eq!(welcome.welcome.manifest, None);
        let mut bulk = session.open_bi().await.unwrap();
        bulk.0.write_all(&[0; 4]).await.unwrap();
        Held {
            session,
            control,
            bulk,
        }
    }

    async fn link(&self, host: &QuicLink) -> Held {
        self.link_at(host, host.local_addr()).await
    }

    async fn refusal(&self, host: &QuicLink, hello: &TabHello) -> Refusal {
        let error = self.greet(host, host.local_addr(), hello).await.err().unwrap();
        let (code, reason) = closed(error);
        let refusal = Refusal::from_code(code.into()).unwrap();
        assert_eq!(reason, refusal.to_string());
        refusal
    }
}

fn closed(error: SessionError) -> (u32, String) {
    match error {
        SessionError::WebTransportError(WebTransportError::Closed(code, reason)) => (code, reason),
        other => panic!("{other:?}"),
    }
}

async fn open(host: &QuicLink, at: SocketAddr, path: &str) -> Result<Session, ClientError> {
    pinned(host.certificates().fingerprints()[0], at, path).await
}

async fn pinned(hash: [u8; 32], at: SocketAddr, path: &str) -> Result<Session, ClientError> {
    let client = ClientBuilder::new().with_server_certificate_hashes(vec![hash.to_vec()])?;
    let url: Url = format!("https://{at}{path}").parse().expect("a URL");
    timeout(Duration::from_secs(10), client.connect(url))
        .await
        .expect("an answer in time")
}

async fn send(stream: &mut SendStream, body: &[u8]) {
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend(body);
    stream.write_all(&bytes).await.unwrap();
}

async fn receive(stream: &mut RecvStream) -> Vec<u8> {
    let mut len = [0; 4];
    stream.read_exact(&mut len).await.unwrap();
    let mut body = vec![0; u32::from_le_bytes(len) as usize];
    stream.read_exact(&mut body).await.unwrap();
    body
}

#[tokio::test]
async fn a_tab_is_a_peer_that_nobody_can_dial() {
    let (mut host, tab) = (start(config()), Tab::new());
    let mut held = tab.link(&host).await;
    let LinkEvent::Up {
        peer,
        addresses,
        dialled_by_us,
        ..
    } = event(&mut host).await
    else {
        panic!("no Up")
    };
    assert_eq!((peer, addresses.len(), dialled_by_us), (tab.peer(), 0, false));

    for size in [1, 70_000, MAX_FRAME] {
        let body = vec![size as u8; size];
        let bytes = Bytes::from(body.clone());
        for lane in [Lane::Control, Lane::Bulk] {
            host.send(peer, lane, bytes.clone().into()).unwrap();
            let stream = match lane {
                Lane::Control => &mut held.control,
                Lane::Bulk => &mut held.bulk,
            };
            let (back, ()) = tokio::join!(receive(&mut stream.1), send(&mut stream.0, &body));
            assert!(back == body);
            let (on, got) = frame(&mut host).await;
            assert!(on == lane && got == body);
        }
    }
    // A datagram for a browser is never longer than browsers accept.
    let mtu = quinn::Connection::stats(&held.session).path.current_mtu;
    assert!(mtu <= 65_507);

    held.session.close(0, b"");
    assert_eq!(down(&mut host).await, DownReason::PeerLeft);
}

#[tokio::test]
async fn a_tab_fetches_the_manifest() {
    let (host, tab) = (start(config()), Tab::new());
    let hello = tab.hello(&host, Purpose::Manifest);
    let (session, _, welcome) = tab.greet(&host, host.local_addr(), &hello).await.unwrap();
    assert_eq!(welcome.welcome.manifest.as_deref(), Some(&b"the manifest"[..]));
    session.close(0, b"");
}

#[tokio::test]
async fn a_tab_that_does_not_belong_is_refused_and_told_why() {
    let host = start(config());
    let tab = Tab::new();
    let stranger = Tab {
        ticket: ticket_by(Secret([9; 32]), Vec::new()),
        ..Tab::new()
    };
    let hello = stranger.hello(&host, Purpose::Link);
    assert_eq!(stranger.refusal(&host, &hello).await, Refusal::WrongTicket);
    let elsewhere = Tab {
        run: RunId([9; 32]),
        ..Tab::new()
    };
    let hello = elsewhere.hello(&host, Purpose::Manifest);
    assert_eq!(elsewhere.refusal(&host, &hello).await, Refusal::AnotherRun);

    let good = tab.hello(&host, Purpose::Link);
    let mut forged = TabHello {
        signature: tab.key.sign_bytes(b"something else"),
        ..good.clone()
    };
    assert_eq!(tab.refusal(&host, &forged).await, Refusal::BadHandshake);
    // Another name under the same signature changes who proves what.
    forged = TabHello {
        peer: Tab::new().peer().0,
        ..good.clone()
    };
    assert_eq!(tab.refusal(&host, &forged).await, Refusal::WrongTicket);

    // Proven and signed, but for another certificate, as by a man in the middle.
    let between = |certificate: [u8; 32], acceptor: PeerId| {
        let binding = tab_session(&certificate, &good.nonce);
        let me = tab.peer();
        TabHello {
            certificate,
            acceptor: acceptor.0,
            signature: tab
                .key
                .sign_bytes(&signed(&binding, Role::Dialler, me, host.peer(), RUN)),
            ..good.clone()
        }
    };
    let other = between([7; 32], host.peer());
    assert_eq!(tab.refusal(&host, &other).await, Refusal::BadHandshake);
    let other = between(good.certificate, PeerId([7; 32]));
    assert_eq!(tab.refusal(&host, &other).await, Refusal::BadHandshake);

    for (version, rest, expected) in [
        (VERSION + 1, &b"whatever"[..], Refusal::AnotherVersion),
        (VERSION, b"\xff\xff\xff\xff", Refusal::BadHandshake),
        (VERSION, b"\x08\x00\x00\x00garbage!", Refusal::BadHandshake),
    ] {
        let session = open(&host, host.local_addr(), PATH).await.unwrap();
        let (mut send, _recv) = session.open_bi().await.unwrap();
        send.write_all(&first_bytes(version, rest)).await.unwrap();
        assert_eq!(closed(session.closed().await).0, expected.code());
    }
}

#[tokio::test]
async fn only_our_path_and_only_our_certificate() {
    let host = start(config());
    let at = host.local_addr();
    for path in ["/", "/annulus/2", "/annulus/1/"] {
        let error = open(&host, at, path).await.err().unwrap();
        assert!(error.to_string().contains("404"), "{path}: {error}");
    }
    let [present, next] = host.certificates().fingerprints();
    assert!(pinned(next, at, PATH).await.is_err(), "it is not in use yet");
    assert!(pinned(present, at, PATH).await.is_ok());
}

#[tokio::test]
async fn a_tab_that_is_loaded_again_takes_its_own_place() {
    let (mut host, mut tab) = (
        start(QuicConfig {
            max_peers: 1,
            ..config()
        }),
        Tab::new(),
    );
    let first = tab.link(&host).await;
    assert_eq!(up(&mut host).await, (tab.peer(), false));
    let other = Tab::new();
    let hello = other.hello(&host, Purpose::Link);
    assert_eq!(other.refusal(&host, &hello).await, Refusal::TooManyPeers);

    tab.instance = 2;
    let mut second = tab.link(&host).await;
    assert_eq!(closed(first.session.closed().await).0, 1);
    assert_eq!(down(&mut host).await, DownReason::Replaced);
    assert_eq!(up(&mut host).await, (tab.peer(), false));
    host.send(tab.peer(), Lane::Bulk, Bytes::from_static(b"again").into())
        .unwrap();
    assert_eq!(receive(&mut second.bulk.1).await, b"again");
    // A node that ends says goodbye like a leaving peer.
    host.hang_up(tab.peer());
    second.control.1.received_reset().await.ok();
    second.session.close(0, b"");
    assert_eq!(down(&mut host).await, DownReason::HungUp);
}

#[tokio::test]
async fn a_tab_that_vanishes_is_missed_and_a_quiet_one_is_not() {
    let mut host = start(QuicConfig {
        idle: Duration::from_secs(1),
        ..config()
    });
    let tab = Tab::new();
    let cable = Cable::to(host.local_addr()).await;
    let held = tab.link_at(&host, cable.1).await;
    up(&mut host).await;
    assert!(
        timeout(Duration::from_secs(2), next_event(&mut host))
            .await
            .is_err()
    );
    drop(cable);
    let reason = down(&mut host).await;
    assert!(
        matches!(&reason, DownReason::Silent | DownReason::Transport(_)),
        "{reason}"
    );
    drop(held);
}

#[tokio::test]
async fn a_tab_that_breaks_the_rules_is_told() {
    let mut host = start(config());
    let (first, second) = (Tab::new(), Tab::new());
    let mut held = first.link(&host).await;
    up(&mut host).await;
    held.bulk.0.write_all(&[0xff; 8]).await.unwrap();
    let too_long = DownReason::Misbehaved(FrameError::TooLong(u32::MAX));
    assert_eq!(down(&mut host).await, too_long);
    assert_eq!(closed(held.session.closed().await).0, 2);

    let mut held = second.link(&host).await;
    up(&mut host).await;
    held.control.0.reset(5).unwrap();
    assert!(matches!(down(&mut host).await, DownReason::Transport(_)));
    assert_eq!(closed(held.session.closed().await).0, 2);
}

#[tokio::test]
async fn a_native_peer_without_a_certificate_is_refused() {
    let host = start(config());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyKey(provider)))
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"annulus/1".to_vec()];
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    let endpoint = quinn::Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let connecting = endpoint.connect_with(
        quinn::ClientConfig::new(Arc::new(crypto)),
        host.local_addr(),
        "annulus",
    );
    let connection = connecting.unwrap().await.unwrap();
    match connection.closed().await {
        quinn::ConnectionError::ApplicationClosed(close) => {
            assert_eq!(
                close.error_code,
                quinn::VarInt::from_u32(Refusal::BadHandshake.code())
            );
        }
        other => panic!("{other}"),
    }
}
