//! Which peers can be reached, and how: open links, redialling with backoff, and relays where there is no link.
//!
//! If a first dial fails, this peer asks others that may have links to both ends to introduce them. Then both dial
//! at once, each at the address where the other was seen, so that routers in between take the packets for answers
//! (hole punching). The introductions also show the nearest relay until there is a link.

mod hearsay;

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
/// A peer that hangs up sooner than this may not want the link. It is redialled as if the dial had failed. A guess.
const LASTS: Duration = Duration::from_secs(1);
/// How many members are asked for an introduction. A guess: enough that one has a link, too few for a flood.
const ASKED: usize = 4;
/// How long to wait for an introduction before dialling without one. A guess: longer than most round trips.
const INTRODUCTION: Duration = Duration::from_secs(1);
/// Peers remembered. The oldest that are no members are forgotten first.
const ACQUAINTANCES: usize = 128;

/// A request of the links to the driver. It becomes one of the peer's outputs.
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
    /// When it went up, now or last.
    up_since: Time,
    /// Dials in a row without a link, or with one that did not last.
    fails: u32,
    dial_at: Option<Time>,
    /// The round-trip time of the link, while it is up.
    rtt: Duration,
    /// When others were asked for an introduction since the last dial.
    asked_at: Option<Time>,
    /// Whether its addresses are only what others said.
    is_hearsay: bool,
    /// When another peer last introduced the two.
    introduced_at: Option<Time>,
    /// The relays that frames may take meanwhile.
    ways: Ways,
    /// When it was last wanted. The oldest are forgotten.
    wanted: u64,
}

impl Entry {
    /// When to dial it, unless a link is up or a dial is under way.
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

/// Most frames given to relays that are remembered, to recognize one that a relay returns. A guess: many more than
/// are on their way there and back at once.
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
    /// The head's members. All members accept frames that these relay, so they are preferred.
    pub bearers: Vec<PeerId>,
    /// Those of them that came in with the last round.
    pub new_bearers: Vec<PeerId>,
    me: PeerId,
    peers: BTreeMap<PeerId, Entry>,
    clock: u64,
    /// Frames given to relays, the oldest first.
    given: VecDeque<Given>,
    relayed: Relayed,
}

impl Links {
    /// Links to nobody yet.
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

