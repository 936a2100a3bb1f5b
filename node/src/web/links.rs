//! The addresses at which browsers find a page.

use crate::net::certificates::Certificates;
use data_encoding::HEXLOWER;
use std::net::{IpAddr, SocketAddr};

/// The page's address for browsers on this machine and for those on others, of a peer that listens on `at` and can be
/// reached at `addresses`. The ticket, if guests may have one, is in the fragment, which browsers do not send.
pub fn urls(at: SocketAddr, addresses: &[String], ticket: Option<&str>) -> (Option<String>, Option<String>) {
    let fragment = ticket.map(|ticket| format!("#{ticket}")).unwrap_or_default();
    // Browsers have no way to say on which link an address of IPv6 for one link alone is.
    let leads_no_browser = |ip: IpAddr| match ip.to_canonical() {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => true,
        ip => ip.is_loopback(),
    };
    let far = addresses.iter().find(|address| {
        let parsed = address.parse::<SocketAddr>();
        !parsed.is_ok_and(|address| leads_no_browser(address.ip()))
    });
    let far = far.map(|address| format!("https://{address}/{fragment}"));
    let ip = at.ip().to_canonical();
    if ip.is_unspecified() || ip.is_loopback() {
        (Some(format!("http://localhost:{}/{fragment}", at.port())), far)
    } else {
        // Localhost is another address than the one that it listens on.
        (far.clone(), far)
    }
}

/// The address of a copy of the page on another web server, for a run with this title. A peer that serves its page itself says there who it is and which
/// certificates tabs find at its port; here the fragment does, behind the ticket.
pub fn link_to_copy(
    (copy, title): (&str, &str),
    ticket: &str,
    peer: &str,
    certificates: &Certificates,
) -> String {
    let prints = certificates.fingerprints();
    let prints = prints.map(|print| format!("&cert={}", HEXLOWER.encode(&print)));
    let said = match title {
        "" => String::new(),
        title => format!("&title={}", quoted(title)),
    };
    format!("{copy}#{ticket}&peer={peer}{}{said}", prints.concat())
}

/// A text as an address may hold it (RFC 3986).
fn quoted(text: &str) -> String {
    let quoted = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(quoted).collect()
}
