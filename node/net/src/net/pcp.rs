//! Asks a router for a port mapping by the Port Control Protocol (RFC 6887) or its predecessor NAT-PMP (RFC 6886). Both
//! use single datagrams to the same port of the router. For IPv6, PCP asks a firewall in the same way: it maps the
//! address that the request comes from.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::timeout;

/// The port of routers for both protocols.
pub(crate) const PORT: u16 = 5351;

/// How long each attempt waits for an answer. Routers in homes answer within milliseconds; the RFCs ask for growing
/// waits.
const WAITS: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_millis(500),
    Duration::from_millis(750),
];

/// UDP, in both protocols.
const PCP_UDP: u8 = 17;
const NAT_PMP_MAP_UDP: u8 = 1;

/// Length of an answer to a PCP mapping request, or to a NAT-PMP request for an address or a mapping.
const PCP_BYTES: usize = 60;

/// The protocol that the router understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Pcp,
    NatPmp,
}

/// Why a router did not grant a mapping.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// Nobody answers.
    #[error("it does not answer")]
    Silent,
    /// Its answer makes no sense.
    #[error("its answer makes no sense")]
    Garbled,
    /// It refuses with this code.
    #[error("it answers with code {0}")]
    Code(u16),
}

/// A mapping, and what is needed to renew or remove it.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    router: SocketAddr,
    inner: SocketAddr,
    /// Proves to PCP that a renewal comes from whoever asked.
    nonce: [u8; 12],
    pub version: Version,
    /// The address at which others reach it.
    pub outside: SocketAddr,
}

