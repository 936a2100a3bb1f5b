//! Who can be reached and how: open links, redialling with backoff, and relays where there is no link.

use crate::config::Settings;
use crate::id::{Contact, Digest, PeerId, RunId};
use crate::interface::{Lane, Output};
use crate::relayed::Relayed;
use crate::time::Time;
use crate::wire::{Envelope, Message};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// First pause before a peer is dialled again; doubles up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause between dials: how long a healed partition may go unnoticed.
const LAST_PAUSE: Duration = Duration::from_secs(15);
/// Who hangs up sooner than this may not want the link: it is dialled again as if it had not answered. A guess.
const LASTS: Duration = Duration::from_secs(1);
/// After so long a relay that had no link may have found one.
const RELAY_PAUSE: Duration = Duration::from_secs(5);
/// Peers that are remembered after they ceased to be members. The oldest are forgotten first.
const ACQUAINTANCES: usize = 128;

#[derive(Debug, Default)]
struct Entry {
    contact: Contact,
    up: bool,
    dialling: bool,
    /// Since when it is, or was.
    up_since: Time,
    /// Dials in a row that gave no link, or none that lasted.
    fails: u32,
    dial_at: Option<Time>,
    /// Peers that said they have no link to it either, and when.
    no_relay: BTreeMap<PeerId, Time>,
    /// When it was last wanted: for forgetting.
    wanted: u64,
}

/// Frames given to relays that are remembered, to know them again if a relay cannot pass them on. A guess: many more
/// than are on their way there and back at once.
const RELAYED: usize = 1024;

/// A frame that was given to a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Given {
    relay: PeerId,
    to: PeerId,
    frame: Digest,
}

/// All peers that this one knows.
#[derive(Debug)]
pub struct Links {
    /// Set with every input.
    pub now: Time,
    /// The head's members: their word is taken for what they relay, so they go before others.
    pub bearers: Vec<PeerId>,
    me: PeerId,
    peers: BTreeMap<PeerId, Entry>,
    clock: u64,
    /// What relays were given: the oldest first.
    given: VecDeque<Given>,
    relayed: Relayed,
}

impl Links {
    /// Knows nobody yet.
    pub fn new(settings: &Settings, run: RunId) -> Self {
        Self {
            now: Time::default(),
            bearers: Vec::new(),
            me: settings.me,
            peers: BTreeMap::new(),
            clock: 0,
            given: VecDeque::new(),
            relayed: Relayed::new(settings, run),
        }
    }

    /// Remembers a peer, so that a link to it is kept up.
    pub fn want(&mut self, peer: PeerId, contact: &Contact, now: Time) {
        if peer == self.me {
            return;
        }
        self.clock += 1;
        if !self.peers.contains_key(&peer) && self.peers.len() >= ACQUAINTANCES {
            let oldest = self
                .peers
                .iter()
                .filter(|(_, e)| !e.up)
                .min_by_key(|(_, e)| e.wanted)
                .map(|(p, _)| *p);
            let Some(oldest) = oldest else { return };
            self.peers.remove(&oldest);
        }
        let entry = self.peers.entry(peer).or_default();
        entry.wanted = self.clock;
        if !contact.0.is_empty() {
            entry.contact = contact.clone();
        }
        if !entry.up && !entry.dialling && entry.dial_at.is_none() {
            entry.dial_at = Some(now);
        }
    }

    /// Somebody tells of a peer. Who is known is not forgotten for that, nor is where.
    pub fn hear_of(&mut self, peer: PeerId, contact: &Contact, now: Time) {
        let is_known = self.peers.get(&peer).is_some_and(|e| !e.contact.0.is_empty());
        if !is_known && (self.peers.contains_key(&peer) || self.peers.len() < ACQUAINTANCES) {
            self.want(peer, contact, now);
        }
    }

    /// Forgets a peer that said goodbye.
    pub fn forget(&mut self, peer: PeerId) {
        if self.peers.get(&peer).is_some_and(|e| !e.up) {
            self.peers.remove(&peer);
        } else if let Some(entry) = self.peers.get_mut(&peer) {
            entry.contact = Contact::default();
        }
    }

    /// Has nothing more to do with a peer.
    pub fn drop(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
    }

    /// A link is open.
    pub fn up(&mut self, peer: PeerId, contact: Contact, now: Time) {
        self.want(peer, &contact, now);
        for entry in self.peers.values_mut() {
            entry.no_relay.remove(&peer);
        }
        let entry = self.peers.entry(peer).or_default();
        entry.up = true;
        entry.dialling = false;
        entry.up_since = now;
        entry.dial_at = None;
        entry.no_relay.clear();
    }

