//! Small worlds written by hand: peers on links that a story opens and cuts, in virtual time.
#![allow(dead_code, reason = "each file of stories uses its part of it")]

use annulus_core::config::Topology;
use annulus_core::interface::{SpanDone, SpanWork};
use annulus_core::invitation::Admission;
use annulus_core::ledger::{Head, Record};
use annulus_core::local::{LocalOptimizer, LocalRound};
use annulus_core::planted::Bug;
use annulus_core::saved::Saved;
use annulus_core::shuffle;
use annulus_core::wire::{Message, ViewKey};
use annulus_core::{
    Change, Contact, Event, Exit, Initial, Input, Lane, Layout, Manifest, Output, Peer, PeerId, Round,
    Settings, State, Time, Waits,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub const SECOND: u64 = 1_000_000;
pub const MILLI: u64 = 1_000;

pub const ANN: PeerId = PeerId([1; 32]);
pub const BEN: PeerId = PeerId([2; 32]);
pub const CAT: PeerId = PeerId([3; 32]);

/// Peers on links that the story opens and cuts. Dials reach nobody: the story decides who can reach whom.
pub struct Story {
    pub now: u64,
    pub manifest: Arc<Manifest>,
    pub peers: BTreeMap<PeerId, Peer>,
    /// Compute time of a round, in microseconds.
    pub compute_us: BTreeMap<PeerId, u64>,
    /// Samples per second of peers whose time depends on their share.
    pub pace: BTreeMap<PeerId, f64>,
    /// Their time for any share, in microseconds.
    pub launch_us: BTreeMap<PeerId, u64>,
    /// The claimed speed of the device, in samples per 1,000 seconds; usually its pace, or 1000.
    pub warm: BTreeMap<PeerId, u64>,
    /// The gradient of each sample, if it is not 0.25.
    pub gradient: BTreeMap<PeerId, f32>,
    /// Whether each sample has a gradient of its own.
    pub differ: bool,
    /// How peers change what they have computed.
    pub changes: BTreeMap<PeerId, Alter>,
    /// Samples that each peer's device has computed.
    pub computed: BTreeMap<PeerId, u64>,
    /// The loss of each share, if it is not 1.
    pub losses: BTreeMap<PeerId, f32>,
    /// The optimum of all weights, if gradients are to lead there.
    pub optimum: Option<f32>,
    /// The moments of peers that take local steps.
    moments: BTreeMap<PeerId, LocalOptimizer>,
    /// Sleeping peers, and the events that wait for them.
    asleep: BTreeMap<PeerId, Vec<Due>>,
    /// Peers that can be dialled.
    pub dialable: BTreeSet<PeerId>,
    /// Dials so far: from, to.
    pub dialled: BTreeSet<(PeerId, PeerId)>,
    /// The admissions of peers that are not full members for ever.
    pub admissions: BTreeMap<PeerId, Admission>,
    /// Each peer's clock at the beginning, in seconds since 1970, if it is not 0.
    pub epoch_s: BTreeMap<PeerId, u64>,
    /// Peers that are done, and why.
    pub exits: BTreeMap<PeerId, Exit>,
    /// Messages that went from one to another.
    pub sent: BTreeMap<(PeerId, PeerId), u64>,
    /// Blocks of the state that each peer has sent.
    pub blocks: BTreeMap<PeerId, u32>,
    /// Open links, and how often each was opened: frames under way when it is cut are lost.
    pub links: BTreeSet<(PeerId, PeerId)>,
    opened: BTreeMap<(PeerId, PeerId), u32>,
    pub latency_us: BTreeMap<(PeerId, PeerId), u64>,
    /// Of all other links.
    pub usual_latency_us: u64,
    /// The extra delay of the bulk lane in one direction.
    pub bulk_us: BTreeMap<(PeerId, PeerId), u64>,
    /// A peer's time for each frame of its bulk lane, one after the other, and until when it is busy.
    pub frame_us: BTreeMap<PeerId, u64>,
    busy_until: BTreeMap<PeerId, u64>,
    /// The bytes a second that a peer's line carries to it, where that is little.
    pub line: BTreeMap<PeerId, u64>,
    /// Most rounds that newcomers may be behind.
    pub lag: Round,
    /// Events to come, in order of time and of scheduling.
    due: BTreeMap<(u64, u64), Due>,
    asked: u64,
    /// Messages to names that only the story speaks for.
    pub heard: Vec<(PeerId, Message)>,
    /// The peers' events, in order.
    pub events: Vec<(u64, PeerId, Event)>,
    /// The peer whose messages are changed, and how.
    pub liar: Option<(PeerId, Lie)>,
    /// Others whose messages are changed in the same way.
    pub accomplices: BTreeSet<PeerId>,
    /// What is wrong with peers' programs.
    pub bugs: BTreeMap<PeerId, Bug>,
    /// In a split run, each peer saves its parts after every this many rounds; 0: never.
    pub saves_every: u64,
    /// How long each peer waits for others.
    pub waits: Waits,
    /// Each peer's disk, the latest save at the end.
    pub disks: BTreeMap<PeerId, Vec<(Head, State)>>,
    /// The attempt of the last piece that each has sent.
    pub at_work: BTreeMap<PeerId, ViewKey>,
}

/// Changes the gradient of a round.
pub type Alter = fn(&mut [f32], u64);

/// Changes a message from a liar, given the liar and the receiver.
pub type Lie = fn(&Peer, PeerId, &mut Message);

/// Turns parameters into the gradient of the samples at these positions, each of which wants parameters of its own.
fn compute(buffer: &mut [f32], positions: &[Range<u64>]) {
    let params = buffer.to_vec();
    buffer.fill(0.0);
    for position in positions.iter().cloned().flatten() {
        for ((sum, param), i) in buffer.iter_mut().zip(&params).zip(1u64..) {
            *sum += param - noise(position * 0x9e37_79b9 + i);
        }
    }
}

/// A number from -1 to 1.
pub fn noise(seed: u64) -> f32 {
    let mixed = (seed ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// The payload of a message.
fn bytes(message: &Message) -> u64 {
    match message {
        Message::Piece { data, .. } | Message::Block { data, .. } => data.len() as u64,
        _ => 0,
    }
}

enum Due {
    Tick(PeerId),
    Give(PeerId, Input),
    Deliver {
        from: PeerId,
        to: PeerId,
        opened: u32,
        message: Message,
    },
}

impl Story {
    pub fn new(min_peers: u16) -> Self {
        Self::over(Topology::Ring, min_peers)
    }

    pub fn over(topology: Topology, min_peers: u16) -> Self {
        Self::with(topology, |manifest| {
            manifest.min_peers = min_peers.try_into().unwrap()
        })
    }

    /// A story with other settings of the run.
    pub fn with(topology: Topology, change: impl FnOnce(&mut Manifest)) -> Self {
        let mut manifest = Manifest {
            samples: 100.try_into().unwrap(),
            target: 1_000_000.try_into().unwrap(),
            batch: 8.try_into().unwrap(),
            topology: Some(topology),
            piece: 4.try_into().unwrap(),
            ..Manifest::new(Layout::flat(12))
        };
        change(&mut manifest);
        Self {
            now: 0,
            manifest: Arc::new(manifest),
            peers: BTreeMap::new(),
            compute_us: BTreeMap::new(),
            pace: BTreeMap::new(),
            launch_us: BTreeMap::new(),
            warm: BTreeMap::new(),
            gradient: BTreeMap::new(),
            differ: false,
            changes: BTreeMap::new(),
            computed: BTreeMap::new(),
            losses: BTreeMap::new(),
            optimum: None,
            moments: BTreeMap::new(),
            asleep: BTreeMap::new(),
            dialable: BTreeSet::new(),
            dialled: BTreeSet::new(),
            admissions: BTreeMap::new(),
            epoch_s: BTreeMap::new(),
            exits: BTreeMap::new(),
            sent: BTreeMap::new(),
            blocks: BTreeMap::new(),
            links: BTreeSet::new(),
            opened: BTreeMap::new(),
            latency_us: BTreeMap::new(),
            usual_latency_us: 5 * MILLI,
            bulk_us: BTreeMap::new(),
            frame_us: BTreeMap::new(),
            busy_until: BTreeMap::new(),
            line: BTreeMap::new(),
            lag: Settings::LAG,
            due: BTreeMap::new(),
            asked: 0,
            heard: Vec::new(),
            events: Vec::new(),
            liar: None,
            accomplices: BTreeSet::new(),
            bugs: BTreeMap::new(),
            saves_every: 0,
            waits: Waits::default(),
            disks: BTreeMap::new(),
            at_work: BTreeMap::new(),
        }
    }

    /// A peer founds the run, with this compute time of a round.
    pub fn found(&mut self, who: PeerId, compute_us: u64) {
        // In a split run nobody has the whole state.
        let len = match self.manifest.split {
            None => self.manifest.layout.len,
            Some(_) => 0,
        };
        let state = State::new(vec![0.5; len], &self.manifest);
        let settings = self.settings(who);
        let peer = Peer::found(self.manifest.clone(), settings, state, Time(self.now));
        self.begin(who, peer, compute_us);
    }

    /// A peer founds the run, unless it finds others that have.
    pub fn meet(&mut self, who: PeerId, compute_us: u64) {
        let state = State::new(vec![0.5; self.manifest.layout.len], &self.manifest);
        let (settings, head) = (self.settings(who), Head::unfounded(&self.manifest));
        let peer = Peer::resume(self.manifest.clone(), settings, state, head, Time(self.now));
        self.begin(who, peer, compute_us);
    }

    /// A peer joins over a link that is open from the start, if there is a peer at the other end.
    pub fn join(&mut self, who: PeerId, via: PeerId, compute_us: u64) {
        let settings = self.settings(who);
        let contact = self.contact(via);
        let peer = Peer::join(self.manifest.clone(), settings, via, &contact, Time(self.now));
        self.begin(who, peer, compute_us);
        if self.peers.contains_key(&via) {
            self.open(who, via);
        }
    }

    /// The settings of a new peer.
    fn settings(&self, who: PeerId) -> Settings {
        let settings = Settings::stand_in(who, self.contact(who), &self.manifest);
        let admission = self.admissions.get(&who).cloned();
        Settings {
            admission: admission.unwrap_or(settings.admission.clone()),
            epoch_s: self.epoch_s.get(&who).copied().unwrap_or(0),
            started: self.now,
            saves_every: self.saves_every,
            waits: self.waits,
            lag: self.lag,
            bug: self.bugs.get(&who).copied(),
            initial: self.manifest.split.as_ref().map(|_| {
                let values = |range: &Range<usize>| vec![0.5; range.len()];
                Initial::new(move |ranges| ranges.iter().map(values).collect())
            }),
            ..settings
        }
    }

    /// Gathers this many members with links to each other, and with equal compute times.
    pub fn gather(&mut self, count: u8, compute_us: u64) -> Vec<PeerId> {
        let all: Vec<PeerId> = (1..=count).map(|name| PeerId([name; 32])).collect();
        self.found(all[0], compute_us);
        for (i, who) in all.iter().enumerate().skip(1) {
            self.join(*who, all[0], compute_us);
            all[1..i].iter().for_each(|other| self.open(*who, *other));
        }
        all
    }

    fn contact(&self, who: PeerId) -> Contact {
        let address = self.dialable.contains(&who).then(|| who.to_hex());
        Contact(address.into_iter().collect())
    }

    fn begin(&mut self, who: PeerId, peer: Peer, compute_us: u64) {
        self.peers.insert(who, peer);
        self.compute_us.insert(who, compute_us);
        self.react(who);
        let paced = self.pace.get(&who).map(|pace| (pace * 1000.0) as u64);
        let speed = self.warm.get(&who).copied().or(paced).unwrap_or(1000);
        self.give(who, Input::Warm { speed });
    }

    pub fn open(&mut self, a: PeerId, b: PeerId) {
        let pair = (a.min(b), a.max(b));
        self.links.insert(pair);
        *self.opened.entry(pair).or_default() += 1;
        for (end, peer) in [(a, b), (b, a)] {
            let contact = self.contact(peer);
            if self.peers.contains_key(&end) {
                self.give(
                    end,
                    Input::LinkUp {
                        peer,
                        contact,
                        rtt: Duration::ZERO,
                    },
                );
            }
        }
    }

    /// Sends a message now, in the name of any peer, real or not.
    pub fn say(&mut self, from: PeerId, to: PeerId, message: Message) {
        self.give(to, Input::Message { from, message });
    }

    pub fn cut(&mut self, a: PeerId, b: PeerId) {
        self.links.remove(&(a.min(b), a.max(b)));
        for (end, peer) in [(a, b), (b, a)] {
            if self.peers.contains_key(&end) {
                self.give(end, Input::LinkDown { peer });
            }
        }
    }

    pub fn give(&mut self, who: PeerId, input: Input) {
        let peer = self.peers.get_mut(&who).expect("it is in the story");
        peer.handle(input, Time(self.now));
        self.react(who);
    }

    /// Carries out a peer's outputs.
    fn react(&mut self, who: PeerId) {
        while let Some(output) = self.peers.get_mut(&who).and_then(Peer::poll) {
            match output {
                Output::Send { to, lane, message } => self.send(who, to, lane, message),
                Output::Compute {
                    round,
                    positions,
                    mut buffer,
                    local,
                } => {
                    let weight = shuffle::count(&positions) as u32;
                    *self.computed.entry(who).or_default() += u64::from(weight);
                    // All but those with a pace claim the time of the slowest, so that all get the same share.
                    let slowest = *self.compute_us.values().max().expect("of this one");
                    let launch = self.launch_us.get(&who).copied().unwrap_or(0);
                    let paced = |pace: &f64| launch + (f64::from(weight) / pace * 1e6) as u64;
                    let paced = self.pace.get(&who).map(paced);
                    match (self.gradient.get(&who), self.optimum) {
                        (None, Some(optimum)) => self.descend(who, &mut buffer, (optimum, weight), local),
                        (None, None) if self.differ => compute(&mut buffer, &positions),
                        (value, _) => buffer.fill(value.copied().unwrap_or(0.25) * weight as f32),
                    }
                    if let Some(change) = self.changes.get(&who) {
                        change(&mut buffer, round);
                    }
                    let made = Input::Contribution {
                        round,
                        gradient: buffer,
                        weight,
                        loss: self.losses.get(&who).copied().unwrap_or(1.0),
                        compute: Duration::from_micros(paced.unwrap_or(slowest)),
                        late: false,
                    };
                    let takes = paced.unwrap_or(self.compute_us[&who]);
                    self.at(self.now + takes, Due::Give(who, made));
                }
                Output::Event(event) => {
                    self.save(who, &event);
                    self.events.push((self.now, who, event));
                }
                Output::Span(work) => {
                    let done = Input::Span(Box::new(self.pass(who, *work)));
                    self.at(self.now + self.compute_us[&who], Due::Give(who, done));
                }
                Output::Restore { stepped } => {
                    let here = self.disks.get(&who).and_then(|disk| {
                        let kept = disk.iter().map(|(_, state)| &state.kept);
                        kept.rev().find(|kept| kept.stepped == stepped)
                    });
                    let kept = here.cloned().map(Box::new);
                    let restored = Input::Restored { stepped, kept };
                    self.at(self.now + 50 * MILLI, Due::Give(who, restored));
                }
                Output::HangUp { peer } => self.cut(who, peer),
                Output::Dial { peer, .. } => drop(self.dialled.insert((who, peer))),
                Output::Exit(exit) => drop(self.exits.insert(who, exit)),
            }
        }
        if let Some(at) = self.peers[&who].wake_at() {
            self.at(at.0.max(self.now + 1), Due::Tick(who));
        }
    }

    /// The largest distance of a peer's weights from their optimum.
    pub fn farthest(&self, who: PeerId) -> f32 {
        let optimum = self.optimum.expect("an optimum");
        let params = &self.peers[&who].state().params;
        params.iter().map(|p| (p - optimum).abs()).fold(0.0, f32::max)
    }

    /// Turns parameters into a contribution: each sample's gradient is their distance from the optimum.
    fn descend(
        &mut self,
        who: PeerId,
        buffer: &mut [f32],
        (optimum, weight): (f32, u32),
        local: Option<LocalRound>,
    ) {
        let gradients = |params: &[f32], samples: u32| -> Vec<f32> {
            params.iter().map(|p| samples as f32 * (p - optimum)).collect()
        };
        let Some(round) = local else {
            let sum = gradients(buffer, weight);
            return buffer.copy_from_slice(&sum);
        };
        let manifest = &self.manifest;
        let moments = self.moments.entry(who);
        let moments = moments.or_insert_with(|| LocalOptimizer::new(manifest));
        let mut now = moments.begin(&round, buffer);
        for (step, samples) in round.steps(weight as usize) {
            let samples = samples.len() as u32;
            let sum = gradients(&now, samples);
            moments.step(manifest, (&round, step), &mut now, (&sum, samples));
        }
        moments.end(&round, buffer, now, weight);
    }

    /// A peer stops, like a machine that sleeps: its links stay, and its inputs wait.
    pub fn fall_asleep(&mut self, who: PeerId) {
        self.asleep.insert(who, Vec::new());
    }

    /// It goes on as if nothing had happened.
    pub fn wake(&mut self, who: PeerId) {
        for due in self.asleep.remove(&who).unwrap_or_default() {
            self.at(self.now, due);
        }
    }

    /// One pass of a microbatch through a span, in a split run: all outputs are the same, and so is each sample's
    /// gradient.
    fn pass(&self, who: PeerId, work: SpanWork) -> SpanDone {
        let split = self.manifest.split.as_ref().expect("the model is split");
        let samples = shuffle::count(&work.pass.positions);
        let numbers =
            |span: usize| split.steps[split.span(span).end - 1].boundary as usize * samples as usize;
        let is_last = work.span + 1 == split.spans.len();
        let given = match (work.pass.back, work.span) {
            (true, 0) => 0,
            (true, span) => numbers(span - 1),
            (false, span) => numbers(span),
        };
        let per_sample = self.gradient.get(&who).copied().unwrap_or(0.25);
        SpanDone {
            output: vec![0.5; given],
            sum: work
                .pass
                .sum
                .iter()
                .map(|sum| sum + per_sample * samples as f32)
                .collect(),
            loss: if is_last { samples as f32 } else { 0.0 },
            compute: Duration::from_micros(self.compute_us[&who]),
        }
    }

    /// In a split run: a peer saves its parts, if it is time to.
    fn save(&mut self, who: PeerId, event: &Event) {
        let every = self.saves_every;
        if let Event::Committed(commit) = event
            && every > 0
            && commit.record.round.is_multiple_of(every)
            && commit.record.weight() > 0
        {
            let peer = &self.peers[&who];
            let disk = self.disks.entry(who).or_default();
            disk.push((peer.head().clone(), peer.state().clone()));
            self.tell_of_disk(who);
        }
    }

    fn tell_of_disk(&mut self, who: PeerId) {
        let disk = self.disks.get(&who).map_or(&[][..], Vec::as_slice);
        let saved = disk.iter().map(|(_, state)| Saved {
            stepped: state.kept.stepped,
            parts: state.kept.set(),
        });
        let saved = Input::Saved(saved.collect());
        self.at(self.now, Due::Give(who, saved));
    }

    /// A peer is gone, except for its disk.
    pub fn kill(&mut self, who: PeerId) {
        let others: Vec<PeerId> = self.peers.keys().copied().filter(|other| *other != who).collect();
        self.peers.remove(&who);
        self.due.retain(|_, due| match due {
            Due::Tick(to) | Due::Give(to, _) => *to != who,
            Due::Deliver { .. } => true,
        });
        for other in others {
            if self.links.remove(&(who.min(other), who.max(other))) {
                self.give(other, Input::LinkDown { peer: who });
            }
        }
    }

    /// It is back with its last checkpoint, and has links to all.
    pub fn come_back(&mut self, who: PeerId, compute_us: u64) {
        self.come_back_alone(who, compute_us);
        let others: Vec<PeerId> = self.peers.keys().copied().filter(|other| *other != who).collect();
        others.into_iter().for_each(|other| self.open(who, other));
    }

    /// It is back with its last checkpoint, without any link.
    pub fn come_back_alone(&mut self, who: PeerId, compute_us: u64) {
        let (head, state) = self.disks[&who].last().expect("it has saved something").clone();
        let settings = self.settings(who);
        let peer = Peer::resume(self.manifest.clone(), settings, state, head, Time(self.now));
        self.begin(who, peer, compute_us);
        self.tell_of_disk(who);
    }

    fn send(&mut self, from: PeerId, to: PeerId, lane: Lane, mut message: Message) {
        if let Message::Piece { view, .. } = &message {
            self.at_work.insert(from, *view);
        }
        let lies = |liar: PeerId| liar == from || self.accomplices.contains(&from);
        if let Some((_, lie)) = self.liar.filter(|(liar, _)| lies(*liar)) {
            lie(&self.peers[&from], to, &mut message);
        }
        if let Message::Block { .. } = &message {
            *self.blocks.entry(from).or_default() += 1;
        }
        *self.sent.entry((from, to)).or_default() += 1;
        let pair = (from.min(to), from.max(to));
        assert!(self.links.contains(&pair), "a peer knows which links are open");
        let bulk = if lane == Lane::Bulk {
            self.bulk_us.get(&(from, to))
        } else {
            None
        };
        let latency = self
            .latency_us
            .get(&pair)
            .copied()
            .unwrap_or(self.usual_latency_us);
        let mut at = self.now + latency + bulk.copied().unwrap_or(0);
        let line = self.line.get(&to).map(|line| bytes(&message) * 1_000_000 / line);
        if let Some(frame) = line
            .or(self.frame_us.get(&to).copied())
            .filter(|_| lane == Lane::Bulk)
        {
            let busy_until = self.busy_until.entry(to).or_default();
            at = at.max(*busy_until) + frame;
            *busy_until = at;
        }
        let opened = self.opened[&pair];
        self.at(
            at,
            Due::Deliver {
                from,
                to,
                opened,
                message,
            },
        );
    }

    fn at(&mut self, at: u64, due: Due) {
        self.asked += 1;
        self.due.insert((at, self.asked), due);
    }

    pub fn run(&mut self, for_us: u64) {
        let end = self.now + for_us;
        while let Some(next) = self.due.first_entry().filter(|next| next.key().0 <= end) {
            let ((at, _), due) = next.remove_entry();
            self.now = at;
            let (Due::Tick(of) | Due::Give(of, _) | Due::Deliver { to: of, .. }) = &due;
            if let Some(waits) = self.asleep.get_mut(of) {
                waits.push(due);
                continue;
            }
            match due {
                Due::Tick(who) => {
                    if self.peers[&who].wake_at().is_some_and(|at| at.0 <= self.now) {
                        self.give(who, Input::Tick);
                    }
                }
                Due::Give(who, input) => self.give(who, input),
                Due::Deliver {
                    from,
                    to,
                    opened,
                    message,
                } => {
                    let pair = (from.min(to), from.max(to));
                    if !self.links.contains(&pair) || self.opened[&pair] != opened {
                        continue;
                    }
                    match self.peers.contains_key(&to) {
                        true => self.say(from, to, message),
                        false => self.heard.push((to, message)),
                    }
                }
            }
        }
        self.now = end;
    }

    /// Whether exactly these are the members of one lineage.
    pub fn are_together(&self, who: &[PeerId]) -> bool {
        let chains: BTreeSet<u64> = who.iter().map(|p| self.peers[p].head().round).collect();
        let close = chains.last().unwrap_or(&0) - chains.first().unwrap_or(&0) <= 1;
        close
            && who.iter().all(|peer| {
                let peer = &self.peers[peer];
                let members: BTreeSet<PeerId> = peer.head().members.iter().map(|m| m.peer).collect();
                peer.is_member() && members == who.iter().copied().collect()
            })
    }

    /// The records that a peer committed, in order.
    pub fn records(&self, who: PeerId) -> impl Iterator<Item = &Record> {
        let commits = self.events.iter().filter(move |(_, peer, _)| *peer == who);
        commits.filter_map(|(_, _, event)| match event {
            Event::Committed(commit) => Some(&commit.record),
            _ => None,
        })
    }

    /// When a peer committed its rounds.
    pub fn commits(&self, who: PeerId) -> Vec<(u64, u64)> {
        let commits = self.events.iter().filter(|(_, peer, _)| *peer == who);
        commits
            .filter_map(|(at, _, event)| match event {
                Event::Committed(commit) => Some((commit.record.round, *at)),
                _ => None,
            })
            .collect()
    }
}

/// A peer outside of the run, with a ticket and links.
pub const MAL: PeerId = PeerId([99; 32]);

/// Three members that train together, and Mal with a link to each.
pub fn three() -> Story {
    let mut story = Story::new(1);
    story.gather(3, 100 * MILLI);
    story.run(10 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT]));
    [ANN, BEN, CAT].into_iter().for_each(|who| story.open(who, MAL));
    story.run(50 * MILLI);
    story
}

/// Peers that were cast out or suspected since then, and by which peer.
pub fn troubles(story: &Story, since: usize) -> Vec<String> {
    let is_trouble = |event: &Event| {
        let failed = |change: &Change| matches!(change, Change::Failed | Change::Evicted);
        matches!(event, Event::Member { change, .. } if failed(change))
            || matches!(event, Event::Outcast { .. })
    };
    let events = story.events[since..].iter();
    events
        .filter(|(_, _, event)| is_trouble(event))
        .map(|(at, who, event)| format!("{at} {who} {event:?}"))
        .collect()
}

/// The three go on as if nothing had been said.
pub fn nothing_follows(story: &mut Story, since: usize) {
    let before = story.commits(ANN).len();
    story.run(5 * SECOND);
    assert_eq!(troubles(story, since), Vec::<String>::new());
    assert!(story.are_together(&[ANN, BEN, CAT]));
    assert!(story.commits(ANN).len() >= before + 30);
    let retried = |record: &&Record| record.attempt > 0;
    assert_eq!(story.records(ANN).find(retried), None);
}
