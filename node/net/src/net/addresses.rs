//! This machine's addresses, as the system reports them. Nothing is sent to find them.

use if_addrs::Interface;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6, UdpSocket};

/// The wildcard address at which one socket receives for all of this machine's addresses: of both families if the
/// system has both.
pub fn everywhere(port: u16) -> SocketAddr {
    let any = |octets: IpAddr, port| SocketAddr::new(octets, port);
    let both = || {
        let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_only_v6(false)?;
        socket.bind(&any([0u16; 8].into(), 0).into())
    };
    match both() {
        Ok(()) => any([0u16; 8].into(), port),
        Err(_) => any([0; 4].into(), port),
    }
}

/// The addresses at which others can probably reach a socket bound to `listen`. For a wildcard these are the source
/// addresses of packets to the outside (nothing is sent), then those of all interfaces, and loopback last.
pub fn own_addresses(listen: SocketAddr) -> Vec<SocketAddr> {
    if !listen.ip().is_unspecified() {
        return vec![listen];
    }
    // Reserved for documentation: routed like any outside address, but owned by nobody.
    let outside: [IpAddr; 2] = [[192, 0, 2, 1].into(), [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into()];
    let outward = outside
        .into_iter()
        .filter_map(|to| source_towards((to, 9).into()).ok());
    let listed = if_addrs::get_if_addrs().unwrap_or_default();
    let listed = listed.iter().filter(|interface| interface.is_oper_up());
    let all = worth_telling(outward.chain(listed.map(Interface::ip)));
    all.into_iter()
        .filter(|ip| listen.is_ipv6() || ip.is_ipv4())
        .map(|ip| SocketAddr::new(ip, listen.port()))
        .collect()
}

/// The addresses worth telling others, in order and without duplicates: those that mean the same everywhere in this
/// machine's networks, or link-local ones if there are no others (two machines and a cable), and loopback.
fn worth_telling(all: impl IntoIterator<Item = IpAddr>) -> Vec<IpAddr> {
    let (mut told, mut for_one_link) = (Vec::new(), Vec::new());
    for ip in all {
        let list = match is_for_one_link(ip) {
            true => &mut for_one_link,
            false => &mut told,
        };
        if !ip.is_loopback() && !ip.is_unspecified() && !list.contains(&ip) {
            list.push(ip);
        }
    }
    if told.is_empty() {
        told = for_one_link;
    }
    told.push(Ipv4Addr::LOCALHOST.into());
    told
}

/// Whether an address is link-local (RFC 3927, RFC 4291).
pub(crate) fn is_for_one_link(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// An address in forms that can be dialled. A link-local address needs a scope: the number of this machine's interface.
/// If it has none, this returns one address for each interface. On the wrong one nobody answers, or a peer that proves
/// to be another.
pub fn dialable(to: SocketAddr) -> Vec<SocketAddr> {
    match to {
        SocketAddr::V6(at) if at.ip().is_unicast_link_local() && at.scope_id() == 0 => {
            let listed = if_addrs::get_if_addrs().unwrap_or_default();
            let on_link =
                |one: &&Interface| one.is_oper_up() && one.ip().is_ipv6() && is_for_one_link(one.ip());
            let mut scopes: Vec<u32> = listed
                .iter()
                .filter(on_link)
                .filter_map(|one| one.index)
                .collect();
            scopes.sort_unstable();
            scopes.dedup();
            let within = |scope| SocketAddrV6::new(*at.ip(), at.port(), 0, scope).into();
            scopes.into_iter().map(within).collect()
        }
        to => vec![to],
    }
}

/// The source address of packets to this address. Sends nothing.
pub(crate) fn source_towards(remote: SocketAddr) -> io::Result<IpAddr> {
    let to = remote.ip().to_canonical();
    let any: IpAddr = match to {
        IpAddr::V4(_) => [0; 4].into(),
        IpAddr::V6(_) => [0u16; 8].into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect((to, remote.port()))?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn told_once_and_in_order_is_what_others_can_use() {
        let ips =
            |texts: &[&str]| -> Vec<IpAddr> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        let outward = ips(&["192.0.2.7", "2001:db8::7"]);
        let listed = ips(&[
            "127.0.0.1",
            "10.0.0.7",
            "192.0.2.7",
            "::1",
            "fe80::7",
            "fd00::7",
            "169.254.0.7",
        ]);
        assert_eq!(
            worth_telling(outward.into_iter().chain(listed)),
            ips(&["192.0.2.7", "2001:db8::7", "10.0.0.7", "fd00::7", "127.0.0.1"])
        );
        assert_eq!(worth_telling([]), ips(&["127.0.0.1"]));
        // Two machines connected by a cable, without DHCP.
        assert_eq!(
            worth_telling(ips(&["127.0.0.1", "fe80::7", "::1", "fe80::7", "169.254.0.7"])),
            ips(&["fe80::7", "169.254.0.7", "127.0.0.1"])
        );
    }

    #[test]
    fn an_address_for_one_link_is_dialled_in_each_network() {
        for text in ["192.0.2.1:7", "169.254.0.7:7", "[2001:db8::1]:7", "[fe80::1%3]:7"] {
            let at: SocketAddr = text.parse().unwrap();
            assert_eq!(dialable(at), [at]);
        }
        let interfaces = if_addrs::get_if_addrs().unwrap();
        let on_link = |one: &&Interface| one.is_oper_up() && one.ip().is_ipv6() && is_for_one_link(one.ip());
        let scopes: std::collections::BTreeSet<_> =
            interfaces.iter().filter(on_link).map(|one| one.index).collect();
        let all = dialable("[fe80::1]:7".parse().unwrap());
        assert!(all.len() >= scopes.len(), "{all:?} {scopes:?}");
        assert!(
            all.iter()
                .all(|at| matches!(at, SocketAddr::V6(at) if at.scope_id() > 0))
        );
    }

    /// Runs itself again where there is one interface and no default route.
    #[test]
    fn a_host_without_a_default_route_tells_of_its_interfaces() {
        const INSIDE: &str = "ANNULUS_TEST_WITHOUT_ROUTE";
        if std::env::var_os(INSIDE).is_some() {
            let own = own_addresses("[::]:7".parse().unwrap());
            return assert_eq!(own[0], "198.51.100.1:7".parse().unwrap(), "{own:?}");
        }
        let script = "ip link add lan0 type veth peer name lan1 && ip addr add 198.51.100.1/24 dev lan0 && \
                      ip link set lan0 up && ip link set lan1 up || exit 9; exec \"$0\" --exact \"$1\"";
        let (_, module) = module_path!().split_once("::").unwrap();
        let ran = Command::new("unshare")
            .args(["--user", "--map-root-user", "--net", "sh", "-c", script])
            .arg(std::env::current_exe().unwrap())
            .arg(format!(
                "{module}::a_host_without_a_default_route_tells_of_its_interfaces"
            ))
            .env(INSIDE, "1")
            .output();
        match ran {
            Ok(ran) if ran.status.success() => {}
            Ok(ran) if ran.status.code() == Some(101) => {
                panic!("{}", String::from_utf8_lossy(&ran.stdout))
            }
            other => eprintln!("skipped: there is no network namespace to be had: {other:?}"),
        }
    }
}