    /// A link is gone. The peer with the smaller name redials at once, the other a little later; both later than that if
    /// links to the other do not last.
    pub fn down(&mut self, peer: PeerId, now: Time) {
        let me = self.me;
        if let Some(entry) = self.peers.get_mut(&peer) {
            let lasted = entry.up && now - entry.up_since >= LASTS;
            entry.up = false;
            entry.fails = if lasted { 0 } else { entry.fails + 1 };
            let pause = match entry.fails {
                0 | 1 if me < peer => Duration::ZERO,
                0 | 1 => FIRST_PAUSE,
                fails => pause_after(fails - 1),
            };
            entry.dial_at = (!entry.contact.0.is_empty()).then(|| now + pause);
        }
    }

    /// A dial failed.
    pub fn failed(&mut self, peer: PeerId, now: Time) {
        if let Some(entry) = self.peers.get_mut(&peer).filter(|e| !e.up) {
            entry.dialling = false;
            let pause = pause_after(entry.fails);
            entry.fails += 1;
            entry.dial_at = (!entry.contact.0.is_empty()).then(|| now + pause);
        }
    }

    /// Where a peer can be dialled: what it says itself, and behind that what was seen here.
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

    /// Bytes that others have had it hold.
    pub fn bytes(&self) -> usize {
        let entry = |entry: &Entry| {
            size_of::<Entry>() + entry.contact.bytes() + entry.no_relay.len() * size_of::<(PeerId, Time)>()
        };
        let peers: usize = self.peers.values().map(entry).sum();
        peers + self.given.len() * size_of::<Given>() + self.relayed.bytes()
    }

    /// Whether there is a direct link.
    pub fn is_up(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_some_and(|e| e.up)
    }

    /// Whether a peer is one of those that this one keeps in touch with.
    pub fn knows(&self, peer: PeerId) -> bool {
        self.peers.contains_key(&peer)
    }

    /// Whether it is known where to dial a peer.
    #[cfg(feature = "sim")]
    pub fn may_dial(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_some_and(|e| !e.contact.0.is_empty())
    }

    /// Where each peer that has a link, or was wanted last, can be dialled: at most `most`.
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

    /// All peers with a direct link.
    pub fn reachable(&self) -> impl Iterator<Item = PeerId> {
        self.peers.iter().filter(|(_, e)| e.up).map(|(p, _)| *p)
    }

    /// A relay said that it cannot reach a peer either. False if that peer is not known any more.
    fn no_relay(&mut self, relay: PeerId, to: PeerId) -> bool {
        let entry = self.peers.get_mut(&to);
        entry
            .map(|entry| entry.no_relay.insert(relay, self.now))
            .is_some()
    }

    /// A peer that may have a link to another one.
    fn way(&self, to: PeerId) -> Option<PeerId> {
        let usable = |relay: &PeerId| {
            let said = self.peers.get(&to).and_then(|e| e.no_relay.get(relay));
            *relay != to && said.is_none_or(|at| self.now - *at >= RELAY_PAUSE)
        };
        let mut bearers = self.bearers.iter().copied().filter(|b| self.is_up(*b));
        bearers.find(usable).or_else(|| self.reachable().find(usable))
    }

    /// Gives a frame to a relay, and remembers that.
    fn give(&mut self, relay: PeerId, envelope: &Envelope, frame: &Bytes) {
        if self.given.len() >= RELAYED {
            self.given.pop_front();
        }
        self.given.push_back(Given {
            relay,
            to: envelope.to,
            frame: Digest::of(frame),
        });
    }

    /// Sends over the direct link, else over a peer that may have one. False if there is no way:
    /// what must arrive is said again by whoever waits for it, since a frame may be lost under way just as well.
    pub fn send(&mut self, out: &mut VecDeque<Output>, to: PeerId, lane: Lane, message: Message) -> bool {
        if self.is_up(to) {
            out.push_back(Output::Send { to, lane, message });
            return true;
        }
        let Some(relay) = self.way(to) else {
            return false;
        };
        let frame = message.to_frame();
        let envelope = self.relayed.seal(to, &frame);
        self.give(relay, &envelope, &frame);
        out.push_back(Output::Send {
            to: relay,
            lane,
            message: Message::Relay { envelope, frame },
        });
        true
    }

    /// What a frame for this peer says, if its author has really written it and it has not come before.
    pub fn open(&mut self, envelope: &Envelope, frame: Bytes) -> Option<Message> {
        self.relayed.open(envelope, frame)
    }

