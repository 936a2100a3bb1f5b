//! Which way of training together suits some machines: all of the model on each (data parallel), with the optimizer's vectors
//! on all or on a few of them, or spans of the model, each on one machine or on several.
//!
//! A pure function of what the machines and the steps are like: how long rounds take is a [model](time), the choice a
//! [search](search), and [whether to change](change) what is there already another question. Times are `f64`, made of whole
//! numbers by sums, products, quotients and maxima alone, so that all who know the same numbers come to the same plan.

mod change;
mod graph;
mod search;
mod time;

pub(crate) use change::{ASKS, GAIN, ROUNDS};
pub use change::{Change, Watch};

use super::split::{StepNeeds, Terms};
use std::ops::{Range, RangeInclusive};

/// What a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Bytes that it may take.
    pub memory_bytes: u64,
    /// Samples of the whole model in 1,000 seconds.
    pub speed: u64,
    /// Bytes per second that its line carries, each way.
    pub rate: u64,
    /// Microseconds from it to another and back.
    pub round_trip_us: u64,
}

/// What is to be trained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The model's steps. Their times are in any unit. One step: it cannot be split.
    pub steps: Vec<StepNeeds>,
    /// Bytes of a microbatch's activations behind each step, as they travel.
    pub boundaries: Vec<u64>,
    /// Of spans, but that each parameter takes four bytes more for each lane.
    pub terms: Terms,
    /// How many lanes there may be: each is a sum of gradients, computed by one holder of a span.
    pub lanes: Vec<u16>,
    /// Bytes of a process that trains the whole model.
    pub whole_bytes: u64,
    /// Bytes of the optimizer's vectors of the whole model.
    pub moments_bytes: u64,
    /// Bytes of a gradient of the whole model, as it travels between those that have all of it.
    pub vector_bytes: u64,
    /// Samples of a round.
    pub batch: u64,
    /// Samples of a microbatch.
    pub micro_batch: u64,
    /// How many machines are to hold each part at least, where not all hold all.
    pub copies: u16,
    /// How many spans there may be; one: all of the model on each machine.
    pub spans: RangeInclusive<usize>,
    /// Whether each span has as many holders as the others, or the first ones one more: what members of a run make of
    /// their order by themselves.
    pub even: bool,
}

/// A way of training together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parallelism {
    /// All machines have all.
    Replicas,
    /// All have the weights, and each part of the optimizer's vectors is on a few of them.
    Sharded,
    /// The model is split, and a round's gradients are summed in so many lanes.
    Split {
        /// The lanes.
        lanes: u16,
    },
}

/// Some steps, and who has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The steps.
    pub steps: Range<usize>,
    /// Numbers of the machines.
    pub holders: Vec<usize>,
}

/// Who has what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The way.
    pub way: Parallelism,
    /// The spans in order; one unless the model is split. Machines that are in none stand by.
    pub spans: Vec<Span>,
}

/// What bounds a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bottleneck {
    /// The computing of this machine.
    Computing(usize),
    /// The line of this machine, with activations and their gradients.
    Boundary(usize),
    /// The line of this machine, with sums of gradients.
    Exchange(usize),
    /// Delays on the way through the spans behind this one: too few microbatches are under way to hide them.
    Delays(usize),
}

/// One machine's part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// Its number.
    pub machine: usize,
    /// The number of its span.
    pub span: usize,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Samples that it computes in a round.
    pub samples: u64,
    /// Seconds of a round in which it computes ...
    pub computes: f64,
    /// ... and in which it sends, at least.
    pub sends: f64,
}

/// What a placement gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Seconds of a round.
    pub round: f64,
    /// What bounds it.
    pub bottleneck: Bottleneck,
    /// By machines that have a part, span by span.
    pub parts: Vec<Part>,
}

/// A placement with what it gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Who has what.
    pub placement: Placement,
    /// What that gives.
    pub forecast: Forecast,
}

impl Job {
    /// The placement whose rounds are shortest, as far as [`search`] finds it; of equally good ones the one that is first in
    /// the order of [`Parallelism`]. None if nothing fits.
    pub fn plan(&self, machines: &[Machine]) -> Option<Plan> {
        let placement = search::best(self, machines)?;
        let forecast = self.forecast(machines, &placement)?;
        Some(Plan { placement, forecast })
    }

    /// What a placement gives; none if it does not fit.
    ///
    /// # Panics
    ///
    /// If it names machines or steps that are not there, or its spans are not all steps in order.
    pub fn forecast(&self, machines: &[Machine], placement: &Placement) -> Option<Forecast> {
        time::forecast(self, machines, placement)
    }

    /// Bytes of the largest step by itself, and of all steps together, in spans with so many lanes; none if it is not split.
    pub fn bytes_at_least(&self, lanes: u16) -> Option<(u64, u64)> {
        (*self.spans.end() > 1).then(|| time::least_bytes(self, lanes))
    }

    /// What members of a run make of a cut and their order by themselves: each takes the span that fewest hold.
    pub fn in_order(&self, cut: &[Range<usize>], order: &[usize], lanes: u16) -> Placement {
        let holders = |at: usize| order.iter().copied().skip(at).step_by(cut.len()).collect();
        let spans = cut.iter().enumerate().map(|(at, steps)| Span {
            steps: steps.clone(),
            holders: holders(at),
        });
        Placement {
            way: Parallelism::Split { lanes },
            spans: spans.collect(),
        }
    }
}

impl Placement {
    /// In which order machines come, so that members of a run hold this, if as many hold each span: a holder of each, then
    /// another one of each.
    pub fn order(&self) -> Vec<usize> {
        let most = self
            .spans
            .iter()
            .map(|span| span.holders.len())
            .max()
            .unwrap_or(0);
        let of = |at: usize| self.spans.iter().filter_map(move |span| span.holders.get(at));
        (0..most).flat_map(of).copied().collect()
    }

    /// The number of a machine's span; none if it stands by.
    pub fn span_of(&self, machine: usize) -> Option<usize> {
        self.spans.iter().position(|span| span.holders.contains(&machine))
    }
}

#[cfg(test)]
mod tests;
