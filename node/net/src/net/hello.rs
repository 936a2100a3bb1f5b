//! The messages of the handshake, as bytes, and the proofs in them.
//!
//! The dialler says hello on the first stream. The acceptor answers with a welcome or closes the connection with a
//! [`Refusal`](crate::net::link::Refusal). Each shows what let it in: a chain of grants that goes back to the run's
//! key, and the ticket's signature over the name of the peer that used it. This proof is useless under another name,
//! and the session proves the name. No secret crosses the wire.
//!
//! Between native peers TLS names both ends. A browser shows a page neither the key of a certificate nor anything
//! unique to a session. So a [`TabHello`] names the certificate that the tab pinned and a nonce, and both sides sign
//! these with the key that is their [`PeerId`]. To read or alter the session, an attacker needs the private key of that
//! certificate or peer.
//!
//! It knows no transport.

use crate::net::link::LinkKind;
use crate::printable::printable_line;
use annulus_core::invitation::Admission;
use annulus_core::signature::Signature;
use annulus_core::{Contact, Digest, PeerId, RunId};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::net::SocketAddr;

/// Version of the handshake and everything after it. Later versions must not move this field.
pub use annulus_core::wire::VERSION;

/// Longest manifest that is served or fetched.
pub const MAX_MANIFEST: usize = 1 << 20;

/// Longest hello: all addresses at their longest, four grants, and room for the rest.
pub const MAX_HELLO: usize = Contact::LIMIT * (Contact::ADDRESS_LIMIT + 4) + 1024;

/// Path of the URL at which a native peer answers WebTransport.
pub const PATH: &str = "/annulus/1";

/// What the dialler wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// To get and keep a link.
    Link,
    /// To read the run's manifest and leave.
    Manifest,
    /// To fetch the run's data, as [`provision`](crate::data::provision) describes, and leave.
    Data,
}

/// The hello of a native dialler.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// What it wants.
    pub purpose: Purpose,
    /// The run.
    pub run: [u8; 32],
    /// Random for each start of the process: distinguishes a restarted peer from one that dials twice.
    pub instance: u64,
    /// Where others can dial it.
    pub contact: Contact,
    /// What let it in.
    pub admission: Admission,
    /// The address at which it dialled the acceptor.
    pub dialled: SocketAddr,
}

/// The answer to a native dialler.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// As in the hello.
    pub instance: u64,
    /// Where others can dial the acceptor.
    pub contact: Contact,
    /// Only for [`Purpose::Manifest`].
    pub manifest: Option<Vec<u8>>,
    /// What let it in.
    pub admission: Admission,
    /// The address at which the acceptor sees the dialler.
    pub seen: SocketAddr,
    /// How the peers reached each other, as far as the acceptor knows.
    pub way: LinkKind,
}

/// The hello of a tab. Nobody can dial it, so it has no contact.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TabHello {
    /// What it wants.
    pub purpose: Purpose,
    /// The run.
    pub run: [u8; 32],
    /// Random for each start of the tab.
    pub instance: u64,
    /// The peer that it takes the acceptor for.
    pub acceptor: [u8; 32],
    /// SHA-256 of the certificate that it pinned.
    pub certificate: [u8; 32],
    /// Random per session.
    pub nonce: [u8; 32],
    /// The tab's name.
    pub peer: [u8; 32],
    /// What let it in.
    pub admission: Admission,
    /// The dialler's signature of [`signed`].
    pub signature: Signature,
}

/// The answer to a tab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TabWelcome {
    /// The welcome that native peers get.
    pub welcome: Welcome,
    /// The acceptor's name.
    pub peer: [u8; 32],
    /// The acceptor's signature of [`signed`].
    pub signature: Signature,
}

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The end that dialled.
    Dialler,
    /// The end that answered.
    Acceptor,
}

/// A value that is unique to the session that a tab opened.
pub fn tab_session(certificate: &[u8; 32], nonce: &[u8; 32]) -> [u8; 32] {
    blake3::Hasher::new_derive_key("annulus 1 session of a tab")
        .update(certificate)
        .update(nonce)
        .finalize()
        .into()
}

/// What each end of a tab's session signs to prove its name.
pub fn signed(session: &[u8; 32], role: Role, dialler: PeerId, acceptor: PeerId, run: RunId) -> Vec<u8> {
    let context: &[u8] = match role {
        Role::Dialler => b"annulus 1 tab",
        Role::Acceptor => b"annulus 1 host",
    };
    [context, session, &dialler.0, &acceptor.0, &run.0].concat()
}

