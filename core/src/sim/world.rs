//! A seed's world: its parts, virtual time, and the queue of events. `run` handles the events.

use super::league::Lies;
use super::ledger::Ledger;
use super::net::Net;
use super::node::Node;
use super::plan::{PeerPlan, Plan};
use super::rng::Rng;
use super::{Setup, Stats};
use crate::access::signature::{Key, Scheme};
use crate::base::id::{Digest, PeerId, Round};
use crate::base::planted::Bug;
use crate::ledger::Header;
use crate::peer::interface::SpanDone;
use crate::run::config::Manifest;
use crate::wire::{Message, ViewKey};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

/// Prints a line of the story, if tracing is on.
macro_rules! tell {
    ($world:expr, $($arg:tt)*) => {
        if $world.tracing {
            println!("{:10.4} {}", $world.now as f64 / 1e6, format_args!($($arg)*));
        }
    };
}
pub(super) use tell;

/// An event.
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
        late: bool,
    },
    Passed {
        node: usize,
        life: u32,
        done: Box<SpanDone>,
    },
    Warm {
        node: usize,
        life: u32,
    },
    /// Its driver announces the parts on its disk ...
    Saved {
        node: usize,
        life: u32,
    },
    /// ... and has read some of them.
    Restored {
        node: usize,
        life: u32,
        stepped: Digest,
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
    Lie {
        node: usize,
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
    /// When devices finish the tasks that they began while there were faults.
    pub(super) rested_at: u64,
    pub(super) first_finish: Option<u64>,
    pub(super) most_counted: u64,
    pub(super) healed: bool,
    /// When the faults ended, some peers could not find each other.
    pub(super) apart: bool,
    /// No peer holds a whole state, or there are fewer peers than the run asks for and no more can join. Then
    /// nothing more is demanded.
    pub(super) hopeless: bool,
    /// The founder's rounds, as long as members are the same.
    pub(super) stays: Vec<Stay>,
    /// A peer gave up when nobody held a whole state.
    pub(super) was_lost: bool,
    /// The member that has taken back more tickets than there is room for.
    pub is_full_of_revocations: Option<PeerId>,
    /// How many tickets the run's key has revoked.
    pub(super) revoked_by_run: usize,
    pub(super) stats: Stats,
    pub(super) failure: Option<String>,
    pub(super) tracing: bool,
    pub(super) delays: Rng,
    pub(super) work: Rng,
    pub(super) bug: Option<Bug>,
    pub(super) scheme: Scheme,
    /// The root of every right to take part.
    pub(super) run_key: Key,
    pub(super) manifest: Arc<Manifest>,
    pub(super) by_id: BTreeMap<PeerId, usize>,
    /// Dials under way: from, to.
    pub(super) dials: BTreeSet<(usize, usize)>,
    /// The liars, the effects of their lies, and their random numbers.
    pub(super) liars: BTreeSet<usize>,
    pub(super) lies: Lies,
    pub(super) tongue: Rng,
    /// The headers of honest peers.
    pub(super) said: BTreeMap<(ViewKey, PeerId), Header>,
    queue: BinaryHeap<Due>,
    slots: Vec<Option<What>>,
    free: Vec<usize>,
    sequence: u64,
    pub(super) starting: usize,
}

impl World {
    /// Draws the world of a seed.
    pub fn new(seed: u64, setup: Setup) -> Self {
        let Setup {
            bug,
            scheme,
            liars,
            lie,
            trace,
        } = setup;
        let mut plan = match liars {
            true => Plan::draw_with_liars(seed, lie),
            false => Plan::draw(seed),
        };
        let run_key = match scheme {
            Scheme::Ed25519 => Key::from_seed(&[0; 32]),
            Scheme::StandIn => Key::stand_in(plan.manifest.key),
        };
        plan.manifest.key = run_key.peer();
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
            rested_at: 0,
            first_finish: None,
            most_counted: 0,
            healed: false,
            apart: false,
            hopeless: false,
            stays: Vec::new(),
            was_lost: false,
            is_full_of_revocations: None,
            revoked_by_run: 0,
            stats: Stats::default(),
            failure: None,
            tracing: trace,
            delays: rng.fork(),
            work: rng.fork(),
            bug,
            scheme,
            run_key,
            manifest,
            by_id: BTreeMap::new(),
            dials: BTreeSet::new(),
            liars: BTreeSet::new(),
            lies: Lies::default(),
            tongue: Rng::new(0),
            said: BTreeMap::new(),
            queue: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            sequence: 0,
            starting: plan.peers.len(),
            plan,
        };
        world.ledger.rules = bug.filter(|bug| Bug::OF_PAGES.contains(bug));
        world.draw_liars(seed);
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

    /// Schedules an event.
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

    /// Moves on to the next event.
    pub(super) fn next(&mut self) -> Option<What> {
        let due = self.queue.pop()?;
        self.now = due.at;
        self.stats.events += 1;
        self.free.push(due.slot);
        Some(self.slots[due.slot].take().expect("each slot is due once"))
    }

    /// Records a failure. The first one is the seed's.
    pub(super) fn fail(&mut self, why: String) {
        if self.failure.is_none() {
            self.failure = Some(format!("at {:.3} s: {why}", self.now as f64 / 1e6));
        }
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
}

/// Rounds with the same members.
#[derive(Debug)]
pub(super) struct Stay {
    pub members: Vec<PeerId>,
    pub since: u64,
    pub until: u64,
    pub samples: u64,
    pub rounds: u32,
}

impl Stay {
    pub fn rate(&self) -> f64 {
        self.samples as f64 * 1e6 / (self.until - self.since).max(1) as f64
    }
}
