//! The participant as a driver sees it: inputs in, outputs out, nothing else.
//!
//! Call [`Peer::handle`] for everything that happens, then [`Peer::poll`] until it returns `None`, and
//! [`Peer::handle`] with [`Input::Tick`] no later than [`Peer::wake_at`]. What a phase does with a
//! message is in `round.rs` (members), `flush.rs` (agreement after a failure), `join.rs` (newcomers)
//! and `sponsor.rs` (those who help them).

use crate::apply::Applying;
use crate::config::{Manifest, Settings};
use crate::detector::Detector;
use crate::id::{Contact, Digest, PeerId, Round};
use crate::join::Join;
use crate::ledger::{Head, Member, Record};
use crate::links::Links;
use crate::round::{Committed, Working};
use crate::sponsor::Follower;
use crate::state::State;
use crate::time::Time;
use crate::wire::{Message, Standing, ViewKey};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// All that can happen to a peer.
#[derive(Clone, Debug)]
pub enum Input {
    /// Time has passed.
    Tick,
    /// A link to a peer is open, whoever dialled.
    LinkUp {
        /// The other end.
        peer: PeerId,
        /// Where it can be dialled.
        contact: Contact,
    },
    /// The link is gone, and with it perhaps frames in both directions.
    LinkDown {
        /// The other end.
        peer: PeerId,
    },
    /// A dial that was asked for failed.
    DialFailed {
        /// Who was dialled.
        peer: PeerId,
    },
    /// A message arrived.
    Message {
        /// Over whose link.
        from: PeerId,
        /// What it says.
        message: Message,
    },
    /// The contribution that [`Output::Compute`] asked for.
    Contribution {
        /// The round it is for.
        round: Round,
        /// Sum of gradients. If it is not finite, or `weight` is 0, none of its samples counts.
        gradient: Vec<f32>,
        /// Samples in the sum, from the front of the share.
        weight: u32,
        /// Sum of their losses.
        loss: f32,
        /// How long it took.
        compute: Duration,
    },
    /// The device has been tried out: this many samples per 1,000 seconds.
    Warm {
        /// Speed.
        speed: u64,
    },
    /// Finish the round in work, tell the others, and exit.
    Leave,
}

/// All that a peer asks of its driver.
#[derive(Clone, Debug)]
pub enum Output {
    /// Send a message over the link to a peer.
    Send {
        /// The other end.
        to: PeerId,
        /// Which stream: each keeps its order, control overtakes bulk.
        lane: Lane,
        /// What to send.
        message: Message,
    },
    /// Open a link.
    Dial {
        /// To whom.
        peer: PeerId,
        /// Where.
        contact: Contact,
    },
    /// Make a contribution: replace the parameters in this buffer by the sum of gradients over the
    /// samples at these stream positions and give it back as [`Input::Contribution`]. One is asked for at a
    /// time, the next only after this one has been given.
    Compute {
        /// The round.
        round: Round,
        /// Positions in the stream of shuffled epochs, in the order in which they count.
        positions: Vec<Range<u64>>,
        /// The parameters.
        buffer: Vec<f32>,
    },
    /// Something happened that the world may want to know.
    Event(Event),
    /// This peer is done. No output follows; close links once what was sent has left.
    Exit(Exit),
}

/// Which of a link's two ordered streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Small and urgent.
    Control,
    /// Pieces and blocks.
    Bulk,
}

/// What the world may want to know. The state, head and digest of the peer are those after the event.
#[derive(Clone, Debug)]
pub enum Event {
    /// A round was committed by this member.
    Committed(Box<Commit>),
    /// Someone became or ceased to be a member.
    Member {
        /// Who.
        peer: PeerId,
        /// What changed.
        change: Change,
        /// Why.
        reason: &'static str,
    },
    /// The state is on its way.
    Syncing {
        /// Bytes held.
        bytes: u64,
        /// Bytes of the whole state.
        total: u64,
        /// The sponsor's round.
        round: Round,
    },
    /// This peer holds the state of the head and is a member from here on.
    Entered,
    /// Nobody that can be reached is a member: this peer goes on alone from the state that it holds.
    Continued,
    /// This peer ceased to be a member and joins again.
    Outcast {
        /// Why.
        reason: &'static str,
        /// Samples that its own lineage had counted since it parted from the other.
        lost: u64,
    },
    /// This peer's contribution to a round was refused.
    NotFinite {
        /// The round.
        round: Round,
    },
    /// The run waits until there are `min_peers` members.
    Waiting {
        /// Members now.
        members: usize,
    },
}

