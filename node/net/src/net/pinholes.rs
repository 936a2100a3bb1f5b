//! Opens firewalls for IPv6. Addresses are not translated there, but a home router usually blocks packets that answer
//! nothing. If it speaks PCP, this peer asks it to let its port in for each global address, renews that while it takes
//! part, and removes it at the end.
//!
//! Other peers need no news of this, since the addresses stay the same. Works on Linux, where the router can be found.

use crate::net::pcp::{self, Port};
use if_addrs::IfAddr;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU16;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// The lease that it asks for. It renews after half of that.
const LEASE: Duration = Duration::from_secs(3600);

/// How long it waits before it asks again, if a router does not answer or refuses.
const ASK_AGAIN: Duration = Duration::from_secs(300);

/// How often it checks this machine's own addresses.
const LOOK: Duration = Duration::from_secs(2);

/// Addresses to ask for. A machine has a lasting one, and some that change every day.
const ADDRESSES: usize = 4;

/// Pinholes that are kept open.
pub struct Pinholes {
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Pinholes {
    /// Starts to ask for pinholes to this UDP port. Must be called within a tokio runtime.
    pub fn begin(port: NonZeroU16) -> Self {
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(keep(port, ended));
        Self { end, task }
    }

    /// Removes them.
    pub async fn end(self) {
        // If the task is gone, there are none.
        let _ = self.end.send(());
        let _ = self.task.await;
    }
}

async fn keep(port: NonZeroU16, mut ended: oneshot::Receiver<()>) {
    loop {
        let seen = addresses();
        let mut open = tokio::select! {
            open = ask_all(&seen, port) => open,
            _ = &mut ended => return,
        };
        let mut again = Instant::now() + if open.is_empty() { ASK_AGAIN } else { LEASE / 2 };
        // When the addresses change, it asks again. Pinholes of former addresses end with their lease.
        while addresses() == seen {
            tokio::select! {
                () = sleep(LOOK) => {}
                _ = &mut ended => {
                    for hole in open {
                        hole.give_back().await;
                    }
                    return;
                }
            }
            if Instant::now() < again {
                continue;
            }
            if open.is_empty() {
                break;
            }
            for hole in &mut open {
                // If this fails, the next renewal may still be in time.
                let _ = hole.renew(LEASE).await;
            }
            again = Instant::now() + LEASE / 2;
        }
    }
}

async fn ask_all(addresses: &[Ipv6Addr], port: NonZeroU16) -> Vec<Port> {
    let mut open = Vec::new();
    let Some(router) = router().filter(|_| !addresses.is_empty()) else {
        return open;
    };
    for address in addresses {
        let inner = SocketAddr::from((*address, port.get()));
        match Port::ask(router.into(), inner, LEASE).await {
            // A pinhole at another address is of no use.
            Ok(hole) if hole.outside == inner => {
                tracing::debug!("the router lets {inner} in");
                open.push(hole);
            }
            Ok(hole) => hole.give_back().await,
            Err(pcp::Refused::Silent) => break,
            Err(refused) => tracing::debug!("the router does not let {inner} in: {refused}"),
        }
    }
    open
}

/// The global addresses of this machine, in order.
fn addresses() -> Vec<Ipv6Addr> {
    let all = if_addrs::get_if_addrs().unwrap_or_default();
    let mut seen: Vec<Ipv6Addr> = all
        .iter()
        .filter_map(|interface| match &interface.addr {
            IfAddr::V6(own) if is_global(own.ip) => Some(own.ip),
            _ => None,
        })
        .collect();
    seen.sort_unstable();
    seen.dedup();
    seen.truncate(ADDRESSES);
    seen
}

/// Whether the address is in 2000::/3, the block that all global addresses come from so far.
fn is_global(ip: Ipv6Addr) -> bool {
    ip.segments()[0] & 0xe000 == 0x2000
}

/// The router's address for PCP, if the system reports one.
fn router() -> Option<SocketAddrV6> {
    let routes = std::fs::read_to_string("/proc/net/ipv6_route").ok()?;
    let (via, interface) = default_route(&routes)?;
    let index = std::fs::read_to_string(format!("/sys/class/net/{interface}/ifindex")).ok()?;
    // Most routers have a link-local address.
    Some(SocketAddrV6::new(via, pcp::PORT, 0, index.trim().parse().ok()?))
}

/// Reads Linux's table of routes, which has addresses as 32 hexadecimal digits.
fn default_route(routes: &str) -> Option<(Ipv6Addr, &str)> {
    routes.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [to, "00", _, _, via, .., interface] = words.as_slice() else {
            return None;
        };
        let via = Ipv6Addr::from(u128::from_str_radix(via, 16).ok()?);
        (to.bytes().all(|digit| digit == b'0') && !via.is_unspecified()).then_some((via, *interface))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_router_is_where_the_routes_lead() {
        let zeros = "0".repeat(32);
        let line = |to: &str, length: &str, via: &str, interface: &str| {
            format!("{to} {length} {zeros} 00 {via} 00000400 00000001 00000000 00000003 {interface:>8}")
        };
        let local = "fe800000000000000000000000000001";
        let near = line("20010db8000000000000000000000000", "40", &zeros, "eth0");
        let routes = [
            near.clone(),
            line(&zeros, "00", &zeros, "lo"),
            line(&zeros, "00", local, "wlan0"),
        ];
        assert_eq!(
            default_route(&routes.join("\n")),
            Some(("fe80::1".parse().unwrap(), "wlan0"))
        );
        assert_eq!(default_route(&near), None);
        assert_eq!(default_route(""), None);
    }

    #[test]
    fn only_addresses_that_the_outside_sees_are_asked_for() {
        for (text, global) in [
            ("2001:db8::1", true),
            ("3fff::1", true),
            ("fe80::1", false),
            ("fd00::1", false),
            ("::1", false),
            ("4000::1", false),
        ] {
            assert_eq!(is_global(text.parse().unwrap()), global, "{text}");
        }
    }
}
