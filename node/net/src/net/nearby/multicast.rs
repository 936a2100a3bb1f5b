//! Announces and finds services (RFC 6763) by multicast DNS (RFC 6762), with the crate `mdns-sd` on a thread of its
//! own.
//!
//! It does not know how the results are used.

use super::announcement::{Announcement, Found, is_told};
use if_addrs::Interface;
use mdns_sd::{IfKind, Receiver, RecvTimeoutError, ScopedIp, ServiceDaemon, ServiceEvent, ServiceInfo};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

/// The name of the service.
const SERVICE: &str = "_annulus._udp.local.";

/// Most members that are listed, so that nobody can fill the memory by flooding the network.
const MAX_FOUND: usize = 256;

/// Shortest time between two announcements.
const AGAIN: Duration = Duration::from_secs(10);

/// How long the last packets may take.
const CLOSING: Duration = Duration::from_millis(300);

/// Why nothing can be announced or found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mute {
    /// The peer can be reached only from this machine.
    #[error("only this machine can reach it")]
    Alone,
    /// There is no network.
    #[error("this machine is on no network")]
    NoNetwork,
    /// Multicast DNS does not work.
    #[error("{0}")]
    Failed(String),
}

impl From<mdns_sd::Error> for Mute {
    fn from(error: mdns_sd::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Announces a run on the network until it is dropped.
pub struct Announcer {
    daemon: ServiceDaemon,
    told: Announcement,
    told_at: Instant,
    listen: SocketAddr,
    full_name: String,
}

impl Announcer {
    /// Starts to announce a run whose member listens on this address.
    ///
    /// # Errors
    ///
    /// If nobody could receive it, or nobody could connect.
    pub fn start(listen: SocketAddr, told: Announcement) -> Result<Self, Mute> {
        if listen.ip().is_loopback() {
            return Err(Mute::Alone);
        }
        let info = info(&told, listen)?;
        let full_name = info.get_fullname().to_owned();
        let daemon = daemon()?;
        daemon.register(info)?;
        Ok(Self {
            daemon,
            told,
            told_at: Instant::now(),
            listen,
            full_name,
        })
    }

    /// Updates the number of members, unless it is unchanged or was announced a moment ago.
    pub fn update(&mut self, members: usize, now: Instant) {
        let members = members.try_into().unwrap_or(u32::MAX);
        if members == self.told.members || now.saturating_duration_since(self.told_at) < AGAIN {
            return;
        }
        self.told.members = members;
        self.told_at = now;
        if let Ok(info) = info(&self.told, self.listen) {
            // If this fails, the old announcement stays.
            let _ = self.daemon.register(info);
        }
    }

    /// Announces the end. Blocks for a short time.
    pub fn end(self) {
        if let Ok(done) = self.daemon.unregister(&self.full_name) {
            let _ = done.recv_timeout(CLOSING);
        }
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        // Ends its thread. Others forget the announcement after two minutes.
        let _ = self.daemon.shutdown();
    }
}

/// Listens for members: at least for `least`, and then until one is found that `will_do`, but at most for `most`.
/// Blocks.
///
/// # Errors
///
/// If nothing can be received.
pub fn listen(least: Duration, most: Duration, will_do: impl Fn(&Found) -> bool) -> Result<Vec<Found>, Mute> {
    let daemon = daemon()?;
    let heard = daemon.browse(SERVICE)?;
    let start = Instant::now();
    let mut members: BTreeMap<String, Found> = BTreeMap::new();
    hear(&heard, start + least, &mut members, |_| false);
    hear(&heard, start + most, &mut members, will_do);
    if let Ok(done) = daemon.shutdown() {
        let _ = done.recv_timeout(CLOSING);
    }
    Ok(members.into_values().collect())
}

/// Collects announcements until a time, or until one will do.
fn hear(
    heard: &Receiver<ServiceEvent>,
    until: Instant,
    members: &mut BTreeMap<String, Found>,
    will_do: impl Fn(&Found) -> bool,
) {
    while !members.values().any(&will_do) {
        match heard.recv_deadline(until) {
            Ok(ServiceEvent::ServiceResolved(service)) => {
                let told = Announcement::read(|key| service.get_property_val_str(key));
                let at = service.get_addresses().iter();
                let at = at.map(|ip| within(ip, service.get_port()));
                let found = told.and_then(|told| Found::new(told, at));
                let room = members.len() < MAX_FOUND || members.contains_key(service.get_fullname());
                if let Some(found) = found.filter(|_| room) {
                    members.insert(service.get_fullname().to_owned(), found);
                }
            }
            Ok(ServiceEvent::ServiceRemoved(_, full_name)) => drop(members.remove(&full_name)),
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// A member's address. A link-local one includes the network on which it was heard.
fn within(ip: &ScopedIp, port: u16) -> SocketAddr {
    match ip {
        ScopedIp::V6(ip) if ip.addr().is_unicast_link_local() => {
            SocketAddrV6::new(*ip.addr(), port, 0, ip.scope_id().index).into()
        }
        ip => SocketAddr::new(ip.to_ip_addr(), port),
    }
}

/// Works on all networks of this machine.
fn daemon() -> Result<ServiceDaemon, Mute> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let others = |interface: &Interface| interface.is_oper_up() && !interface.is_loopback();
    if !interfaces.iter().any(others) {
        return Err(Mute::NoNetwork);
    }
    let daemon = ServiceDaemon::new()?;
    // No other machine hears what is sent there.
    daemon.disable_interface(vec![IfKind::LoopbackV4, IfKind::LoopbackV6])?;
    Ok(daemon)
}

/// The announced service. Its name contains those of the peer and the run, so no two are equal.
fn info(told: &Announcement, listen: SocketAddr) -> Result<ServiceInfo, Mute> {
    let name = format!("{}-{}", told.run, told.peer);
    let host = format!("annulus-{}.local.", told.peer);
    let ips: Vec<IpAddr> = match listen.ip() {
        ip if is_told(ip) => vec![ip],
        _ => Vec::new(),
    };
    let wild = ips.is_empty();
    let info = ServiceInfo::new(
        SERVICE,
        &name,
        &host,
        &ips[..],
        listen.port(),
        &told.properties()[..],
    )?;
    let mut info = if wild { info.enable_addr_auto() } else { info };
    // The names are unique, so there is no need to probe for conflicts.
    info.set_requires_probe(false);
    Ok(info)
}
