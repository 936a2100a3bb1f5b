//! Whether what is there is worth to be changed: only for rounds that are shorter by more than a fifth, again and again, and
//! if the time that parts are on their way is won back soon.

use super::{Job, Machine, Parallelism, Placement, Plan};
use crate::placement::span_parameters;
use std::collections::BTreeMap;

/// Rounds must be shorter by more than one of so many parts.
pub(crate) const GAIN: u32 = 5;

/// Within so many rounds a change has paid back what it costs, and for so many nothing is changed again.
pub(crate) const ROUNDS: u64 = 20;

/// So many times running a change must be worth it: what is measured of machines is noisy.
pub(crate) const ASKS: u8 = 3;

/// A placement that is in force, and how often running another one would have been worth it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Who has what.
    pub placement: Placement,
    /// The round from which on that is so.
    pub since: u64,
    asks: u8,
}

/// Another placement, and what it costs to come to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// What is to be, and what that gives.
    pub plan: Plan,
    /// Seconds of a round as it is; none if that does not fit any more.
    pub before: Option<f64>,
    /// Bytes that each machine has to fetch.
    pub fetches: Vec<u64>,
    /// Seconds until the last has them.
    pub takes: f64,
}

impl Watch {
    /// Of a placement that is in force from a round on.
    pub fn new(placement: Placement, since: u64) -> Self {
        let asks = 0;
        Self {
            placement,
            since,
            asks,
        }
    }

    /// After another round, with machines as they now are: what is in force then, and what has changed it. What does not fit
    /// any more is changed at once.
    pub fn next(&self, job: &Job, machines: &[Machine], round: u64) -> (Self, Option<Change>) {
        let before = job
            .forecast(machines, &self.placement)
            .map(|forecast| forecast.round);
        if before.is_some() && round < self.since + ROUNDS {
            return (self.clone(), None);
        }
        let change = change(job, machines, &self.placement).filter(Change::is_worth_it);
        let asks = if change.is_some() { self.asks + 1 } else { 0 };
        match change.filter(|_| before.is_none() || asks >= ASKS) {
            Some(change) => (Self::new(change.plan.placement.clone(), round), Some(change)),
            None => (Self { asks, ..self.clone() }, None),
        }
    }
}

/// What it is to come from a placement to the best one; none if it is that, or nothing fits.
pub fn change(job: &Job, machines: &[Machine], from: &Placement) -> Option<Change> {
    let plan = job.plan(machines).filter(|plan| plan.placement != *from)?;
    let (fetches, takes) = moves(job, machines, (from, &plan.placement));
    let before = job.forecast(machines, from).map(|forecast| forecast.round);
    Some(Change {
        plan,
        before,
        fetches,
        takes,
    })
}

impl Change {
    /// Whether rounds are shorter by more than a fifth, which wins the time back within twenty of them.
    pub fn is_worth_it(&self) -> bool {
        let round = self.plan.forecast.round;
        self.before.is_none_or(|before| {
            let gain = before - round;
            gain * f64::from(GAIN) > before && self.takes < gain * ROUNDS as f64
        })
    }
}

/// Bytes that each machine has to fetch to come from one placement to another, and the seconds that takes: of each tensor all
/// that have it send as much.
fn moves(job: &Job, machines: &[Machine], (from, to): (&Placement, &Placement)) -> (Vec<u64>, f64) {
    let held = |placement: &Placement| -> Vec<BTreeMap<usize, f64>> {
        (0..machines.len())
            .map(|machine| held(job, placement, machine))
            .collect()
    };
    let (from, to) = (held(from), held(to));
    let (mut gets, mut sends) = (vec![0.0; machines.len()], vec![0.0; machines.len()]);
    for (machine, wanted) in to.iter().enumerate() {
        for (tensor, bytes) in wanted {
            let lacks = bytes - from[machine].get(tensor).copied().unwrap_or(0.0).min(*bytes);
            let givers: Vec<usize> = (0..machines.len())
                .filter(|at| from[*at].contains_key(tensor))
                .collect();
            gets[machine] += lacks;
            givers
                .iter()
                .for_each(|at| sends[*at] += lacks / givers.len() as f64);
        }
    }
    let seconds = |(at, machine): (usize, &Machine)| gets[at].max(sends[at]) / machine.rate.max(1) as f64;
    let takes = machines.iter().enumerate().map(seconds).fold(0.0, f64::max);
    (gets.iter().map(|bytes| *bytes as u64).collect(), takes)
}

/// Bytes of weights and moments that a machine has of each tensor.
fn held(job: &Job, placement: &Placement, machine: usize) -> BTreeMap<usize, f64> {
    let Some(span) = placement.span_of(machine).map(|span| &placement.spans[span]) else {
        return BTreeMap::new();
    };
    let share = match placement.way {
        Parallelism::Sharded => (f64::from(job.copies) / span.holders.len() as f64).min(1.0),
        Parallelism::Replicas | Parallelism::Split { .. } => 1.0,
    };
    let moments = job.moments_bytes as f64 / span_parameters(&job.steps).max(1) as f64;
    let tensors = job.steps[span.steps.clone()]
        .iter()
        .flat_map(|step| &step.tensors);
    tensors
        .map(|(tensor, len)| (*tensor, *len as f64 * (4.0 + moments * share)))
        .collect()
}
