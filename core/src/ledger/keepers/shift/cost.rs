//! How long members work on a round, and how long they take to learn parts.

use super::super::spans::Holdings;
use crate::ledger::Member;
use crate::ledger::route::share_lanes;
use crate::run::config::Manifest;
use crate::run::parts::{PartSet, Parts};
use crate::run::split::Split;

/// The time of a member's work in a round, as work and speed.
pub(super) struct Time {
    /// The member.
    pub at: usize,
    work: u128,
    speed: u128,
}

impl Time {
    /// Whether `own` times this is less than `others` times another.
    pub fn is_below(&self, other: &Self, own: u128, others: u128) -> bool {
        own * self.work * other.speed < others * other.work * self.speed
    }

    /// The time in seconds, with as many samples in a lane as in a full batch.
    pub fn seconds(&self, manifest: &Manifest) -> f64 {
        let lanes = manifest.split.as_ref().map_or(1, |split| split.lanes.get());
        let samples = f64::from(manifest.batch.get()) / f64::from(lanes);
        self.work as f64 * samples * 1000.0 / self.speed as f64
    }

    /// How much less it is than another, in percent.
    pub fn percent_below(&self, other: &Self) -> u8 {
        let (this, all) = (self.work * other.speed, other.work * self.speed);
        (all.saturating_sub(this) * 100 / all.max(1)) as u8
    }
}

/// The cost of a round's lanes in each span, and the members' speeds, whatever they compute.
#[derive(Clone)]
pub(super) struct Work {
    costs: Vec<u64>,
    speeds: Vec<u64>,
    lanes: usize,
}

impl Work {
    /// Speeds are in samples of an average span.
    pub fn of(split: &Split, able: &[&Member]) -> Self {
        let (all, spans) = (split.cost(0..split.steps.len()), split.spans.len() as u64);
        let speed = |member: &&Member| member.speed.max(1).saturating_mul(all) / spans;
        Self {
            costs: costs(split),
            speeds: able.iter().map(speed).collect(),
            lanes: split.lanes.get().into(),
        }
    }

    /// The work of the same members with another cut.
    pub fn cut(&self, split: &Split) -> Self {
        Self {
            costs: costs(split),
            ..self.clone()
        }
    }

    /// The time of the slowest holder of each span for a unit of cost, given its other spans; `None` if a span has
    /// no holder.
    pub fn paces(&self, holdings: &Holdings) -> Option<Vec<u128>> {
        let mut load = vec![0; self.speeds.len()];
        let pace = |(span, cost): (usize, &u64)| {
            let holders = holdings.of_span(span);
            if holders.is_empty() {
                return None;
            }
            let shares = share_lanes(&holders, (self.lanes, 0, *cost), &self.speeds, &mut load);
            let pace = |(holder, lanes): (&usize, usize)| {
                let spans = (lanes * holdings.holds[*holder].len()) as u128;
                (spans << 32) / u128::from(self.speeds[*holder].max(1))
            };
            holders.iter().zip(shares).map(pace).max()
        };
        self.costs.iter().enumerate().map(pace).collect()
    }

    /// The slowest member's time, with lanes shared as in a round; `None` if a span has no holder.
    pub fn slowest(&self, holdings: &Holdings) -> Option<Time> {
        let mut load = vec![0; self.speeds.len()];
        for (span, cost) in self.costs.iter().enumerate() {
            let holders = holdings.of_span(span);
            if holders.is_empty() {
                return None;
            }
            share_lanes(&holders, (self.lanes, 0, *cost), &self.speeds, &mut load);
        }
        let time = |at: usize| Time {
            at,
            work: load[at].into(),
            speed: self.speeds[at].max(1).into(),
        };
        (0..load.len()).map(time).reduce(|longest, other| {
            if longest.is_below(&other, 1, 1) {
                other
            } else {
                longest
            }
        })
    }
}

/// The cost of each span for a sample.
fn costs(split: &Split) -> Vec<u64> {
    split.spans().map(|steps| split.cost(steps)).collect()
}

/// Rounds in which a part is learned: it comes, headers prove it, and its learner keeps it.
const LEARNT_IN: u64 = 3;

/// The parts that members learn, and their lines.
pub(super) struct Fetching<'a> {
    pub manifest: &'a Manifest,
    pub parts: Parts,
    pub able: &'a [&'a Member],
}

impl Fetching<'_> {
    /// Seconds until the last member has these parts, if nothing else uses their lines. All keepers of a part send
    /// the same amount, and during learning its sums pass the learner. An unknown line takes no time.
    pub fn seconds(&self, learns: &[PartSet]) -> f64 {
        // Bytes that each member receives and sends.
        let mut bytes = vec![(0.0, 0.0); self.able.len()];
        for (at, learns) in learns.iter().enumerate() {
            for part in learns.iter() {
                let (state, sums) = self.bytes(part);
                let keeps = |other: &usize| self.able[*other].keeper.kept.contains(part);
                let keepers: Vec<usize> = (0..bytes.len()).filter(keeps).collect();
                bytes[at].0 += state + sums;
                bytes[at].1 += sums;
                for keeper in &keepers {
                    bytes[*keeper].0 += sums / keepers.len() as f64;
                    bytes[*keeper].1 += (state + sums) / keepers.len() as f64;
                }
            }
        }
        let seconds = |(member, (gets, gives)): (&&Member, (f64, f64))| {
            let line = f64::from(member.keeper.line) * 1000.0;
            if line > 0.0 { gets.max(gives) / line } else { 0.0 }
        };
        self.able.iter().zip(bytes).map(seconds).fold(0.0, f64::max)
    }

    /// Bytes of a part, its weights and moments, and of its sums in the rounds in which it is learned.
    fn bytes(&self, part: u16) -> (f64, f64) {
        let len = self.parts.range(part).map_or(0, |range| range.len()) as u64;
        let moments = self.manifest.optimizer.slots() as u64 * self.manifest.moments.bytes(len);
        ((4 * len + moments) as f64, (LEARNT_IN * 4 * len) as f64)
    }
}
