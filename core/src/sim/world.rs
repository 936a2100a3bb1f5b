//! Virtual time, the event queue and the peers' driver: does what a peer's outputs say, gives it what
//! happens, and lets `check` look at everything. No policy of the protocol is here.

use super::check::{Duty, Ledger};
use super::device;
use super::faults::Kind;
use super::net::Net;
use super::plan::{MOST_PEERS, PeerPlan, Plan};
use super::rng::Rng;
use super::trace::{self, tell};
use super::{Outcome, Stats};
use crate::config::Settings;
use crate::id::{Contact, Digest, PeerId, Round};
use crate::peer::{Event, Exit, Input, Lane, Output, Peer, Phase};
use crate::planted::Bug;
use crate::state::State;
use crate::time::Time;
use crate::wire::Message;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Most events of a seed: far above any healthy one, so that a livelock is a failure and not a hang.
const MOST_EVENTS: u64 = 400_000;
/// Most outputs of one input.
const MOST_OUTPUTS: usize = 2_000;
/// A dial gives up after this long.
const DIAL_US: u64 = 4_000_000;
/// So long after the first has finished, whoever is no member yet has come too late.
const LATE_US: u64 = 30_000_000;
/// Every so often the operator looks after peers that cannot help themselves.
const OPERATOR_US: u64 = 5_000_000;

/// Something that will happen.
#[derive(Debug)]
pub(super) enum What {
    Start {
        plan: PeerPlan,
    },
    Deliver {
        from: usize,
        to: usize,
        connection: u32,
        message: Box<Message>,
    },
    Timer {
        node: usize,
    },
    Computed {
        node: usize,
        round: Round,
        gradient: Vec<f32>,
        weight: u32,
        loss: f32,
        took: u64,
    },
    Warm {
        node: usize,
    },
    Dialled {
        from: usize,
        to: usize,
        deadline: u64,
    },
    DialFailed {
        from: usize,
        peer: PeerId,
    },
    Down {
        end: usize,
        other: usize,
        connection: u32,
    },
    Silent {
        a: usize,
        b: usize,
        version: u32,
    },
    FrozenTooLong {
        node: usize,
        version: u32,
    },
    Thaw {
        node: usize,
        version: u32,
    },
    EndCut {
        pairs: Vec<(usize, usize)>,
    },
    EndDelay {
        from: usize,
        to: usize,
    },
    Fault,
    Heal,
    Operator,
}

/// A crash that waits for its moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doom {
    /// Among the messages that follow a commit.
    AtCommit,
    /// Among several messages sent at once.
    AtSend,
}

/// What is wrong with a contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spoil {
    NotFinite,
    Partial,
}

/// One peer and what its driver knows.
pub(super) struct Node {
    pub id: PeerId,
    pub name: String,
    pub peer: Option<Box<Peer>>,
    pub exit: Option<Exit>,
    pub dialable: bool,
    pub frozen: bool,
    pub leaving: bool,
    pub slow: f64,
    pub doom: Option<Doom>,
    pub spoil: Option<Spoil>,
    /// Its state may differ from what its lineage says.
    pub flipped: bool,
    /// Lineage and digest when it last had been looked at, if it was a member then.
    pub stands: Option<(Digest, Digest)>,
    pub was_member: bool,
    pub commits: u64,
    pub last_commit_at: u64,
    sponsor: Option<usize>,
    speed: f64,
    clock: u64,
    freeze_version: u32,
    inbox: VecDeque<Input>,
    timer_at: Option<u64>,
    busy_until: u64,
    stuck: u32,
}

impl Node {
    pub fn is_alive(&self) -> bool {
        self.peer.is_some()
    }

    pub fn is_member(&self) -> bool {
        self.peer.as_ref().is_some_and(|p| p.is_member())
    }

    /// Members of the attempt that it is in.
    pub fn view_len(&self) -> usize {
        match self.peer.as_ref().map(|p| &p.phase) {
            Some(Phase::Member(w)) => w.view.members.len(),
            _ => 0,
        }
    }

