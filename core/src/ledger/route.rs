//! Assigns the work of a round in a split run: the samples as microbatches and lanes, and a member for each lane of
//! each span.
//!
//! A *microbatch* is the part of a batch that goes through the spans at once. A *lane* is a sequence of
//! microbatches. Gradients are summed for each step and lane in the order of microbatches, then lanes are added in
//! order, then the steps that use the same elements. So the bits do not depend on the assignment. Everything here
//! is a pure function of the manifest and the ledger's head.

use crate::base::id::PeerId;
use crate::ledger::Head;
use crate::ledger::cut::SampleRange;
use crate::run::config::Manifest;
use crate::run::parts::Parts;
use crate::run::shuffle;
use crate::run::split::Split;
use std::borrow::Cow;
use std::ops::Range;

/// Every this many rounds, each holder of a span computes at least one lane of it. A device that has become faster
/// shows that only by computing.
const TRIAL: u64 = 16;

/// The samples of a round, cut into microbatches, and these into lanes.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Positions of the stream, in the order of microbatches.
    positions: Vec<Range<u64>>,
    samples: u64,
    micro_batch: u64,
    lanes: usize,
}

impl Batch {
    /// The batch of these allotted samples.
    pub fn new(split: &Split, taken: &[SampleRange]) -> Self {
        let positions: Vec<Range<u64>> = taken.iter().map(|hole| hole.start..hole.end).collect();
        let samples = shuffle::count(&positions);
        let micro_batch = u64::from(split.micro_batch.get());
        let microbatches = samples.div_ceil(micro_batch);
        Self {
            positions,
            samples,
            micro_batch,
            lanes: microbatches.min(split.lanes.get().into()) as usize,
        }
    }

    /// Number of samples.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Number of microbatches.
    pub fn microbatches(&self) -> u32 {
        self.samples.div_ceil(self.micro_batch) as u32
    }

    /// Number of lanes; 0 without microbatches.
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// The microbatches of a lane.
    pub fn lane(&self, lane: usize) -> Range<u32> {
        let all = u64::from(self.microbatches());
        let border = |lane: usize| (all * lane as u64 / self.lanes.max(1) as u64) as u32;
        border(lane)..border(lane + 1)
    }

    /// The lane of a microbatch.
    pub fn lane_of(&self, microbatch: u32) -> Option<usize> {
        (0..self.lanes).find(|lane| self.lane(*lane).contains(&microbatch))
    }

    /// Samples of a microbatch.
    pub fn len(&self, microbatch: u32) -> u64 {
        let start = u64::from(microbatch) * self.micro_batch;
        self.samples.saturating_sub(start).min(self.micro_batch)
    }

    /// Whether it has no sample.
    pub fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// Samples of a lane.
    pub fn lane_len(&self, lane: usize) -> u64 {
        self.lane(lane).map(|microbatch| self.len(microbatch)).sum()
    }

    /// Positions of a microbatch's samples, in order.
    pub fn of(&self, microbatch: u32) -> Vec<Range<u64>> {
        let mut skip = u64::from(microbatch) * self.micro_batch;
        let mut left = self.len(microbatch);
        let mut of = Vec::new();
        for range in &self.positions {
            let start = range.start + skip.min(range.end - range.start);
            skip -= start - range.start;
            let end = range.end.min(start + left);
            if start < end {
                of.push(start..end);
                left -= end - start;
            }
        }
        of
    }
}

/// Which member computes which lanes of which spans in an attempt. Members are positions in its view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// By span, then lane.
    lanes: Vec<Vec<usize>>,
}

impl Route {
    /// By span, then lane.
    #[cfg(test)]
    pub fn new(lanes: &[[usize; 2]]) -> Self {
        let lanes = lanes.iter().map(|lanes| lanes.to_vec()).collect();
        Self { lanes }
    }

    /// The member that computes a lane of a span.
    pub fn of(&self, span: usize, lane: usize) -> usize {
        self.lanes[span][lane]
    }

    /// The spans and lanes of a member, in order.
    pub fn by(&self, member: usize) -> impl Iterator<Item = (usize, usize)> {
        let spans = self.lanes.iter().enumerate();
        spans.flat_map(move |(span, lanes)| {
            let own = lanes.iter().enumerate().filter(move |(_, at)| **at == member);
            own.map(move |(lane, _)| (span, lane))
        })
    }
}

