//! The page as a client on the other end of a socket sees it.

use super::*;
use crate::testing::Scratch;
use crate::view::testing::{committed, ready};
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

fn about() -> About {
    About {
        peer: "ab".repeat(32),
        run: "cd".repeat(32),
        certificates: Arc::new(Certificates::new([[127, 0, 0, 1].into()])),
        port: 4433,
        addresses: vec!["127.0.0.1:4433".into()],
        title: "Digits for all".into(),
        about: "By a test.".into(),
        task: "digits".into(),
        parameters: 10,
        state_bytes: 120,
        data_bytes: Some(0),
        spans: 0,
    }
}

fn start(about: About) -> (Site, SocketAddr) {
    start_in(None, HURRY, about)
}

fn start_in(dir: Option<PathBuf>, hurry: Hurry, about: About) -> (Site, SocketAddr) {
    let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let tls = tls_self_signed(about.certificates.clone());
    let names = ["host.example".to_owned()];
    let hosts = Hosts::new(names.iter());
    let slots = Slots::new(limits(), Arc::default());
    (
        Site::start_hurried(listener, tls, hosts, dir, (about, None), (hurry, slots)),
        address,
    )
}

/// Sends bytes and reads until the end.
async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &[u8]) -> String {
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    let reading = timeout(Duration::from_secs(20), stream.read_to_end(&mut answer));
    // A server that closes before it has read everything may reset the connection.
    let _ = reading.await.expect("an end in time");
    String::from_utf8(answer).unwrap()
}

async fn plain(address: SocketAddr, request: &[u8]) -> String {
    exchange(TcpStream::connect(address).await.unwrap(), request).await
}

fn request(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").into_bytes()
}

fn body(answer: &str) -> (u16, &str) {
    let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (code, answer.split_once("\r\n\r\n").unwrap().1)
}

#[tokio::test]
async fn one_port_speaks_plain_and_tls() {
    let about = about();
    let certificates = about.certificates.clone();
    let (site, address) = start(about);
    site.view().take(&ready(1), 0);
    site.view().take(&committed(3, &[(1, 64)], 0.5), 0);

    let answer = plain(address, &request("/status")).await;
    let (code, text) = body(&answer);
    let status: Value = serde_json::from_str(text).unwrap();
    assert_eq!((code, &status["round"]), (200, &3.into()));
    assert!(!answer.contains("annulus2secret"));

    let mut roots = RootCertStore::empty();
    roots.add(certificates.present().cert[0].clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    for name in ["localhost", "127.0.0.1"] {
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from(name).unwrap();
        let stream = TlsConnector::from(Arc::new(config.clone()))
            .connect(name, stream)
            .await;
        let answer = exchange(stream.unwrap(), &request("/peer.json")).await;
        let (code, text) = body(&answer);
        let peer: Value = serde_json::from_str(text).unwrap();
        assert_eq!((code, &peer["peer"]), (200, &"ab".repeat(32).into()));
        let digits = |print: [u8; 32]| print.map(|byte| format!("{byte:02x}")).concat();
        let prints = certificates.fingerprints().map(digits);
        assert_eq!(peer["certificates"], serde_json::json!(prints));
        assert_eq!((&peer["port"], &peer["state_bytes"]), (&4433.into(), &120.into()));
    }

    let answer = plain(address, &request("/metrics")).await;
    assert!(
        answer
            .to_ascii_lowercase()
            .contains("content-type: text/plain; version=0.0.4")
    );
    assert!(body(&answer).1.contains("\nannulus_round 3\n"), "{answer}");
    assert_eq!(body(&plain(address, &request("/")).await).0, 200);
    assert_eq!(body(&plain(address, &request("/no.js")).await).0, 404);
    assert_eq!(body(&plain(address, &request("/status/")).await).0, 404);
}

#[tokio::test]
async fn what_is_no_request_is_turned_away() {
    let (_site, address) = start(about());
    let post = b"POST /status HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    assert_eq!(body(&plain(address, post).await).0, 405);
    assert_eq!(body(&plain(address, b"nonsense\r\n\r\n").await).0, 400);
    const TLS_ALERT: char = '\u{15}';
    let answer = plain(address, &[TLS_HANDSHAKE, 9, 9, 0, 0]).await;
    assert!(answer.is_empty() || answer.starts_with(TLS_ALERT), "{answer:?}");
    let long = format!(
        "GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "a".repeat(2 * HEAD_BYTES)
    );
    let (code, _) = body(&plain(address, long.as_bytes()).await).to_owned();
    assert!([400, 414, 431].contains(&code), "{code}");
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(65));
    assert_eq!(body(&plain(address, many.as_bytes()).await).0, 431);
}

