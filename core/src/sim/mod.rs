//! A seeded world of peers, links and faults that tests whether the protocol keeps its promises.
//!
//! One seed draws everything: the run, the peers and their speeds, the links, and how often which faults happen.
//! The peers are real; only the network, the clock and the device are not. While the faults last, no peer may do
//! anything wrong. Once they have ended, the run must also finish. A failing seed fails again: `cargo xtask sim
//! --seeds 1 --from SEED --trace` tells its story.
//!
//! - `plan`: the meaning of a seed.
//! - `world`, `run`: virtual time and the event queue; what each event does.
//! - `node`, `driver`: a peer and its driver.
//! - `net`, `transport`: links, their delays and how they break.
//! - `kind`, `faults`: the faults.
//! - `device`: contributions that reveal a wrong state or a sample counted twice.
//! - `ledger`: all lineages as they should be, computed without the code under test.
//! - `means`: tensors that follow means, computed in the same way.
//! - `steps`: a model in steps, for split runs.
//! - `splits`: worlds with such a model.
//! - `spanning`, `kept`: conditions on split runs, and on runs whose members keep parts of the moments.
//! - `revoking`, `heard`: tickets that are taken back, and who has heard of that.
//! - `check`: conditions on all peers.
//! - `lie`, `lying_keeper`, `lying_holder`, `league`, `liars`: peers that break the protocol in every way that a
//!   message allows.
//! - `honest`: conditions on the other peers among them.
//! - `visitors`: worlds in which liars and honest guests share one ticket.
//! - `twist`, `resign`: changed messages, and their signatures.
//! - `fuzz`: hostile frames in real conversations, without any of the above.
//! - `trace`: a seed's story as text.
//! - `stand_ins`: headers and records of peers that are only names, also for unit tests.

mod check;
mod device;
mod disk;
mod driver;
mod faults;
pub mod fuzz;
mod heard;
mod honest;
mod idlers;
mod kept;
mod kind;
mod league;
mod ledger;
mod liars;
mod lie;
mod lying_holder;
mod lying_keeper;
mod means;
mod net;
mod node;
mod plan;
mod resign;
mod revoking;
mod rng;
mod run;
mod spanning;
mod splits;
mod stalling;
pub(crate) mod stand_ins;
pub(crate) mod steps;
mod trace;
mod transport;
mod twist;
mod visitors;
mod world;

use crate::access::signature::Scheme;
use crate::base::planted::{self, Bug};
use crate::run::config::Topology;
pub use kind::Kind;
pub use lie::Lie;
use std::collections::BTreeMap;

/// The result of a seed.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Why the seed failed, if it did.
    pub failure: Option<String>,
    /// What happened.
    pub stats: Stats,
}

/// Counts over one seed or many.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Events handled.
    pub events: u64,
    /// Messages delivered.
    pub messages: u64,
    /// Rounds on the lineages that finished, and on those that did not.
    pub rounds: u64,
    /// Rounds that took more than one attempt.
    pub retried: u64,
    /// Seeds in which all had the time to meet after the faults. They must end as one lineage.
    pub judged: u64,
    /// Peers that ceased to be members and had to join again.
    pub outcasts: u64,
    /// Peers that became members after the start.
    pub joins: u64,
    /// Links between two peers behind routers, opened because both dialled at once.
    pub punched: u64,
    /// Passes through spans by peers without room for an end of the model.
    pub inner: u64,
    /// Times that a peer went back to an older round because trained parts were lost.
    pub backs: u64,
    /// Moves of members to another span, counted once by each member that saw one.
    pub shifts: u64,
    /// Members that were seen to stand aside.
    pub asides: u64,
    /// Passes through spans of another cut than the founder's.
    pub recut: u64,
    /// Times that a device loaded a span's weights before there was anything to compute.
    pub ahead: u64,
    /// Virtual time in microseconds.
    pub virtual_us: u64,
    /// Faults by kind.
    pub faults: BTreeMap<Kind, u64>,
    /// Lies by kind.
    pub lies: BTreeMap<Lie, u64>,
    /// Members that were excluded or cut off for good because of their statements.
    pub caught: u64,
}

/// How to run a seed.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// A mistake in all peers.
    pub bug: Option<Bug>,
    /// How peers sign. Another scheme means other names, so the seed tells another story.
    pub scheme: Scheme,
    /// Whether some peers lie.
    pub liars: bool,
    /// A lie that they tell in every world, in addition to those that the seed draws.
    pub lie: Option<Lie>,
    /// Whether the story is printed to standard output.
    pub trace: bool,
}

