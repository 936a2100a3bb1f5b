//! Who computes what of a round where members hold spans of a model: its samples as microbatches and lanes, and the member
//! for each lane of each span.
//!
//! A *microbatch* is what of a batch goes through the spans at once, and a *lane* a run of microbatches. Gradients are summed
//! for each step and lane in the order of microbatches, then lanes are added in their order, then the steps that use the same
//! elements: so bits do not depend on who has computed what. Everything here is a pure function of the manifest and the
//! ledger's head.

use crate::config::Manifest;
use crate::cut::Hole;
use crate::id::PeerId;
use crate::ledger::Head;
use crate::parts::Parts;
use crate::split::Split;
use std::ops::Range;

/// The samples of a round, cut into microbatches and these into lanes.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Positions of the stream, in the order in which they are numbered.
    positions: Vec<Range<u64>>,
    samples: u64,
    micro_batch: u64,
    lanes: usize,
}

impl Batch {
    /// Of what is handed out for a round.
    pub fn new(split: &Split, taken: &[Hole]) -> Self {
        let positions: Vec<Range<u64>> = taken.iter().map(|hole| hole.start..hole.end).collect();
        let samples = positions.iter().map(|range| range.end - range.start).sum::<u64>();
        let micro_batch = u64::from(split.micro_batch.get());
        let microbatches = samples.div_ceil(micro_batch);
        Self {
            positions,
            samples,
            micro_batch,
            lanes: microbatches.min(split.lanes.get().into()) as usize,
        }
    }

    /// How many samples it has.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// How many microbatches.
    pub fn microbatches(&self) -> u32 {
        self.samples.div_ceil(self.micro_batch) as u32
    }

    /// How many lanes: none without a microbatch.
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
    /// By span and lane.
    lanes: Vec<Vec<usize>>,
}

impl Route {
    /// All of it by one member.
    pub(crate) fn alone(spans: usize, lanes: usize) -> Self {
        Self {
            lanes: vec![vec![0; lanes]; spans],
        }
    }

    /// By span and lane.
    #[cfg(test)]
    pub fn new(lanes: &[[usize; 2]]) -> Self {
        let lanes = lanes.iter().map(|lanes| lanes.to_vec()).collect();
        Self { lanes }
    }

    /// Who computes a lane of a span.
    pub fn of(&self, span: usize, lane: usize) -> usize {
        self.lanes[span][lane]
    }

    /// What a member computes, as spans and lanes, in order.
    pub fn by(&self, member: usize) -> impl Iterator<Item = (usize, usize)> {
        let spans = self.lanes.iter().enumerate();
        spans.flat_map(move |(span, lanes)| {
            let own = lanes.iter().enumerate().filter(move |(_, at)| **at == member);
            own.map(move |(lane, _)| (span, lane))
        })
    }
}

impl Head {
    /// How many samples each of some members works on in a round, each as often as it has spans for it.
    pub(crate) fn work_of(&self, manifest: &Manifest, taken: &[Hole], members: &[PeerId]) -> Vec<u64> {
        let mut work = vec![0; members.len()];
        let (Some(split), Some(parts)) = (&manifest.split, Parts::of(manifest)) else {
            return work;
        };
        let batch = Batch::new(split, taken);
        if batch.is_empty() || !self.trains(manifest, members) {
            return work;
        }
        let route = self.route(split, parts, members, batch.lanes());
        for (at, work) in work.iter_mut().enumerate() {
            *work = route.by(at).map(|(_, lane)| batch.lane_len(lane)).sum();
        }
        work
    }

    /// Who computes what among some members of the next round. The holders of a span share its lanes evenly; those of one that
    /// is not among these members go to the others, and all else stays where it was.
    ///
    /// # Panics
    /// If a span has no holder among them.
    pub fn route(&self, split: &Split, parts: Parts, members: &[PeerId], lanes: usize) -> Route {
        let spans = split.needs(parts);
        let of_span = |span: usize| {
            let all = self.members.iter().filter(|m| m.keeper.holds(span, &spans));
            let holders: Vec<PeerId> = all.map(|m| m.peer).collect();
            let here = |peer: &PeerId| members.iter().position(|m| m == peer);
            let there: Vec<usize> = holders.iter().filter_map(here).collect();
            assert!(!there.is_empty(), "span {span} has a holder");
            let mut moved = 0;
            let of_lane = |lane: usize| match here(&holders[lane * holders.len() / lanes]) {
                Some(at) => at,
                None => {
                    moved += 1;
                    there[(moved - 1) % there.len()]
                }
            };
            (0..lanes).map(of_lane).collect()
        };
        let lanes = (0..spans.len()).map(of_span).collect();
        Route { lanes }
    }
}

#[cfg(test)]
#[path = "route/tests.rs"]
mod tests;
