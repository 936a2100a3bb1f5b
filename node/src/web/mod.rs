//! The page that a node serves: on the TCP port of the same number as its UDP port, plain and with TLS at once.
//!
//! A connection's first byte tells which: a TLS handshake begins with 0x16, and no HTTP method does. That way one address
//! serves `http://localhost`, which browsers trust as it is, and `https://` for other machines, without which browsers
//! give a page neither a GPU nor WebTransport.
//!
//! **Bounds.** At most [`CONNECTIONS`] are open at once, [`CONNECTIONS_PER_ADDRESS`] of them from one address. [`KEPT`] are for
//! this machine and for addresses of peers. A request's head has
//! [`HEAD_BYTES`] at most and arrives within [`HEAD_TIME`]. A reader slower than [`HURRY`] is cut off. A connection lives for at
//! most [`LIFE`], which is enough for a slow download.
//!
//! It answers to addresses, to localhost, and to the names that it was given ([`hosts`]). It changes only one thing: the user of
//! this machine can pause the peer ([`pause`]).
//!
//! It must know nothing of links and of the protocol: its content comes from events and from [`About`].

mod answers;
pub mod bearer;
pub mod completions;
pub mod hosts;
mod hurried;
mod links;
pub mod metrics;
mod page;
pub mod pause;
pub mod predictions;
pub mod status;

pub use links::{link_to_copy, urls};
pub use page::usual_folder;

use crate::data::provision::TAB_LIMIT;
use crate::net::certificates::Certificates;
use crate::net::slots::{Known, Limits, Slots};
use crate::view::RunView;
use annulus_net::files::read_named;
use axum::{
    Extension, Json, Router,
    extract::{Request, State},
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
    },
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use data_encoding::HEXLOWER;
use hosts::Hosts;
use hurried::{Hurried, Hurry};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use page::Files;
use pause::{Ends, Switch};
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde_json::json;
use socket2::{Domain, Protocol, Socket, Type};
use status::Status;
use std::{
    fmt, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

/// Connections at any time.
pub const CONNECTIONS: usize = 128;

/// Of those from one address: many tabs may share one, but nobody takes all.
pub const CONNECTIONS_PER_ADDRESS: usize = 64;

/// Of those, how many are kept for this machine's user and for the addresses of peers, whatever strangers do.
pub const KEPT: usize = CONNECTIONS / 4;

/// The limits of a server.
fn limits() -> Limits {
    Limits {
        all: CONNECTIONS,
        each: CONNECTIONS_PER_ADDRESS,
        kept: KEPT,
        displace: false,
    }
}

/// Longest head of a request.
pub const HEAD_BYTES: usize = 16 << 10;

/// How long a request's head may take, and how long a connection may lie idle.
pub const HEAD_TIME: Duration = Duration::from_secs(15);

/// The least speed at which a client must read: far below any useful link.
pub const HURRY: Hurry = Hurry {
    bytes: 64 << 10,
    time: Duration::from_secs(15),
};

/// How long a connection may live. A tab that still needs it makes another.
pub const LIFE: Duration = Duration::from_secs(600);

/// The first byte of a TLS connection.
const TLS_HANDSHAKE: u8 = 0x16;

/// Facts that a tab needs before it connects. None is secret.
#[derive(Clone, Debug)]
pub struct About {
    /// This peer, in hexadecimal digits.
    pub peer: String,
    /// The run, likewise.
    pub run: String,
    /// What tabs find at the UDP port.
    pub certificates: Arc<Certificates>,
    /// The UDP port.
    pub port: u16,
    /// Where others can probably reach it.
    pub addresses: Vec<String>,
    /// What is trained, in words of the founder; empty: it did not say.
    pub title: String,
    /// What for and by whom, likewise.
    pub about: String,
    /// Name of the task.
    pub task: String,
    /// Parameters of the model.
    pub parameters: u64,
    /// Bytes of state that a newcomer fetches.
    pub state_bytes: u64,
    /// Bytes of data that it fetches; none if this peer hands out none.
    pub data_bytes: Option<u64>,
    /// How many spans the model is split into; 0 if it is not. Tabs hold those between the ends, without data.
    pub spans: usize,
}

/// The page's certificate is of no use.
#[derive(Debug, thiserror::Error)]
#[error(
    "the page cannot use {file}: {why}. Give a certificate chain and its private key, both as PEM, with --tls-cert and --tls-key, \
     or neither",
    file = .file.display()
)]
pub struct TlsError {
    file: PathBuf,
    why: String,
}

/// Longest file of a certificate or key that is read.
const PEM_LIMIT: usize = 1 << 20;