#[tokio::test]
async fn names_of_others_are_not_answered_to() {
    let (_site, address) = start(about());
    let ask = |host: &str| {
        let request = format!("GET /status HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        async move { plain(address, request.as_bytes()).await }
    };
    for name in ["localhost:4433", "127.0.0.1", "host.example:1"] {
        assert_eq!(body(&ask(name).await).0, 200, "{name}");
    }
    let answer = ask("evil.example:4433").await;
    let (code, text) = body(&answer);
    assert_eq!(code, 421);
    assert!(text.contains("evil.example") && text.contains("--host"), "{text}");
    assert!(!text.contains("peer"), "{text}");
}

#[tokio::test]
async fn who_does_not_read_is_cut_off() {
    let scratch = Scratch::new();
    // More than any system buffers.
    let size = 48 << 20;
    std::fs::write(scratch.0.join("index.html"), vec![b'x'; size]).unwrap();
    let hurry = Hurry {
        time: Duration::from_millis(500),
        ..HURRY
    };
    let (_site, address) = start_in(Some(scratch.0.clone()), hurry, about());
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&request("/")).await.unwrap();
    sleep(4 * hurry.time).await;
    let mut answer = Vec::new();
    let reading = timeout(Duration::from_secs(20), stream.read_to_end(&mut answer));
    let _ = reading.await.expect("an end in time");
    assert!(answer.len() < size, "all of it came");
    // A reader that keeps up gets it.
    let answer = plain(address, &request("/")).await;
    assert_eq!(body(&answer).1.len(), size);
}

