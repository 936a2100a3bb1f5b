//! The meaning of a seed: the run, its peers, their links and the rates of the faults. Drawn once, before anything
//! happens. It does not know what peers do.

mod draws;

use super::kind::Kind;
use super::lie::Lie;
use super::rng::Rng;
use super::splits;
use crate::base::random::mix;
use crate::ledger::pace::Pace;
use crate::numeric::codec::Codec;
use crate::run::config::Manifest;
use draws::{draw_aside, draw_early_stop, draw_exchange, draw_keepers, draw_manifest, draw_means, draw_page};

/// Most peers that a world ever has, including dead ones.
pub const MOST_PEERS: usize = 12;

/// Separates the draw of tabs from the others.
const TABS: u64 = 0x7461_6273;
const ROUTERS: u64 = 0x726f_7574;

/// Separates the draw of keepers.
const KEEPERS: u64 = 0x6b65_6570;
/// Separates the draw of tensors that follow means.
const MEANS: u64 = 0x6d65_616e;
/// Separates the draw of members that stand aside.
const ASIDE: u64 = 0x6173_6964;
/// Separates the draw of spans.
const SPLITS: u64 = 0x7370_6c69;

/// Separates the draw of early stops.
const EARLY_STOP: u64 = 0x7374_6f70;
/// Separates the draw of tickets that are taken back.
const REVOCATIONS: u64 = 0x7265_766f_6b65;

/// Separates the draw of pages.
const PAGES: u64 = 0x70_6167_6573;

/// Separates the draw of contributors.
const GUESTS: u64 = 0x6775_6573_7473;

/// Typical rate of the slowest links.
const SLOWEST_BYTES_PER_S: f64 = 2e4;

/// Shortest lie: long enough for others to wait in vain.
pub const LEAST_US: f64 = 300_000.0;
/// Separates the draws of liars.
pub const LIARS: u64 = 0x6c69_6172;

/// The liars of a world.
#[derive(Clone, Debug)]
pub struct LiarsPlan {
    /// How many.
    pub count: usize,
    /// Their lies.
    pub lies: Vec<Lie>,
    /// Mean time between two lies of one of them, in microseconds.
    pub every_us: f64,
    /// Longest that a lie lasts, in microseconds.
    pub longest_us: f64,
}

/// The sort of faults in a world.
#[derive(Clone, Copy)]
enum Weather {
    /// None.
    Calm,
    /// Some of all kinds, rare or frequent.
    Mixed,
    /// Many peers that hear each other late: a member that agrees about one failure meets the next.
    Haze,
}

/// The faults of haze.
const HAZE: [Kind; 6] = [
    Kind::CrashMidway,
    Kind::Freeze,
    Kind::Cut,
    Kind::CutOneWay,
    Kind::Slow,
    Kind::Delay,
];

/// Everything drawn from a seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The run.
    pub manifest: Manifest,
    /// The peers that come by themselves; the first founds the run.
    pub peers: Vec<PeerPlan>,
    /// Typical compute time of a round, in microseconds.
    pub round_us: f64,
    /// Typical one-way latency, in microseconds.
    pub latency_us: f64,
    /// Typical rate of a link.
    pub rate_bytes_per_s: f64,
    /// How many times slower the second peer's line is.
    pub slow_line: f64,
    /// A silent link is given up after this long, in microseconds.
    pub idle_us: u64,
    /// Share of a compute time that is random.
    pub jitter: f64,
    /// Whether every message is encoded and decoded.
    pub frames: bool,
    /// The faults and their relative likelihoods. Empty: nothing ever goes wrong.
    pub faults: Vec<(Kind, f64)>,
    /// Mean time between faults, in microseconds.
    pub fault_every_us: f64,
    /// All faults end when this share of the samples is counted ...
    pub heal_at_share: f64,
    /// ... or at this time, in microseconds.
    pub heal_at_us: u64,
    /// Most peers that may be killed or leave.
    pub deaths: usize,
    /// Longest that a passing fault lasts, in microseconds.
    pub longest_us: f64,
    /// Whether few peers can be dialled.
    pub mostly_tabs: bool,
    /// Decides which of the peers that cannot be dialled are behind routers.
    pub routers: u64,
    /// Fraction of the peers that are not full members. The founder always is one.
    pub guests: f64,
    /// The liars, if there are any.
    pub liars: Option<LiarsPlan>,
    /// Whether all guests come by one ticket, liars among them.
    pub has_page: bool,
}

