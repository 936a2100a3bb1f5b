//! Links on this machine: who may come in, which link stands, what arrives, and what nobody waits for.

use super::*;
use crate::data::fetch::fetch_manifest;
use crate::net::addresses::everywhere;
use crate::net::config::{HANDSHAKES_OF_KNOWN, HANDSHAKES_PER_ADDRESS, MAX_HANDSHAKES};
use crate::net::congestion::Congestion;
use crate::net::handshake::{Caller, propose, welcome};
use crate::net::hello::{Purpose, VERSION, certificates};
use crate::net::link::{DialError, DownReason, FrameError, LinkKind, MAX_FRAME, Refusal};
use crate::net::ticket::{Secret, Ticket};
use crate::net::transport::peer_at;
use crate::testing::{self, RUN_KEY};
use annulus_core::RunId;
use annulus_core::config::{Layout, Manifest, Settings};
use annulus_core::invitation::{Invitation, Role, Root};
use annulus_core::ledger::{Head, Member};
use annulus_core::tickets::Barred;
use bytes::Bytes;
use quinn::{Connection, ConnectionError, Endpoint};
use std::{iter, net::UdpSocket};
use tokio::{
    net::UdpSocket as AsyncUdpSocket,
    time::{sleep, timeout},
};
use web_transport_quinn::Session;

pub(crate) const RUN: RunId = RunId([1; 32]);

pub(crate) fn root() -> Root {
    let key = RUN_KEY.key().peer();
    Root { run: RUN, key }
}

/// A ticket of the run, or of one that only pretends to be it.
pub(crate) fn ticket_by(run_key: Secret, addrs: Vec<SocketAddr>) -> Ticket {
    let ticket = testing::ticket_by(run_key, RUN, addrs);
    Ticket {
        root: root(),
        ..ticket
    }
}

pub(crate) fn ticket() -> Ticket {
    ticket_by(RUN_KEY, Vec::new())
}

pub(crate) fn config() -> QuicConfig {
    QuicConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        ..QuicConfig::new(root(), ticket().right(), Bytes::from_static(b"the manifest"))
    }
}

pub(crate) fn start(config: QuicConfig) -> QuicLink {
    QuicLink::start(&Identity::generate(), config).unwrap()
}

fn door(link: &QuicLink) -> [String; 1] {
    at(link.local_addr())
}

fn at(address: impl ToString) -> [String; 1] {
    [address.to_string()]
}

pub(crate) async fn event(link: &mut QuicLink) -> LinkEvent {
    timeout(Duration::from_secs(20), next_event(link))
        .await
        .expect("an event in time")
        .expect("a live link")
}

pub(crate) async fn up(link: &mut QuicLink) -> (PeerId, bool) {
    match event(link).await {
        LinkEvent::Up {
            peer, dialled_by_us, ..
        } => (peer, dialled_by_us),
        other => panic!("{other:?} instead of Up"),
    }
}

pub(crate) async fn down(link: &mut QuicLink) -> DownReason {
    match event(link).await {
        LinkEvent::Down { reason, .. } => reason,
        other => panic!("{other:?} instead of Down"),
    }
}

pub(crate) async fn frame(link: &mut QuicLink) -> (Lane, Bytes) {
    match event(link).await {
        LinkEvent::Frame { lane, bytes, .. } => (lane, bytes),
        other => panic!("{other:?} instead of a frame"),
    }
}

async fn dial_error(link: &mut QuicLink, peer: PeerId, addresses: &[String]) -> DialError {
    link.dial(peer, addresses);
    match event(link).await {
        LinkEvent::DialFailed { peer: of, reason } if of == peer => reason,
        other => panic!("{other:?} instead of DialFailed"),
    }
}

async fn pair() -> (QuicLink, QuicLink) {
    let (mut a, mut b) = (start(config()), start(config()));
    a.dial(b.peer(), &door(&b));
    assert_eq!(up(&mut a).await, (b.peer(), true));
    assert_eq!(up(&mut b).await, (a.peer(), false));
    (a, b)
}

