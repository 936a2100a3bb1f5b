//! Configures QUIC: TLS with certificates on both sides, or for tabs on ours alone; sockets; and transport parameters
//! for the two kinds of path. It knows nothing of the handshake above TLS, nor of frames.

use crate::net::addresses::source_towards;
use crate::net::certificates::Certificates;
use crate::net::congestion::{self, Congestion, Uplink};
use crate::net::identity::{Identity, peer_of};
use crate::net::line::{Line, OnLine};
use crate::net::socket::{Pace, Sockets};
use annulus_core::PeerId;
use quinn::{
    AckFrequencyConfig, ClientConfig, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig,
    TransportConfig, VarInt,
    crypto::rustls::{HandshakeData, QuicClientConfig, QuicServerConfig},
};
use rustls::{
    CipherSuite, DigitallySignedStruct, DistinguishedName, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{
        ClientHello, ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

/// The application protocol of native peers. Its number is that of the whole wire format.
const ALPN: &[u8] = b"annulus/1";

/// The application protocol of peers that have a code but no ticket yet.
const ALPN_CODE: &[u8] = b"annulus-code/1";

/// The application protocol of tabs: HTTP/3, and WebTransport in it.
const ALPN_TAB: &[u8] = web_transport_quinn::ALPN.as_bytes();

/// The size to request for the socket's send and receive buffers. The system may give less. With 200 KiB (Linux's
/// default) a receiver that is off the processor for a millisecond loses packets; 4 MiB is Linux's usual maximum.
const SOCKET_BUFFER: usize = 4 << 20;

/// Bytes that one peer may send us before it has proved that it belongs to the run.
const WINDOW_BEFORE_HANDSHAKE: u32 = 64 << 10;

/// Window of each lane's stream: 16 MiB are 50 ms at 2.5 Gbit/s, and more than the longest frame.
const STREAM_WINDOW: u32 = 16 << 20;

/// Window of a connection after the handshake: if one lane is full, the other has as much.
pub(crate) const WINDOW: u32 = 2 * STREAM_WINDOW;

/// Bytes of ours that QUIC keeps per connection until they are acknowledged. The receiver's window limits each lane to
/// [`STREAM_WINDOW`], so a stuck bulk lane leaves room for the control lane.
pub(crate) const SEND_WINDOW: u64 = WINDOW as u64;

/// Largest UDP payload on IPv4, and so the largest for both families.
const LARGEST_PAYLOAD: u16 = 65507;

/// UDP payload of a full Ethernet packet on IPv4. On IPv6, discovery ends slightly below.
const ETHERNET_PAYLOAD: u16 = 1472;

/// On a network: packets that arrive before one acknowledgement is sent. In a ring every link carries data one way and
/// acknowledgements the other; one for every two packets would take 3 % of it.
const ACK_EVERY: u32 = 8;

/// Longest that an acknowledgement waits for more packets.
const ACK_WITHIN: Duration = Duration::from_millis(5);

/// Bytes of unread QUIC datagrams to keep. A browser may rely on one packet at least.
const DATAGRAMS: usize = 2048;

/// How the two kinds of path differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// Both ends on this machine: datagrams of up to 64 KiB, which reduce system calls and per-packet work.
    /// Segmentation offload is off, since above 6.5 KB its batches would exceed a datagram and be lost.
    Local,
    /// Anything else: packets as long as discovery finds, up to Ethernet's 1500 bytes, with segmentation offload.
    Network,
}

impl Path {
    /// The kind of path to `remote`, before there is a connection. Sends nothing.
    pub(crate) fn to(remote: SocketAddr) -> Self {
        Self::between(source_towards(remote).ok(), remote.ip())
    }

    /// The kind of path between these addresses.
    pub(crate) fn between(local: Option<IpAddr>, remote: IpAddr) -> Self {
        let remote = remote.to_canonical();
        if remote.is_loopback() || local.map(|ip| ip.to_canonical()) == Some(remote) {
            Self::Local
        } else {
            Self::Network
        }
    }
}

/// The configurations of an endpoint, for both directions and both kinds of path.
pub(crate) struct Configs {
    client: [ClientConfig; 2],
    server: Option<[Arc<ServerConfig>; 2]>,
    /// The line that all connections over the network share.
    uplink: Arc<Uplink>,
}

impl Configs {
    /// For dialling, and for accepting if there are certificates for tabs. Behind a slow line, even an emulated one,
    /// all peers count as far away.
    pub(crate) fn new(
        identity: &Identity,
        idle: Duration,
        carried: (Congestion, Option<Line>),
        certificates: Option<Arc<Certificates>>,
    ) -> Self {
        Self::speaking(ALPN, identity, idle, carried, certificates)
    }

    /// For dialling with a code.
    pub(crate) fn for_code(identity: &Identity, idle: Duration) -> Self {
        Self::speaking(ALPN_CODE, identity, idle, (Congestion::default(), None), None)
    }

    fn speaking(
        protocol: &[u8],
        identity: &Identity,
        idle: Duration,
        (congestion, line): (Congestion, Option<Line>),
        certificates: Option<Arc<Certificates>>,
    ) -> Self {
        let provider = Arc::new(provider());
        let verifier = Arc::new(AnyKey(provider.clone()));
        let own = CertifiedKey::from_der(
            vec![identity.certificate()],
            identity.private_key().into(),
            &provider,
        )
        .map(Arc::new)
        .expect("an identity's key and certificate fit");

        let mut client = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider has TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_client_auth_cert(own.cert.clone(), identity.private_key().into())
            .expect("an identity's key and certificate fit");
        client.alpn_protocols = vec![protocol.to_vec()];
        // Proofs are bound to a session's own key exchange, so no session is ever resumed.
        client.resumption = Resumption::disabled();
        let client =
            Arc::new(QuicClientConfig::try_from(client).expect("the provider has QUIC's first suite"));

        let uplink = Arc::new(Uplink::default());
        let transport = [Path::Local, Path::Network].map(|path| {
            let path = if line.is_some() { Path::Network } else { path };
            Arc::new(transport(path, idle, (congestion, &uplink)))
        });
        let server = certificates.map(|tabs| {
            let mut server = rustls::ServerConfig::builder_with_provider(provider)
                .with_protocol_versions(&[&rustls::version::TLS13])
                .expect("the provider has TLS 1.3")
                .with_client_cert_verifier(verifier)
                .with_cert_resolver(Arc::new(ByProtocol { own, tabs }));
            server.alpn_protocols = vec![ALPN.to_vec(), ALPN_CODE.to_vec(), ALPN_TAB.to_vec()];
            server.send_tls13_tickets = 0;
            let server =
                Arc::new(QuicServerConfig::try_from(server).expect("the provider has QUIC's first suite"));
            transport.clone().map(|transport| {
                let mut config = ServerConfig::with_crypto(server.clone());
                config
                    .transport_config(transport)
                    .max_incoming(MAX_INCOMING)
                    .migration(true);
                config
                    .incoming_buffer_size(64 << 10)
                    .incoming_buffer_size_total(4 << 20);
                Arc::new(config)
            })
        });
        Self {
            client: transport.map(|transport| {
                let mut config = ClientConfig::new(client.clone());
                config.transport_config(transport);
                config
            }),
            server,
            uplink,
        }
    }

    /// The most that this machine's line has carried to others, in bytes per second; 0 if that is unknown.
    pub(crate) fn carried(&self) -> u64 {
        self.uplink.most()
    }

    pub(crate) fn client(&self, path: Path) -> ClientConfig {
        self.client[path as usize].clone()
    }

    /// `None` if these are only for dialling.
    pub(crate) fn server(&self, path: Path) -> Option<Arc<ServerConfig>> {
        Some(self.server.as_ref()?[path as usize].clone())
    }
}

/// Native peers see our own certificate, tabs one that they have pinned.
#[derive(Debug)]
struct ByProtocol {
    own: Arc<CertifiedKey>,
    tabs: Arc<Certificates>,
}

impl ResolvesServerCert for ByProtocol {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if hello
            .alpn()?
            .any(|protocol| protocol == ALPN || protocol == ALPN_CODE)
        {
            Some(self.own.clone())
        } else {
            Some(self.tabs.present())
        }
    }
}