#[tokio::test]
async fn too_many_connections_are_closed_and_keep_nobody_out_for_ever() {
    let (_site, address) = start(about());
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS_PER_ADDRESS {
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    // The server takes them in order, so this one finds no place.
    let mut late = TcpStream::connect(address).await.unwrap();
    let closed = timeout(Duration::from_secs(5), late.read(&mut [0]))
        .await
        .unwrap();
    assert!(matches!(closed, Ok(0) | Err(_)));
    // From elsewhere there is one.
    #[cfg(target_os = "linux")]
    {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
        let stream = socket.connect(address).await.unwrap();
        assert_eq!(body(&exchange(stream, &request("/status")).await).0, 200);
    }
    drop(idle);
    for _ in 0..100 {
        if !plain_or_nothing(address).await.is_empty() {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("the places were not given back");
}

async fn plain_or_nothing(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut answer = String::new();
    let _ = stream.write_all(&request("/status")).await;
    let _ = stream.read_to_string(&mut answer).await;
    answer
}

#[tokio::test]
async fn a_port_that_is_taken_is_told() {
    let (_site, address) = start(about());
    assert_eq!(bind(address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn a_copy_of_the_page_learns_whom_to_dial_from_its_link() {
    let (peer, certificates) = ("ab".repeat(32), Certificates::new([]));
    let link = |title| link_to_copy(("https://a.example/t/", title), "T", &peer, &certificates);
    let [now, next] = certificates.fingerprints().map(|print| HEXLOWER.encode(&print));
    let plain = format!("https://a.example/t/#T&peer={peer}&cert={now}&cert={next}");
    assert_eq!(link(""), plain);
    assert_eq!(
        link("Łódź & co"),
        format!("{plain}&title=%C5%81%C3%B3d%C5%BA%20%26%20co")
    );
}

#[test]
fn browsers_here_and_elsewhere_get_the_address_that_works_for_them() {
    let urls = |at: &str, addresses: &[&str]| {
        let addresses: Vec<String> = addresses.iter().map(|&address| address.to_owned()).collect();
        urls(at.parse().unwrap(), &addresses, Some("T"))
    };
    let here = Some("http://localhost:4433/#T".to_owned());
    let there = |host: &str| Some(format!("https://{host}/#T"));
    assert_eq!(
        urls("0.0.0.0:4433", &["192.0.2.1:4433", "127.0.0.1:4433"]),
        (here.clone(), there("192.0.2.1:4433"))
    );
    assert_eq!(
        urls("[::]:4433", &["host.example:80", "[2001:db8::1]:4433"]),
        (here.clone(), there("host.example:80"))
    );
    assert_eq!(urls("127.0.0.1:4433", &["127.0.0.1:4433"]), (here.clone(), None));
    // No browser can be led to it.
    assert_eq!(
        urls("[::]:4433", &["[fe80::1]:4433", "127.0.0.1:4433"]),
        (here, None)
    );
    let only = there("[2001:db8::1]:4433");
    assert_eq!(
        urls("[2001:db8::1]:4433", &["[2001:db8::1]:4433"]),
        (only.clone(), only)
    );
}

#[test]
fn certificates_of_an_authority_are_read_from_files() {
    let scratch = Scratch::new();
    let file = |name: &str, text: &str| {
        let path = scratch.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let made = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["host.example".to_owned()]).unwrap();
    let certificate = params.self_signed(&made).unwrap();
    let pem = |label: &str, der: &[u8]| {
        let text = base64(der);
        format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
    };
    let chain = file("chain.pem", &pem("CERTIFICATE", certificate.der()));
    let key = file("key.pem", &pem("PRIVATE KEY", made.serialized_der()));
    assert!(tls_of(&chain, &key).is_ok());

    let other = rcgen::KeyPair::generate().unwrap();
    let other = file("other.pem", &pem("PRIVATE KEY", other.serialized_der()));
    for (chain, key, named) in [
        (&chain, &other, "other.pem"),
        (&key, &key, "key.pem"),
        (&chain, &chain, "chain.pem"),
        (&scratch.0.join("none.pem"), &key, "none.pem"),
    ] {
        let error = tls_of(chain, key).err().unwrap().to_string();
        assert!(error.contains(named) && error.contains("--tls-cert"), "{error}");
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |chunk: &[u8]| {
        let bits = (0..3).fold(0u32, |bits, i| bits << 8 | u32::from(*chunk.get(i).unwrap_or(&0)));
        let digit = |i: usize| match i <= chunk.len() {
            true => char::from(DIGITS[(bits >> (18 - 6 * i)) as usize & 63]),
            false => '=',
        };
        (0..4).map(digit).collect::<String>()
    };
    bytes.chunks(3).map(group).collect()
}

#[tokio::test]
async fn who_sits_at_this_machine_may_pause_the_peer_from_its_page() {
    let scratch = Scratch::new();
    let switch = Switch::new(&scratch.0.join("paused"));
    let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let about = about();
    let tls = tls_self_signed(about.certificates.clone());
    let hosts = Hosts::new([].iter());
    let _site = Site::start(
        listener,
        tls,
        hosts,
        None,
        about,
        Some(switch.clone()),
        Arc::default(),
    );
    let ask = async |method: &str, path: &str, more: &str| {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{more}connection: close\r\n\r\n");
        let answer = plain(address, head.as_bytes()).await;
        let (code, text) = body(&answer);
        (code, text.to_owned())
    };
    let told = async || serde_json::from_str::<Value>(&ask("GET", "/pause", "").await.1).unwrap();
    // SAFETY: asks for a number of this process.
    let is_root = unsafe { libc::geteuid() } == 0;
    assert_eq!(
        told().await,
        serde_json::json!({"may": !is_root, "paused": false})
    );
    for bad in ["", "origin: http://evil.example\r\n"] {
        let (code, text) = ask("POST", "/pause", bad).await;
        assert_eq!((code, switch.is_pressed()), (403, false), "{text}");
    }
    let own = "origin: http://localhost\r\n";
    if is_root {
        let (code, text) = ask("POST", "/pause", own).await;
        assert!(
            code == 403 && text.contains("not for root") && text.contains("annulus pause"),
            "{text}"
        );
        assert!(!switch.is_pressed());
        return;
    }
    assert_eq!(ask("POST", "/pause", own).await.0, 204);
    assert!(switch.is_pressed());
    assert_eq!(told().await, serde_json::json!({"may": true, "paused": true}));
    assert_eq!(
        ask("GET", "/unpause", own).await.0,
        405,
        "looking changes nothing"
    );
    assert_eq!(ask("POST", "/unpause", own).await.0, 204);
    assert!(!switch.is_pressed());
    let passed_on = format!("{own}x-forwarded-for: 203.0.113.9\r\n");
    assert_eq!(ask("POST", "/pause", &passed_on).await.0, 403);
}

/// Where this runs, all of 127.0.0.0/8 is this machine. The page cannot tell the other addresses from those of strangers.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn strangers_cannot_take_the_page_from_the_owner() {
    let about = about();
    let listener = bind(SocketAddr::from(([0; 4], 0))).unwrap();
    let port = listener.local_addr().unwrap().port();
    let tls = tls_self_signed(about.certificates.clone());
    let none: [String; 0] = [];
    let hosts = Hosts::new(none.iter());
    let _site = Site::start(listener, tls, hosts, None, about, None, Arc::default());
    let page = SocketAddr::from(([127, 0, 0, 1], port));
    let mut idle = Vec::new();
    for from in [[127, 0, 0, 2], [127, 0, 0, 3]] {
        for _ in 0..70 {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::from((from, 0))).unwrap();
            idle.push(socket.connect(page).await.unwrap());
        }
    }
    for _ in 0..25 {
        let answer = plain(page, &request("/status")).await;
        assert_eq!(body(&answer).0, 200);
    }
}