/// A change of membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is a member from the next round on.
    Joined,
    /// It said that it leaves.
    Left,
    /// It is silent.
    Failed,
    /// It answers but cannot stay.
    Evicted,
}

/// A committed round, seen from one member.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Its record.
    pub record: Record,
    /// The attempt that succeeded.
    pub view: ViewKey,
    /// The state after it.
    pub digest: Digest,
    /// Samples counted in the whole run.
    pub samples: u64,
    /// From the beginning of the round to the end of this peer's contribution.
    pub compute: Duration,
    /// From there to the last piece.
    pub reduce: Duration,
    /// From the last commit to this one.
    pub total: Duration,
}

/// Why a peer is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Every sample was counted.
    Finished,
    /// It was asked to leave.
    Left,
    /// In two rounds running no member had a finite contribution.
    NotFinite,
}

pub(crate) enum Phase {
    Joining(Box<Join>),
    Member(Box<Working>),
    /// Done, but there to answer those who are not, until the time given.
    Lingering {
        exit: Exit,
        until: Time,
        /// Who may still lack a piece of the last round.
        waits_for: BTreeSet<PeerId>,
    },
    Gone,
}

/// A participant. See the module's documentation for the order of calls.
pub struct Peer {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) settings: Settings,
    pub(crate) now: Time,
    pub(crate) out: VecDeque<Output>,
    pub(crate) links: Links,
    pub(crate) detector: Detector,
    pub(crate) phase: Phase,
    pub(crate) state: State,
    /// The round that is being applied to the state.
    pub(crate) applying: Option<Box<Applying>>,
    pub(crate) head: Head,
    pub(crate) digest: Digest,
    /// The last committed round's chunks, to repair those who miss some.
    pub(crate) last: Option<Committed>,
    pub(crate) followers: BTreeMap<PeerId, Follower>,
    /// Measured speed in samples per 1,000 seconds.
    pub(crate) speed: Option<u64>,
    pub(crate) leaving: bool,
    /// Who said that it has finished: nobody needs to wait for it at the end.
    pub(crate) ended: BTreeSet<PeerId>,
    /// Rounds running in which nothing was finite.
    pub(crate) barren: u32,
    pub(crate) committed_at: Time,
    /// Samples counted when a peer ceased to be in this peer's view: what is lost if its lineage stands.
    pub(crate) parted: BTreeMap<PeerId, u64>,
    /// Pieces of views that this peer has not reached yet.
    pub(crate) early: VecDeque<(PeerId, Message)>,
    early_bytes: usize,
    /// The lineage for whose next round the device is at work, and the state that it started from.
    pub(crate) computing: Option<(Digest, Digest)>,
    /// A buffer as long as the parameters that nobody uses now.
    pub(crate) spare: Vec<f32>,
    /// Number of the last probe of all members, and when it was sent.
    pub(crate) probed: Option<(u32, Time)>,
    /// When a peer that is not in the view was last told the standing.
    told_status: BTreeMap<PeerId, (Time, Standing)>,
}

impl Peer {
    /// Founds a run with an initial state, as its only member so far.
    pub fn found(manifest: Arc<Manifest>, settings: Settings, state: State, now: Time) -> Self {
        let head = Head::genesis(&manifest, Member::new(&settings, None));
        let mut peer = Self::new(manifest, settings, state, head, now);
        peer.enter_round();
        peer
    }

    /// Goes on with a run from a checkpoint, as its only member so far.
    pub fn resume(manifest: Arc<Manifest>, settings: Settings, state: State, head: Head, now: Time) -> Self {
        let others = head.members.clone();
        let head = head.continued_by(Member::new(&settings, None));
        let mut peer = Self::new(manifest, settings, state, head, now);
        for member in others {
            // They may go on too: whoever has counted less joins the other again.
            peer.links.want(member.peer, &member.contact, now);
        }
        peer.enter_round();
        peer
    }