impl Head {
    /// The cut of a split model in the next round.
    pub fn split<'a>(&self, manifest: &'a Manifest) -> Option<Cow<'a, Split>> {
        let split = manifest.split.as_ref()?;
        Some(match split.spans == self.spans {
            true => Cow::Borrowed(split),
            false => Cow::Owned(split.cut(&self.spans)),
        })
    }

    /// The samples that each of these members works on in a round, in samples of an average span.
    pub(crate) fn work_of(&self, manifest: &Manifest, taken: &[SampleRange], members: &[PeerId]) -> Vec<f64> {
        let mut work = vec![0.0; members.len()];
        let (Some(split), Some(parts)) = (self.split(manifest), Parts::of(manifest)) else {
            return work;
        };
        let batch = Batch::new(&split, taken);
        if batch.is_empty() || !self.trains(manifest, members) {
            return work;
        }
        let route = self.route(&split, parts, members, batch.lanes());
        for (at, work) in work.iter_mut().enumerate() {
            let lanes = route.by(at);
            *work = lanes
                .map(|(span, lane)| split.work(span, batch.lane_len(lane)))
                .sum();
        }
        work
    }

    /// Assigns the work of the next round among some members. The holders of a span share its lanes by speed, such
    /// that all are done as early as possible, counting their other spans. Every [`TRIAL`] rounds a holder that is
    /// too slow for a lane gets one all the same. Lanes of absent members go to others; all other lanes stay where
    /// they were.
    ///
    /// # Panics
    /// If a span has no holder among them.
    pub fn route(&self, split: &Split, parts: Parts, members: &[PeerId], lanes: usize) -> Route {
        let spans = split.needs(parts);
        let speeds: Vec<u64> = self.members.iter().map(|m| m.speed).collect();
        let mut load = vec![0; self.members.len()];
        let is_trial = (self.round + 1).is_multiple_of(TRIAL);
        let of_span = |span: usize| {
            let holds = |at: &usize| self.members[*at].keeper.holds(span, &spans);
            let holders: Vec<usize> = (0..self.members.len()).filter(holds).collect();
            let here = |at: usize| members.iter().position(|m| *m == self.members[at].peer);
            let there: Vec<usize> = holders.iter().filter_map(|at| here(*at)).collect();
            assert!(!there.is_empty(), "span {span} has a holder");
            let mut moved = 0;
            let of_lane = |holder: usize| match here(holder) {
                Some(at) => at,
                None => {
                    moved += 1;
                    there[(moved - 1) % there.len()]
                }
            };
            let least = usize::from(is_trial && holders.len() <= lanes);
            let cost = split.cost(split.span(span));
            let shares = share_lanes(&holders, (lanes, least, cost), &speeds, &mut load);
            let lanes = holders.iter().zip(shares);
            let lanes = lanes.flat_map(|(holder, lanes)| std::iter::repeat_n(*holder, lanes));
            lanes.map(of_lane).collect()
        };
        let lanes = (0..spans.len()).map(of_span).collect();
        Route { lanes }
    }
}

/// How many lanes of a span each holder gets, at least `least` each, on top of the load that each member has. Each
/// lane goes to the holder that would be done with it first. A lane adds `work` to a load.
pub(crate) fn share_lanes(
    holders: &[usize],
    (lanes, least, cost): (usize, usize, u64),
    speeds: &[u64],
    load: &mut [u64],
) -> Vec<usize> {
    let mut shares = vec![least; holders.len()];
    holders.iter().for_each(|at| load[*at] += cost * least as u64);
    for _ in shares.iter().sum()..lanes {
        let done = |i: &usize, load: &[u64]| {
            let at = holders[*i];
            (u128::from(load[at] + cost), u128::from(speeds[at].max(1)))
        };
        let earlier = |a: &usize, b: &usize| {
            let ((a, of_a), (b, of_b)) = (done(a, load), done(b, load));
            (a * of_b).cmp(&(b * of_a))
        };
        let first = (0..holders.len()).min_by(earlier).expect("a span has a holder");
        shares[first] += 1;
        load[holders[first]] += cost;
    }
    shares
}

#[cfg(test)]
#[path = "route/tests.rs"]
mod tests;
