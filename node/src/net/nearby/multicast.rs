//! Telling and hearing by multicast DNS (RFC 6762) what services there are (RFC 6763), as the crate `mdns-sd` does it on a
//! thread of its own.
//!
//! It must not know what becomes of what is heard.

use super::announcement::{Announcement, Found, is_told};
use if_addrs::Interface;
use mdns_sd::{IfKind, Receiver, RecvTimeoutError, ScopedIp, ServiceDaemon, ServiceEvent, ServiceInfo};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

/// What the service is called.
const SERVICE: &str = "_annulus._udp.local.";

/// Most members that are listed: whoever floods the network fills no more.
const MAX_FOUND: usize = 256;

/// What is told is told anew no more often than so.
const AGAIN: Duration = Duration::from_secs(10);

/// How long the last packets may take.
const CLOSING: Duration = Duration::from_millis(300);

/// Why nothing can be told or heard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mute {
    /// The peer can be reached from this machine alone.
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

/// Tells others on the network of a run, until it is dropped.
pub struct Announcer {
    daemon: ServiceDaemon,
    told: Announcement,
    told_at: Instant,
    listen: SocketAddr,
    full_name: String,
}

impl Announcer {
    /// Begins to tell of a run whose member listens there.
    ///
    /// # Errors
    ///
    /// If nobody could hear of it, or nobody could come.
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

    /// Tells of so many members from now on, if that is not what it has told, and not long ago.
    pub fn update(&mut self, members: usize, now: Instant) {
        let members = members.try_into().unwrap_or(u32::MAX);
        if members == self.told.members || now.saturating_duration_since(self.told_at) < AGAIN {
            return;
        }
        self.told.members = members;
        self.told_at = now;
        if let Ok(info) = info(&self.told, self.listen) {
            // If it fails, what was told before goes on to be told.
            let _ = self.daemon.register(info);
        }
    }

    /// Says that it is gone. Waits a little, so blocks.
    pub fn end(self) {
        if let Ok(done) = self.daemon.unregister(&self.full_name) {
            let _ = done.recv_timeout(CLOSING);
        }
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        // Its thread ends; those who hear nothing more forget it after two minutes.
        let _ = self.daemon.shutdown();
    }
}

/// Listens for members: for the least time, and if there is none by then that will do, until there is one or the most is over.
/// Blocks.
///
/// # Errors
///
/// If nothing can be heard.
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

/// Takes what is heard until a time, or until there is one that will do.
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

/// Where somebody is; of an address for one link alone also on which it was heard.
fn within(ip: &ScopedIp, port: u16) -> SocketAddr {
    match ip {
        ScopedIp::V6(ip) if ip.addr().is_unicast_link_local() => {
            SocketAddrV6::new(*ip.addr(), port, 0, ip.scope_id().index).into()
        }
        ip => SocketAddr::new(ip.to_ip_addr(), port),
    }
}

/// On all networks that this machine is on.
fn daemon() -> Result<ServiceDaemon, Mute> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let others = |interface: &Interface| interface.is_oper_up() && !interface.is_loopback();
    if !interfaces.iter().any(others) {
        return Err(Mute::NoNetwork);
    }
    let daemon = ServiceDaemon::new()?;
    // What is said there no other machine hears.
    daemon.disable_interface(vec![IfKind::LoopbackV4, IfKind::LoopbackV6])?;
    Ok(daemon)
}

/// The service as it is told. Its names are of the peer and the run, so that no two are the same.
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
    // Nobody else has these names, so nobody need be asked.
    info.set_requires_probe(false);
    Ok(info)
}