/// Why a peer cannot be dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shelter {
    /// It is a browser tab: it has no address.
    Tab,
    /// Its router admits only answers to its own packets, so both ends have to dial at once.
    Router,
    /// So does this one, and it shows the peer at another port to each receiver.
    FickleRouter,
}

/// One peer.
#[derive(Clone, Debug)]
pub struct PeerPlan {
    /// When it starts, in microseconds.
    pub at_us: u64,
    /// Samples per second.
    pub speed: f64,
    /// Whether others can dial it. A browser tab cannot be dialled.
    pub dialable: bool,
    /// Whether it only contributes.
    pub is_guest: bool,
}

impl Plan {
    /// Draws a world.
    pub fn draw(seed: u64) -> Self {
        let mut plan = Self::draw_without_keepers(seed);
        let rng = &mut Rng::new(mix(seed ^ KEEPERS));
        draw_keepers(rng, &mut plan.manifest);
        let rng = &mut Rng::new(mix(seed ^ SPLITS));
        splits::draw(seed, rng, &mut plan.manifest, plan.peers.len());
        draw_means(&mut Rng::new(mix(seed ^ MEANS)), &mut plan.manifest);
        if plan.manifest.codec == Codec::Sign && plan.manifest.local.is_none() {
            plan.manifest.codec = Codec::Int4;
        }
        draw_aside(&mut Rng::new(mix(seed ^ ASIDE)), &mut plan);
        draw_early_stop(&mut Rng::new(mix(seed ^ EARLY_STOP)), &mut plan.manifest);
        let revokes = &mut Rng::new(mix(seed ^ REVOCATIONS));
        if !plan.faults.is_empty() && revokes.chance(0.12) {
            plan.faults.push((Kind::Revoke, revokes.octaves(0.5, 4.0)));
        }
        // A peer that leaves needs others that keep its parts.
        let leave = |(kind, _): &(Kind, f64)| *kind == Kind::Leave;
        let few = !plan.faults.is_empty() && !plan.faults.iter().any(leave);
        if few && plan.manifest.copies.is_some() && rng.chance(0.5) {
            plan.faults.push((Kind::Leave, 2.0));
        }
        plan
    }