    /// Remembers a peer, and keeps a link to it up. Forgets no member for another peer: frames to a member without a
    /// link would find no other relay once the nearest one returns them.
    pub fn want(&mut self, peer: PeerId, contact: &Contact, now: Time) {
        if peer == self.me {
            return;
        }
        self.clock += 1;
        if !self.peers.contains_key(&peer) && self.peers.len() >= ACQUAINTANCES {
            let oldest = self
                .peers
                .iter()
                .filter(|(p, e)| !e.up && !self.bearers.contains(p))
                .min_by_key(|(_, e)| e.wanted)
                .map(|(p, _)| *p);
            let Some(oldest) = oldest else { return };
            self.peers.remove(&oldest);
        }
        let entry = self.peers.entry(peer).or_default();
        entry.wanted = self.clock;
        if contact.leads_somewhere() {
            entry.contact = contact.clone();
            entry.is_hearsay = false;
        }
        if !entry.up && !entry.dialling && entry.dial_at.is_none() {
            entry.dial_at = Some(now);
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

    /// Forgets a peer entirely.
    pub fn drop(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
    }

    /// A link is open.
    pub fn up(&mut self, peer: PeerId, contact: Contact, rtt: Duration, now: Time) {
        self.want(peer, &contact, now);
        self.peers.values_mut().for_each(|entry| entry.ways.forget(peer));
        let entry = self.peers.entry(peer).or_default();
        entry.up = true;
        entry.dialling = false;
        entry.up_since = now;
        entry.dial_at = None;
        entry.rtt = rtt;
        entry.asked_at = None;
        entry.ways = Ways::default();
    }

    /// A link is down. The peer with the smaller name redials at once, the other a little later. Both wait longer
    /// if links to the other do not last.
    pub fn down(&mut self, peer: PeerId, now: Time) {
        let me = self.me;
        self.peers.values_mut().for_each(|entry| entry.ways.forget(peer));
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
            if entry.is_hearsay && !entry.contact.0.is_empty() {
                // A driver may try only the first of them within its time.
                entry.contact.0.rotate_left(1);
            }
            entry.dial_at = (!entry.contact.0.is_empty()).then(|| now + pause);
        }
    }

    /// Bytes that it holds on behalf of others.
    pub fn bytes(&self) -> usize {
        let entry = |entry: &Entry| size_of::<Entry>() + entry.contact.bytes() + entry.ways.bytes();
        let peers: usize = self.peers.values().map(entry).sum();
        peers + self.given.len() * size_of::<Given>() + self.relayed.bytes()
    }

    /// Whether there is a direct link.
    pub fn is_up(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_some_and(|e| e.up)
    }

    /// Whether this peer keeps a link to another one up.
    pub fn knows(&self, peer: PeerId) -> bool {
        self.peers.contains_key(&peer)
    }

    /// Whether an address of a peer is known.
    #[cfg(feature = "sim")]
    pub fn may_dial(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_some_and(|e| !e.contact.0.is_empty())
    }

    /// All peers with a direct link.
    pub fn reachable(&self) -> impl Iterator<Item = PeerId> {
        self.peers.iter().filter(|(_, e)| e.up).map(|(p, _)| *p)
    }

    /// A relay reported that it cannot reach a peer either. False if that peer is not known any more.
    fn no_relay(&mut self, relay: PeerId, to: PeerId) -> bool {
        let entry = self.peers.get_mut(&to);
        entry.map(|entry| entry.ways.close(relay, self.now)).is_some()
    }

    /// All other peers with a link, members first.
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

    /// The best relay to a peer.
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

    /// Sends over the direct link or, without one, through a relay. False if there is neither. A frame may be lost
    /// on the way as well, so the peer that waits for an answer must send again.
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

    /// The message in a relayed frame for this peer, if its author has signed it and it has not come before.
    pub fn open(&mut self, envelope: &Envelope, frame: Bytes) -> Option<Message> {
        self.relayed.open(envelope, frame)
    }

    /// Relays a frame for its author, which has a link to this peer.
    pub fn relay(&mut self, out: &mut VecDeque<impl From<LinkOutput>>, envelope: Envelope, frame: Bytes) {
        let (from, to, lane) = (envelope.from, envelope.to, envelope.lane);
        if self.is_up(to) {
            let message = Message::Relay { envelope, frame };
            push(out, to, lane, message);
        } else {
            self.send(out, from, lane, Message::Unreachable { envelope, frame });
        }
    }

    /// A relay has returned a frame because it has no link either. Sends the frame another way if there is one, in
    /// the same envelope: if the relay has passed it on after all, the receiver accepts it only once. False if that
    /// relay was not given the frame; otherwise anybody could make this peer send anything.
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

    /// A peer has no link to another. If this one has links to both, it tells both to dial.
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

    /// A relay has introduced a peer, with the round-trip time of its link to it. That peer dials now, and so does
    /// this one if it wants a link.
    pub fn introduced(
        &mut self,
        out: &mut VecDeque<impl From<LinkOutput>>,
        by: PeerId,
        (peer, contact): (PeerId, Contact),
        rtt: Duration,
    ) {
        let (now, wants_it) = (self.now, self.is_up(by) && self.bearers.contains(&peer));
        let Some(entry) = self.peers.get_mut(&peer).filter(|entry| wants_it && !entry.up) else {
            return;
        };
        entry.ways.open(by, rtt);
        let recently = |at: Time| at <= now && now - at < INTRODUCTION;
        let told = entry.introduced_at.replace(now);
        if entry.dialling || !contact.leads_somewhere() || told.is_some_and(recently) {
            return;
        }
        let mut known = std::mem::replace(&mut entry.contact, contact);
        known.0.retain(|address| !entry.contact.0.contains(address));
        entry.contact.0.extend(known.0);
        entry.contact.0.truncate(Contact::LIMIT);
        entry.dial_at = None;
        entry.dial(peer, out);
    }

    /// The members asked for an introduction: the nearest with a link.
    fn asked(&self, to: PeerId) -> Vec<PeerId> {
        let members = self
            .candidates(to)
            .filter(|candidate| candidate.bearing != Bearing::Stranger);
        let mut members: Vec<_> = members.collect();
        members.sort_by_key(|member| member.rtt);
        members.iter().take(ASKED).map(|member| member.peer).collect()
    }

    /// Dials that are due. After a failed dial, asks others once to have the other end dial as well. It also asks,
    /// less often, for peers without a known address, to find the nearest relay.
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

    /// When [`Links::on_time`] must be called.
    pub fn wake_at(&self) -> Option<Time> {
        self.peers.values().filter_map(Entry::to_dial).min()
    }
}

/// The pause after this many failed dials, and one more.
fn pause_after(fails: u32) -> Duration {
    (FIRST_PAUSE * 2u32.pow(fails.min(10))).min(LAST_PAUSE)
}

#[cfg(test)]
mod tests;