    /// Passes a frame on for its author, who has a link to this peer.
    pub fn relay(&mut self, out: &mut VecDeque<Output>, envelope: Envelope, frame: Bytes) {
        let (from, to) = (envelope.from, envelope.to);
        if self.is_up(to) {
            let lane = Lane::Bulk;
            let message = Message::Relay { envelope, frame };
            out.push_back(Output::Send { to, lane, message });
        } else {
            self.send(out, from, Lane::Bulk, Message::Unreachable { envelope, frame });
        }
    }

    /// A relay has no link either: the frame goes another way, if there is one; in the same envelope, so that it is taken
    /// once, even if the relay has passed it on after all. False if that relay was given no such frame: else anybody
    /// could have this peer say what it likes.
    pub fn on_unreachable(
        &mut self,
        out: &mut VecDeque<Output>,
        relay: PeerId,
        envelope: Envelope,
        frame: Bytes,
    ) -> bool {
        let to = envelope.to;
        let returned = Given {
            relay,
            to,
            frame: Digest::of(&frame),
        };
        let Some(place) = self.given.iter().position(|given| *given == returned) else {
            return false;
        };
        self.given.remove(place);
        if !self.no_relay(relay, to) {
            return true;
        }
        let way = match self.is_up(to) {
            true => Some(to),
            false => self.way(to),
        };
        if let Some(way) = way {
            self.give(way, &envelope, &frame);
            let message = Message::Relay { envelope, frame };
            let lane = Lane::Bulk;
            out.push_back(Output::Send {
                to: way,
                lane,
                message,
            });
        }
        true
    }

    /// Dials that are due.
    pub fn on_time(&mut self, out: &mut VecDeque<Output>, now: Time) {
        for (peer, entry) in &mut self.peers {
            if entry.dial_at.is_some_and(|at| at <= now) {
                entry.dial_at = None;
                if !entry.up && !entry.dialling && !entry.contact.0.is_empty() {
                    entry.dialling = true;
                    out.push_back(Output::Dial {
                        peer: *peer,
                        contact: entry.contact.clone(),
                    });
                }
            }
        }
    }

    /// When [`Links::on_time`] has something to do.
    pub fn wake_at(&self) -> Option<Time> {
        self.peers.values().filter_map(|e| e.dial_at).min()
    }
}

/// How long a peer is left alone after so many dials in vain, and one more.
fn pause_after(fails: u32) -> Duration {
    (FIRST_PAUSE * 2u32.pow(fails.min(10))).min(LAST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Layout, Manifest};

    fn manifest() -> Manifest {
        Manifest::new(Layout::flat(1))
    }

    #[test]
    fn what_others_tell_of_peers_takes_the_place_of_nothing_that_is_known() {
        let (me, known) = (PeerId([1; 32]), PeerId([2; 32]));
        let settings = Settings::stand_in(me, Contact::default(), &manifest());
        let mut links = Links::new(&settings, RunId([0; 32]));
        let [here, nowhere] = ["here", "nowhere"].map(|at| Contact(vec![at.into()]));
        links.want(known, &here, Time(0));
        links.hear_of(known, &nowhere, Time(0));
        (3..250).for_each(|name| links.hear_of(PeerId([name; 32]), &nowhere, Time(0)));
        assert_eq!(links.peers.len(), ACQUAINTANCES);
        assert_eq!(links.peers[&known].contact, here);
        // Who is met itself still finds room.
        let met = PeerId([251; 32]);
        links.want(met, &here, Time(0));
        assert!(links.peers.contains_key(&met) && !links.peers[&met].up);
    }

    /// How often a peer is dialled within a minute, if each link lasts so long and dials take a millisecond.
    fn dials(lasts_ms: u64) -> usize {
        let (ann, ben) = (PeerId([1; 32]), PeerId([2; 32]));
        let mut links = Links::new(
            &Settings::stand_in(ann, Contact::default(), &manifest()),
            RunId([0; 32]),
        );
        let contact = Contact(vec!["somewhere".into()]);
        links.want(ben, &contact, Time(0));
        let (mut out, mut dials, mut now) = (VecDeque::new(), 0, Time(0));
        while now < Time(60_000_000) {
            links.on_time(&mut out, now);
            if out.pop_front().is_some() {
                dials += 1;
                now = now + Duration::from_millis(1);
                links.up(ben, contact.clone(), now);
                now = now + Duration::from_millis(lasts_ms);
                links.down(ben, now);
            }
            now = links.wake_at().unwrap_or(now).max(now);
        }
        dials
    }

    #[test]
    fn whoever_hangs_up_at_once_is_dialled_ever_more_seldom() {
        assert!((5..12).contains(&dials(1)), "{}", dials(1));
        assert!(dials(5_000) >= 11, "{}", dials(5_000));
    }
}
