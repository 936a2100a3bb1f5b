//! Remembers a run's peers in its folder, so that this peer and the others find each other again without a ticket.
//!
//! It does not know how peers are dialled.

use crate::net::hello::addresses;
use annulus_core::ledger::Member;
use annulus_core::{Contact, PeerId, RunId};
use annulus_net::files::{FileError, read_limited, write_private};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Its file in a run's folder.
const FILE: &str = "peers.json";

/// Most peers that are remembered, members first. A former member may be the only one that is left.
const PEERS: usize = 64;

/// Longest file that is read: several times what [`PEERS`] need with the most and longest addresses.
const LIMIT: usize = 1 << 20;

/// What a peer keeps to find its run again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The run, in hexadecimal.
    run: String,
    /// The port on which this peer listened, as others know it.
    pub port: u16,
    /// The addresses in the ticket by which it joined; none for a founder.
    pub ticket_addresses: Vec<String>,
    /// Peers of the run, the most recent members first.
    peers: Vec<Acquaintance>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Acquaintance {
    peer: String,
    addresses: Vec<String>,
}

impl Known {
    /// Without any peer yet.
    pub fn new(run: RunId) -> Self {
        Self {
            run: run.to_hex(),
            ..Self::default()
        }
    }

    /// Reads it from a folder, for this run. A file of another run, or a broken one, is no error: only some time is
    /// lost.
    pub fn load(dir: &Path, run: RunId) -> Self {
        let read = read_limited(&dir.join(FILE), LIMIT).ok();
        let known: Option<Self> = read.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let known = known.filter(|known| known.run == run.to_hex());
        known.unwrap_or_else(|| Self::new(run))
    }

    /// Writes it atomically.
    pub fn save(&self, dir: &Path) -> Result<(), FileError> {
        let json = serde_json::to_vec_pretty(self).expect("it is plain data");
        write_private(&dir.join(FILE), &json)
    }

    /// The peers and their addresses.
    pub fn contacts(&self) -> impl Iterator<Item = (PeerId, Contact)> {
        self.peers.iter().filter_map(|known| {
            let contact = Contact(known.addresses.clone());
            let peer = PeerId::from_hex(&known.peer)?;
            contact.is_bounded().then_some((peer, contact))
        })
    }

    /// Takes in the present members, without `me` and those that cannot be dialled. Returns whether anything changed.
    pub fn meet<'a>(&mut self, me: PeerId, members: impl Iterator<Item = &'a Member>) -> bool {
        let others =
            members.filter(|member| member.peer != me && addresses(&member.contact.0).next().is_some());
        let mut peers: Vec<Acquaintance> = others
            .map(|member| Acquaintance {
                peer: member.peer.to_hex(),
                addresses: member.contact.0.clone(),
            })
            .collect();
        for known in &self.peers {
            if peers.len() < PEERS && peers.iter().all(|peer| peer.peer != known.peer) {
                peers.push(known.clone());
            }
        }
        peers.truncate(PEERS);
        let changed = peers != self.peers;
        self.peers = peers;
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;
    use annulus_core::ledger::Trials;

    fn member(name: u8, addresses: &[&str]) -> Member {
        Member {
            peer: PeerId([name; 32]),
            admission: crate::testing::member(1).admission,
            speed: 1,
            contact: Contact(addresses.iter().map(|address| (*address).to_owned()).collect()),
            trials: Trials::default(),
            keeper: Default::default(),
        }
    }

    #[test]
    fn members_come_first_and_nobody_is_forgotten_at_once() {
        let me = PeerId([1; 32]);
        let mut known = Known::new(RunId([7; 32]));
        let (own, tab) = (member(1, &["192.0.2.1:1"]), member(9, &[]));
        let (two, three) = (member(2, &["192.0.2.2:1"]), member(3, &["192.0.2.3:1"]));
        assert!(known.meet(me, [&own, &two, &tab, &three].into_iter()));
        assert!(!known.meet(me, [&own, &two, &three].into_iter()));
        assert!(known.meet(me, [&own, &three].into_iter()));
        let moved = member(2, &["192.0.2.2:9", "[2001:db8::2]:9"]);
        let names = |known: &Known| known.contacts().map(|(peer, _)| peer.0[0]).collect::<Vec<_>>();
        assert_eq!(names(&known), [3, 2]);
        assert!(known.meet(me, [&moved].into_iter()));
        assert_eq!(names(&known), [2, 3]);
        assert_eq!(known.contacts().next(), Some((moved.peer, moved.contact)));
        let crowd: Vec<Member> = (10..200).map(|name| member(name, &["192.0.2.9:1"])).collect();
        known.meet(me, crowd.iter());
        assert_eq!(known.contacts().count(), PEERS);
    }

    #[test]
    fn what_is_kept_is_of_one_run() {
        let scratch = Scratch::new();
        let run = RunId([7; 32]);
        let mut known = Known::new(run);
        known.port = 4433;
        known.ticket_addresses = vec!["192.0.2.2:1".into()];
        known.meet(PeerId([1; 32]), [&member(2, &["192.0.2.2:1"])].into_iter());
        known.save(&scratch.0).unwrap();
        assert_eq!(Known::load(&scratch.0, run), known);
        let other = RunId([8; 32]);
        assert_eq!(Known::load(&scratch.0, other), Known::new(other));
        std::fs::write(scratch.0.join(FILE), "{").unwrap();
        assert_eq!(Known::load(&scratch.0, run), Known::new(run));
    }

    #[test]
    fn the_longest_file_is_read_back() {
        let scratch = Scratch::new();
        let address = "9".repeat(Contact::ADDRESS_LIMIT);
        let addresses = [address.as_str(); Contact::LIMIT];
        let crowd: Vec<Member> = (0..PEERS).map(|name| member(name as u8, &addresses)).collect();
        let mut known = Known::new(RunId([7; 32]));
        known.meet(PeerId([255; 32]), crowd.iter());
        known.save(&scratch.0).unwrap();
        let read = Known::load(&scratch.0, RunId([7; 32]));
        assert_eq!(read.contacts().count(), PEERS);
    }
}