/// A connection after TLS, before the handshake.
async fn raw(identity: &Identity, to: SocketAddr) -> (Endpoint, Connection) {
    raw_from([127, 0, 0, 1], identity, to).await.unwrap()
}

/// Connects from another address of this machine.
async fn raw_from(
    from: [u8; 4],
    identity: &Identity,
    to: SocketAddr,
) -> Result<(Endpoint, Connection), ConnectionError> {
    let configs = Configs::new(
        identity,
        Duration::from_secs(10),
        (Congestion::default(), None),
        None,
    );
    let endpoint = transport::endpoint(SocketAddr::from((from, 0)), None, false, Pace::default()).unwrap();
    let connecting = endpoint.connect_with(configs.client(Path::Local), to, "annulus");
    Ok((endpoint, connecting.unwrap().await?))
}

fn me(identity: &Identity, ticket: &Ticket) -> LocalPeer {
    LocalPeer {
        peer: identity.peer(),
        root: root(),
        admission: ticket.right().admit(identity.peer(), RUN),
        gate: Mutex::default(),
        instance: 7,
        addresses: Mutex::default(),
        observed: Mutex::default(),
        host: None,
    }
}

fn refusal(error: ConnectionError) -> Option<Refusal> {
    match error {
        ConnectionError::ApplicationClosed(close) => Refusal::from_code(close.error_code.into_inner()),
        other => panic!("{other}"),
    }
}

/// Forwards datagrams between the first sender and `to` until it is dropped: a cable to cut.
pub(crate) struct Cable(JoinHandle<()>, pub(crate) SocketAddr);

