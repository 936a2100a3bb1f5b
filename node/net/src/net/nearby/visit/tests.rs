//! Real visits on this machine: who gets a ticket, and what happens to those who guess, eavesdrop or send nonsense.

use super::*;
use crate::data::fetch::fetch_manifest;
use crate::net::certificates::Certificates;
use crate::net::config::QuicConfig;
use crate::net::congestion::Congestion;
use crate::net::nearby::door::{GUESSES, News};
use crate::net::quic::QuicLink;
use crate::net::quic::tests::{config, root, start, ticket};
use crate::net::socket::Pace;
use crate::net::transport::{self, Path};
use annulus_core::invitation::Role;
use quinn::Endpoint;
use std::iter;
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedReceiver;

const ENOUGH: Duration = Duration::from_secs(10);

/// A member whose code lets in.
struct Host {
    link: QuicLink,
    door: Arc<Door>,
    news: UnboundedReceiver<News>,
}

impl Host {
    fn new() -> Self {
        let (door, news) = Door::new(ticket().right(), root(), Role::Contribute).unwrap();
        let door = Arc::new(door);
        let link = start(QuicConfig {
            door: Some(door.clone()),
            ..config()
        });
        link.advertise(vec![link.local_addr().to_string()]);
        Self { link, door, news }
    }

    fn at(&self) -> [SocketAddr; 1] {
        [self.link.local_addr()]
    }

    /// A wrong code with the same public part.
    fn wrong_code(&self) -> Code {
        let code = self.door.code();
        iter::repeat_with(|| code.another())
            .find(|other| *other != code)
            .unwrap()
    }
}

fn refused(entered: Result<Ticket, DialError>) -> Refusal {
    match entered {
        Err(DialError::Refused(refusal)) => refusal,
        other => panic!("{other:?} instead of a refusal"),
    }
}

#[tokio::test]
async fn whoever_has_the_code_gets_a_ticket_that_lets_in() {
    let mut host = Host::new();
    let ticket = enter(&host.at(), &host.door.code()).await.unwrap();
    assert_eq!(
        (ticket.root, ticket.chain.role(), &ticket.addrs[..]),
        (root(), Role::Contribute, &host.at()[..])
    );
    assert!(matches!(host.news.try_recv(), Ok(News::Entered(from)) if from == host.at()[0].ip()));
    let (source, manifest) = fetch_manifest(&ticket, iter::empty(), &Identity::generate())
        .await
        .unwrap();
    assert_eq!(
        (source.peer, &manifest[..]),
        (host.link.peer(), &b"the manifest"[..])
    );
}

#[tokio::test]
async fn whoever_guesses_is_told_that_it_is_wrong_and_soon_asked_no_more() {
    let mut host = Host::new();
    let code = host.door.code();
    for _ in 0..GUESSES {
        assert_eq!(
            refused(enter(&host.at(), &host.wrong_code()).await),
            Refusal::WrongCode
        );
    }
    assert_eq!(refused(enter(&host.at(), &code).await), Refusal::NoCode);
    assert_eq!(
        refused(enter(&host.at(), &host.door.code()).await),
        Refusal::NoCode
    );
    let told: Vec<News> = iter::from_fn(|| host.news.try_recv().ok()).collect();
    assert_eq!(told.len() as u32, GUESSES);
    assert!(
        matches!(told[..], [News::Wrong(_, 4), .., News::Closed(..)]),
        "{told:?}"
    );
}

#[tokio::test]
async fn who_shows_no_code_takes_none() {
    let link = start(config());
    assert_eq!(
        refused(enter(&[link.local_addr()], &Code::generate()).await),
        Refusal::NoCode
    );
}

/// A server that knows only a code of its own is not the host.
#[tokio::test]
async fn who_answers_without_knowing_the_code_learns_and_brings_nothing() {
    let (host, other) = (Host::new(), Host::new());
    assert_eq!(
        refused(enter(&other.at(), &host.door.code()).await),
        Refusal::WrongCode
    );
}

/// A server of the same protocol with another name, for a man in the middle.
fn between() -> (Endpoint, Configs) {
    let identity = Identity::generate();
    let certificates = Arc::new(Certificates::new(iter::empty()));
    let carried = (Congestion::default(), None);
    let serving = Configs::new(&identity, HANDSHAKE_TIMEOUT, carried, Some(certificates));
    let endpoint = transport::endpoint(([127, 0, 0, 1], 0).into(), None, false, Pace::default()).unwrap();
    endpoint.set_server_config(serving.server(Path::Local).as_deref().cloned());
    (endpoint, Configs::for_code(&identity, HANDSHAKE_TIMEOUT))
}

