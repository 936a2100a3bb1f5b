//! What peers tell each other of others' addresses.

use super::{ACQUAINTANCES, Links};
use crate::base::id::{Contact, PeerId};
use crate::base::time::Time;

impl Links {
    /// Another peer mentions this one. That displaces no known peer, and no address but those that were only heard of too and
    /// led nowhere: the first to mention it may have lied.
    pub fn hear_of(&mut self, peer: PeerId, contact: &Contact, now: Time) {
        let known = self.peers.get_mut(&peer).filter(|e| !e.contact.0.is_empty());
        if let Some(entry) = known {
            if entry.is_hearsay && !entry.up && entry.fails > 0 {
                entry.contact.precede(contact);
            }
        } else if self.peers.contains_key(&peer) || self.peers.len() < ACQUAINTANCES {
            self.want(peer, contact, now);
            if let Some(entry) = self.peers.get_mut(&peer) {
                entry.is_hearsay = true;
            }
        }
    }

    /// Where a peer can be dialled: its own addresses, then those seen here.
    pub fn known_contact(&self, peer: PeerId, mut says: Contact) -> Contact {
        let seen = self
            .peers
            .get(&peer)
            .map(|e| e.contact.0.as_slice())
            .unwrap_or_default();
        for address in seen {
            if says.0.len() < Contact::LIMIT && !says.0.contains(address) {
                says.0.push(address.clone());
            }
        }
        says
    }

    /// The addresses of at most `most` peers, first those with links, then those wanted last.
    pub fn acquaintances(&self, most: usize) -> Vec<(PeerId, Contact)> {
        let mut known: Vec<_> = self
            .peers
            .iter()
            .filter(|(_, e)| !e.contact.0.is_empty())
            .collect();
        known.sort_by_key(|(_, e)| (!e.up, std::cmp::Reverse(e.wanted)));
        known
            .into_iter()
            .take(most)
            .map(|(peer, e)| (*peer, e.contact.clone()))
            .collect()
    }

    /// A peer with its addresses, if these are known.
    pub fn acquaintance(&self, peer: PeerId) -> Vec<(PeerId, Contact)> {
        let entry = self.peers.get(&peer).into_iter();
        entry.map(|entry| (peer, entry.contact.clone())).collect()
    }
}