impl Port {
    /// Asks for a port that leads to this port of this machine, with the same number if it is free. It uses PCP, and
    /// for IPv4 NAT-PMP if that fails.
    pub async fn ask(router: SocketAddr, inner: SocketAddr, lease: Duration) -> Result<Self, Refused> {
        let mut nonce = [0; 12];
        // Without random bytes another machine in the network could remove the mapping.
        let _ = getrandom::fill(&mut nonce);
        let nowhere = match inner.is_ipv4() {
            true => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            false => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let wanted = SocketAddr::new(nowhere, inner.port());
        let mut port = Self {
            router,
            inner,
            nonce,
            version: Version::Pcp,
            outside: wanted,
        };
        match port.renew(lease).await {
            // Some routers know only NAT-PMP and say so. Some that know both have kept the mapping of a peer that died.
            Err(Refused::Code(_) | Refused::Garbled) if inner.is_ipv4() => {
                port.version = Version::NatPmp;
                port.outside = wanted;
                port.renew(lease).await?;
            }
            other => other?,
        }
        Ok(port)
    }

    /// Renews the mapping for this long.
    pub async fn renew(&mut self, lease: Duration) -> Result<(), Refused> {
        let seconds = u32::try_from(lease.as_secs()).unwrap_or(u32::MAX);
        self.outside = match self.version {
            Version::Pcp => {
                let request = pcp_map(self.inner, self.nonce, self.outside, seconds);
                let outside = pcp_mapped(&exchange(self.router, self.inner, &request).await?, &self.nonce)?;
                if outside.is_ipv4() != self.inner.is_ipv4() {
                    return Err(Refused::Garbled);
                }
                outside
            }
            Version::NatPmp => {
                let request = nat_pmp_map(self.inner.port(), self.outside.port(), seconds);
                let port = nat_pmp_mapped(
                    &exchange(self.router, self.inner, &request).await?,
                    self.inner.port(),
                )?;
                let at = nat_pmp_address(&exchange(self.router, self.inner, &[0, 0]).await?)?;
                SocketAddrV4::new(at, port).into()
            }
        };
        Ok(())
    }

    /// Removes the mapping. If that fails, its lease ends.
    pub async fn give_back(self) {
        let request = match self.version {
            Version::Pcp => pcp_map(self.inner, self.nonce, self.outside, 0).to_vec(),
            Version::NatPmp => nat_pmp_map(self.inner.port(), 0, 0).to_vec(),
        };
        let _ = exchange(self.router, self.inner, &request).await;
    }
}

/// Repeats a request until the router answers. It is sent from the address that it is about; routers refuse others.
async fn exchange(router: SocketAddr, inner: SocketAddr, request: &[u8]) -> Result<Vec<u8>, Refused> {
    let asked = async {
        let socket = UdpSocket::bind((inner.ip(), 0)).await?;
        socket.connect(router).await?;
        let mut answer = [0; 1100];
        for wait in WAITS {
            socket.send(request).await?;
            if let Ok(read) = timeout(wait, socket.recv(&mut answer)).await {
                return Ok(Some(answer[..read?].to_vec()));
            }
        }
        Ok::<_, io::Error>(None)
    };
    // An error means that the router has no such service.
    asked.await.ok().flatten().ok_or(Refused::Silent)
}

/// RFC 6887, sections 7.1 and 11.1. A lifetime of 0 removes the mapping.
fn pcp_map(inner: SocketAddr, nonce: [u8; 12], outside: SocketAddr, seconds: u32) -> [u8; PCP_BYTES] {
    let mut request = [0; PCP_BYTES];
    request[0] = 2;
    request[1] = 1;
    request[4..8].copy_from_slice(&seconds.to_be_bytes());
    request[8..24].copy_from_slice(&octets(inner.ip()));
    request[24..36].copy_from_slice(&nonce);
    request[36] = PCP_UDP;
    request[40..42].copy_from_slice(&inner.port().to_be_bytes());
    request[42..44].copy_from_slice(&outside.port().to_be_bytes());
    request[44..].copy_from_slice(&octets(outside.ip()));
    request
}

/// An address in PCP's encoding.
fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The mapped address in the answer to [`pcp_map`].
fn pcp_mapped(answer: &[u8], nonce: &[u8; 12]) -> Result<SocketAddr, Refused> {
    // A router that knows only NAT-PMP answers like this, in fewer bytes.
    if let [version, _, _, code, ..] = answer
        && *code != 0
        && (*version == 2 || *version == 0)
    {
        return Err(Refused::Code((*code).into()));
    }
    let answer: &[u8; PCP_BYTES] = answer.try_into().map_err(|_| Refused::Garbled)?;
    let fits = answer[0] == 2 && answer[1] == 0x81 && answer[24..36] == nonce[..] && answer[36] == PCP_UDP;
    let octets: [u8; 16] = answer[44..].try_into().expect("16 of 60 bytes");
    let ip = IpAddr::V6(Ipv6Addr::from(octets)).to_canonical();
    match fits {
        true => Ok(SocketAddr::new(ip, u16::from_be_bytes([answer[42], answer[43]]))),
        false => Err(Refused::Garbled),
    }
}

/// RFC 6886, section 3.3. A lifetime of 0 removes the mapping.
fn nat_pmp_map(inner: u16, outside: u16, seconds: u32) -> [u8; 12] {
    let mut request = [0; 12];
    request[1] = NAT_PMP_MAP_UDP;
    request[4..6].copy_from_slice(&inner.to_be_bytes());
    request[6..8].copy_from_slice(&outside.to_be_bytes());
    request[8..].copy_from_slice(&seconds.to_be_bytes());
    request
}

/// The mapped port in the answer to [`nat_pmp_map`].
fn nat_pmp_mapped(answer: &[u8], inner: u16) -> Result<u16, Refused> {
    let body = nat_pmp(answer, NAT_PMP_MAP_UDP)?;
    match body {
        &[a, b, c, d, _, _, _, _] if u16::from_be_bytes([a, b]) == inner => Ok(u16::from_be_bytes([c, d])),
        _ => Err(Refused::Garbled),
    }
}

/// The router's address in the answer to a request for it.
fn nat_pmp_address(answer: &[u8]) -> Result<Ipv4Addr, Refused> {
    let octets: [u8; 4] = nat_pmp(answer, 0)?.try_into().map_err(|_| Refused::Garbled)?;
    Ok(octets.into())
}

/// The bytes after version, operation, result and time.
fn nat_pmp(answer: &[u8], operation: u8) -> Result<&[u8], Refused> {
    match answer {
        [0, answered, a, b, _, _, _, _, body @ ..] if *answered == 0x80 | operation => {
            match u16::from_be_bytes([*a, *b]) {
                0 => Ok(body),
                code => Err(Refused::Code(code)),
            }
        }
        _ => Err(Refused::Garbled),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_request_of_pcp_is_laid_out_as_the_rfc_has_it() {
        let request = pcp_map(at("192.168.1.2:4433"), [7; 12], at("0.0.0.0:4433"), 3600);
        let expected = concat!(
            "02010000",
            "00000e10",
            "00000000000000000000ffffc0a80102",
            "070707070707070707070707",
            "11000000",
            "11511151",
            "00000000000000000000ffff00000000",
        );
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
        assert_eq!(hex(&request), expected);
        let request = pcp_map(at("[2001:db8::2]:4433"), [7; 12], at("[::]:4433"), 3600);
        assert_eq!(hex(&request[8..24]), "20010db8000000000000000000000002");
        assert_eq!(hex(&request[44..]), "0".repeat(32));
    }

    #[test]
    fn an_answer_of_pcp_must_be_to_ones_own_question() {
        let mut answer = pcp_map(at("0.0.0.0:4433"), [7; 12], at("9.9.9.9:5000"), 3600);
        let mut other = pcp_map(at("[::]:4433"), [7; 12], at("[2001:db8::2]:4433"), 3600);
        for answer in [&mut answer, &mut other] {
            answer[1] |= 0x80;
        }
        assert_eq!(pcp_mapped(&other, &[7; 12]).unwrap(), at("[2001:db8::2]:4433"));
        assert_eq!(pcp_mapped(&answer, &[7; 12]).unwrap(), at("9.9.9.9:5000"));
        assert!(matches!(pcp_mapped(&answer, &[8; 12]), Err(Refused::Garbled)));
        assert!(matches!(
            pcp_mapped(&answer[..59], &[7; 12]),
            Err(Refused::Garbled)
        ));
        answer[3] = 2;
        assert!(matches!(pcp_mapped(&answer, &[7; 12]), Err(Refused::Code(2))));
        let older = [0, 0x81, 0, 1, 0, 0, 0, 0];
        assert!(matches!(pcp_mapped(&older, &[7; 12]), Err(Refused::Code(1))));
        assert!(matches!(pcp_mapped(&[], &[7; 12]), Err(Refused::Garbled)));
    }

    #[test]
    fn nat_pmp_is_read_as_the_rfc_has_it() {
        assert_eq!(
            nat_pmp_map(0x1234, 0x5678, 60),
            [0, 1, 0, 0, 0x12, 0x34, 0x56, 0x78, 0, 0, 0, 60]
        );
        let mapped = [0, 0x81, 0, 0, 0, 0, 0, 9, 0x12, 0x34, 0x56, 0x79, 0, 0, 0, 60];
        assert_eq!(nat_pmp_mapped(&mapped, 0x1234).unwrap(), 0x5679);
        assert!(nat_pmp_mapped(&mapped, 0x1235).is_err(), "another port's");
        let address = [0, 0x80, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9];
        assert_eq!(nat_pmp_address(&address).unwrap(), Ipv4Addr::new(9, 9, 9, 9));
        assert!(nat_pmp_address(&mapped).is_err());
        let refused = [0, 0x80, 0, 3, 0, 0, 0, 9];
        assert!(matches!(nat_pmp_address(&refused), Err(Refused::Code(3))));
    }
}