/// The entries of a contact that are within its bounds and safe to print.
pub fn bounded(Contact(mut addresses): Contact) -> Contact {
    addresses.retain(|address| {
        address.len() <= Contact::ADDRESS_LIMIT && address.chars().all(|c| c.is_ascii_graphic())
    });
    addresses.truncate(Contact::LIMIT);
    Contact(addresses)
}

/// A message for the wire: version, length, body.
pub fn encode(body: &impl Serialize) -> Vec<u8> {
    let body = postcard::to_allocvec(body).expect("plain data can be encoded");
    let mut bytes = VERSION.to_le_bytes().to_vec();
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(body);
    bytes
}

/// Bytes before a message's body.
pub const HEAD: usize = 6;

/// Why a message could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It has another version.
    Version,
    /// It cannot be parsed.
    Garbled,
    /// The stream ended.
    Lost,
}

/// The length of the body that follows this head.
///
/// # Errors
///
/// If the version differs, or the body is longer than `max`.
pub fn body_len(head: &[u8; HEAD], max: usize) -> Result<usize, Unread> {
    if u16::from_le_bytes([head[0], head[1]]) != VERSION {
        return Err(Unread::Version);
    }
    let len = u32::from_le_bytes([head[2], head[3], head[4], head[5]]) as usize;
    if len > max { Err(Unread::Garbled) } else { Ok(len) }
}

/// Parses a message's body, which must hold nothing else.
///
/// # Errors
///
/// If it cannot be parsed.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, Unread> {
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        _ => Err(Unread::Garbled),
    }
}

/// Marks the entries of a native peer's [`Contact`] that name the certificates for WebTransport: this prefix, then the
/// SHA-256 in hexadecimal. Native peers skip these entries.
pub const CERTIFICATE: &str = "cert:";

/// The certificates in a contact.
pub fn certificates(contact: &[String]) -> Vec<[u8; 32]> {
    let hashes = contact.iter().filter_map(|entry| entry.strip_prefix(CERTIFICATE));
    hashes.filter_map(|hex| Some(Digest::from_hex(hex)?.0)).collect()
}

/// The addresses in a contact, at which the peer can be dialled.
pub fn addresses(contact: &[String]) -> impl Iterator<Item = &String> {
    let is_address = |entry: &&String| !entry.starts_with(CERTIFICATE) && !entry.starts_with(Contact::NAME);
    contact.iter().filter(is_address)
}

/// The longest name of a peer, in characters.
pub const NAME_LIMIT: usize = 24;

/// The name that a peer gives itself in its contact: printable, on one line, not too long. Nobody checks that it is its own.
pub fn name_of(Contact(entries): &Contact) -> Option<String> {
    let name = entries
        .iter()
        .find_map(|entry| entry.strip_prefix(Contact::NAME))?;
    let name = printable_line(name.trim(), NAME_LIMIT);
    (!name.is_empty()).then_some(name)
}

/// A contact whose peer has a name. Full ones lose their last address for it.
pub fn named(Contact(mut entries): Contact, name: Option<&str>) -> Contact {
    let Some(name) = name else { return Contact(entries) };
    if entries.len() >= Contact::LIMIT {
        let last = entries.iter().rposition(|entry| !entry.starts_with(CERTIFICATE));
        last.map(|last| entries.remove(last));
    }
    let name: String = name.chars().take(NAME_LIMIT).collect();
    entries.insert(0, format!("{}{name}", Contact::NAME));
    Contact(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_told_without_what_a_terminal_obeys() {
        let of = |name: &str| name_of(&named(Contact::default(), Some(name)));
        assert_eq!(of("Żółw the 2nd").as_deref(), Some("Żółw the 2nd"));
        assert_eq!(
            of(" \u{1b}[2J\n\u{202e}x ").as_deref(),
            Some("\u{fffd}[2J \u{fffd}x")
        );
        assert_eq!(
            of(&"ż".repeat(99)).map(|name| name.chars().count()),
            Some(NAME_LIMIT)
        );
        assert_eq!((of("  "), name_of(&Contact::default())), (None, None));
    }

    #[test]
    fn a_full_contact_keeps_its_certificates_and_stays_within_its_bounds() {
        let cert = format!("{CERTIFICATE}{}", "a".repeat(64));
        let entries = (1..8).map(|n| format!("192.0.2.{n}:1")).chain([cert.clone()]);
        let Contact(told) = named(Contact(entries.collect()), Some(&"\u{1f422}".repeat(24)));
        assert!(
            Contact(told.clone()).is_bounded() && told.contains(&cert),
            "{told:?}"
        );
        assert_eq!((addresses(&told).count(), certificates(&told).len()), (6, 1));
    }
}
