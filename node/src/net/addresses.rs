//! This machine's addresses, as the system tells them. Nothing is sent to find them out.

use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

/// The address at which one socket takes what comes to any of this machine's: of both families, where the system has both.
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

/// The addresses at which others can probably reach a socket bound to `listen`: itself, or for a wildcard the
/// address that packets to the outside would carry (nothing is sent), and loopback last.
pub fn own_addresses(listen: SocketAddr) -> Vec<SocketAddr> {
    if !listen.ip().is_unspecified() {
        return vec![listen];
    }
    // Reserved for documentation: routed like any outside address, owned by nobody.
    let outside: [IpAddr; 2] = [[192, 0, 2, 1].into(), [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into()];
    let mut addresses: Vec<SocketAddr> = outside
        .into_iter()
        .filter(|to| listen.is_ipv6() || to.is_ipv4())
        .filter_map(|to| source_towards((to, 9).into()).ok())
        .filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
        .map(|ip| SocketAddr::new(ip, listen.port()))
        .collect();
    addresses.push(SocketAddr::from(([127, 0, 0, 1], listen.port())));
    addresses
}

/// The address of this machine that packets to another would carry. Sends nothing.
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
