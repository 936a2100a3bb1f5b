//! Ways in by IPv6: nobody translates addresses there, but a home's router usually lets nothing in that answers nothing. One
//! that takes PCP is asked to let this peer's port in, for each address that the outside can see; that is renewed while the
//! peer takes part, and taken back at its end.
//!
//! Others need not be told of anything: the addresses are this machine's own. On Linux, where the router is to be found.

use crate::net::pcp::{self, Port};
use if_addrs::IfAddr;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU16;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// For how long a router is asked; it is asked again after half of that.
const LEASE: Duration = Duration::from_secs(3600);

/// A router that does not answer, or refuses, is asked again after so long.
const ASK_AGAIN: Duration = Duration::from_secs(300);

/// This machine's own addresses are looked at so often.
const LOOK: Duration = Duration::from_secs(2);

/// Addresses that are asked for: a machine has a lasting one and some that change every day.
const ADDRESSES: usize = 4;

/// Pinholes that are kept open.
pub struct Pinholes {
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Pinholes {
    /// Begins to ask for ways to this UDP port. Must be called within a tokio runtime.
    pub fn begin(port: NonZeroU16) -> Self {
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(keep(port, ended));
        Self { end, task }
    }

    /// Gives them back.
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
        // With other addresses they are asked for anew; those that are gone end with their lease.
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
                // If it fails, the next time may be early enough.
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
            // Elsewhere nobody looks for it.
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

/// The addresses of this machine that mean something outside, in order.
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

/// Of the block that the world's addresses are from, so far: 2000::/3.
fn is_global(ip: Ipv6Addr) -> bool {
    ip.segments()[0] & 0xe000 == 0x2000
}

/// Where the router listens, if the system says where it is.
fn router() -> Option<SocketAddrV6> {
    let routes = std::fs::read_to_string("/proc/net/ipv6_route").ok()?;
    let (via, interface) = default_route(&routes)?;
    let index = std::fs::read_to_string(format!("/sys/class/net/{interface}/ifindex")).ok()?;
    // Most routers are known by an address that means something on their own wire alone.
    Some(SocketAddrV6::new(via, pcp::PORT, 0, index.trim().parse().ok()?))
}

/// Of Linux's table of routes, addresses as 32 hexadecimal digits.
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
