//! A seed's world: virtual time and the queue of what will happen. What that means for a peer is in
//! `driver`, for a link in `transport`, for everybody's luck in `faults`.

use super::driver::Node;
use super::ledger::Ledger;
use super::net::Net;
use super::plan::{PeerPlan, Plan};
use super::rng::Rng;
use super::trace::{self, tell};
use super::{Outcome, Stats};
use crate::config::Manifest;
use crate::id::{PeerId, Round};
use crate::peer::{Exit, Input};
use crate::planted::Bug;
use crate::wire::Message;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

/// Most events of a seed: far above any healthy one, so that a livelock is a failure and not a hang.
const MOST_EVENTS: u64 = 400_000;
/// So long after the first has finished, whoever is no member yet has come too late.
const LATE_US: u64 = 30_000_000;

/// Something that will happen.
#[derive(Debug)]
pub(super) enum What {
    Start {
        plan: PeerPlan,
    },
    Restart {
        node: usize,
        resumes: bool,
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
        life: u32,
        round: Round,
        gradient: Vec<f32>,
        weight: u32,
        loss: f32,
        took: u64,
    },
    Warm {
        node: usize,
        life: u32,
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
    pub(super) most_counted: u64,
    pub(super) healed: bool,
    /// When the faults ended there were peers that could not find each other.
    pub(super) apart: bool,
    /// Nobody holds a whole state, there are fewer peers than the run asks for and none that more could join, or
    /// nothing more is demanded.
    pub(super) hopeless: bool,
    pub(super) stats: Stats,
    pub(super) failure: Option<String>,
    pub(super) tracing: bool,
    pub(super) delays: Rng,
    pub(super) work: Rng,
    pub(super) bug: Option<Bug>,
    pub(super) manifest: Arc<Manifest>,
    pub(super) by_id: BTreeMap<PeerId, usize>,
    queue: BinaryHeap<Due>,
    slots: Vec<Option<What>>,
    free: Vec<usize>,
    sequence: u64,
    pub(super) starting: usize,
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
        world.schedule(0, What::Operator);
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
            What::Restart { node, resumes } => self.revive(node, resumes),
            What::Deliver {
                from,
                to,
                connection,
                message,
            } => self.deliver(from, to, connection, *message),
            What::Timer { node } => self.on_timer(node),
            What::Computed {
                node,
                life,
                round,
                gradient,
                weight,
                loss,
                took,
            } => {
                if self.nodes[node].life != life {
                    return;
                }
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
            What::Warm { node, life } => {
                if self.nodes[node].life != life {
                    return;
                }
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
}