/// Connection attempts that wait to be handled. QUIC drops further ones.
const MAX_INCOMING: usize = 256;

/// An endpoint on a new socket at `listen`, for dialling. [`quinn::Endpoint::set_server_config`] lets it accept too.
/// With `small_packets` it takes no packets longer than those of a network, which needs little memory.
pub(crate) fn endpoint(
    listen: SocketAddr,
    line: Option<Line>,
    small_packets: bool,
    pace: Pace,
) -> io::Result<quinn::Endpoint> {
    let socket = Socket::new(Domain::for_address(listen), Type::DGRAM, Some(Protocol::UDP))?;
    if listen.is_ipv6() {
        // One socket for both families. Where the system does not allow that, IPv6 alone is still useful.
        let _ = socket.set_only_v6(false);
    }
    // A smaller buffer costs speed, not correctness.
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
    socket.bind(&listen.into())?;
    let mut config = EndpointConfig::default();
    config
        .max_udp_payload_size(match small_packets {
            false => LARGEST_PAYLOAD,
            true => ETHERNET_PAYLOAD,
        })
        .expect("a constant within QUIC's limits");
    let sockets = Sockets(pace);
    let runtime: Arc<dyn quinn::Runtime> = match line {
        None => Arc::new(sockets),
        Some(line) => Arc::new(OnLine { line, sockets }),
    };
    quinn::Endpoint::new(config, None, socket.into(), runtime)
}