    fn draw_without_keepers(seed: u64) -> Self {
        let rng = &mut Rng::new(seed);
        let weather = [
            Weather::Calm,
            Weather::Mixed,
            Weather::Mixed,
            Weather::Mixed,
            Weather::Haze,
        ][rng.index(5)];
        let (count, round_us) = match weather {
            Weather::Haze => (rng.between(4, 7) as usize, 1e6 * rng.octaves(0.5, 3.0)),
            _ => (
                [2, 2, 3, 3, 3, 4, 4, 5, 6, 7][rng.index(10)],
                1e6 * rng.octaves(0.2, 12.0),
            ),
        };
        let (faults, fault_every_us, longest_us) = match weather {
            Weather::Calm => (Vec::new(), f64::INFINITY, 0.0),
            Weather::Mixed => (
                draw_faults(rng, &Kind::ALL),
                round_us * rng.octaves(0.5, 8.0),
                (8.0 * round_us).max(20e6),
            ),
            Weather::Haze => (draw_faults(rng, &HAZE), 1e6 * rng.octaves(0.3, 3.0), 6e6),
        };
        let mut manifest = draw_manifest(rng, count);
        let at_once = rng.chance(0.6);
        let mut peers = Vec::new();
        for i in 0..count {
            let spread = if at_once { 0.5 } else { 12.0 };
            let at_us = if i == 0 {
                0
            } else {
                (rng.unit() * spread * round_us) as u64
            };
            let speed = draw_speed(rng, &manifest, count, round_us);
            let dialable = i == 0 || rng.chance(0.8);
            peers.push(PeerPlan {
                at_us,
                speed,
                dialable,
                is_guest: false,
            });
        }
        // In some worlds nearly all peers are browser tabs, which nobody can dial and which need the others to
        // reach each other. Drawn separately, so that the other worlds stay what they were.
        let tabs = &mut Rng::new(mix(seed ^ TABS));
        let mostly_tabs = tabs.chance(0.15);
        if mostly_tabs {
            for peer in &mut peers[1..] {
                peer.dialable = tabs.chance(0.1);
            }
        }
        let draw = &mut Rng::new(mix(seed ^ GUESTS));
        let guests = match draw.chance(0.25) {
            true => 0.2 + 0.6 * draw.unit(),
            false => 0.0,
        };
        for peer in &mut peers[1..] {
            peer.is_guest = guests > 0.0 && draw.chance(guests);
        }
        draw_exchange(seed, &mut manifest);
        let rounds = rounds(&manifest);
        Self {
            peers,
            round_us,
            // Without faults, a round trip takes less than the first deadline, a second; elsewhere paths may be
            // longer than peers expect.
            latency_us: match weather {
                Weather::Calm => rng.octaves(200.0, 80_000.0),
                Weather::Mixed => rng.octaves(200.0, 300_000.0),
                Weather::Haze => rng.octaves(50_000.0, 300_000.0),
            },
            rate_bytes_per_s: rng.octaves(SLOWEST_BYTES_PER_S, 2e7),
            slow_line: 1.0,
            idle_us: rng.between(3_000_000, 10_000_000),
            // Without faults, a device's times stay within a factor of two, as its members expect.
            jitter: rng.unit() * if faults.is_empty() { 0.3 } else { 0.5 },
            frames: rng.chance(0.15),
            fault_every_us,
            heal_at_share: 0.1 + 0.4 * rng.unit(),
            heal_at_us: (round_us * rounds * 3.0) as u64 + 60_000_000,
            deaths: rng.between(1, 4) as usize,
            longest_us,
            mostly_tabs,
            routers: mix(seed ^ ROUTERS),
            guests,
            liars: None,
            has_page: false,
            faults,
            manifest,
        }
    }

    /// Most rounds of the run, if nothing goes wrong.
    pub fn rounds(&self) -> f64 {
        rounds(&self.manifest)
    }

    /// Whether nothing ever goes wrong here.
    pub fn is_calm(&self) -> bool {
        self.faults.is_empty() && self.liars.is_none()
    }

    /// Why the `i`th peer cannot be dialled, if it cannot. Drawn separately, so that the rest of the world stays
    /// what it was.
    pub(super) fn shelter(&self, i: usize) -> Shelter {
        let rng = &mut Rng::new(mix(self.routers ^ i as u64));
        [
            Shelter::Tab,
            Shelter::Tab,
            Shelter::Router,
            Shelter::Router,
            Shelter::FickleRouter,
        ][rng.index(5)]
    }

    /// A peer that comes later.
    pub fn newcomer(&self, rng: &mut Rng) -> PeerPlan {
        let speed = draw_speed(rng, &self.manifest, self.peers.len(), self.round_us);
        PeerPlan {
            at_us: 0,
            speed,
            dialable: rng.chance(if self.mostly_tabs { 0.1 } else { 0.8 }),
            is_guest: self.guests > 0.0 && rng.chance(self.guests),
        }
    }
}

