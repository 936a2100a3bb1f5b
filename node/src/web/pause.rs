//! The pause button on the peer's page, and the right to press it. Anybody on the network may open the page, but only the user of
//! this machine may pause the peer. The request must come from this machine, under one of the machine's own names, and from the
//! peer's own page. On Linux, the sending process must belong to the same user, and never to root. A program that passes on
//! requests of others, such as a reverse proxy, fails these checks.
//!
//! The button is a file: `annulus pause` makes it and `annulus unpause` removes it. It must know nothing of its readers.

use super::hosts::{is_loopback, of_own_page, only};
use annulus_net::open;
use axum::http::{HeaderMap, HeaderName, header::HOST, uri::Authority};
use std::io;
#[cfg(target_os = "linux")]
use std::net::IpAddr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The two ends of a connection, as this machine sees them.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The client.
    pub theirs: SocketAddr,
    /// The page.
    pub ours: SocketAddr,
}

/// The reason why a client may not press it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// From another machine.
    #[error(
        "the pause button works only on the peer's own machine: open http://localhost:PORT there, or run `annulus pause`"
    )]
    Elsewhere,
    /// Another user's process, or one that nobody knows.
    #[error(
        "the pause button works only for the user who runs the peer, and not for root: run `annulus pause`"
    )]
    AnotherUser,
    /// Another page's request, or one that somebody has passed on.
    #[error(
        "the pause button works only on the peer's own page, opened on its machine without a proxy: run `annulus pause`"
    )]
    AnotherPage,
}

/// The file that pauses a peer.
#[derive(Clone, Debug)]
pub struct Switch(PathBuf);

impl Switch {
    /// Of a peer that looks at this file.
    pub fn new(file: &Path) -> Self {
        Self(file.to_owned())
    }

    /// Whether it is pressed.
    pub fn is_pressed(&self) -> bool {
        self.0.exists()
    }

    /// Presses or lets go. That it is so already is no error.
    ///
    /// # Errors
    ///
    /// If the file cannot be made or removed.
    pub fn set(&self, pressed: bool) -> io::Result<()> {
        if pressed {
            return open::lock_file(&self.0).map(drop);
        }
        match std::fs::remove_file(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Headers of programs that pass on requests of others.
const PASSED_ON: [&str; 4] = ["forwarded", "x-forwarded-for", "x-real-ip", "via"];

/// Whether a request may see or press it: `presses` if it is to change anything.
///
/// # Errors
///
/// If not, why.
pub fn check(ends: Ends, headers: &HeaderMap, presses: bool) -> Result<(), Denied> {
    check_page(ends, headers, presses)?;
    match is_ours(ends) {
        false => Err(Denied::AnotherUser),
        true => Ok(()),
    }
}

/// Whether a request comes from this machine, and from the peer's own page.
fn check_page(ends: Ends, headers: &HeaderMap, presses: bool) -> Result<(), Denied> {
    if !ends.theirs.ip().to_canonical().is_loopback() {
        return Err(Denied::Elsewhere);
    }
    let passed_on = PASSED_ON.map(HeaderName::from_static);
    if passed_on.iter().any(|name| headers.contains_key(name)) {
        return Err(Denied::AnotherPage);
    }
    let host = only(headers, &HOST).and_then(|host| host.parse::<Authority>().ok());
    match host.is_some_and(|host| is_loopback(host.host())) && (!presses || of_own_page(headers)) {
        true => Ok(()),
        false => Err(Denied::AnotherPage),
    }
}

/// Whether the other end of a connection within this machine is a process of the same user.
///
/// Never of root: the system shows a closed socket as root's, whoever closed it, and root's forwarders pass on what anybody
/// sends. Root has `annulus pause`.
#[cfg(target_os = "linux")]
fn is_ours(ends: Ends) -> bool {
    // SAFETY: asks for a number of this process.
    let me = unsafe { libc::geteuid() };
    let tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| std::fs::read_to_string(table).unwrap_or_default());
    let owner = tables.iter().find_map(|table| owner_of(table, ends));
    owner == Some(me) && me != ROOT
}

/// The number of the user who may do everything.
#[cfg(target_os = "linux")]
const ROOT: u32 = 0;

/// Where the system does not tell.
#[cfg(not(target_os = "linux"))]
fn is_ours(_ends: Ends) -> bool {
    true
}

/// The user of the socket at the other end, of Linux's table of TCP sockets, if it is open: in state 01, with an inode.
#[cfg(target_os = "linux")]
fn owner_of(table: &str, ends: Ends) -> Option<u32> {
    let plain = |end: SocketAddr| (end.ip().to_canonical(), end.port());
    let wanted = (plain(ends.theirs), plain(ends.ours));
    table.lines().skip(1).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, theirs, ours, state, _, _, _, owner, _, inode, ..] = words.as_slice() else {
            return None;
        };
        let found = (end_of(theirs)?, end_of(ours)?);
        (found == wanted && *state == "01" && *inode != "0").then(|| owner.parse().ok())?
    })
}

