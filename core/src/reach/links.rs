//! Who can be reached and how: open links, redialling with backoff, and relays where there is no link.
//!
//! Where a first dial came to nothing, others that may have a link to both are asked to introduce the two to each other:
//! they dial at once, each where it was seen, so that routers in between take the other's packets for answers. What the
//! others say shows the nearest way to have frames passed on, until there is a link.

use crate::base::id::{Contact, Digest, PeerId, RunId};
use crate::base::time::Time;
use crate::reach::ways::{Bearing, Candidate, Ways};
use crate::run::config::Settings;
use crate::wire::relayed::Relayed;
use crate::wire::{Envelope, Lane, Message};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// First pause before a peer is dialled again; doubles up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause between dials: how long a healed partition may go unnoticed.
const LAST_PAUSE: Duration = Duration::from_secs(15);
/// Who hangs up sooner than this may not want the link: it is dialled again as if it had not answered. A guess.
const LASTS: Duration = Duration::from_secs(1);
/// How many are asked for an introduction. A guess: enough that one has a link, too few for a flood.
const ASKED: usize = 4;
/// An introduction is waited for this long before one dials without. A guess: longer than most ways there and back.
const INTRODUCTION: Duration = Duration::from_secs(1);
/// Peers that are remembered after they ceased to be members. The oldest are forgotten first.
const ACQUAINTANCES: usize = 128;

/// What links ask of the driver. It becomes one of the driver's own requests.
#[derive(Debug)]
pub enum LinkOutput {
    /// Send a message over the open link to a peer.
    Send {
        to: PeerId,
        lane: Lane,
        message: Message,
    },
    /// Open a link.
    Dial { peer: PeerId, contact: Contact },
}

fn push(out: &mut VecDeque<impl From<LinkOutput>>, to: PeerId, lane: Lane, message: Message) {
    out.push_back(LinkOutput::Send { to, lane, message }.into());
}

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
    /// The round-trip time of the link, while it is up.
    rtt: Duration,
    /// When others were asked for an introduction, since the last dial.
    asked_at: Option<Time>,
    /// When somebody last introduced the two.
    introduced_at: Option<Time>,
    /// By whom frames get there meanwhile.
    ways: Ways,
    /// When it was last wanted: for forgetting.
    wanted: u64,
}

impl Entry {
    /// When it is to be dialled, if it is not already.
    fn to_dial(&self) -> Option<Time> {
        self.dial_at.filter(|_| !self.up && !self.dialling)
    }