    /// Joins a run through one of its members.
    pub fn join(
        manifest: Arc<Manifest>,
        settings: Settings,
        via: PeerId,
        contact: &Contact,
        now: Time,
    ) -> Self {
        let head = Head::genesis(&manifest, Member::new(&settings, None));
        let state = State::new(Vec::new(), &manifest);
        let mut peer = Self::new(manifest, settings, state, head, now);
        peer.phase = Phase::Joining(Box::new(Join::new(now, false)));
        peer.links.want(via, contact, now);
        peer.on_time();
        peer
    }

    /// Tells where another peer of the run may be found: if the one that it joins through is gone, any other will do.
    pub fn know(&mut self, peer: PeerId, contact: &Contact) {
        self.links.want(peer, contact, self.now);
    }

    fn new(manifest: Arc<Manifest>, settings: Settings, state: State, head: Head, now: Time) -> Self {
        Self {
            digest: state.digest(),
            links: Links::new(settings.me),
            manifest,
            settings,
            now,
            out: VecDeque::new(),
            detector: Detector::default(),
            phase: Phase::Gone,
            state,
            applying: None,
            head,
            last: None,
            followers: BTreeMap::new(),
            speed: None,
            leaving: false,
            ended: BTreeSet::new(),
            barren: 0,
            committed_at: now,
            parted: BTreeMap::new(),
            early: VecDeque::new(),
            early_bytes: 0,
            computing: None,
            spare: Vec::new(),
            probed: None,
            told_status: BTreeMap::new(),
        }
    }

    /// Takes an input. Time never goes back.
    pub fn handle(&mut self, input: Input, now: Time) {
        let due = self.wake_at().filter(|_| !self.is_applying());
        self.now = self.now.max(now);
        self.links.now = self.now;
        if self.is_applying() {
            match input {
                Input::Tick => self.apply_part(),
                _ => self.apply_rest(),
            }
            if self.is_applying() {
                return;
            }
        }
        if due.is_some_and(|due| self.now > due + self.detector.answer()) {
            self.overslept();
        }
        match input {
            Input::Tick => {}
            Input::LinkUp { peer, contact } => self.on_link_up(peer, contact),
            Input::LinkDown { peer } => self.on_link_down(peer),
            Input::DialFailed { peer } => self.links.failed(peer, self.now),
            Input::Message { from, message } => self.on_message(from, message),
            Input::Contribution {
                round,
                gradient,
                weight,
                loss,
                compute,
            } => {
                self.on_contribution(round, gradient, weight, loss, compute);
            }
            Input::Warm { speed } => {
                self.speed.get_or_insert(speed.max(1));
                self.say_ready();
            }
            Input::Leave => self.leave(),
        }
        self.on_time();
    }

