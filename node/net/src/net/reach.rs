//! Explains to the user from where others can reach this peer, and why not from elsewhere.

use crate::net::mapping::{Outside, is_private};
use std::net::{IpAddr, SocketAddr};

/// How peers that cannot dial this peer connect to it.
const OTHERWISE: &str = "peers elsewhere connect through a member that both can reach";

/// The explanation for these own addresses and this state of the port mapping.
pub fn words(own: &[SocketAddr], outside: &Outside) -> String {
    let own = || {
        own.iter()
            .map(|at| at.ip().to_canonical())
            .filter(|ip| !ip.is_loopback())
    };
    if own().next().is_none() {
        return "from this machine only, as it listens on no other address".into();
    }
    let by_ipv6 = match own().any(is_global_ipv6) {
        true => ", and by IPv6 wherever firewalls let UDP through",
        false => "",
    };
    match outside {
        Outside::Open { at, by } if is_behind_another(*at) => format!(
            "from this network and the next one outside, whose router forwards {at} ({by}){by_ipv6}; another router is in \
             front of that, so {OTHERWISE}"
        ),
        Outside::Open { at, by } => format!("from anywhere: the router forwards {at} ({by}){by_ipv6}"),
        Outside::Needless => "from anywhere, unless a firewall blocks UDP".into(),
        Outside::Closed(why) => format!("from this network{by_ipv6}; {why}, so {OTHERWISE}"),
        Outside::Asking => {
            format!("from this network{by_ipv6}; the router has not answered yet whether it forwards a port")
        }
        Outside::Unasked => {
            format!("from this network{by_ipv6}; no router was asked to forward a port, so {OTHERWISE}")
        }
    }
}

fn is_behind_another(router: SocketAddr) -> bool {
    matches!(router.ip(), IpAddr::V4(ip) if is_private(ip))
}

fn is_global_ipv6(ip: IpAddr) -> bool {
    // 2000::/3, the only block that is assigned.
    matches!(ip, IpAddr::V6(ip) if ip.segments()[0] & 0xe000 == 0x2000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::mapping::{Closed, Protocol};

    #[test]
    fn it_is_said_from_where_and_why_not_from_elsewhere() {
        let all =
            |texts: &[&str]| -> Vec<SocketAddr> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        let open = |at: &str| Outside::Open {
            at: at.parse().unwrap(),
            by: Protocol::Upnp,
        };
        let home = ["192.168.1.2:1", "127.0.0.1:1"];
        for (own, outside, says, not) in [
            (
                &home[..],
                open("9.9.9.9:1"),
                "from anywhere: the router forwards 9.9.9.9:1 (UPnP)",
                "IPv6",
            ),
            (
                &home[..],
                open("100.64.0.9:1"),
                "another router is in front",
                "anywhere",
            ),
            (
                &home[..],
                Outside::Closed(Closed::Silent),
                "forwards no ports",
                "anywhere",
            ),
            (
                &["[2001:db8::1]:1", home[0]],
                Outside::Closed(Closed::Silent),
                "by IPv6",
                "anywhere",
            ),
            (
                &["[fd00::1]:1", home[0]],
                Outside::Unasked,
                "no router was asked",
                "IPv6",
            ),
            (&home[1..], Outside::Unasked, "this machine only", "router"),
            (&["9.9.9.9:1"], Outside::Needless, "unless a firewall", "router"),
        ] {
            let told = words(&all(own), &outside);
            assert!(told.contains(says) && !told.contains(not), "{told}");
        }
    }
}