/// Forwards everything that one end sends.
async fn pass_on(mut from: RecvStream, mut to: SendStream) -> usize {
    let mut passed = 0;
    while let Ok(Some(chunk)) = from.read_chunk(4096, true).await {
        passed += chunk.bytes.len();
        if to.write_all(&chunk.bytes).await.is_err() {
            break;
        }
    }
    passed
}

#[tokio::test]
async fn who_stands_between_two_others_passes_on_what_they_say_in_vain() {
    let mut host = Host::new();
    let (endpoint, dialling) = between();
    let at = endpoint.local_addr().unwrap();
    let there = host.at()[0];
    let carried = tokio::spawn(async move {
        let joiner = endpoint.accept().await.unwrap().await.unwrap();
        let host = connect(&endpoint, &dialling, vec![there.to_string()], None)
            .await
            .unwrap();
        let (to_joiner, from_joiner) = joiner.accept_bi().await.unwrap();
        let (to_host, from_host) = host.open_bi().await.unwrap();
        tokio::join!(pass_on(from_joiner, to_host), pass_on(from_host, to_joiner))
    });
    // The joiner has the right code, and every message reaches the other end.
    let entered = enter(&[at], &host.door.code()).await;
    assert!(entered.is_err(), "{entered:?}");
    let (from_joiner, from_host) = timeout(ENOUGH, carried).await.unwrap().unwrap();
    assert_eq!((from_joiner, from_host), (2 + SHARE + PROOF, SHARE));
    assert!(matches!(host.news.try_recv(), Ok(News::Wrong(..))));
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_is_no_guess() {
    let mut host = Host::new();
    let identity = Identity::generate();
    let configs = Configs::for_code(&identity, HANDSHAKE_TIMEOUT);
    let endpoint = dialling_endpoint().unwrap();
    let version = VERSION.to_le_bytes();
    let other = (VERSION ^ 1).to_le_bytes();
    let mut no_point = [0; SHARE];
    (no_point[0], no_point[1]) = (b'A', 2);
    let (_, hosts_own) = Exchange::begin(
        Side::Host,
        &host.door.code(),
        Names {
            joiner: identity.peer(),
            host: host.link.peer(),
        },
    );
    for (said, expected) in [
        ([&other[..], &[0; SHARE]].concat(), Refusal::AnotherVersion),
        ([&version[..], &no_point].concat(), Refusal::BadHandshake),
        ([&version[..], &hosts_own].concat(), Refusal::BadHandshake),
        // It ends in the middle.
        (version.to_vec(), Refusal::BadHandshake),
    ] {
        let texts = vec![host.at()[0].to_string()];
        let connection = connect(&endpoint, &configs, texts, None).await.unwrap();
        let (mut send, _recv) = connection.open_bi().await.unwrap();
        send.write_all(&said).await.unwrap();
        send.finish().unwrap();
        let closed = timeout(ENOUGH, connection.closed()).await.unwrap();
        assert!(
            matches!(dial_error(closed), DialError::Refused(refusal) if refusal == expected),
            "{expected:?}"
        );
    }
    assert!(host.news.try_recv().is_err());
    assert!(enter(&host.at(), &host.door.code()).await.is_ok());
}

/// An exchange that is broken off before the proof tells its author nothing new.
#[tokio::test]
async fn who_breaks_off_has_not_guessed() {
    let mut host = Host::new();
    let identity = Identity::generate();
    let configs = Configs::for_code(&identity, HANDSHAKE_TIMEOUT);
    let endpoint = dialling_endpoint().unwrap();
    for _ in 0..2 * GUESSES {
        let texts = vec![host.at()[0].to_string()];
        let connection = connect(&endpoint, &configs, texts, None).await.unwrap();
        let names = Names {
            joiner: identity.peer(),
            host: host.link.peer(),
        };
        let (_, share) = Exchange::begin(Side::Joiner, &host.wrong_code(), names);
        let (mut send, mut recv) = connection.open_bi().await.unwrap();
        send.write_all(&[&VERSION.to_le_bytes()[..], &share].concat())
            .await
            .unwrap();
        read::<SHARE>(&mut recv).await.unwrap();
        connection.close(VarInt::from_u32(LEFT), b"");
    }
    assert!(host.news.try_recv().is_err());
    assert!(enter(&host.at(), &host.door.code()).await.is_ok());
}