    pub fn flip(&mut self, at: usize, bit: u32) {
        if let Some(peer) = &mut self.peer {
            peer.flip_bit(at, bit);
            self.flipped = true;
        }
    }
}

struct Due {
    at: u64,
    sequence: u64,
    slot: usize,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // The earliest is the greatest for the heap.
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

/// A seed's world.
pub struct World {
    pub(super) plan: Plan,
    pub(super) now: u64,
    pub(super) nodes: Vec<Node>,
    pub(super) net: Net,
    pub(super) chaos: Rng,
    pub(super) deaths: usize,
    pub(super) ledger: Ledger,
    pub(super) healed_at: Option<u64>,
    pub(super) first_finish: Option<u64>,
    most_counted: u64,
    healed: bool,
    /// When the faults ended there were peers that could not find each other.
    pub(super) apart: bool,
    /// There are fewer peers than the run asks for, and none that more could join.
    pub(super) hopeless: bool,
    pub(super) stats: Stats,
    pub(super) failure: Option<String>,
    pub(super) tracing: bool,
    delays: Rng,
    work: Rng,
    bug: Option<Bug>,
    manifest: Arc<crate::config::Manifest>,
    by_id: BTreeMap<PeerId, usize>,
    queue: BinaryHeap<Due>,
    slots: Vec<Option<What>>,
    free: Vec<usize>,
    sequence: u64,
    starting: usize,
}

impl World {
    /// Draws the world of a seed. With `trace`, its story is told on standard output.
    pub fn new(seed: u64, bug: Option<Bug>, trace: bool) -> Self {
        let plan = Plan::draw(seed);
        let mut rng = Rng::new(!seed);
        let manifest = Arc::new(plan.manifest.clone());
        let mut world = Self {
            now: 0,
            nodes: Vec::new(),
            net: Net::new(&plan, rng.next()),
            chaos: rng.fork(),
            deaths: 0,
            ledger: Ledger::new(manifest.clone()),
            healed_at: None,
            first_finish: None,
            most_counted: 0,
            healed: false,
            apart: false,
            hopeless: false,
            stats: Stats::default(),
            failure: None,
            tracing: trace,
            delays: rng.fork(),
            work: rng.fork(),
            bug,
            manifest,
            by_id: BTreeMap::new(),
            queue: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            sequence: 0,
            starting: plan.peers.len(),
            plan,
        };
        tell!(world, "seed {seed}: {}", trace::plan(&world.plan));
        for peer in world.plan.peers.clone() {
            world.schedule(peer.at_us, What::Start { plan: peer });
        }
        if world.plan.is_calm() {
            world.healed_at = Some(0);
        } else {
            let first = world.next_fault_us();
            world.schedule(first, What::Fault);
            world.schedule(world.plan.heal_at_us, What::Heal);
        }
        world.schedule(OPERATOR_US, What::Operator);
        world
    }

    /// Runs until all peers are done, or something is wrong.
    pub fn run(mut self) -> Outcome {
        while self.failure.is_none() && !self.is_over() {
            let Some(due) = self.queue.pop() else { break };
            self.now = due.at;
            self.stats.events += 1;
            let what = self.slots[due.slot].take().expect("each slot is due once");
            self.free.push(due.slot);
            self.happen(what);
            if self.stats.events > MOST_EVENTS {
                self.fail(format!(
                    "still busy after {MOST_EVENTS} events: {}",
                    self.situation()
                ));
            }
        }
        if self.failure.is_none() {
            self.check_end();
        }
        self.stats.virtual_us = self.now;
        self.stats.rounds = self.ledger.rounds();
        if let Some(failure) = &self.failure {
            tell!(self, "FAILED {failure}");
        }
        Outcome {
            failure: self.failure,
            stats: self.stats,
        }
    }

    /// Whether all peers are done, or the run has ended itself because nothing was finite.
    fn is_over(&self) -> bool {
        let gone = self.starting == 0 && self.nodes.iter().all(|n| !n.is_alive());
        // A newcomer may find that all have finished and gone.
        let late = self.first_finish.is_some_and(|first| self.now > first + LATE_US)
            && !self.nodes.iter().any(Node::is_member);
        gone || late || self.hopeless || self.nodes.iter().any(|n| n.exit == Some(Exit::NotFinite))
    }

