//! Port mapping: asks the router by PCP, NAT-PMP or UPnP for a port that leads to this peer's, renews it while the peer
//! takes part, and removes it at the end. If the process dies, the mapping expires after its lease of an hour.
//!
//! It asks only if this machine has a private IPv4 address. For IPv6 it asks firewalls to let the port in
//! ([`pinholes`](super::pinholes)). It knows nothing of links.

use crate::net::addresses::source_towards;
use crate::net::pcp;
use crate::net::pinholes::Pinholes;
use if_addrs::IfAddr;
use igd_next::{AddPortError, Gateway, PortMappingProtocol, SearchOptions, search_gateway};
use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::num::NonZeroU16;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep, timeout};

/// The lease that it asks for. It renews after half of that.
const LEASE: Duration = Duration::from_secs(3600);

/// How long it waits before it asks again, if a router does not answer or refuses.
const ASK_AGAIN: Duration = Duration::from_secs(300);

/// How often it checks this machine's own address. If it changes, the router must be asked again.
const LOOK: Duration = Duration::from_secs(2);

/// How long a UPnP search waits for answers.
const SEARCH: Duration = Duration::from_secs(3);

/// How long removing a mapping may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// The name that routers show to their owners.
const NAME: &str = "annulus";

/// The protocols for port mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// RFC 6887.
    Pcp,
    /// RFC 6886.
    NatPmp,
    /// The Internet Gateway Device of UPnP.
    Upnp,
}

impl Display for Protocol {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pcp => "PCP",
            Self::NatPmp => "NAT-PMP",
            Self::Upnp => "UPnP",
        })
    }
}

/// Whether a port mapping exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outside {
    /// Nobody has asked for one.
    Unasked,
    /// The router was asked and has not answered yet.
    Asking,
    /// This machine's IPv4 address is public, so no mapping is needed.
    Needless,
    /// Packets to this address are passed on.
    Open {
        /// The address at the router.
        at: SocketAddr,
        /// The protocol that was used.
        by: Protocol,
    },
    /// There is none.
    Closed(Closed),
}

/// Why there is no mapping.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// No address of this machine leads outside.
    #[error("this network has no route to the outside by IPv4")]
    NoRoute,
    /// No router answers.
    #[error("the router forwards no ports: it answers neither PCP nor NAT-PMP nor UPnP")]
    Silent,
    /// A router answers, and refuses.
    #[error("the router does not forward the port: {0}")]
    Refused(String),
}

impl Outside {
    /// The address that others can dial, if there is a mapping.
    pub fn at(&self) -> Option<SocketAddr> {
        match self {
            Self::Open { at, .. } => Some(*at),
            _ => None,
        }
    }
}

/// A port mapping that is kept alive.
pub struct Mapping {
    outside: watch::Receiver<Outside>,
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
    pinholes: Pinholes,
}

impl Mapping {
    /// Starts to ask for a mapping to this UDP port. Must be called within a tokio runtime.
    pub fn begin(port: NonZeroU16) -> Self {
        let (tell, outside) = watch::channel(Outside::Asking);
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(keep(port, tell, ended));
        Self {
            outside,
            end,
            task,
            pinholes: Pinholes::begin(port),
        }
    }

    /// The state of the mapping, now and later.
    pub fn outside(&self) -> watch::Receiver<Outside> {
        self.outside.clone()
    }

    /// Waits until the state is known, but at most this long.
    pub async fn settle(&mut self, limit: Duration) -> Outside {
        let settled = self.outside.wait_for(|outside| *outside != Outside::Asking);
        // On a timeout or if the task is gone, the current state is all that is known.
        let _ = timeout(limit, settled).await;
        self.outside.borrow().clone()
    }

    /// Removes the mapping.
    pub async fn end(self) {
        // If the task is gone, so is the mapping.
        let _ = self.end.send(());
        let _ = timeout(FAREWELL, async { tokio::join!(self.task, self.pinholes.end()) }).await;
    }
}

/// Keeps a mapping alive until it is told to end, and then removes it.
async fn keep(port: NonZeroU16, tell: watch::Sender<Outside>, mut ended: oneshot::Receiver<()>) {
    loop {
        let inner = inner_address();
        let (outside, mut lease) = match inner {
            None => (Outside::Closed(Closed::NoRoute), None),
            Some(ip) if !is_private(ip) => (Outside::Needless, None),
            Some(ip) => tokio::select! {
                asked = ask(SocketAddrV4::new(ip, port.get())) => match asked {
                    Ok((at, lease)) => (Outside::Open { at, by: lease.protocol() }, Some(lease)),
                    Err(closed) => (Outside::Closed(closed), None),
                },
                _ = &mut ended => return,
            },
        };
        tell.send_if_modified(|told| std::mem::replace(told, outside.clone()) != outside);
        let mut again = Instant::now() + if lease.is_some() { LEASE / 2 } else { ASK_AGAIN };
        while inner_address() == inner {
            tokio::select! {
                () = sleep(LOOK) => {}
                _ = &mut ended => {
                    if let Some(lease) = lease {
                        lease.give_back().await;
                    }
                    return;
                }
            }
            if Instant::now() < again {
                continue;
            }
            let Some(lease) = &mut lease else { break };
            if !lease.renew().await {
                break;
            }
            again = Instant::now() + LEASE / 2;
        }
    }
}