impl Cable {
    pub(crate) async fn to(to: SocketAddr) -> Self {
        let outer = AsyncUdpSocket::bind("127.0.0.1:0").await.unwrap();
        let inner = AsyncUdpSocket::bind("127.0.0.1:0").await.unwrap();
        let at = outer.local_addr().unwrap();
        let task = tokio::spawn(async move {
            let (mut there, mut back) = (vec![0; 1 << 16], vec![0; 1 << 16]);
            let mut client = None;
            loop {
                tokio::select! {
                    Ok((len, from)) = outer.recv_from(&mut there) => {
                        client = Some(from);
                        let _ = inner.send_to(&there[..len], to).await;
                    }
                    Ok((len, _)) = inner.recv_from(&mut back) => {
                        let _ = outer.send_to(&back[..len], client.unwrap()).await;
                    }
                }
            }
        });
        Self(task, at)
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How a handshake of this version begins.
pub(crate) fn first_bytes(version: u16, rest: &[u8]) -> Vec<u8> {
    [&version.to_le_bytes()[..], rest].concat()
}

#[tokio::test]
async fn peers_say_where_they_listen_and_where_they_were_seen() {
    let mut a = start(config());
    a.advertise(at("host.example:4100").to_vec());
    let mut b = start(config());
    b.dial(a.peer(), &door(&a));
    let LinkEvent::Up { addresses: told, .. } = event(&mut b).await else {
        panic!("no Up")
    };
    assert_eq!(
        told[..2],
        ["host.example:4100".to_owned(), a.local_addr().to_string()]
    );
    assert_eq!(certificates(&told), a.certificates().fingerprints());
    let LinkEvent::Up { addresses: told, .. } = event(&mut a).await else {
        panic!("no Up")
    };
    assert_eq!(told[..1], door(&b));
    assert_eq!(certificates(&told), b.certificates().fingerprints());
    assert_eq!(told.len(), 3);
}

#[tokio::test]
async fn frames_of_all_sizes_arrive_whole_and_in_order_on_both_lanes() {
    let (mut a, mut b) = pair().await;
    let sizes = [1, 3, 16 << 10, 65_536, 1_000_003, MAX_FRAME, 5];
    for (i, &size) in sizes.iter().enumerate() {
        for lane in [Lane::Control, Lane::Bulk] {
            let body = Bytes::from(vec![i as u8; size - 1]);
            a.send(b.peer(), lane, [Bytes::from_static(b"#"), body].into())
                .unwrap();
        }
    }
    let mut seen = [0; 2];
    for _ in 0..2 * sizes.len() {
        let (lane, bytes) = frame(&mut b).await;
        let i = &mut seen[lane as usize];
        assert_eq!(bytes.len(), sizes[*i]);
        assert_eq!(bytes[0], b'#');
        assert!(bytes[1..].iter().all(|&byte| byte == *i as u8));
        *i += 1;
    }
    assert_eq!(seen, [sizes.len(); 2]);
    let traffic = b.traffic(a.peer()).unwrap();
    assert_eq!(
        traffic.received_bytes,
        2 * sizes.iter().map(|size| size + 4).sum::<usize>() as u64
    );
    assert_eq!(
        a.send(b.peer(), Lane::Bulk, Bytes::from(vec![0; MAX_FRAME + 1]).into()),
        Err(SendError::TooLong)
    );
    assert_eq!(
        a.send(PeerId([0; 32]), Lane::Bulk, Frame::default()),
        Err(SendError::NotUp)
    );
}

#[tokio::test]
async fn a_queue_that_nobody_drains_is_bounded_and_loses_nothing() {
    let mut a = start(QuicConfig {
        guest_queue_bytes: 8 << 20,
        ..config()
    });
    let mut b = start(QuicConfig {
        inbox_bytes: 0,
        ..config()
    });
    a.dial(b.peer(), &door(&b));
    up(&mut a).await;
    up(&mut b).await;
    let body = Bytes::from(vec![1; 1 << 20]);
    let mut sent = 0;
    // Until the queue stays full although QUIC has had time to take from it.
    loop {
        let before = sent;
        while a.send(b.peer(), Lane::Bulk, body.clone().into()).is_ok() {
            sent += 1;
        }
        if sent == before {
            break;
        }
        sleep(Duration::from_millis(500)).await;
    }
    assert!((8..80).contains(&sent), "{sent} MiB were taken");
    assert!(
        a.queued(b.peer()) > 4 << 20,
        "{sent} MiB sent, {} bytes wait",
        a.queued(b.peer())
    );
    // The control lane does not wait for the bulk lane, only for frames that the owner could already have taken.
    a.send(b.peer(), Lane::Control, Bytes::from_static(b"urgent").into())
        .unwrap();
    sleep(Duration::from_millis(500)).await;
    let mut bulk = 0;
    let mut before_control = None;
    while bulk < sent || before_control.is_none() {
        match frame(&mut b).await {
            (Lane::Control, bytes) => {
                assert_eq!(bytes, "urgent");
                before_control = Some(bulk);
            }
            (Lane::Bulk, bytes) => {
                assert_eq!(bytes, body);
                bulk += 1;
            }
        }
    }
    assert!(
        before_control.unwrap() <= 12,
        "the control frame came after {before_control:?} MiB"
    );
}

#[tokio::test]
async fn whoever_does_not_belong_is_refused_and_told_why() {
    let mut host = start(QuicConfig {
        max_peers: 1,
        ..config()
    });
    let there = door(&host);
    let refused = |refusal| DialError::Refused(refusal);

    let mut guest = start(QuicConfig {
        right: ticket_by(Secret([3; 32]), Vec::new()).right(),
        ..config()
    });
    assert_eq!(
        dial_error(&mut guest, host.peer(), &there).await,
        refused(Refusal::WrongTicket)
    );
    let mut guest = start(QuicConfig {
        root: Root {
            run: RunId([9; 32]),
            ..root()
        },
        ..config()
    });
    assert_eq!(
        dial_error(&mut guest, host.peer(), &there).await,
        refused(Refusal::AnotherRun)
    );

    let other = PeerId([5; 32]);
    let mut guest = start(config());
    assert_eq!(
        dial_error(&mut guest, other, &there).await,
        DialError::AnotherPeer(host.peer())
    );
    let ourselves = guest.peer();
    assert_eq!(
        dial_error(&mut guest, ourselves, &there).await,
        refused(Refusal::Ourselves)
    );
    guest.dial(host.peer(), &there);
    up(&mut guest).await;
    up(&mut host).await;
    let mut late = start(config());
    assert_eq!(
        dial_error(&mut late, host.peer(), &there).await,
        refused(Refusal::TooManyPeers)
    );
}

#[tokio::test]
async fn two_nodes_with_one_identity_are_told() {
    let identity = Identity::generate();
    let host = QuicLink::start(&identity, config()).unwrap();
    let ticket = ticket_by(RUN_KEY, vec![host.local_addr()]);
    let error = fetch_manifest(&ticket, iter::empty(), &identity)
        .await
        .unwrap_err();
    assert_eq!(error, DialError::Refused(Refusal::Ourselves));
}

#[tokio::test]
async fn another_version_is_told_whatever_follows_it() {
    let host = start(config());
    let (_endpoint, connection) = raw(&Identity::generate(), host.local_addr()).await;
    let (mut send, _recv) = connection.open_bi().await.unwrap();
    send.write_all(&first_bytes(VERSION + 1, b"whatever"))
        .await
        .unwrap();
    assert_eq!(refusal(connection.closed().await), Some(Refusal::AnotherVersion));
}

#[tokio::test]
async fn an_acceptor_that_nobody_has_let_in_is_unmasked() {
    let (identity, impostor) = (Identity::generate(), Identity::generate());
    let tabs = Arc::new(Certificates::new([]));
    let configs = Configs::new(
        &impostor,
        Duration::from_secs(10),
        (Congestion::default(), None),
        Some(tabs),
    );
    let endpoint = transport::endpoint(
        SocketAddr::from(([127, 0, 0, 1], 0)),
        None,
        false,
        Pace::default(),
    )
    .unwrap();
    endpoint.set_server_config(configs.server(Path::Local).as_deref().cloned());
    let address = endpoint.local_addr().unwrap();
    let pretended = me(&impostor, &ticket_by(Secret([0; 32]), Vec::new()));
    tokio::spawn(async move {
        let connection = endpoint.accept().await.unwrap().await.unwrap();
        let session = Session::raw(connection);
        let (send, recv) = session.accept_bi().await.unwrap();
        let mut caller = Caller {
            tickets: Vec::new(),
            peer: peer_at(&session).unwrap(),
            purpose: Purpose::Link,
            instance: 0,
            contact: Contact::default(),
            dialled: None,
            send,
            recv,
            binding: None,
        };
        let seen = (session.remote_address(), LinkKind::Direct);
        welcome(&pretended, &mut caller, None, seen).await.unwrap();
        session.closed().await;
    });
    let mut link = QuicLink::start(&identity, config()).unwrap();
    assert_eq!(
        dial_error(&mut link, impostor.peer(), &at(address)).await,
        DialError::Unproven
    );
}

#[tokio::test]
async fn garbage_harms_nobody() {
    let mut host = start(config());
    let to = host.local_addr();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut junk = vec![0; 1400];
    for i in 0..2000 {
        getrandom::fill(&mut junk).unwrap();
        // Half of it looks like the start of a connection.
        junk[0] |= if i % 2 == 0 { 0xc0 } else { 0 };
        junk[1..5].copy_from_slice(if i % 4 == 0 { &[0, 0, 0, 1] } else { &[9; 4] });
        socket.send_to(&junk[..1 + i % 1400], to).unwrap();
    }

    // Garbage instead of a hello; and a hello of four billion bytes.
    let (_endpoint, connection) = raw(&Identity::generate(), to).await;
    let (mut send, _recv) = connection.open_bi().await.unwrap();
    send.write_all(&first_bytes(VERSION, b"\x08\x00\x00\x00garbage!"))
        .await
        .unwrap();
    assert_eq!(refusal(connection.closed().await), Some(Refusal::BadHandshake));
    let (_endpoint, connection) = raw(&Identity::generate(), to).await;
    let (mut send, _recv) = connection.open_bi().await.unwrap();
    send.write_all(&first_bytes(VERSION, b"\xff\xff\xff\xff"))
        .await
        .unwrap();
    assert_eq!(refusal(connection.closed().await), Some(Refusal::BadHandshake));

    // Garbage instead of frames, from a peer that was let in.
    let guest = Identity::generate();
    let (_endpoint, connection) = raw(&guest, to).await;
    let session = Session::raw(connection);
    let (_, mut control, _recv) = propose(&me(&guest, &ticket()), Purpose::Link, &session, host.peer())
        .await
        .unwrap();
    let mut bulk = session.open_bi().await.unwrap();
    bulk.0.write_all(&[0; 4]).await.unwrap();
    assert_eq!(up(&mut host).await, (guest.peer(), false));
    control.write_all(&[0xff; 8]).await.unwrap();
    assert_eq!(
        down(&mut host).await,
        DownReason::Misbehaved(FrameError::TooLong(u32::MAX))
    );

    let mut honest = start(config());
    honest.dial(host.peer(), &at(to));
    up(&mut honest).await;
    up(&mut host).await;
}

#[tokio::test]
async fn handshakes_that_never_end_keep_nobody_out() {
    let mut host = start(config());
    let mut idle = vec![];
    for _ in 0..HANDSHAKES_PER_ADDRESS - 1 {
        idle.push(raw(&Identity::generate(), host.local_addr()).await);
    }
    let mut honest = start(config());
    honest.dial(host.peer(), &door(&host));
    up(&mut honest).await;
    up(&mut host).await;
    for (_endpoint, connection) in idle {
        assert_eq!(refusal(connection.closed().await), Some(Refusal::TooSlow));
    }
}

/// Where this runs, all of 127.0.0.0/8 is this machine.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn one_address_cannot_keep_others_out_nor_all_strangers_those_who_are_known() {
    let listen = SocketAddr::from(([0; 4], 0));
    let mut host = start(QuicConfig { listen, ..config() });
    let to = SocketAddr::from(([127, 0, 0, 1], host.local_addr().port()));
    // As many as possible from one address, before the first is out of time.
    let mut idle = vec![];
    for _ in 0..2 * HANDSHAKES_PER_ADDRESS {
        idle.extend(raw_from([127, 0, 0, 9], &Identity::generate(), to).await.ok());
    }
    assert_eq!(idle.len(), HANDSHAKES_PER_ADDRESS);
    let known = Identity::generate();
    let from = |address: [u8; 4]| QuicConfig {
        listen: SocketAddr::from((address, 0)),
        ..config()
    };
    let mut friend = QuicLink::start(&known, from([127, 0, 0, 2])).unwrap();
    friend.dial(host.peer(), &at(to));
    up(&mut friend).await;
    up(&mut host).await;
    drop(friend);
    down(&mut host).await;
    // Then from as many addresses as needed.
    for last in 10..40 {
        for _ in 0..HANDSHAKES_PER_ADDRESS {
            idle.extend(raw_from([127, 0, 0, last], &Identity::generate(), to).await.ok());
        }
        if idle.len() >= MAX_HANDSHAKES - HANDSHAKES_OF_KNOWN {
            break;
        }
    }
    assert_eq!(idle.len(), MAX_HANDSHAKES - HANDSHAKES_OF_KNOWN);
    // The oldest have given way, and the next do for a newcomer at an unknown address.
    let mut newcomer = start(from([127, 0, 0, 3]));
    newcomer.dial(host.peer(), &at(to));
    up(&mut newcomer).await;
    up(&mut host).await;
    let left = idle
        .iter()
        .filter(|(_, connection)| connection.close_reason().is_none());
    assert!(left.count() <= MAX_HANDSHAKES / 2);
    let mut friend = QuicLink::start(&known, from([127, 0, 0, 2])).unwrap();
    friend.dial(host.peer(), &at(to));
    up(&mut friend).await;
    up(&mut host).await;
}

#[tokio::test]
async fn peers_that_dial_each_other_at_once_agree_on_one_link() {
    for _ in 0..20 {
        let (mut a, mut b) = (start(config()), start(config()));
        a.dial(b.peer(), &door(&b));
        b.dial(a.peer(), &door(&a));
        let smaller_is_a = a.peer() < b.peer();
        assert_eq!(up(&mut a).await, (b.peer(), smaller_is_a));
        assert_eq!(up(&mut b).await, (a.peer(), !smaller_is_a));
        a.send(b.peer(), Lane::Control, Bytes::from_static(b"to b").into())
            .unwrap();
        b.send(a.peer(), Lane::Bulk, Bytes::from_static(b"to a").into())
            .unwrap();
        assert_eq!(frame(&mut a).await, (Lane::Bulk, Bytes::from_static(b"to a")));
        assert_eq!(frame(&mut b).await, (Lane::Control, Bytes::from_static(b"to b")));
    }
}

#[tokio::test]
async fn a_peer_that_goes_is_down_and_may_come_back() {
    let (mut a, b) = pair().await;
    let (peer, old) = (b.peer(), door(&b));
    drop(b);
    assert_eq!(down(&mut a).await, DownReason::PeerLeft);
    let error = dial_error(&mut a, peer, &old).await;
    assert!(matches!(error, DialError::Unreachable(_)), "{error:?}");

    let mut b = start(config());
    for _ in 0..3 {
        a.dial(b.peer(), &door(&b));
        up(&mut a).await;
        up(&mut b).await;
        b.hang_up(a.peer());
        assert_eq!(down(&mut b).await, DownReason::HungUp);
        assert_eq!(down(&mut a).await, DownReason::PeerLeft);
    }
}

#[tokio::test]
async fn a_cut_cable_shows_as_silence() {
    let quick = QuicConfig {
        idle: Duration::from_secs(1),
        ..config()
    };
    let (mut a, mut b) = (start(quick.clone()), start(quick));
    let cable = Cable::to(b.local_addr()).await;
    a.dial(b.peer(), &at(cable.1));
    up(&mut a).await;
    up(&mut b).await;
    // Keep-alives hold an idle link up for longer than the timeout.
    assert!(timeout(Duration::from_secs(2), next_event(&mut a)).await.is_err());
    drop(cable);
    assert_eq!(down(&mut a).await, DownReason::Silent);
    assert_eq!(down(&mut b).await, DownReason::Silent);
}

#[tokio::test]
async fn a_restarted_peer_takes_the_place_of_its_dead_link() {
    let (identity, mut host) = (Identity::generate(), start(config()));
    let cable = Cable::to(host.local_addr()).await;
    let mut first = QuicLink::start(&identity, config()).unwrap();
    first.dial(host.peer(), &at(cable.1));
    up(&mut first).await;
    up(&mut host).await;
    drop(cable);
    let mut second = QuicLink::start(&identity, config()).unwrap();
    second.dial(host.peer(), &door(&host));
    up(&mut second).await;
    assert_eq!(down(&mut host).await, DownReason::Replaced);
    assert_eq!(up(&mut host).await, (identity.peer(), false));
    host.send(
        identity.peer(),
        Lane::Bulk,
        Bytes::from_static(b"hello again").into(),
    )
    .unwrap();
    assert_eq!(frame(&mut second).await.1, "hello again");
}

#[tokio::test]
async fn a_peer_that_runs_twice_is_told_so_and_its_first_link_stands() {
    let (identity, mut host) = (Identity::generate(), start(config()));
    let mut first = QuicLink::start(&identity, config()).unwrap();
    first.dial(host.peer(), &door(&host));
    up(&mut first).await;
    up(&mut host).await;
    let mut second = QuicLink::start(&identity, config()).unwrap();
    for _ in 0..2 {
        let error = dial_error(&mut second, host.peer(), &door(&host)).await;
        assert_eq!(error.barred(), Some(Barred::InUse));
    }
    let hello = Bytes::from_static(b"still here");
    host.send(identity.peer(), Lane::Bulk, hello.clone().into())
        .unwrap();
    assert_eq!(frame(&mut first).await.1, hello);
    drop(first);
    assert_eq!(down(&mut host).await, DownReason::PeerLeft);
    second.dial(host.peer(), &door(&host));
    up(&mut second).await;
}

#[tokio::test]
async fn draining_delivers_what_was_queued() {
    let (mut a, mut b) = pair().await;
    let body = Bytes::from(vec![3; 1 << 20]);
    for _ in 0..40 {
        a.send(b.peer(), Lane::Bulk, body.clone().into()).unwrap();
    }
    a.send(b.peer(), Lane::Control, Bytes::from_static(b"bye").into())
        .unwrap();
    let receive = async {
        let (mut frames, mut said) = (0, false);
        loop {
            match event(&mut b).await {
                LinkEvent::Frame { lane: Lane::Bulk, .. } => frames += 1,
                LinkEvent::Frame {
                    lane: Lane::Control, ..
                } => said = true,
                LinkEvent::Down { reason, .. } => return (frames, said, reason),
                other => panic!("{other:?}"),
            }
        }
    };
    let (drained, received) = tokio::join!(a.drain(Duration::from_secs(10)), receive);
    assert!(drained);
    assert_eq!(received, (40, true, DownReason::PeerLeft));
}

#[tokio::test]
async fn a_ticket_alone_fetches_the_manifest() {
    let manifest = Bytes::from((0..MAX_MANIFEST).map(|i| i as u8).collect::<Vec<_>>());
    let host = start(QuicConfig {
        manifest: manifest.clone(),
        ..config()
    });
    let nobody = SocketAddr::from(([127, 0, 0, 1], 9));
    let ticket = ticket_by(RUN_KEY, vec![nobody, host.local_addr()]);
    let identity = Identity::generate();
    let (source, fetched) = fetch_manifest(&ticket, iter::empty(), &identity).await.unwrap();
    assert_eq!((source.peer, fetched), (host.peer(), manifest));
    // The ticket's run is gone, but a peer still listens at the address.
    let old = Ticket {
        addrs: vec![nobody],
        ..ticket.clone()
    };
    let others = [nobody, host.local_addr()].map(|address| Contact(vec![address.to_string()]));
    let found = fetch_manifest(&old, others.into_iter(), &identity).await.unwrap();
    assert_eq!(found.0.peer, host.peer());

    let wrong = ticket_by(Secret([0; 32]), ticket.addrs);
    assert_eq!(
        fetch_manifest(&wrong, iter::empty(), &identity).await,
        Err(DialError::Refused(Refusal::WrongTicket))
    );
    let too_long = QuicConfig {
        manifest: Bytes::from(vec![0; MAX_MANIFEST + 1]),
        ..config()
    };
    assert!(matches!(
        QuicLink::start(&identity, too_long),
        Err(StartError::ManifestTooLong(_))
    ));
}

#[tokio::test]
async fn bad_addresses_are_clear_errors() {
    let mut a = start(config());
    let taken = QuicConfig {
        listen: a.local_addr(),
        ..config()
    };
    let error = QuicLink::start(&Identity::generate(), taken).err().unwrap();
    assert!(matches!(error, StartError::PortInUse(_)), "{error}");
    let foreign = QuicConfig {
        listen: SocketAddr::from(([192, 0, 2, 1], 0)),
        ..config()
    };
    assert!(matches!(
        QuicLink::start(&Identity::generate(), foreign),
        Err(StartError::Bind(..))
    ));
    // Root may have such ports, so no test can count on the refusal.
    let denied = |port| {
        let error = std::io::ErrorKind::PermissionDenied.into();
        StartError::of(SocketAddr::from(([127, 0, 0, 1], port)), error).to_string()
    };
    assert!(denied(80).contains("port from 1024 on"), "{}", denied(80));
    assert!(!denied(4433).contains("1024"), "{}", denied(4433));

    let peer = PeerId([5; 32]);
    for addresses in [&[][..], &at("nonsense"), &at("127.0.0.1:port")] {
        assert!(
            matches!(dial_error(&mut a, peer, addresses).await, DialError::NoAddress(_)),
            "{addresses:?}"
        );
    }
    let error = dial_error(&mut a, peer, &["127.0.0.1:9".to_owned(), "[::1]:0".to_owned()]).await;
    assert!(matches!(error, DialError::Unreachable(_)), "{error}");
    assert!(own_addresses(a.local_addr()).contains(&a.local_addr()));
}

#[tokio::test]
async fn one_socket_takes_both_families() {
    let all = everywhere(0);
    if all.is_ipv4() {
        return eprintln!("skipped: this system has no IPv6");
    }
    let mut host = start(QuicConfig {
        listen: all,
        ..config()
    });
    // Departures are reported too.
    let mut guests = Vec::new();
    for ip in ["127.0.0.1", "[::1]"] {
        let mut guest = start(QuicConfig {
            listen: everywhere(0),
            ..config()
        });
        guest.dial(host.peer(), &[format!("{ip}:{}", host.local_addr().port())]);
        up(&mut guest).await;
        let LinkEvent::Up { addresses, .. } = next_event(&mut host).await.unwrap() else {
            panic!("it is not up");
        };
        let seen = format!("{ip}:{}", guest.local_addr().port());
        assert!(addresses.contains(&seen), "{seen} {addresses:?}");
        guests.push(guest);
    }
}

#[tokio::test]
async fn who_may_not_come_in_is_told_at_the_door() {
    let mut host = start(config());
    let there = door(&host);
    let all = Invitation::of_run(RUN_KEY.key());
    let made = |until_s, uses| Ticket::made_from(&all, root(), Role::Contribute, until_s, uses).unwrap();
    let (late, out, once) = (made(Some(1_000_000), None), made(None, None), made(None, Some(1)));
    let manifest = Manifest {
        key: root().key,
        ..Manifest::new(Layout::flat(1))
    };
    // From a ledger in which one ticket was revoked and another peer has used one.
    let settings = |ticket: &Ticket| {
        let identity = Identity::generate();
        let admission = ticket.right().admit(identity.peer(), RUN);
        Settings::new(identity.key(), admission, Contact::default())
    };
    let mut head = Head::genesis(&manifest, Member::new(&settings(&late), None));
    let revocation = all.revoke(root(), out.chain.clone()).unwrap();
    head.tickets.revoked.add(revocation, RUN);
    let first = settings(&once);
    head.tickets.spend(&first.admission, first.me, RUN);
    host.judge_by(Gate::at(&head));
    for (ticket, why) in [
        (&late, Barred::Expired),
        (&out, Barred::Revoked),
        (&once, Barred::UsedUp),
    ] {
        let mut guest = start(QuicConfig {
            right: ticket.right(),
            ..config()
        });
        let error = dial_error(&mut guest, host.peer(), &there).await;
        assert_eq!(error.barred(), Some(why));
        let ticket = Ticket {
            addrs: vec![host.local_addr()],
            ..ticket.clone()
        };
        let asked = fetch_manifest(&ticket, iter::empty(), &Identity::generate()).await;
        assert_eq!(asked.unwrap_err().barred(), Some(why));
    }
    let mut guest = start(config());
    guest.dial(host.peer(), &there);
    up(&mut guest).await;
}