/// An end such as `0100007F:1151`: words as the machine holds them in memory, in hexadecimal digits.
#[cfg(target_os = "linux")]
fn end_of(text: &str) -> Option<(IpAddr, u16)> {
    let (ip, port) = text.split_once(':')?;
    let words = ip.as_bytes().chunks(8).map(|digits| {
        let digits = std::str::from_utf8(digits).ok()?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    });
    let bytes = words.collect::<Option<Vec<[u8; 4]>>>()?.concat();
    let ip = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical(),
        _ => return None,
    };
    Some((ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;
    use std::net::{TcpListener, TcpStream};

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in all {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        map
    }

    /// A connection within this machine, with both of its sockets.
    fn connection() -> (Ends, TcpStream, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, ours) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        (Ends { theirs, ours }, stream, listener)
    }

    #[cfg(unix)]
    #[test]
    fn a_switch_that_is_a_link_empties_no_other_file() {
        let scratch = crate::testing::Scratch::new();
        let (file, other) = (scratch.0.join("paused"), scratch.0.join("other"));
        std::fs::write(&other, "precious").unwrap();
        std::os::unix::fs::symlink(&other, &file).unwrap();
        assert!(Switch::new(&file).set(true).is_err());
        assert_eq!(std::fs::read(&other).unwrap(), b"precious");
        Switch::new(&file).set(false).unwrap();
        Switch::new(&file).set(true).unwrap();
        assert!(Switch::new(&file).is_pressed() && other.exists());
    }

    #[test]
    fn only_this_machines_own_page_may_press() {
        let (ends, _stream, _listener) = connection();
        let host = ("host", "localhost:4433");
        let good = [host, ("origin", "http://localhost:4433")];
        assert_eq!(check_page(ends, &headers(&good), true), Ok(()));
        for (host, origin) in [
            ("127.0.0.1:1", "https://127.0.0.1:1"),
            ("[::1]:1", "http://[::1]:1"),
            ("LOCALHOST:1", "http://localhost:1"),
        ] {
            let told = headers(&[("host", host), ("origin", origin)]);
            assert_eq!(check_page(ends, &told, true), Ok(()), "{host} {origin}");
        }
        // A request that only looks need not name its page.
        assert_eq!(check_page(ends, &headers(&[host]), false), Ok(()));
        for bad in [
            &[host][..],
            &[host, ("origin", "null")],
            &[host, ("origin", "http://evil.example")],
            &[host, ("origin", "http://localhost:3000")],
            &[host, ("origin", "http://localhost:44330")],
            &[
                host,
                ("origin", "http://localhost:4433"),
                ("origin", "http://evil.example"),
            ],
            &[("origin", "http://localhost:4433")],
            &[("host", "evil.example"), ("origin", "http://evil.example")],
            &[
                ("host", "localhost.evil.example"),
                ("origin", "http://localhost.evil.example"),
            ],
            &[("host", "192.0.2.1:4433"), ("origin", "http://192.0.2.1:4433")],
            &[good[0], good[1], ("x-forwarded-for", "203.0.113.9")],
            &[good[0], good[1], ("via", "1.1 proxy")],
        ] {
            assert_eq!(
                check_page(ends, &headers(bad), true),
                Err(Denied::AnotherPage),
                "{bad:?}"
            );
        }
        let far = Ends {
            theirs: "203.0.113.9:5000".parse().unwrap(),
            ..ends
        };
        for presses in [true, false] {
            assert_eq!(check_page(far, &headers(&good), presses), Err(Denied::Elsewhere));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_socket_of_this_user_is_found_and_others_are_not_ours() {
        let (ends, stream, _listener) = connection();
        // SAFETY: asks for a number of this process.
        assert_eq!(is_ours(ends), unsafe { libc::geteuid() } != ROOT);
        let me = owner_of(&std::fs::read_to_string("/proc/net/tcp").unwrap(), ends);
        // SAFETY: asks for a number of this process.
        assert_eq!(me, Some(unsafe { libc::geteuid() }));
        // The other way round it is the listener's, and nobody's once it is not accepted; a port that nobody has is nobody's.
        let nobody = Ends {
            theirs: "127.0.0.1:1".parse().unwrap(),
            ..ends
        };
        assert!(!is_ours(nobody));
        drop(stream);
        let words = |ip: &str| {
            let octets: Vec<[u8; 4]> = match ip.parse::<IpAddr>().unwrap() {
                IpAddr::V4(ip) => vec![ip.octets()],
                IpAddr::V6(ip) => ip
                    .octets()
                    .chunks(4)
                    .map(|four| four.try_into().unwrap())
                    .collect(),
            };
            let digits = |four: &[u8; 4]| format!("{:08X}", u32::from_ne_bytes(*four));
            octets.iter().map(digits).collect::<String>()
        };
        for (theirs, ours) in [
            ("127.0.0.1", "127.0.0.1"),
            ("::1", "::1"),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1"),
        ] {
            let line = format!(
                "  1: {}:1388 {}:1151 01 00000000:00000000 00:00000000 00000000  1007        0 99 1 x",
                words(theirs),
                words(ours)
            );
            let at = |ip: &str, port| SocketAddr::new(ip.parse().unwrap(), port);
            let ends = Ends {
                theirs: at(theirs, 5000),
                ours: at(ours, 4433),
            };
            assert_eq!(owner_of(&format!("head\n{line}\n"), ends), Some(1007));
            // One that is closed may be anybody's.
            for (open, closed) in [(" 01 ", " 04 "), (" 01 ", " 06 "), (" 99 ", " 0 ")] {
                let line = line.replace(open, closed);
                assert_eq!(owner_of(&format!("head\n{line}\n"), ends), None, "{line}");
            }
            let other = Ends {
                theirs: at(theirs, 5001),
                ..ends
            };
            assert_eq!(owner_of(&format!("head\n{line}\n"), other), None);
        }
    }

    #[test]
    fn what_is_pressed_is_a_file() {
        let scratch = crate::testing::Scratch::new();
        let switch = Switch::new(&scratch.0.join("paused"));
        for pressed in [false, true, true, false, false] {
            switch.set(pressed).unwrap();
            assert_eq!(switch.is_pressed(), pressed);
        }
    }
}