/// A port that a router has granted.
enum Lease {
    ByPort(pcp::Port),
    ByUpnp(Box<Upnp>),
}

/// Asks all possible routers. PCP and NAT-PMP answer at once; meanwhile a UPnP search runs.
async fn ask(inner: SocketAddrV4) -> Result<(SocketAddr, Lease), Closed> {
    let found = search(inner);
    let refused = match ask_gateway(inner).await {
        Ok(given) => return Ok(given),
        Err(refused) => refused,
    };
    let Ok(Some(gateway)) = found.await else {
        return Err(refused.map_or(Closed::Silent, Closed::Refused));
    };
    let given = spawn_blocking(move || Upnp::ask(gateway, inner)).await;
    match given {
        Ok(Ok(upnp)) => Ok((upnp.outside, Lease::ByUpnp(Box::new(upnp)))),
        Ok(Err(why)) => Err(Closed::Refused(why)),
        // The task neither panics nor is it aborted.
        Err(_) => Err(Closed::Silent),
    }
}

/// Asks by PCP, then by NAT-PMP. Returns the reason if the router answers and refuses.
async fn ask_gateway(inner: SocketAddrV4) -> Result<(SocketAddr, Lease), Option<String>> {
    let gateway = gateway_of(*inner.ip()).ok_or(None)?;
    let router = SocketAddr::from((gateway, pcp::PORT));
    let port = pcp::Port::ask(router, inner.into(), LEASE)
        .await
        .map_err(|refused| match refused {
            pcp::Refused::Silent => None,
            other => Some(other.to_string()),
        })?;
    if port.outside.ip().is_unspecified() {
        port.give_back().await;
        return Err(Some("it has no address outside".into()));
    }
    Ok((port.outside, Lease::ByPort(port)))
}

/// Searches for a UPnP router, in a thread that nobody has to wait for.
fn search(inner: SocketAddrV4) -> oneshot::Receiver<Option<Gateway>> {
    let (tell, found) = oneshot::channel();
    std::thread::spawn(move || {
        let mut options = SearchOptions::default();
        options.bind_addr = SocketAddr::new((*inner.ip()).into(), 0);
        options.timeout = Some(SEARCH);
        options.single_search_timeout = Some(SEARCH);
        // The receiver may be gone.
        let _ = tell.send(search_gateway(options).ok());
    });
    found
}

impl Lease {
    fn protocol(&self) -> Protocol {
        match self {
            Self::ByUpnp(_) => Protocol::Upnp,
            Self::ByPort(port) => match port.version {
                pcp::Version::Pcp => Protocol::Pcp,
                pcp::Version::NatPmp => Protocol::NatPmp,
            },
        }
    }

    /// Renews the mapping. Returns whether it is unchanged.
    async fn renew(&mut self) -> bool {
        match self {
            Self::ByPort(port) => {
                let before = port.outside;
                port.renew(LEASE).await.is_ok() && port.outside == before
            }
            Self::ByUpnp(upnp) => {
                let upnp = upnp.clone();
                spawn_blocking(move || upnp.renew())
                    .await
                    .is_ok_and(|renewed| renewed)
            }
        }
    }

    /// Removes the mapping. If that fails, it expires by itself.
    async fn give_back(self) {
        match self {
            Self::ByPort(port) => port.give_back().await,
            Self::ByUpnp(upnp) => drop(spawn_blocking(move || upnp.give_back()).await),
        }
    }
}

/// A UPnP mapping. Its methods block until the router answers.
#[derive(Clone)]
struct Upnp {
    gateway: Gateway,
    inner: SocketAddr,
    outside: SocketAddr,
    lease_s: u32,
}

