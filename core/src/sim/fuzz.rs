//! Hostile frames in real conversations: nothing that a peer receives may make it panic or fill its memory.
//!
//! Three peers train, a fourth joins, and a fifth, Eve, has links to all of them. In half of the worlds she is a
//! stranger, in the other half a member that also follows the protocol. Between their frames she sends frames made
//! of earlier ones: replayed, cut, spliced, with bytes changed, or decoded and changed field by field, which gets
//! past the checks of lengths. Whether the peers' state is right is not checked here; worlds with liars check that.

use super::device;
use super::resign::resign;
use super::rng::Rng;
use super::twist::Twist;
use crate::access::signature::Key;
use crate::base::id::{Contact, PeerId};
use crate::base::time::Time;
use crate::numeric::codec::Codec;
use crate::peer::{Input, Output, Peer};
use crate::run::config::{Layout, Manifest, Settings, Topology};
use crate::run::shuffle;
use crate::state::State;
use crate::wire::relayed::Relayed;
use crate::wire::{Lane, Message};
use bytes::Bytes;
use std::collections::VecDeque;
use std::num::{NonZeroU16, NonZeroU32, NonZeroU64};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Peers including Eve, who is the last.
const PEERS: usize = 5;
const EVE: usize = PEERS - 1;
/// Hostile frames of a world; after this many, little of the run is left.
pub const FRAMES: u64 = 4_000;
/// Frames between peers until they have come together.
const SETTLED: u64 = 300;
/// Frames that Eve remembers.
const MEMORY: usize = 512;
/// Bytes that a peer may hold of received data, besides a few vectors.
const KEPT: usize = 4 << 20;

/// Counts of a fuzzed world.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fuzzed {
    /// Hostile frames.
    pub frames: u64,
    /// Those of them that could be decoded, and so reached a peer.
    pub read: u64,
    /// Frames that the peers sent each other.
    pub honest: u64,
    /// Rounds that the first peer has committed.
    pub rounds: u64,
    /// Most bytes of received data that a peer held.
    pub kept: usize,
}

/// Lets Eve send this many frames in a world drawn from a seed. The caller catches panics.
///
/// # Errors
///
/// If a peer held more than it may.
pub fn fuzz(seed: u64, frames: u64) -> Result<Fuzzed, String> {
    let mut world = Conversation::new(seed);
    while world.told.frames < frames && world.peers[..EVE].iter().any(Option::is_some) {
        world.turn()?;
    }
    world.told.rounds = world.rounds;
    Ok(world.told)
}

/// Frames between the peers of a run that goes well, each with what [`feed`] puts before it: where a fuzzer that watches
/// coverage begins.
pub fn beginnings(seed: u8) -> Vec<Vec<u8>> {
    let world = Conversation::settled(seed);
    let kept = world.heard.iter().filter_map(|frame| {
        let length = u16::try_from(frame.len()).ok()?;
        Some([&[seed], &length.to_le_bytes()[..], frame].concat())
    });
    kept.collect()
}

/// Lets Eve send frames that a fuzzer has made: a byte that draws the world, then each frame after its length in two bytes.
/// She signs in her own name what can be read.
///
/// # Errors
///
/// If a peer held more than it may.
pub fn feed(input: &[u8]) -> Result<(), String> {
    let Some((seed, mut rest)) = input.split_first() else {
        return Ok(());
    };
    let mut world = Conversation::settled(*seed);
    while let Some((length, after)) = rest.split_first_chunk() {
        let end = usize::from(u16::from_le_bytes(*length)).min(after.len());
        let (frame, next) = after.split_at(end);
        rest = next;
        if let Ok(mut message) = Message::decode(Bytes::copy_from_slice(frame)) {
            world.sign(&mut message);
            world.take(message)?;
        }
        world.honest();
    }
    Ok(())
}