    fn dial(&mut self, peer: PeerId, out: &mut VecDeque<impl From<LinkOutput>>) {
        if !self.contact.0.is_empty() {
            self.dialling = true;
            self.asked_at = None;
            let contact = self.contact.clone();
            out.push_back(LinkOutput::Dial { peer, contact }.into());
        }
    }
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
    /// Those that were no members before the last round.
    pub new_bearers: Vec<PeerId>,
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
            new_bearers: Vec::new(),
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
    pub fn up(&mut self, peer: PeerId, contact: Contact, rtt: Duration, now: Time) {
        self.want(peer, &contact, now);
        for entry in self.peers.values_mut() {
            entry.ways.forget(peer);
        }
        let entry = self.peers.entry(peer).or_default();
        entry.up = true;
        entry.dialling = false;
        entry.up_since = now;
        entry.dial_at = None;
        entry.rtt = rtt;
        entry.asked_at = None;
        entry.ways = Ways::default();
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
        let entry = |entry: &Entry| size_of::<Entry>() + entry.contact.bytes() + entry.ways.bytes();
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

    /// A peer, and where it can be dialled if that is known.
    pub fn acquaintance(&self, peer: PeerId) -> Vec<(PeerId, Contact)> {
        let entry = self.peers.get(&peer).into_iter();
        entry.map(|entry| (peer, entry.contact.clone())).collect()
    }

    /// All peers with a direct link.
    pub fn reachable(&self) -> impl Iterator<Item = PeerId> {
        self.peers.iter().filter(|(_, e)| e.up).map(|(p, _)| *p)
    }

    /// A relay said that it cannot reach a peer either. False if that peer is not known any more.
    fn no_relay(&mut self, relay: PeerId, to: PeerId) -> bool {
        let entry = self.peers.get_mut(&to);
        entry.map(|entry| entry.ways.close(relay, self.now)).is_some()
    }

    /// Everybody else that there is a link to, members first.
    fn candidates(&self, to: PeerId) -> impl Iterator<Item = Candidate> {
        let others = self.reachable().filter(|peer| !self.bearers.contains(peer));
        let bearing = |peer| match self.new_bearers.contains(&peer) {
            true => Bearing::New,
            false => Bearing::Old,
        };
        let all = self.bearers.iter().map(move |peer| (*peer, bearing(*peer)));
        let all = all.chain(others.map(|peer| (peer, Bearing::Stranger)));
        all.filter_map(move |(peer, bearing)| {
            let entry = self.peers.get(&peer).filter(|entry| entry.up && peer != to)?;
            let rtt = entry.rtt;
            Some(Candidate { peer, rtt, bearing })
        })
    }

    /// A peer that may have a link to another one.
    fn way(&self, to: PeerId) -> Option<PeerId> {
        match self.peers.get(&to) {
            Some(entry) => entry.ways.best(self.candidates(to), self.now),
            None => Ways::default().best(self.candidates(to), self.now),
        }
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
    pub fn send(
        &mut self,
        out: &mut VecDeque<impl From<LinkOutput>>,
        to: PeerId,
        lane: Lane,
        message: Message,
    ) -> bool {
        if self.is_up(to) {
            push(out, to, lane, message);
            return true;
        }
        let Some(relay) = self.way(to) else {
            return false;
        };
        let frame = message.to_frame();
        let envelope = self.relayed.seal(to, lane, &frame);
        self.give(relay, &envelope, &frame);
        push(out, relay, lane, Message::Relay { envelope, frame });
        true
    }

    /// What a frame for this peer says, if its author has really written it and it has not come before.
    pub fn open(&mut self, envelope: &Envelope, frame: Bytes) -> Option<Message> {
        self.relayed.open(envelope, frame)
    }

    /// Passes a frame on for its author, who has a link to this peer.
    pub fn relay(&mut self, out: &mut VecDeque<impl From<LinkOutput>>, envelope: Envelope, frame: Bytes) {
        let (from, to, lane) = (envelope.from, envelope.to, envelope.lane);
        if self.is_up(to) {
            let message = Message::Relay { envelope, frame };
            push(out, to, lane, message);
        } else {
            self.send(out, from, lane, Message::Unreachable { envelope, frame });
        }
    }

    /// A relay has no link either: the frame goes another way, if there is one; in the same envelope, so that it is taken
    /// once, even if the relay has passed it on after all. False if that relay was given no such frame: else anybody
    /// could have this peer say what it likes.
    pub fn on_unreachable(
        &mut self,
        out: &mut VecDeque<impl From<LinkOutput>>,
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
            let lane = envelope.lane;
            let message = Message::Relay { envelope, frame };
            push(out, way, lane, message);
        }
        true
    }

    /// Somebody has no link to another peer: if there is one to each here, both are told to dial.
    pub fn introduce(&mut self, out: &mut VecDeque<impl From<LinkOutput>>, from: PeerId, to: PeerId) {
        let pair = [from, to].map(|peer| self.peers.get(&peer).filter(|entry| entry.up));
        let [Some(one), Some(other)] = pair else { return };
        for (whom, peer, entry) in [(from, to, other), (to, from, one)] {
            let message = Message::Introduced {
                peer,
                contact: entry.contact.clone(),
                rtt_us: u32::try_from(entry.rtt.as_micros()).unwrap_or(u32::MAX),
            };
            let lane = Lane::Control;
            push(out, whom, lane, message);
        }
    }

    /// A peer is there, its link to somebody has such a round-trip time, and it dials now. If this one wants a link to it,
    /// it does so too.
    pub fn introduced(
        &mut self,
        out: &mut VecDeque<impl From<LinkOutput>>,
        by: PeerId,
        (peer, contact): (PeerId, Contact),
        rtt: Duration,
    ) {
        let (now, wants_it) = (self.now, self.bearers.contains(&peer));
        let Some(entry) = self.peers.get_mut(&peer).filter(|entry| wants_it && !entry.up) else {
            return;
        };
        entry.ways.open(by, rtt);
        let recently = |at: Time| at <= now && now - at < INTRODUCTION;
        let told = entry.introduced_at.replace(now);
        if entry.dialling || contact.0.is_empty() || told.is_some_and(recently) {
            return;
        }
        let mut known = std::mem::replace(&mut entry.contact, contact);
        known.0.retain(|address| !entry.contact.0.contains(address));
        entry.contact.0.extend(known.0);
        entry.contact.0.truncate(Contact::LIMIT);
        entry.dial_at = None;
        entry.dial(peer, out);
    }

    /// Those asked for an introduction: the nearest members that there is a link to.
    fn asked(&self, to: PeerId) -> Vec<PeerId> {
        let members = self
            .candidates(to)
            .filter(|candidate| candidate.bearing != Bearing::Stranger);
        let mut members: Vec<_> = members.collect();
        members.sort_by_key(|member| member.rtt);
        members.iter().take(ASKED).map(|member| member.peer).collect()
    }

    /// Dials that are due. After one that came to nothing others are asked to have the other end dial as well, once for each
    /// dial; who cannot be dialled at all is asked after too, more seldom, to find the nearest way to it.
    pub fn on_time(&mut self, out: &mut VecDeque<impl From<LinkOutput>>, now: Time) {
        let due = |entry: &Entry| entry.to_dial().is_some_and(|at| at <= now);
        let due = self.peers.iter().filter(|(_, entry)| due(entry));
        for peer in due.map(|(peer, _)| *peer).collect::<Vec<_>>() {
            let asked = match self.bearers.contains(&peer) {
                true => self.asked(peer),
                false => Vec::new(),
            };
            let Some(entry) = self.peers.get_mut(&peer) else {
                continue;
            };
            entry.dial_at = None;
            let asks = match entry.contact.0.is_empty() {
                true => entry.asked_at.is_none_or(|at| now - at >= LAST_PAUSE),
                false => entry.fails > 0 && entry.asked_at.is_none(),
            };
            if asks && !asked.is_empty() {
                entry.asked_at = Some(now);
                if !entry.contact.0.is_empty() {
                    entry.dial_at = Some(now + INTRODUCTION);
                }
                let (lane, message) = (Lane::Control, Message::Introduce { to: peer });
                out.extend(asked.into_iter().map(|to| {
                    let message = message.clone();
                    LinkOutput::Send { to, lane, message }.into()
                }));
            } else {
                entry.dial(peer, out);
            }
        }
    }

    /// When [`Links::on_time`] has something to do.
    pub fn wake_at(&self) -> Option<Time> {
        self.peers.values().filter_map(Entry::to_dial).min()
    }
}

/// How long a peer is left alone after so many dials in vain, and one more.
fn pause_after(fails: u32) -> Duration {
    (FIRST_PAUSE * 2u32.pow(fails.min(10))).min(LAST_PAUSE)
}

#[cfg(test)]
mod tests;