impl Plan {
    /// Draws a world with liars: that of the seed, with enough peers for them and often without other faults. Liars
    /// tell this lie in addition to those that the seed draws.
    pub fn draw_with_liars(seed: u64, lie: Option<Lie>) -> Self {
        let mut plan = Self::draw(seed);
        if !splits::may_have_liars(seed) {
            plan.manifest.split = None;
        }
        // The limit on liars is a fraction of the members that count.
        plan.guests = 0.0;
        plan.peers.iter_mut().for_each(|peer| peer.is_guest = false);
        let rng = &mut Rng::new(mix(seed ^ LIARS));
        let count = rng.between(4, 7) as usize;
        while plan.peers.len() < count {
            let mut peer = plan.newcomer(rng);
            peer.at_us = (rng.unit() * plan.round_us) as u64;
            plan.peers.push(peer);
        }
        if rng.chance(0.7) {
            plan.faults.clear();
            plan.latency_us = plan.latency_us.min(80_000.0);
        }
        if plan.faults.is_empty() {
            // Practically never, and far from overflow.
            plan.fault_every_us = 1e15;
        }
        // All other faults end with the lies.
        plan.heal_at_share = 0.3 + 0.4 * rng.unit();
        let some = [1, 1, 1, 2, 4][rng.index(5)];
        let drawn: Vec<Lie> = (0..some).filter_map(|_| rng.pick(&Lie::DRAWN)).collect();
        let keepers = &mut Rng::new(mix(seed ^ KEEPERS ^ LIARS));
        let of_keepers = plan.manifest.copies.and_then(|_| keepers.pick(&Lie::OF_KEEPERS));
        let of_keepers = of_keepers.filter(|_| keepers.chance(0.6));
        let spans = &mut Rng::new(mix(seed ^ SPLITS ^ LIARS));
        let of_spans = plan
            .manifest
            .split
            .as_ref()
            .and_then(|_| spans.pick(&Lie::OF_SPANS));
        let of_spans = of_spans.filter(|_| spans.chance(0.7));
        let own = of_keepers.into_iter().chain(of_spans);
        let lies = drawn.into_iter().chain(own).chain(lie).collect();
        plan.liars = Some(LiarsPlan {
            count: rng.between(1, (plan.peers.len() as u64 - 1) / 3) as usize,
            lies,
            every_us: plan.round_us * rng.octaves(0.3, 4.0),
            longest_us: (plan.round_us * rng.octaves(0.5, 8.0)).max(2.0 * LEAST_US),
        });
        draw_page(&mut Rng::new(mix(seed ^ PAGES)), &mut plan, lie);
        plan
    }
}

fn draw_speed(rng: &mut Rng, manifest: &Manifest, count: usize, round_us: f64) -> f64 {
    first_round(manifest) / count as f64 / (round_us / 1e6) * rng.octaves(0.5, 2.0)
}

/// Samples of a first round.
fn first_round(manifest: &Manifest) -> f64 {
    Pace::new(manifest).round_samples(manifest) as f64
}

/// Rounds of a run in which nothing goes wrong, if none allots fewer samples than the first.
fn rounds(manifest: &Manifest) -> f64 {
    manifest.target.get() as f64 / first_round(manifest)
}

fn draw_faults(rng: &mut Rng, kinds: &[Kind]) -> Vec<(Kind, f64)> {
    // Each kind is there or not, so that a kind is also seen without the noise of the others.
    let share = [0.15, 0.35, 0.6][rng.index(3)];
    let mut faults: Vec<(Kind, f64)> = kinds
        .iter()
        .copied()
        .filter(|_| rng.chance(share))
        .map(|kind| (kind, 1.0))
        .collect();
    for (_, weight) in &mut faults {
        *weight = rng.octaves(0.2, 5.0);
    }
    if faults.is_empty() {
        let kind = kinds[rng.index(kinds.len())];
        faults.push((kind, 1.0));
    }
    faults
}