/// An endpoint on any socket, only for dialling.
pub(crate) fn dialling_endpoint() -> io::Result<quinn::Endpoint> {
    let any = |octets: IpAddr| endpoint(SocketAddr::new(octets, 0), None, true, Pace::default());
    any([0u16; 8].into()).or_else(|_| any([0; 4].into()))
}

/// Whether TLS has negotiated the protocol of tabs.
pub(crate) fn speaks_http3(connection: &quinn::Connection) -> bool {
    speaks(connection, ALPN_TAB)
}

/// Whether TLS has negotiated the protocol of peers with a code.
pub(crate) fn brings_code(connection: &quinn::Connection) -> bool {
    speaks(connection, ALPN_CODE)
}

fn speaks(connection: &quinn::Connection, protocol: &[u8]) -> bool {
    let data = connection
        .handshake_data()
        .and_then(|data| data.downcast::<HandshakeData>().ok());
    data.is_some_and(|data| data.protocol.as_deref() == Some(protocol))
}

/// The peer at the other end, by the key that signed the TLS handshake.
pub(crate) fn peer_at(connection: &quinn::Connection) -> Option<PeerId> {
    let chain = connection
        .peer_identity()?
        .downcast::<Vec<CertificateDer<'static>>>()
        .ok()?;
    peer_of(chain.first()?)
}

fn transport(
    path: Path,
    idle: Duration,
    (congestion, uplink): (Congestion, &Arc<Uplink>),
) -> TransportConfig {
    let mut config = TransportConfig::default();
    config
        .max_idle_timeout(Some(
            IdleTimeout::try_from(idle).expect("an idle timeout of less than 2^62 ms"),
        ))
        .keep_alive_interval(Some(idle.mul_f64(0.3)))
        // The dialler opens one two-way stream for each lane. A tab needs one more for its session, and HTTP/3's three
        // one-way streams: for settings and for both directions of header compression.
        .max_concurrent_bidi_streams(VarInt::from_u32(3))
        .max_concurrent_uni_streams(VarInt::from_u32(3))
        // WebTransport demands that datagrams may be sent. Nobody reads them; new ones displace old ones.
        .datagram_receive_buffer_size(Some(DATAGRAMS))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(WINDOW_BEFORE_HANDSHAKE))
        .send_window(SEND_WINDOW);
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(VarInt::from_u32(ACK_EVERY))
        .max_ack_delay(Some(ACK_WITHIN));
    config.ack_frequency_config(Some(acks));
    match path {
        Path::Local => {
            let mut discovery = MtuDiscoveryConfig::default();
            discovery.upper_bound(LARGEST_PAYLOAD);
            config
                .mtu_discovery_config(Some(discovery))
                .enable_segmentation_offload(false)
                .congestion_controller_factory(congestion::local());
        }
        Path::Network => {
            let mut discovery = MtuDiscoveryConfig::default();
            discovery.upper_bound(ETHERNET_PAYLOAD);
            config
                .mtu_discovery_config(Some(discovery))
                .congestion_controller_factory(congestion.factory(uplink));
        }
    }
    config
}

/// Cryptography by aws-lc-rs, with AES-128 first: strong enough here, and the fastest on processors with AES
/// instructions.
fn provider() -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|suite| suite.tls13().is_some());
    provider
        .cipher_suites
        .sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    provider
}

/// Accepts any certificate, from either side, whose key signs the handshake. Whether the peer may take part is decided
/// later: by its id if one is expected, and by the proof of the ticket's secret.
#[derive(Debug)]
pub(crate) struct AnyKey(pub(crate) Arc<CryptoProvider>);

impl AnyKey {
    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        peer_of(certificate)
            .map(drop)
            .ok_or(rustls::CertificateError::BadEncoding.into())
    }

    fn check_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn no_tls12() -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::PeerIncompatible::ServerDoesNotSupportTls12Or13.into())
    }
}

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Self::no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.check_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    /// Tabs have none to show. Native peers without one are refused in the handshake.
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Self::no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.check_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_local_only_where_both_ends_are_this_machine() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (local, remote, expected) in [
            (None, "127.0.0.1", Path::Local),
            (None, "::1", Path::Local),
            (None, "::ffff:127.0.0.1", Path::Local),
            (Some("192.0.2.1"), "192.0.2.1", Path::Local),
            (Some("::ffff:192.0.2.1"), "192.0.2.1", Path::Local),
            (Some("192.0.2.1"), "192.0.2.2", Path::Network),
            (None, "2001:db8::1", Path::Network),
        ] {
            assert_eq!(
                Path::between(local.map(ip), ip(remote)),
                expected,
                "{local:?} {remote}"
            );
        }
        assert_eq!(Path::to("127.0.0.1:9".parse().unwrap()), Path::Local);
    }
}