/// Certificate and key for a page over TLS.
pub struct Tls {
    config: ServerConfig,
    /// Whether an authority proves the names in it, so that browsers use no other.
    proves_name: bool,
}

/// TLS with a certificate of an authority, from files.
pub fn tls_of(certificate: &Path, key: &Path) -> Result<Tls, TlsError> {
    let bad = |file: &Path| {
        let file = file.to_owned();
        move |why: &dyn fmt::Display| TlsError {
            file: file.clone(),
            why: why.to_string(),
        }
    };
    let read = |file: &Path| read_named(file, PEM_LIMIT).map_err(|error| bad(file)(&error));
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(certificate)?).collect();
    let chain = chain.map_err(|error| bad(certificate)(&error))?;
    if chain.is_empty() {
        return Err(bad(certificate)(&"it holds no certificate"));
    }
    let secret = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| bad(key)(&error))?;
    let config = builder().with_single_cert(chain, secret);
    Ok(Tls {
        config: config.map_err(|error| bad(key)(&error))?,
        proves_name: true,
    })
}

/// TLS with certificates of our own making.
pub fn tls_self_signed(certificates: Arc<Certificates>) -> Tls {
    Tls {
        config: builder().with_cert_resolver(certificates),
        proves_name: false,
    }
}

fn builder() -> rustls::ConfigBuilder<ServerConfig, rustls::server::WantsServerCert> {
    ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has TLS 1.3")
        .with_no_client_auth()
}

/// A socket for the page.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // One socket for both families; where the system does not allow that, IPv6 alone is still of use.
        let _ = socket.set_only_v6(false);
    }
    // Elsewhere this would let two programs share the port. Here it means that a node may be started again at once.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(128)?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket.into())
}

/// The page, as long as it is held.
pub struct Site {
    view: Arc<Mutex<RunView>>,
    accepting: JoinHandle<()>,
}

struct Shared {
    about: About,
    begun_ms: u64,
    view: Arc<Mutex<RunView>>,
    files: Arc<Files>,
    switch: Option<Switch>,
}

impl Site {
    /// Begins to serve the files of a folder, and what pauses this peer, if anything does. Some connections are kept for
    /// `known` addresses. Must be called within a tokio runtime.
    pub fn start(
        listener: TcpListener,
        tls: Tls,
        hosts: Hosts,
        dir: Option<PathBuf>,
        about: About,
        switch: Option<Switch>,
        known: Arc<Known>,
    ) -> Self {
        let slots = Slots::new(limits(), known);
        Self::start_hurried(listener, tls, hosts, dir, (about, switch), (HURRY, slots))
    }

    fn start_hurried(
        listener: TcpListener,
        tls: Tls,
        hosts: Hosts,
        dir: Option<PathBuf>,
        (about, switch): (About, Option<Switch>),
        (hurry, slots): (Hurry, Arc<Slots>),
    ) -> Self {
        let view = Arc::new(Mutex::new(RunView::default()));
        let shared = Shared {
            about,
            begun_ms: unix_ms(),
            view: view.clone(),
            files: Files::new(dir),
            switch,
        };
        let router = Router::new()
            .route("/peer.json", get(peer))
            .route("/status", get(status))
            .route("/metrics", get(metrics_page))
            .route("/pause", get(paused).post(pause_peer))
            .route("/unpause", post(unpause_peer))
            .fallback(get(file))
            .with_state(Arc::new(shared));
        let checked = router
            .clone()
            .layer(middleware::from_fn_with_state(Arc::new(hosts), addressed));
        let server = Server {
            tls: TlsAcceptor::from(Arc::new(tls.config)),
            hurry,
            over_tls: if tls.proves_name { router } else { checked.clone() },
            plain: checked,
        };
        let accepting = tokio::spawn(accept(listener, slots, server));
        Self { view, accepting }
    }

    /// Ends it; its port is free then.
    pub async fn close(mut self) {
        self.accepting.abort();
        // An error is what is waited for.
        let _ = (&mut self.accepting).await;
    }

    /// What the page shows. To be given every event.
    pub fn view(&self) -> MutexGuard<'_, RunView> {
        locked(&self.view)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn locked(view: &Mutex<RunView>) -> MutexGuard<'_, RunView> {
    view.lock().expect("nobody panics while holding the view")
}

/// Milliseconds since 1970.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// What every connection needs.
#[derive(Clone)]
struct Server {
    tls: TlsAcceptor,
    hurry: Hurry,
    plain: Router,
    over_tls: Router,
}