impl Upnp {
    /// Asks for the same port, or for another one if that is taken.
    fn ask(gateway: Gateway, inner: SocketAddrV4) -> Result<Self, String> {
        let ip = gateway.get_external_ip().map_err(|error| error.to_string())?;
        if ip.is_unspecified() {
            return Err("it has no address outside".into());
        }
        let (inner, port) = (SocketAddr::V4(inner), inner.port());
        let mut upnp = Self {
            gateway,
            inner,
            outside: SocketAddr::new(ip, port),
            lease_s: LEASE.as_secs() as u32,
        };
        let mut added = upnp.add();
        if matches!(added, Err(AddPortError::OnlyPermanentLeasesSupported)) {
            upnp.lease_s = 0;
            added = upnp.add();
        }
        match added {
            Ok(()) => return Ok(upnp),
            Err(AddPortError::PortInUse) => {}
            Err(error) => return Err(error.to_string()),
        }
        let udp = PortMappingProtocol::UDP;
        let any = upnp.gateway.add_any_port(udp, inner, upnp.lease_s, NAME);
        upnp.outside.set_port(any.map_err(|error| error.to_string())?);
        Ok(upnp)
    }

    fn add(&self) -> Result<(), AddPortError> {
        let (udp, port) = (PortMappingProtocol::UDP, self.outside.port());
        self.gateway.add_port(udp, port, self.inner, self.lease_s, NAME)
    }

    fn renew(&self) -> bool {
        let ip = self.gateway.get_external_ip();
        self.add().is_ok() && ip.is_ok_and(|ip| ip == self.outside.ip())
    }

    fn give_back(&self) {
        let udp = PortMappingProtocol::UDP;
        let _ = self.gateway.remove_port(udp, self.outside.port());
    }
}

/// This machine's source address of packets to the outside. Nothing is sent.
fn inner_address() -> Option<Ipv4Addr> {
    // Reserved for documentation: routed like any outside address, owned by nobody.
    let outside = SocketAddr::from(([192, 0, 2, 1], 9));
    match source_towards(outside).ok()? {
        IpAddr::V4(ip) if !ip.is_loopback() && !ip.is_unspecified() => Some(ip),
        _ => None,
    }
}

/// Whether an address is private: RFC 1918, or RFC 6598 for providers.
pub fn is_private(ip: Ipv4Addr) -> bool {
    let [a, b, ..] = ip.octets();
    ip.is_private() || ip.is_link_local() || (a == 100 && b & 0xc0 == 64)
}

/// The router's address: from the system's file of routes if there is one, else the first address of the network, where
/// most routers are.
fn gateway_of(inner: Ipv4Addr) -> Option<Ipv4Addr> {
    let routes = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    default_gateway(&routes).or_else(|| {
        let all = if_addrs::get_if_addrs().ok()?;
        all.into_iter().find_map(|interface| match interface.addr {
            IfAddr::V4(own) if own.ip == inner => Some(first_of(inner, own.netmask)),
            _ => None,
        })
    })
}

/// Reads Linux's table of routes, which has numbers in the machine's byte order in hexadecimal.
fn default_gateway(routes: &str) -> Option<Ipv4Addr> {
    routes.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (to, via) = (words.next()?, words.next()?);
        let via = u32::from_str_radix(via, 16).ok()?;
        (to == "00000000" && via != 0).then(|| Ipv4Addr::from(via.to_ne_bytes()))
    })
}

fn first_of(ip: Ipv4Addr, netmask: Ipv4Addr) -> Ipv4Addr {
    Ipv4Addr::from((u32::from(ip) & u32::from(netmask)) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_router_is_where_the_routes_lead() {
        let ip = |text: &str| text.parse::<Ipv4Addr>().unwrap();
        let hex = |text: &str| format!("{:08X}", u32::from_ne_bytes(ip(text).octets()));
        let head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT";
        let route =
            |to: &str, via: &str| format!("eth0\t{}\t{}\t0003\t0\t0\t0\t0\t0\t0\t0", hex(to), hex(via));
        let near = route("192.168.7.0", "0.0.0.0");
        let routes = format!("{head}\n{near}\n{}\n", route("0.0.0.0", "192.168.7.254"));
        assert_eq!(default_gateway(&routes), Some(ip("192.168.7.254")));
        assert_eq!(default_gateway(&format!("{head}\n{near}\n")), None);
        assert_eq!(default_gateway(""), None);
        assert_eq!(
            first_of(ip("192.168.7.9"), ip("255.255.255.0")),
            ip("192.168.7.1")
        );
    }

    #[test]
    fn private_is_what_others_cannot_reach() {
        for (text, private) in [
            ("10.0.0.1", true),
            ("172.31.0.1", true),
            ("192.168.1.1", true),
            ("100.64.0.1", true),
            ("100.127.0.1", true),
            ("169.254.0.1", true),
            ("100.128.0.1", false),
            ("172.32.0.1", false),
            ("9.9.9.9", false),
        ] {
            assert_eq!(is_private(text.parse().unwrap()), private, "{text}");
        }
    }
}