    /// Something will happen.
    pub(super) fn schedule(&mut self, at: u64, what: What) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(what);
        self.sequence += 1;
        self.queue.push(Due {
            at: at.max(self.now),
            sequence: self.sequence,
            slot,
        });
    }

    /// The first failure is the seed's.
    pub(super) fn fail(&mut self, why: String) {
        if self.failure.is_none() {
            self.failure = Some(format!("at {:.3} s: {why}", self.now as f64 / 1e6));
        }
    }

    /// What every living peer is doing.
    pub(super) fn situation(&self) -> String {
        let alive = self.nodes.iter().filter_map(|n| n.peer.as_ref().map(|p| (n, p)));
        let each = alive.map(|(n, p)| {
            let head = p.head();
            let frozen = if n.frozen { " frozen" } else { "" };
            format!(
                "{}{frozen}: {} after round {} of {}",
                n.name,
                trace::phase(self, p),
                head.round,
                head.chain
            )
        });
        each.collect::<Vec<_>>().join("; ")
    }

    /// A peer's short name.
    pub(super) fn name(&self, id: PeerId) -> String {
        self.by_id
            .get(&id)
            .map_or_else(|| id.to_string(), |i| self.nodes[*i].name.clone())
    }

    pub(super) fn names(&self, nodes: &[usize]) -> Vec<&str> {
        nodes.iter().map(|i| self.nodes[*i].name.as_str()).collect()
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Start { plan } => self.start(plan),
            What::Deliver {
                from,
                to,
                connection,
                message,
            } => self.deliver(from, to, connection, *message),
            What::Timer { node } => self.on_timer(node),
            What::Computed {
                node,
                round,
                gradient,
                weight,
                loss,
                took,
            } => {
                let compute = Duration::from_micros(took);
                self.give(
                    node,
                    Input::Contribution {
                        round,
                        gradient,
                        weight,
                        loss,
                        compute,
                    },
                );
            }
            What::Warm { node } => {
                let speed = (self.nodes[node].speed * 1000.0) as u64;
                self.give(node, Input::Warm { speed: speed.max(1) });
            }
            What::Dialled { from, to, deadline } => self.dialled(from, to, deadline),
            What::DialFailed { from, peer } => self.give(from, Input::DialFailed { peer }),
            What::Down {
                end,
                other,
                connection,
            } => {
                if self.net.link(end, other).connection == connection {
                    self.take_down(end, other);
                }
            }
            What::Silent { a, b, version } => self.silent(a, b, version),
            What::FrozenTooLong { node, version } => self.frozen_too_long(node, version),
            What::Thaw { node, version } => {
                if self.nodes[node].freeze_version == version {
                    self.thaw(node);
                }
            }
            What::EndCut { pairs } => {
                if self.healed_at.is_none() {
                    tell!(
                        self,
                        "a cut ends: {:?}",
                        pairs
                            .iter()
                            .map(|(a, b)| self.names(&[*a, *b]))
                            .collect::<Vec<_>>()
                    );
                    pairs.into_iter().for_each(|(a, b)| self.unblock(a, b));
                }
            }
            What::EndDelay { from, to } => self.net.delay(from, to, 0),
            What::Fault => self.fault(),
            What::Heal => self.heal(),
            What::Operator => self.operate(),
        }
    }

    // Peers

    fn start(&mut self, plan: PeerPlan) {
        self.starting -= 1;
        let i = self.nodes.len();
        let mut bytes = [0u8; 32];
        for part in bytes.chunks_exact_mut(8) {
            part.copy_from_slice(&self.work.next().to_le_bytes());
        }
        let id = PeerId(bytes);
        let contact = Contact(if plan.dialable {
            vec![format!("sim:{i}")]
        } else {
            Vec::new()
        });
        let clock = self.work.below(1 << 40);
        let now = Time(self.now + clock);
        let settings = Settings {
            me: id,
            contact,
            bug: self.bug,
        };
        let sponsor = if i == 0 { None } else { self.sponsor() };
        let peer = match sponsor {
            Some(s) => {
                let contact = Contact(vec![format!("sim:{s}")]);
                Peer::join(self.manifest.clone(), settings, self.nodes[s].id, &contact, now)
            }
            None if i == 0 => {
                let params = device::initial(self.manifest.layout.len, self.manifest.seed);
                let state = State::new(params, &self.manifest);
                Peer::found(self.manifest.clone(), settings, state, now)
            }
            // All are gone: there is nothing to join.
            None => return,
        };
        if i == 0 {
            self.ledger.found(peer.head(), peer.state());
        }
        let name = format!("p{i}");
        match sponsor {
            Some(s) => {
                self.stats.joins += 1;
                tell!(
                    self,
                    "{name} ({id}) joins by {}, {}",
                    self.nodes[s].name,
                    trace::peer_plan(&plan)
                );
            }
            None => tell!(self, "{name} ({id}) founds the run, {}", trace::peer_plan(&plan)),
        }
        self.by_id.insert(id, i);
        self.nodes.push(Node {
            id,
            name,
            peer: Some(Box::new(peer)),
            exit: None,
            dialable: plan.dialable,
            frozen: false,
            leaving: false,
            slow: 1.0,
            doom: None,
            spoil: None,
            flipped: false,
            stands: None,
            was_member: false,
            commits: 0,
            last_commit_at: self.now,
            sponsor,
            speed: plan.speed,
            clock,
            freeze_version: 0,
            inbox: VecDeque::new(),
            timer_at: None,
            busy_until: 0,
            stuck: 0,
        });
        let warm = self.now + self.work.between(1_000, 500_000);
        self.schedule(warm, What::Warm { node: i });
        self.drain(i, Duty::None);
    }

    /// A member that a newcomer's ticket may name.
    fn sponsor(&mut self) -> Option<usize> {
        let fits = |n: &Node| {
            n.is_alive() && n.dialable && n.is_member() && !n.frozen && n.doom.is_none() && !n.leaving
        };
        let fair: Vec<usize> = (0..self.nodes.len()).filter(|i| fits(&self.nodes[*i])).collect();
        let any = |n: &Node| n.is_alive() && n.dialable;
        let poor: Vec<usize> = (0..self.nodes.len()).filter(|i| any(&self.nodes[*i])).collect();
        self.work.pick(&fair).or_else(|| self.work.pick(&poor))
    }

    /// One more peer joins now, if there is room for it.
    pub(super) fn newcomer(&mut self) -> Option<()> {
        if self.nodes.len() + self.starting >= MOST_PEERS {
            return None;
        }
        let plan = self.plan.newcomer(&mut self.chaos);
        self.starting += 1;
        self.start(plan);
        Some(())
    }

    pub(super) fn ask_to_leave(&mut self, i: usize) {
        self.nodes[i].leaving = true;
        self.give(i, Input::Leave);
    }

    /// A peer is gone without a word.
    pub(super) fn crash(&mut self, i: usize) {
        self.nodes[i].peer = None;
        self.nodes[i].inbox.clear();
        let quick = self.chaos.chance(0.5);
        let loses = self.chaos.chance(0.5);
        for other in (0..self.nodes.len()).filter(|j| *j != i) {
            if !self.net.is_up(other, i) {
                continue;
            }
            if loses {
                // Numbered anew, so that what was under way arrives nowhere.
                self.net.link(i, other).connection += 1;
            }
            let wait = if quick {
                self.net.round_trip_us(i, other)
            } else {
                self.plan.idle_us
            };
            self.down_at(self.now + wait, other, i);
        }
    }

    pub(super) fn freeze(&mut self, i: usize, until: u64) {
        let node = &mut self.nodes[i];
        node.frozen = true;
        node.freeze_version += 1;
        let version = node.freeze_version;
        self.schedule(until, What::Thaw { node: i, version });
        if self.chaos.chance(0.8) {
            let patience = self.now + self.plan.idle_us;
            self.schedule(patience, What::FrozenTooLong { node: i, version });
        }
    }

    fn frozen_too_long(&mut self, i: usize, version: u32) {
        if !self.nodes[i].frozen || self.nodes[i].freeze_version != version || !self.nodes[i].is_alive() {
            return;
        }
        for other in (0..self.nodes.len()).filter(|j| *j != i) {
            if self.net.is_up(other, i) {
                self.take_down(other, i);
                self.take_down(i, other);
            }
        }
    }

    fn thaw(&mut self, i: usize) {
        if !std::mem::replace(&mut self.nodes[i].frozen, false) {
            return;
        }
        tell!(self, "{} thaws", self.nodes[i].name);
        while let Some(input) = self.nodes[i].inbox.pop_front() {
            self.feed(i, input);
        }
        self.nodes[i].timer_at = None;
        self.on_timer(i);
    }

    fn on_timer(&mut self, i: usize) {
        if self.nodes[i].timer_at.is_some_and(|at| at > self.now) {
            // It was set anew since; another event stands for it.
            return;
        }
        self.nodes[i].timer_at = None;
        let clock = self.nodes[i].clock;
        let now = Time(self.now + clock);
        let Some(peer) = &self.nodes[i].peer else { return };
        if self.nodes[i].frozen {
            return;
        }
        if peer.wake_at().is_some_and(|at| at <= now) {
            self.feed(i, Input::Tick);
        } else {
            self.set_timer(i);
        }
    }

    fn set_timer(&mut self, i: usize) {
        let node = &self.nodes[i];
        let Some(at) = node.peer.as_ref().and_then(|p| p.wake_at()) else {
            return;
        };
        // Timers of a real machine are never early and often late.
        let at = at.0.saturating_sub(node.clock).max(self.now + 1) + self.delays.below(500);
        if node.timer_at.is_none_or(|t| at < t) {
            self.nodes[i].timer_at = Some(at);
            self.schedule(at, What::Timer { node: i });
        }
    }

    /// Something happens to a peer; a frozen one gets it later.
    pub(super) fn give(&mut self, i: usize, input: Input) {
        if !self.nodes[i].is_alive() {
            return;
        }
        if self.nodes[i].frozen {
            self.nodes[i].inbox.push_back(input);
        } else {
            self.feed(i, input);
        }
    }

    fn feed(&mut self, i: usize, input: Input) {
        if self.failure.is_some() {
            return;
        }
        if self.tracing {
            trace::input(self, i, &input);
        }
        let now = Time(self.now + self.nodes[i].clock);
        let tick = matches!(input, Input::Tick);
        let Some(peer) = &mut self.nodes[i].peer else {
            return;
        };
        let duty = Duty::of(peer, &input);
        peer.handle(input, now);
        // A peer that wants to be woken at once, again and again, burns the processor.
        let again = tick && peer.wake_at().is_some_and(|at| at <= now);
        self.nodes[i].stuck = if again { self.nodes[i].stuck + 1 } else { 0 };
        if self.nodes[i].stuck > 100 {
            self.fail(format!(
                "{} asks to be woken at once again and again: {}",
                self.nodes[i].name,
                self.situation()
            ));
        }
        self.drain(i, duty);
    }

    /// Does what a peer asks for.
    fn drain(&mut self, i: usize, duty: Duty) {
        let mut batch = Vec::new();
        if let Some(peer) = &mut self.nodes[i].peer {
            while let Some(output) = peer.poll() {
                batch.push(output);
            }
        }
        if batch.len() > MOST_OUTPUTS {
            self.fail(format!(
                "{} gave {} outputs at once",
                self.nodes[i].name,
                batch.len()
            ));
        }
        self.check_duty(i, duty, &batch);
        let cut = self.fatal_cut(i, &batch);
        for (k, output) in batch.into_iter().enumerate() {
            if self.tracing {
                trace::output(self, i, &output, cut.is_some_and(|cut| k >= cut));
            }
            match output {
                // What a dying peer did is seen, but what it sent after its death is not sent.
                Output::Event(event) => self.on_event(i, event),
                _ if cut.is_some_and(|cut| k >= cut) => {}
                Output::Send { to, lane, message } => self.send(i, to, lane, message),
                Output::Dial { peer, contact } => self.dial(i, peer, &contact),
                Output::Compute {
                    round,
                    positions,
                    buffer,
                } => self.compute(i, round, positions, buffer),
                Output::Exit(exit) => self.on_exit(i, exit),
            }
        }
        if cut.is_some() {
            tell!(self, "FAULT {} crashes midway", self.nodes[i].name);
            self.crash(i);
        } else {
            self.look_at(i);
            self.set_timer(i);
        }
        self.heal_in_time(i);
    }

    /// The faults end before the run does.
    fn heal_in_time(&mut self, i: usize) {
        let counted = self.nodes[i].peer.as_ref().map_or(0, |p| p.head().samples);
        self.most_counted = self.most_counted.max(counted);
        let share = self.most_counted as f64 / self.manifest.target as f64;
        if self.healed_at.is_none() && share >= self.plan.heal_at_share {
            // Not at once: this peer's outputs are still being done.
            self.healed_at = Some(self.now);
            self.schedule(self.now, What::Heal);
        }
    }

    /// After how many outputs a doomed peer dies, if now.
    fn fatal_cut(&mut self, i: usize, batch: &[Output]) -> Option<usize> {
        let doom = self.nodes[i].doom?;
        let sends = batch.iter().filter(|o| matches!(o, Output::Send { .. })).count();
        let commits = batch
            .iter()
            .any(|o| matches!(o, Output::Event(Event::Committed(_))));
        let now = match doom {
            Doom::AtCommit => commits,
            Doom::AtSend => sends >= 2,
        };
        if !now {
            return None;
        }
        self.nodes[i].doom = None;
        if self.healed_at.is_some() || !self.may_die(i) {
            return None;
        }
        Some(self.chaos.index(batch.len() + 1))
    }

    fn compute(&mut self, i: usize, round: Round, positions: Vec<Range<u64>>, params: Vec<f32>) {
        let share: u64 = positions.iter().map(|r| r.end - r.start).sum();
        let node = &mut self.nodes[i];
        let spoil = node.spoil.take();
        let weight = if spoil == Some(Spoil::Partial) {
            self.chaos.below(share + 1)
        } else {
            share
        };
        let wobble = 1.0 + self.plan.jitter * (2.0 * self.work.unit() - 1.0);
        let seconds = share as f64 / node.speed * node.slow * wobble;
        let took = 200 + (seconds * 1e6) as u64;
        // The device does one thing after the other.
        let start = node.busy_until.max(self.now);
        node.busy_until = start + took;
        let done = node.busy_until;
        let (mut gradient, loss) = device::contribution(&params, &positions, weight);
        let made = if spoil == Some(Spoil::NotFinite) {
            0
        } else {
            weight
        };
        self.look_at(i);
        if let Err(why) = self
            .ledger
            .contribute(&self.nodes[i], &positions, &params, made, &gradient)
        {
            self.fail(why);
        }
        if spoil == Some(Spoil::NotFinite) {
            let at = self.chaos.index(gradient.len());
            gradient[at] = f32::NAN;
        }
        self.schedule(
            done,
            What::Computed {
                node: i,
                round,
                gradient,
                weight: weight as u32,
                loss,
                took,
            },
        );
    }

    fn on_exit(&mut self, i: usize, exit: Exit) {
        self.nodes[i].exit = Some(exit);
        self.check_exit(i);
        self.nodes[i].peer = None;
        for other in (0..self.nodes.len()).filter(|j| *j != i) {
            if self.net.is_up(other, i) {
                let drained = self
                    .net
                    .drained_at(i, other)
                    .max(self.now + self.net.round_trip_us(i, other) / 2);
                self.down_at(drained + 1, other, i);
            }
        }
    }

    // Links

    fn send(&mut self, from: usize, to: PeerId, lane: Lane, message: Message) {
        let Some(&to) = self.by_id.get(&to) else {
            return self.fail(format!(
                "{} sends to a peer that never was",
                self.nodes[from].name
            ));
        };
        if to == from {
            return self.fail(format!("{} sends to itself", self.nodes[from].name));
        }
        // The transport drops what has no connection; the peer has been or will be told.
        if !self.net.is_up(from, to) {
            return;
        }
        let message = if self.plan.frames {
            self.through_bytes(message)
        } else {
            message
        };
        self.put_on_link(from, to, lane, message);
    }

    fn put_on_link(&mut self, from: usize, to: usize, lane: Lane, message: Message) {
        if self.net.way(from, to).blocked > 0 {
            self.net.way(from, to).held.push((lane, message));
            return;
        }
        let at = self
            .net
            .arrival(self.now, from, to, lane, &message, &mut self.delays);
        let connection = self.net.link(from, to).connection;
        self.schedule(
            at,
            What::Deliver {
                from,
                to,
                connection,
                message: Box::new(message),
            },
        );
    }

    fn through_bytes(&mut self, message: Message) -> Message {
        let frame = message.to_frame();
        match Message::decode(frame.clone()) {
            Ok(read) if read.to_frame() == frame => read,
            Ok(_) => {
                self.fail("a message changed on its way through bytes".into());
                message
            }
            Err(error) => {
                self.fail(format!(
                    "an own frame cannot be read: {error}: {}",
                    trace::message(self, &message)
                ));
                message
            }
        }
    }

    fn deliver(&mut self, from: usize, to: usize, connection: u32, message: Message) {
        if self.net.link(from, to).connection != connection || !self.net.is_up(to, from) {
            return;
        }
        self.stats.messages += 1;
        let from = self.nodes[from].id;
        self.give(to, Input::Message { from, message });
    }

    fn dial(&mut self, from: usize, peer: PeerId, contact: &Contact) {
        let number = contact
            .0
            .first()
            .and_then(|a| a.strip_prefix("sim:"))
            .and_then(|n| n.parse::<usize>().ok());
        let target = number.filter(|to| self.nodes.get(*to).is_some_and(|n| n.id == peer));
        let Some(to) = target.filter(|to| *to != from) else {
            return self.schedule(self.now + 100, What::DialFailed { from, peer });
        };
        let at = self.now + self.net.round_trip_us(from, to) * 3 / 2;
        self.schedule(
            at,
            What::Dialled {
                from,
                to,
                deadline: self.now + DIAL_US,
            },
        );
    }

    fn dialled(&mut self, from: usize, to: usize, deadline: u64) {
        if !self.nodes[from].is_alive() {
            return;
        }
        let peer = self.nodes[to].id;
        let answers = self.net.is_open(from, to) && self.nodes[to].is_alive() && !self.nodes[to].frozen;
        if !answers {
            // A dead process refuses at once or not at all, as its system likes.
            let refused = !self.nodes[to].is_alive() && self.net.is_open(from, to) && self.delays.chance(0.5);
            if refused || self.now >= deadline {
                return self.give(from, Input::DialFailed { peer });
            }
            let again = (self.now + 500_000).min(deadline);
            return self.schedule(again, What::Dialled { from, to, deadline });
        }
        if self.net.is_up(from, to) && self.net.is_up(to, from) {
            return;
        }
        // An end that has not noticed the old connection's end notices now.
        self.take_down(from, to);
        self.take_down(to, from);
        self.net.connect(from, to);
        for (end, other) in [(to, from), (from, to)] {
            let contact = self.contact(other);
            let peer = self.nodes[other].id;
            self.give(end, Input::LinkUp { peer, contact });
        }
    }

    fn contact(&self, i: usize) -> Contact {
        Contact(if self.nodes[i].dialable {
            vec![format!("sim:{i}")]
        } else {
            Vec::new()
        })
    }

    /// An end learns that its connection is gone.
    fn take_down(&mut self, end: usize, other: usize) {
        if self.net.set_up(end, other, false) {
            self.net.way(end, other).held.clear();
            let peer = self.nodes[other].id;
            self.give(end, Input::LinkDown { peer });
        }
    }

    fn down_at(&mut self, at: u64, end: usize, other: usize) {
        let connection = self.net.link(end, other).connection;
        self.schedule(
            at,
            What::Down {
                end,
                other,
                connection,
            },
        );
    }

    pub(super) fn break_link(&mut self, a: usize, b: usize) {
        for (end, other) in [(a, b), (b, a)] {
            let wait = self.delays.below(1 + 2 * self.net.round_trip_us(a, b));
            self.down_at(self.now + wait, end, other);
        }
    }

    pub(super) fn block(&mut self, from: usize, to: usize) {
        self.net.way(from, to).blocked += 1;
        let link = self.net.link(from, to);
        link.version += 1;
        let version = link.version;
        self.schedule(
            self.now + self.plan.idle_us,
            What::Silent {
                a: from,
                b: to,
                version,
            },
        );
    }

    fn unblock(&mut self, from: usize, to: usize) {
        let way = self.net.way(from, to);
        way.blocked = way.blocked.saturating_sub(1);
        if way.blocked > 0 {
            return;
        }
        let held = std::mem::take(&mut way.held);
        let link = self.net.link(from, to);
        if link.ways.iter().all(|w| w.blocked == 0) {
            link.version += 1;
        }
        if self.net.is_up(from, to) {
            held.into_iter()
                .for_each(|(lane, message)| self.put_on_link(from, to, lane, message));
        }
    }

    /// A link has been silent for too long: each end gives it up.
    fn silent(&mut self, a: usize, b: usize, version: u32) {
        if self.net.link(a, b).version != version || self.net.is_open(a, b) {
            return;
        }
        for (end, other) in [(a, b), (b, a)] {
            let wait = self.delays.below(1_000_000);
            self.down_at(self.now + wait, end, other);
        }
    }

    // Faults

    fn next_fault_us(&mut self) -> u64 {
        self.now + self.chaos.wait(self.plan.fault_every_us) as u64 + 1
    }

    fn fault(&mut self) {
        if self.healed_at.is_some() {
            return;
        }
        let total: f64 = self.plan.faults.iter().map(|(_, weight)| weight).sum();
        let mut at = self.chaos.unit() * total;
        let chosen = self.plan.faults.iter().find(|(_, weight)| {
            at -= weight;
            at < 0.0
        });
        let kind = chosen.map_or(Kind::Break, |(kind, _)| *kind);
        if self.inject(kind) {
            *self.stats.faults.entry(kind).or_default() += 1;
        }
        let next = self.next_fault_us();
        self.schedule(next, What::Fault);
    }

    /// All faults end.
    fn heal(&mut self) {
        if std::mem::replace(&mut self.healed, true) {
            return;
        }
        self.healed_at = self.healed_at.or(Some(self.now));
        self.apart = !self.is_connected();
        tell!(self, "HEAL all faults end: {}", self.situation());
        for a in 0..self.nodes.len() {
            self.nodes[a].doom = None;
            self.nodes[a].spoil = None;
            self.nodes[a].slow = 1.0;
            for b in (0..self.nodes.len()).filter(|b| *b != a) {
                self.net.way(a, b).blocked = self.net.way(a, b).blocked.min(1);
                self.unblock(a, b);
                self.net.delay(a, b, 0);
            }
        }
        (0..self.nodes.len()).for_each(|i| self.thaw(i));
    }

    /// What a person would do: start a peer again whose ticket names a dead peer, and bring as many as
    /// the run asks for.
    fn operate(&mut self) {
        for i in 0..self.nodes.len() {
            let node = &self.nodes[i];
            let lost = node.is_alive() && !node.was_member && !node.is_member() && !node.frozen;
            if lost && node.sponsor.is_some_and(|s| !self.nodes[s].is_alive()) && self.sponsor().is_some() {
                tell!(
                    self,
                    "{} is stopped by its operator: its ticket names a dead peer",
                    self.nodes[i].name
                );
                self.crash(i);
                self.newcomer();
            }
        }
        let alive = self.nodes.iter().filter(|n| n.is_alive() && !n.leaving).count();
        if self.healed_at.is_some() && alive < usize::from(self.manifest.min_peers) && alive > 0 {
            self.hopeless |= self.sponsor().is_none() || self.newcomer().is_none();
        }
        self.check_progress();
        self.schedule(self.now + OPERATOR_US, What::Operator);
    }
}