async fn accept(listener: TcpListener, slots: Arc<Slots>, server: Server) {
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            // Out of file descriptors, most likely: some will be free in a while.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Some(slot) = slots.take(from.ip()) else {
            continue;
        };
        let Ok(ours) = stream.local_addr() else { continue };
        let (server, ends) = (server.clone(), Ends { theirs: from, ours });
        tokio::spawn(async move {
            let _slot = slot;
            let _ = timeout(LIFE, server.serve(stream, ends)).await;
        });
    }
}

impl Server {
    /// One connection, to its end. Errors are the other side's affair.
    async fn serve(self, stream: TcpStream, ends: Ends) {
        let _ = stream.set_nodelay(true);
        let mut first = [0];
        match timeout(HEAD_TIME, stream.peek(&mut first)).await {
            Ok(Ok(1..)) if first[0] == TLS_HANDSHAKE => {
                if let Ok(Ok(stream)) = timeout(HEAD_TIME, self.tls.accept(stream)).await {
                    speak(Hurried::new(stream, self.hurry), self.over_tls, ends).await;
                }
            }
            Ok(Ok(1..)) => speak(Hurried::new(stream, self.hurry), self.plain, ends).await,
            _ => {}
        }
    }
}

async fn speak(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router, ends: Ends) {
    let router = router.layer(Extension(ends));
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES)
        .max_headers(64)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
}

/// Answers only what is addressed to this node.
async fn addressed(State(hosts): State<Arc<Hosts>>, request: Request, next: Next) -> Response {
    match hosts.check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(denied) => {
            let text = format!("{denied}. Use its IP address, or start it with --host NAME.\n");
            fresh((denied.status(), text))
        }
    }
}

async fn peer(State(shared): State<Arc<Shared>>) -> Response {
    let about = &shared.about;
    let certificates = about
        .certificates
        .fingerprints()
        .map(|print| HEXLOWER.encode(&print));
    let body = json!({
        "peer": about.peer,
        "run": about.run,
        "certificates": certificates,
        "port": about.port,
        "addresses": about.addresses,
        "title": about.title,
        "about": about.about,
        "task": about.task,
        "parameters": about.parameters,
        "state_bytes": about.state_bytes,
        "data_bytes": about.data_bytes,
        "spans": about.spans,
        "tab_data_limit": TAB_LIMIT,
        "version": env!("CARGO_PKG_VERSION"),
    });
    fresh(Json(body))
}

async fn status(State(shared): State<Arc<Shared>>) -> Response {
    let view = locked(&shared.view);
    fresh(Json(Status::of(&view, shared.begun_ms, unix_ms())))
}

async fn metrics_page(State(shared): State<Arc<Shared>>) -> Response {
    let text = metrics::metrics(&locked(&shared.view), unix_ms());
    let mut answer = fresh(text);
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
    answer
}

/// Whether this peer is paused by hand, and whether the client may change that.
async fn paused(State(shared): State<Arc<Shared>>, ends: Extension<Ends>, headers: HeaderMap) -> Response {
    let may = shared.switch.is_some() && pause::check(*ends, &headers, false).is_ok();
    let paused = shared.switch.as_ref().is_some_and(Switch::is_pressed);
    fresh(Json(json!({"may": may, "paused": paused})))
}

async fn pause_peer(shared: State<Arc<Shared>>, ends: Extension<Ends>, headers: HeaderMap) -> Response {
    press(&shared, *ends, &headers, true)
}

async fn unpause_peer(shared: State<Arc<Shared>>, ends: Extension<Ends>, headers: HeaderMap) -> Response {
    press(&shared, *ends, &headers, false)
}

fn press(shared: &Shared, ends: Ends, headers: &HeaderMap, pressed: bool) -> Response {
    let Some(switch) = &shared.switch else {
        return fresh(StatusCode::NOT_FOUND);
    };
    if let Err(denied) = pause::check(ends, headers, true) {
        return fresh((StatusCode::FORBIDDEN, format!("{denied}\n")));
    }
    match switch.set(pressed) {
        Ok(()) => fresh(StatusCode::NO_CONTENT),
        Err(error) => fresh((StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))),
    }
}

async fn file(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let files = shared.files.clone();
    // The thread of the links does not wait for the disk.
    let answer = tokio::task::spawn_blocking(move || files.answer(request.uri().path(), request.headers()));
    answer
        .await
        .unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

/// An answer that is out of date at once.
fn fresh(answer: impl IntoResponse) -> Response {
    let mut answer = answer.into_response();
    let headers = answer.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

#[cfg(test)]
mod tests;
