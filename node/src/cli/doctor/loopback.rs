//! Whether this machine reaches itself, as peers and tabs on it do.

use super::{Finding, Verdict};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// Bytes of the datagrams that are tried: what QUIC sends at first on any path (RFC 9000, section 14.1).
const DATAGRAM_BYTES: usize = 1200;
/// Datagrams that are tried.
const DATAGRAMS: usize = 8;
/// How long to wait for something that takes microseconds.
const PATIENCE: Duration = Duration::from_millis(500);

/// Whether UDP and TCP reach this machine itself at an address, and how fast.
pub(super) fn loopback(name: &'static str, ip: IpAddr) -> Finding {
    match udp_round_trip(ip).and_then(|time| tcp_round_trip(ip).map(|()| time)) {
        Ok(time) => Finding::new(
            name,
            Verdict::Good,
            format!("UDP and TCP reach {ip}; {} there and back", micros(time)),
        ),
        Err(e) => Finding::new(
            name,
            Verdict::Bad,
            format!("UDP or TCP does not reach {ip} ({e}): allow it in the firewall or the sandbox"),
        ),
    }
}

fn micros(time: Duration) -> String {
    format!("{} us", time.as_micros())
}

/// Sends datagrams to itself by way of a second socket; the median time there and back.
fn udp_round_trip(ip: IpAddr) -> io::Result<Duration> {
    let near = UdpSocket::bind(SocketAddr::new(ip, 0))?;
    let far = UdpSocket::bind(SocketAddr::new(ip, 0))?;
    near.connect(far.local_addr()?)?;
    far.connect(near.local_addr()?)?;
    near.set_read_timeout(Some(PATIENCE))?;
    far.set_read_timeout(Some(PATIENCE))?;
    let mut times = Vec::with_capacity(DATAGRAMS);
    let mut buffer = [0; DATAGRAM_BYTES];
    for i in 0..DATAGRAMS {
        let sent = [i as u8; DATAGRAM_BYTES];
        let start = Instant::now();
        near.send(&sent)?;
        let n = far.recv(&mut buffer)?;
        far.send(&buffer[..n])?;
        let n = near.recv(&mut buffer)?;
        times.push(start.elapsed());
        if buffer[..n] != sent {
            return Err(io::Error::other("a datagram came back changed"));
        }
    }
    times.sort_unstable();
    Ok(times[DATAGRAMS / 2])
}

fn tcp_round_trip(ip: IpAddr) -> io::Result<()> {
    let listener = TcpListener::bind(SocketAddr::new(ip, 0))?;
    let mut near = TcpStream::connect_timeout(&listener.local_addr()?, PATIENCE)?;
    let (mut far, _) = listener.accept()?;
    near.write_all(b"ring")?;
    drop(near);
    let mut text = String::new();
    far.set_read_timeout(Some(PATIENCE))?;
    far.read_to_string(&mut text)?;
    if text == "ring" {
        Ok(())
    } else {
        Err(io::Error::other("a stream came back changed"))
    }
}