struct Conversation {
    rng: Rng,
    now: u64,
    manifest: Arc<Manifest>,
    peers: Vec<Option<Peer>>,
    ids: Vec<PeerId>,
    /// Whether Eve runs a peer of her own.
    inside: bool,
    /// Whether a peer has cut her off, and how many names she has had.
    cut_off: bool,
    names: u8,
    /// Messages under way between honest peers.
    wire: VecDeque<(usize, usize, Message)>,
    /// The devices' tasks.
    work: VecDeque<(usize, Input)>,
    /// Frames that Eve has heard.
    heard: Vec<Bytes>,
    told: Fuzzed,
    rounds: u64,
}

impl Conversation {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let topology = Topology::ALL[rng.index(2)];
        let manifest = Manifest {
            samples: NonZeroU64::new(100).expect("so many"),
            target: NonZeroU64::new(100_000).expect("so many"),
            batch: NonZeroU32::new(8).expect("so many"),
            topology: Some(topology),
            codec: Codec::ALL[rng.index(4)],
            piece: NonZeroU32::new(rng.between(1, 8) as u32).expect("from 1 on"),
            min_peers: NonZeroU16::new(rng.between(1, 2) as u16).expect("1 or 2"),
            clip: rng.chance(0.5).then_some(1.0),
            ..Manifest::new(Layout::flat(1 + rng.index(40)))
        };
        let ids = (0..PEERS).map(|i| PeerId([i as u8 + 1; 32])).collect();
        let inside = rng.chance(0.5);
        let mut world = Self {
            rng,
            now: 0,
            manifest: Arc::new(manifest),
            peers: (0..PEERS).map(|_| None).collect(),
            ids,
            inside,
            cut_off: false,
            names: PEERS as u8,
            wire: VecDeque::new(),
            work: VecDeque::new(),
            heard: Vec::new(),
            told: Fuzzed::default(),
            rounds: 0,
        };
        world.begin();
        world
    }

    /// A world in which the peers have come together.
    fn settled(seed: u8) -> Self {
        let mut world = Self::new(u64::from(seed));
        while world.told.honest <= SETTLED {
            world.honest();
        }
        world
    }

    fn begin(&mut self) {
        let params = device::initial(self.manifest.layout.len, 7);
        let state = State::new(params, &self.manifest);
        let settings = |i: usize| Settings::stand_in(self.ids[i], Contact::default(), &self.manifest);
        let founder = Peer::found(self.manifest.clone(), settings(0), state, Time(0));
        self.peers[0] = Some(founder);
        for i in 1..PEERS - usize::from(!self.inside) {
            let manifest = self.manifest.clone();
            let peer = Peer::join(manifest, settings(i), self.ids[0], &Contact::default(), Time(0));
            self.peers[i] = Some(peer);
        }
        for a in 0..PEERS {
            self.give(a, Input::Warm { speed: 1000 });
            for b in (0..PEERS).filter(|b| *b != a) {
                self.link(a, b, true);
            }
        }
    }

    fn link(&mut self, end: usize, other: usize, up: bool) {
        let peer = self.ids[other];
        let contact = Contact::default();
        let input = match up {
            true => Input::LinkUp {
                peer,
                contact,
                rtt: Duration::ZERO,
            },
            false => Input::LinkDown { peer },
        };
        self.give(end, input);
    }

    /// Eve comes back under another name.
    fn rename(&mut self) {
        self.cut_off = false;
        self.names = self.names.wrapping_add(1).max(PEERS as u8);
        (0..EVE).for_each(|other| self.link(other, EVE, false));
        self.ids[EVE] = PeerId([self.names; 32]);
        self.wire.retain(|(from, to, _)| *from != EVE && *to != EVE);
        self.work.retain(|(who, _)| *who != EVE);
        if self.inside {
            let settings = Settings::stand_in(self.ids[EVE], Contact::default(), &self.manifest);
            let (manifest, now) = (self.manifest.clone(), Time(self.now));
            let peer = Peer::join(manifest, settings, self.ids[0], &Contact::default(), now);
            self.peers[EVE] = Some(peer);
            self.give(EVE, Input::Warm { speed: 1000 });
        }
        for other in 0..EVE {
            self.link(other, EVE, true);
            self.link(EVE, other, true);
        }
    }

    /// One action of the peers, and one of Eve.
    fn turn(&mut self) -> Result<(), String> {
        if self.cut_off {
            self.rename();
        }
        // At first they may come together undisturbed.
        let settled = self.told.honest > SETTLED;
        match self.rng.below(1000) {
            0 if settled => {
                let (a, b) = (self.rng.index(PEERS), self.rng.index(PEERS));
                if a != b {
                    for up in [false, true] {
                        self.link(a, b, up);
                        self.link(b, a, up);
                    }
                }
            }
            _ => self.honest(),
        }
        for _ in 0..if settled { 8 } else { 0 } {
            self.hostile()?;
        }
        Ok(())
    }

    fn honest(&mut self) {
        if let Some((from, to, mut message)) = self.wire.pop_front() {
            self.told.honest += 1;
            self.remember(&message);
            // A frame that is due from Eve reaches deepest, at its place in the protocol.
            if from == EVE && self.rng.chance(0.1) {
                self.twist().message(&mut message);
                self.sign(&mut message);
            }
            let from = self.ids[from];
            self.give(to, Input::Message { from, message });
        } else if let Some((who, input)) = self.work.pop_front() {
            self.now += 20_000;
            self.give(who, input);
        } else {
            let wakes = self.peers.iter().flatten().filter_map(Peer::wake_at);
            let next = wakes.min().map_or(self.now, |at| at.0);
            self.now = self.now.max(next) + 1;
            for i in 0..PEERS {
                self.give(i, Input::Tick);
            }
        }
    }

    fn remember(&mut self, message: &Message) {
        let frame = message.to_frame();
        if self.heard.len() < MEMORY {
            self.heard.push(frame);
        } else {
            let old = self.rng.index(MEMORY);
            self.heard[old] = frame;
        }
    }

    fn give(&mut self, who: usize, input: Input) {
        let now = Time(self.now);
        let Some(peer) = &mut self.peers[who] else { return };
        peer.handle(input, now);
        while let Some(output) = self.peers[who].as_mut().and_then(Peer::poll) {
            match output {
                Output::Send { to, message, .. } => {
                    let to = self.ids.iter().position(|id| *id == to);
                    // A message to nobody is dropped, as a link does.
                    if let Some(to) = to.filter(|to| self.peers[*to].is_some()) {
                        self.wire.push_back((who, to, message));
                    }
                }
                Output::Compute {
                    round,
                    positions,
                    buffer,
                    ..
                } => self.compute(who, round, &positions, &buffer),
                Output::Span(_) | Output::Restore { .. } => unreachable!("no model is split here"),
                Output::Exit(_) => self.peers[who] = None,
                Output::HangUp { peer } => self.cut_off |= peer == self.ids[EVE],
                Output::Dial { peer, .. } => self.give(who, Input::DialFailed { peer, barred: None }),
                Output::Event(crate::Event::Committed(_)) if who == 0 => self.rounds += 1,
                Output::Event(_) => {}
            }
        }
    }

    fn compute(&mut self, who: usize, round: u64, positions: &[Range<u64>], params: &[f32]) {
        let weight = shuffle::count(positions);
        let (gradient, loss) = device::contribution(&Layout::flat(params.len()), params, positions, weight);
        let made = Input::Contribution {
            round,
            gradient,
            weight: weight as u32,
            loss,
            compute: Duration::from_millis(20),
            late: false,
        };
        self.work.push_back((who, made));
    }

    /// Eve sends a frame to a peer.
    fn hostile(&mut self) -> Result<(), String> {
        let Some(frame) = self.rng.pick_ref(&self.heard).cloned() else {
            return Ok(());
        };
        let frame = self.spoil(frame);
        self.told.frames += 1;
        let Ok(message) = Message::decode(frame) else {
            return Ok(());
        };
        self.told.read += 1;
        self.take(message)
    }

    /// A peer takes what Eve sends, and keeps little of it.
    fn take(&mut self, message: Message) -> Result<(), String> {
        let (from, to) = (self.ids[EVE], self.rng.index(EVE));
        // Nobody reads answers to Eve, unless she runs a peer.
        self.give(to, Input::Message { from, message });
        let kept = self.peers[to].as_ref().map_or(0, Peer::buffered_bytes);
        self.told.kept = self.told.kept.max(kept);
        let vector = self.manifest.codec.encoded_len(self.manifest.layout.len);
        if kept > KEPT + 4 * vector {
            return Err(format!("a peer keeps {kept} bytes of what it was sent"));
        }
        if self.wire.len() > 100_000 {
            // They answer each request; a real link would hold them back.
            self.wire.clear();
        }
        Ok(())
    }

    fn spoil(&mut self, frame: Bytes) -> Bytes {
        match self.rng.below(10) {
            0 => frame,
            1 => self.change_bytes(frame),
            2 => self.splice(frame),
            _ => {
                let Ok(mut message) = Message::decode(frame) else {
                    return Bytes::new();
                };
                for _ in 0..1 + self.rng.below(3) {
                    self.twist().message(&mut message);
                }
                self.sign(&mut message);
                if self.rng.chance(0.1) {
                    message = self.wrap(&message);
                }
                message.to_frame()
            }
        }
    }

    /// Eve signs messages in her own name.
    fn sign(&mut self, message: &mut Message) {
        if let Some(peer) = self.peers[self.rng.index(EVE)].as_ref() {
            let eve = Key::stand_in(self.ids[EVE]);
            resign(message, &eve, peer.head().chain, self.manifest.run_id());
        }
    }

    fn change_bytes(&mut self, frame: Bytes) -> Bytes {
        let mut bytes = frame.to_vec();
        for _ in 0..1 + self.rng.below(4) {
            let at = self.rng.index(bytes.len());
            bytes[at] = match self.rng.below(4) {
                0 => 0,
                1 => 0xff,
                2 => bytes[at] ^ (1 << self.rng.below(8)),
                _ => self.rng.next() as u8,
            };
        }
        bytes.into()
    }

    /// The beginning of one frame and the end of another.
    fn splice(&mut self, frame: Bytes) -> Bytes {
        let other = self.rng.pick_ref(&self.heard).cloned().unwrap_or_default();
        let (head, tail) = (self.rng.index(frame.len() + 1), self.rng.index(other.len() + 1));
        [&frame[..head], &other[tail..]].concat().into()
    }

    /// Wraps a message as a frame to relay, or as one that could not be relayed.
    fn wrap(&mut self, message: &Message) -> Message {
        let (to, frame) = (self.twist().anybody(), message.to_frame());
        let eve = Settings {
            started: self.twist().number(7),
            ..Settings::stand_in(self.ids[EVE], Contact::default(), &self.manifest)
        };
        let envelope = Relayed::new(&eve, self.manifest.run_id()).seal(to, Lane::Bulk, &frame);
        match self.rng.chance(0.5) {
            true => Message::Relay { envelope, frame },
            false => Message::Unreachable { envelope, frame },
        }
    }

    /// The twist that changes Eve's messages.
    fn twist(&mut self) -> Twist<'_> {
        let peers = || self.peers.iter().flatten();
        Twist {
            root: self.manifest.root(),
            names: &self.ids,
            chains: peers().map(|peer| peer.head().chain).collect(),
            views: self.peers[..EVE]
                .iter()
                .map(|peer| peer.as_ref()?.view().map(|(view, _)| view))
                .collect(),
            rng: &mut self.rng,
        }
    }
}