impl Default for Setup {
    /// Honest peers with the fast stand-in signatures.
    fn default() -> Self {
        Self {
            bug: None,
            scheme: Scheme::StandIn,
            liars: false,
            lie: None,
            trace: false,
        }
    }
}

impl Stats {
    /// Adds another's counts.
    pub fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.messages += other.messages;
        self.rounds += other.rounds;
        self.retried += other.retried;
        self.judged += other.judged;
        self.outcasts += other.outcasts;
        self.punched += other.punched;
        self.inner += other.inner;
        self.backs += other.backs;
        self.shifts += other.shifts;
        self.asides += other.asides;
        self.recut += other.recut;
        self.ahead += other.ahead;
        self.joins += other.joins;
        self.virtual_us += other.virtual_us;
        for (kind, count) in &other.faults {
            *self.faults.entry(*kind).or_default() += count;
        }
        for (lie, count) in &other.lies {
            *self.lies.entry(*lie).or_default() += count;
        }
        self.caught += other.caught;
    }
}

/// The topology of a seed's world; `None` if its members choose.
pub fn topology(seed: u64) -> Option<Topology> {
    plan::Plan::draw(seed).manifest.topology
}

/// Whether the model of a seed's world, with or without liars, is split over the members.
pub fn is_split(seed: u64, liars: bool) -> bool {
    let stays = !liars || splits::may_have_liars(seed);
    stays && plan::Plan::draw(seed).manifest.split.is_some()
}

/// Whether tickets are taken back in a seed's world without liars.
pub fn is_revoking(seed: u64) -> bool {
    let mut faults = plan::Plan::draw(seed).faults.into_iter();
    faults.any(|(kind, _)| kind == Kind::Revoke)
}

/// The worlds in which a planted bug comes to light: how they run, whether their models are split, and their first seed.
pub fn worlds_of(bug: Bug) -> (Setup, bool, u64) {
    // These lies are drawn in few worlds.
    let lie = match bug {
        Bug::HeedWhoBars => Some(Lie::Bar),
        Bug::TrustRevocations => Some(Lie::Revoke),
        Bug::ComeBackTooSoon => Some(Lie::State),
        Bug::TakeAgain => Some(Lie::Replay),
        Bug::CompareNoSeals => Some(Lie::Sums),
        Bug::CountAboveShare => Some(Lie::Claim),
        Bug::TakeAnyTensor => Some(Lie::Tensor),
        Bug::NoSpotChecks => Some(Lie::Work),
        Bug::BlameNewcomers => Some(Lie::ComeAndGo),
        Bug::GuestsOwn => Some(Lie::Own),
        bug if Bug::OF_PAGES.contains(&bug) => Some(Lie::Visit),
        _ => None,
    };
    let of_holders = Bug::OF_LYING_HOLDERS.contains(&bug);
    let setup = Setup {
        bug: Some(bug),
        liars: of_holders || Bug::OF_LIARS.contains(&bug),
        lie,
        ..Setup::default()
    };
    let split = of_holders || Bug::OF_SPANS.contains(&bug);
    let from = if of_holders { splits::MORE_FROM } else { 0 };
    (setup, split, from)
}

/// The topologies in each of which a planted bug must come to light; `None`: in whichever worlds it does.
pub fn topologies_of(bug: Bug) -> Vec<Option<Topology>> {
    // Only the direct plan shares moments.
    let is_of_both = Bug::OF_FAULTS.contains(&bug) && !Bug::OF_KEEPERS.contains(&bug);
    match bug {
        // In a ring at most one input comes in for each sum.
        Bug::SumAsTheyCome => vec![Some(Topology::Direct)],
        _ if is_of_both => Topology::ALL.map(Some).into(),
        _ => vec![None],
    }
}

/// Runs one seed to its end.
///
/// A panic inside a peer is a failure like any other; the caller's panic hook still prints it.
pub fn run(seed: u64, setup: Setup) -> Outcome {
    planted::plant(setup.bug);
    let caught = std::panic::catch_unwind(|| world::World::new(seed, setup).run(seed));
    planted::plant(None);
    caught.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Outcome {
            failure: Some(format!("panicked: {text}")),
            stats: Stats::default(),
        }
    })
}