    /// The next thing to do, until there is none.
    pub fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// When [`Input::Tick`] is due, if nothing else happens before.
    pub fn wake_at(&self) -> Option<Time> {
        let linger = match &self.phase {
            Phase::Lingering { until, .. } => Some(*until),
            Phase::Gone => return None,
            Phase::Member(_) if self.is_applying() => return Some(self.now),
            _ => None,
        };
        [
            self.links.wake_at(),
            self.member_wake_at(),
            self.joining_wake_at(),
            linger,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// The state after the last committed round (of a newcomer: as far as it has come).
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The end of the ledger.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The state's digest at the head.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// This peer's name.
    pub fn me(&self) -> PeerId {
        self.settings.me
    }

    /// The run.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Whether this peer is a member of the round in work.
    pub fn is_member(&self) -> bool {
        matches!(self.phase, Phase::Member(_))
    }

    /// Bytes of pieces that wait for something: bounded by a few vectors.
    pub fn buffered_bytes(&self) -> usize {
        let waiting = match &self.phase {
            Phase::Member(w) => w.reduce.waiting_bytes(),
            _ => 0,
        };
        self.early_bytes + waiting
    }

    /// Damages one bit of the state, as failing memory would.
    #[cfg(feature = "sim")]
    pub fn flip_bit(&mut self, element: usize, bit: u32) {
        if let Some(value) = self.state.params.get_mut(element) {
            *value = f32::from_bits(value.to_bits() ^ (1 << (bit % 32)));
        }
    }

    fn on_message(&mut self, from: PeerId, message: Message) {
        match message {
            Message::Relay {
                from: author,
                to,
                frame,
            } => self.on_relay(from, author, to, frame),
            Message::Unreachable { to, frame } => self.on_unreachable(from, to, frame),
            Message::Piece { view, .. } => self.route_piece(from, view, message),
            Message::Probe { view, nonce } => match self.phase {
                Phase::Joining(_) => self.on_probe_while_joining(from, view, nonce),
                _ => self.on_probe(from, view, nonce),
            },
            Message::Alive { nonce, round, doing } => match self.phase {
                Phase::Joining(_) => self.on_alive_while_joining(from),
                _ => self.on_alive(from, nonce, round, doing),
            },
            Message::Flush { view, suspects } => match self.phase {
                Phase::Joining(_) => self.on_flush_while_joining(from, view, &suspects),
                Phase::Member(_) => self.on_flush(from, view, suspects),
                Phase::Lingering { .. } => self.on_late(from, view, Some(suspects)),
                Phase::Gone => {}
            },
            Message::Decision { view, suspects } => self.on_decision(from, view, suspects),
            Message::Committed { view, record, digest } => self.on_committed(from, view, record, digest),
            Message::Repair { view, missing } => self.on_repair(from, view, missing),
            Message::Out { view } => self.on_out(from, view),
            Message::Status {
                standing,
                member,
                finished,
            } => self.on_status(from, standing, member, finished),
            Message::Follow { have, contact } => self.on_follow(from, have, contact),
            Message::Following {
                head,
                digest,
                resumes,
                member,
            } => self.on_following(from, head, digest, resumes, member),
            Message::NotMember { standing } => self.on_refused(from, standing),
            Message::Followed { round } => self.on_followed(from, round),
            Message::Ready { speed, round } => self.on_ready(from, speed, round),
            Message::Fetch { block } => self.on_fetch(from, block),
            Message::Block {
                block,
                round,
                chain,
                data,
            } => self.on_block(block, round, chain, &data),
        }
    }

    /// Passes a frame on, or takes it if it is for this peer.
    fn on_relay(&mut self, from: PeerId, author: PeerId, to: PeerId, frame: bytes::Bytes) {
        if to == self.settings.me {
            match Message::decode(frame) {
                // A relay in a relay could go in circles.
                Ok(Message::Relay { .. } | Message::Unreachable { .. }) | Err(_) => {}
                Ok(message) => self.on_message(author, message),
            }
        } else if from == author && self.links.is_up(to) {
            let lane = Lane::Bulk;
            self.out.push_back(Output::Send {
                to,
                lane,
                message: Message::Relay {
                    from: author,
                    to,
                    frame,
                },
            });
        } else if from == author {
            self.links.send(
                &mut self.out,
                from,
                Lane::Bulk,
                Message::Unreachable { to, frame },
            );
        }
    }

    /// A relay has no link either: the frame goes another way, if there is one.
    fn on_unreachable(&mut self, relay: PeerId, to: PeerId, frame: bytes::Bytes) {
        if !self.links.no_relay(relay, to) {
            return;
        }
        match Message::decode(frame) {
            Ok(Message::Relay { .. } | Message::Unreachable { .. }) | Err(_) => {}
            Ok(message) => {
                self.links.send(&mut self.out, to, Lane::Bulk, message);
            }
        }
    }

    /// A piece goes to the attempt that it belongs to, or waits for that to begin.
    fn route_piece(&mut self, from: PeerId, view: ViewKey, message: Message) {
        match &self.phase {
            Phase::Joining(_) => self.on_followed_piece(from, message),
            Phase::Member(w) => {
                let mine = w.view.key;
                if view == mine {
                    self.on_piece(from, message);
                } else if (view.round, view.attempt) > (mine.round, mine.attempt) {
                    self.keep_early(from, message);
                } else if !w.view.contains(from) {
                    self.on_late(from, view, None);
                }
            }
            Phase::Lingering { .. } | Phase::Gone => {}
        }
    }

    /// Keeps a piece of a view that is not reached yet: at most two vectors, the oldest go first.
    pub(crate) fn keep_early(&mut self, from: PeerId, message: Message) {
        let limit = 2 * self.manifest.codec.encoded_len(self.manifest.layout.len) + (64 << 10);
        self.early_bytes += payload(&message);
        self.early.push_back((from, message));
        while self.early_bytes > limit || self.early.len() > EARLY_LIMIT {
            let Some((_, dropped)) = self.early.pop_front() else {
                break;
            };
            self.early_bytes -= payload(&dropped);
        }
    }

    /// Takes the pieces of one view out of those kept, and drops those that are too old to matter.
    pub(crate) fn drain_early(&mut self, wanted: ViewKey) -> Vec<(PeerId, Message)> {
        let mut drained = Vec::new();
        for (from, message) in std::mem::take(&mut self.early) {
            match &message {
                Message::Piece { view, .. } if *view == wanted => drained.push((from, message)),
                Message::Piece { view, .. }
                    if (view.round, view.attempt) >= (wanted.round, wanted.attempt) =>
                {
                    self.early.push_back((from, message));
                }
                _ => {}
            }
        }
        self.early_bytes = self.early.iter().map(|(_, m)| payload(m)).sum();
        drained
    }

    /// Takes the pieces that waited for the view that has begun.
    pub(crate) fn take_early(&mut self) {
        let Phase::Member(w) = &self.phase else {
            return;
        };
        let mine = w.view.key;
        for (from, message) in self.drain_early(mine) {
            if matches!(&self.phase, Phase::Member(w) if w.view.key == mine) {
                self.on_piece(from, message);
            }
        }
    }

    fn on_link_up(&mut self, peer: PeerId, contact: Contact) {
        self.links.up(peer, contact, self.now);
        // What it was told may have been lost with an older link.
        self.told_status.remove(&peer);
        match &self.phase {
            Phase::Joining(_) => self.on_candidate(peer, None),
            Phase::Member(w) if !w.view.contains(peer) && !self.followers.contains_key(&peer) => {
                self.send_status(peer)
            }
            Phase::Member(w) if w.view.contains(peer) => self.probe_again(peer),
            _ => {}
        }
    }

    fn on_link_down(&mut self, peer: PeerId) {
        self.links.down(peer, self.now);
        self.followers.remove(&peer);
        self.hurry(peer);
        self.on_lost_while_joining(peer);
        if let Phase::Lingering { waits_for, .. } = &mut self.phase {
            waits_for.remove(&peer);
        }
    }

    /// Tells a peer that is not in this peer's view where this lineage stands; the same not more often than it
    /// could answer.
    pub(crate) fn send_status(&mut self, peer: PeerId) {
        let (now, patience) = (self.now, self.detector.answer() / 4);
        let standing = Standing::of(&self.head);
        let told = self.told_status.get(&peer);
        if told.is_some_and(|(at, told)| now - *at < patience && *told == standing) {
            return;
        }
        self.told_status.retain(|_, (at, _)| now - *at < patience);
        self.told_status.insert(peer, (now, standing));
        let member = matches!(self.phase, Phase::Member(_) | Phase::Lingering { .. });
        let finished = matches!(self.phase, Phase::Lingering { .. });
        let message = Message::Status {
            standing,
            member,
            finished,
        };
        self.links.send(&mut self.out, peer, Lane::Control, message);
    }

    /// Tells all peers that can be reached and are not in this peer's view where this lineage stands: links
    /// outlive views, so lineages may meet without a link coming up.
    pub(crate) fn tell_strangers(&mut self) {
        let Phase::Member(w) = &self.phase else { return };
        let stranger = |peer: &PeerId| !w.view.contains(*peer) && !self.followers.contains_key(peer);
        let strangers: Vec<PeerId> = self.links.reachable().filter(stranger).collect();
        for peer in strangers {
            self.send_status(peer);
        }
    }

    fn leave(&mut self) {
        self.leaving = true;
        match &self.phase {
            Phase::Member(w) if w.is_null(&self.manifest) && w.view.members.len() == 1 => {
                self.finish(Exit::Left)
            }
            Phase::Member(_) => self.start_if_ready(),
            Phase::Joining(_) => {
                self.out.push_back(Output::Exit(Exit::Left));
                self.phase = Phase::Gone;
            }
            _ => {}
        }
    }

    fn on_time(&mut self) {
        self.links.on_time(&mut self.out, self.now);
        match &self.phase {
            Phase::Member(_) => {
                self.hand_in();
                self.on_member_time();
            }
            Phase::Joining(_) => self.on_joining_time(),
            Phase::Lingering { .. } => self.linger(),
            Phase::Gone => {}
        }
    }
}

/// Most pieces that wait for their view, for vectors so short that bytes are no bound.
const EARLY_LIMIT: usize = 1 << 16;

fn payload(message: &Message) -> usize {
    match message {
        Message::Piece { data, .. } => data.len(),
        _ => 0,
    }
}
