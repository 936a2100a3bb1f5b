//! How long a round takes: the model of time.
//!
//! Of machines that have all of the model: their shares of the batch, then an all-reduce under the direct plan, over the
//! slowest line among them.
//!
//! Of spans, from the last to the first, what is left of the round when the first microbatch comes to one: as long as its
//! holders work on theirs and then sum their gradients, or one microbatch there and back and what is then left behind it,
//! which is the filling and the draining of 1F1B. A holder works at least as long as it computes, as its line takes for
//! what goes to its neighbours, and as microbatches are under way, of which there may be only so many at once. Where all
//! are equal that is `microbatches + spans - 1` times what a span takes for one.

use super::super::schedule::{MORE, in_flight_limit};
use super::super::split::{StepNeeds, Terms, span_bytes, span_parameters};
use super::{Bottleneck, Forecast, Job, Machine, Parallelism, Part, Placement, Span};
use crate::base::quotas::{Limit, quotas};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Bytes of a number in a sum of gradients: these travel as they are where the model is split.
const NUMBER: u64 = 4;

/// What a run of steps takes.
#[derive(Clone, Copy, Debug, Default)]
struct Needs {
    /// Its time for one microbatch, in the steps' unit ...
    work: u64,
    /// ... and if it is the last span.
    last: u64,
    parameters: u64,
    /// Those of them that steps outside of it use too.
    tied: u64,
    working_bytes: u64,
}

/// What all runs of steps take.
pub(super) struct Table<'a> {
    pub job: &'a Job,
    /// By their first step and their length.
    spans: Vec<Vec<Needs>>,
    /// What the whole model takes for one microbatch, where nothing is computed again, in the steps' unit.
    whole: f64,
}

impl<'a> Table<'a> {
    pub fn new(job: &'a Job) -> Self {
        let mut users: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        for (at, step) in job.steps.iter().enumerate() {
            for (tensor, _) in &step.tensors {
                users.entry(*tensor).or_insert((at, at)).1 = at;
            }
        }
        let from = |begin: usize| {
            let (mut needs, mut has) = (Needs::default(), BTreeSet::new());
            let mut lengthen = |(at, step): (usize, &StepNeeds)| {
                needs.work += step.forward_us + step.backward_us;
                needs.last += step.backward_us;
                needs.working_bytes += step.working_bytes;
                for (tensor, len) in &step.tensors {
                    let (first, last) = users[tensor];
                    match has.insert(*tensor) {
                        true => needs.parameters += len,
                        // This step was outside.
                        false => needs.tied -= len,
                    }
                    needs.tied += if first < begin || last > at { *len } else { 0 };
                }
                needs
            };
            let steps = job.steps.iter().enumerate().skip(begin);
            steps.map(&mut lengthen).collect()
        };
        let spans: Vec<Vec<Needs>> = (0..job.steps.len()).map(from).collect();
        let whole: u64 = job.steps.iter().map(|step| step.backward_us).sum();
        Self {
            job,
            spans,
            whole: whole.max(1) as f64,
        }
    }

    /// Bytes that a run of steps takes with so many spans behind it, as [`span_bytes`] has it.
    pub fn bytes(&self, steps: &Range<usize>, behind: usize, lanes: u16) -> u64 {
        let (needs, terms) = (self.needs(steps), terms(self.job, lanes));
        let none = Terms {
            bytes_per_parameter: 0,
            ..terms
        };
        span_bytes(&[], steps.start == 0, behind, &none)
            + terms.bytes_per_parameter * needs.parameters
            + needs.working_bytes
    }

    fn needs(&self, steps: &Range<usize>) -> Needs {
        self.spans[steps.start][steps.len() - 1]
    }

    /// Seconds for which a machine computes for one microbatch, for each unit of the steps' time.
    pub fn unit(&self, machine: &Machine) -> f64 {
        self.job.micro_batch as f64 * 1e3 / (machine.speed.max(1) as f64 * self.whole)
    }
}

/// What holds for spans if there are so many lanes.
pub(super) fn terms(job: &Job, lanes: u16) -> Terms {
    Terms {
        bytes_per_parameter: job.terms.bytes_per_parameter + NUMBER * u64::from(lanes),
        ..job.terms
    }
}

/// The microbatches of a round, and the lanes that they make: no more than there are microbatches.
#[derive(Clone, Copy, Debug)]
struct Lanes {
    microbatches: u64,
    lanes: u64,
}

impl Lanes {
    fn of(job: &Job, lanes: u16) -> Self {
        let microbatches = job.batch.div_ceil(job.micro_batch.max(1)).max(1);
        Self {
            microbatches,
            lanes: microbatches.min(lanes.max(1).into()),
        }
    }

    /// How many lanes each of so many holders of a span computes, as a run routes them: evenly.
    fn shares(self, holders: usize) -> impl Iterator<Item = u64> {
        let begin = move |holder: usize| (holder as u64 * self.lanes).div_ceil(holders as u64);
        (0..holders).map(move |holder| begin(holder + 1) - begin(holder))
    }

    /// Microbatches of so many lanes, at most.
    fn microbatches(self, lanes: u64) -> u64 {
        (self.microbatches * lanes).div_ceil(self.lanes)
    }
}

/// The holders of a span, as far as that matters to it. Times are in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    /// Least memory.
    memory: u64,
    holders: usize,
    /// For each unit of the span's time: of the longest at work in a round, and of one microbatch at the slowest.
    work: f64,
    one: f64,
    /// For each byte of a microbatch at its boundaries: of the line that is longest at work in a round.
    line: f64,
    /// For each parameter: its sum over the lanes among these holders, and with those of other spans.
    sum: f64,
    tied: f64,
    /// Bytes per second of the slowest line, and the longest way to another and back.
    rate: f64,
    round_trip: f64,
    lanes: Lanes,
}

impl Group {
    pub fn of<'a>(
        table: &Table<'_>,
        holders: impl ExactSizeIterator<Item = &'a Machine>,
        lanes: u16,
    ) -> Self {
        let (count, lanes) = (holders.len(), Lanes::of(table.job, lanes));
        let mut group = Self {
            memory: u64::MAX,
            holders: count,
            work: 0.0,
            one: 0.0,
            line: 0.0,
            sum: 0.0,
            tied: 0.0,
            rate: f64::INFINITY,
            round_trip: 0.0,
            lanes,
        };
        for (machine, share) in holders.zip(lanes.shares(count)) {
            let (unit, rate) = (table.unit(machine), rate(machine));
            let microbatches = lanes.microbatches(share) as f64;
            group.memory = group.memory.min(machine.memory_bytes);
            group.work = group.work.max(unit * microbatches);
            group.one = group.one.max(if share > 0 { unit } else { 0.0 });
            group.line = group.line.max(microbatches / rate);
            group.sum = group.sum.max(summing(lanes, share, count) / rate);
            group.tied = group.tied.max((NUMBER * (share + 1)) as f64 / rate);
            group.rate = group.rate.min(rate);
            group.round_trip = group.round_trip.max(round_trip(machine));
        }
        group
    }
}

/// Bytes that one of so many holders with so many of the lanes sends or gets, whichever is more, for each parameter: its
/// lanes go to whoever adds up a part, and the sum from holder to holder.
fn summing(lanes: Lanes, share: u64, holders: usize) -> f64 {
    let others = (holders - 1) as u64;
    let (sends, gets) = ((share + 1) * others, lanes.lanes - share + others);
    (NUMBER * sends.max(gets * others.min(1))) as f64 / holders as f64
}

fn rate(machine: &Machine) -> f64 {
    machine.rate.max(1) as f64
}

fn round_trip(machine: &Machine) -> f64 {
    machine.round_trip_us as f64 / 1e6
}

/// Bytes of the largest step, and of all of them.
pub(super) fn least_bytes(job: &Job, lanes: u16) -> (u64, u64) {
    let (table, steps) = (Table::new(job), job.steps.len());
    let one = |step: usize| table.bytes(&(step..step + 1), 0, lanes);
    (
        (0..steps).map(one).max().unwrap_or(0),
        table.bytes(&(0..steps), 0, lanes),
    )
}

/// What is left of a round when the first microbatch comes to a span.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    /// Seconds.
    pub left: f64,
    /// How many spans it is.
    pub spans: usize,
    /// Seconds of one microbatch through all of them and back.
    there_and_back: f64,
    /// Of the first of them, bytes per second and seconds.
    rate: f64,
    round_trip: f64,
}

/// Seconds of a round at one span.
#[derive(Clone, Copy, Debug)]
struct Times {
    computes: f64,
    boundary: f64,
    waits: f64,
    sums: f64,
    /// One microbatch there, and its gradient back.
    one: f64,
}

impl Times {
    fn own(&self) -> f64 {
        self.computes.max(self.boundary).max(self.waits) + self.sums
    }

    fn of(table: &Table<'_>, group: &Group, steps: &Range<usize>, rest: Option<&Rest>) -> Self {
        let (needs, boundaries) = (table.needs(steps), &table.job.boundaries);
        let before = steps.start.checked_sub(1).map_or(0, |step| boundaries[step]);
        let (work, behind, hops) = match rest {
            None => (needs.last, 0, 0.0),
            Some(rest) => {
                let behind = boundaries[steps.end - 1];
                let delays = (group.round_trip + rest.round_trip) / 2.0;
                let hops = 2.0 * behind as f64 / group.rate.min(rest.rate) + delays;
                (needs.work, behind, hops)
            }
        };
        let one = work as f64 * group.one + hops;
        let times = |rest: &Rest| {
            let limit = in_flight_limit(0, rest.spans + 1, MORE);
            group.lanes.microbatches(1).div_ceil(limit.into()) as f64
        };
        let waits = rest.map_or(0.0, |rest| (one + rest.there_and_back) * times(rest));
        let alone = group.holders == 1 && needs.tied == 0;
        let passes = group.holders.max(2) as f64 / 2.0;
        let own = (needs.parameters - needs.tied) as f64;
        Self {
            computes: work as f64 * group.work,
            boundary: (before + behind) as f64 * group.line,
            waits,
            sums: match alone {
                true => 0.0,
                false => own * group.sum + needs.tied as f64 * group.tied + passes * group.round_trip,
            },
            one,
        }
    }
}

/// What is left of a round with a span before the rest; none if it does not fit its holders.
pub(super) fn before(
    table: &Table<'_>,
    group: &Group,
    (steps, lanes): (&Range<usize>, u16),
    rest: Option<&Rest>,
) -> Option<Rest> {
    let behind = rest.map_or(0, |rest| rest.spans);
    if table.bytes(steps, behind, lanes) > group.memory {
        return None;
    }
    let times = Times::of(table, group, steps, rest);
    Some(Rest {
        left: times.own().max(rest.map_or(0.0, |rest| times.one + rest.left)),
        spans: behind + 1,
        there_and_back: times.one + rest.map_or(0.0, |rest| rest.there_and_back),
        rate: group.rate,
        round_trip: group.round_trip,
    })
}

/// Bytes of each of so many machines that have all weights.
pub(super) fn whole_bytes(job: &Job, way: Parallelism, machines: usize) -> u64 {
    let n = machines.max(1) as u64;
    match way {
        Parallelism::Replicas => job.whole_bytes,
        Parallelism::Sharded | Parallelism::Split { .. } => {
            let copies = u64::from(job.copies).clamp(1, n);
            let vector = NUMBER * span_parameters(&job.steps);
            // Updates are the weights, so the last round is not held beside them; but the sums of own parts are.
            job.whole_bytes.saturating_sub(vector + job.moments_bytes)
                + (vector + job.moments_bytes) * copies / n
        }
    }
}

/// What a placement gives; none if it does not fit.
pub(super) fn forecast(job: &Job, machines: &[Machine], placement: &Placement) -> Option<Forecast> {
    match placement.way {
        Parallelism::Replicas | Parallelism::Sharded => {
            whole(job, machines, (placement.way, &placement.spans[0].holders))
        }
        Parallelism::Split { lanes } => split(&Table::new(job), machines, &placement.spans, lanes),
    }
}

/// Of machines that have all weights, of which the first begins the run.
pub(super) fn whole(
    job: &Job,
    machines: &[Machine],
    (way, holders): (Parallelism, &[usize]),
) -> Option<Forecast> {
    let n = holders.len();
    let bytes = whole_bytes(job, way, n);
    let fits = |at: &usize, bytes: u64| machines[*at].memory_bytes >= bytes;
    // Who is alone at first has all of the optimizer's vectors.
    if !holders.iter().all(|at| fits(at, bytes)) || !fits(holders.first()?, whole_bytes(job, way, 1)) {
        return None;
    }
    let limits: Vec<Limit> = holders
        .iter()
        .map(|at| Limit::none(machines[*at].speed.max(1)))
        .collect();
    let samples = quotas(job.batch, &limits);
    let more = match way {
        Parallelism::Replicas => 0,
        _ => usize::from(job.copies).clamp(1, n) - 1,
    };
    let others = usize::from(n > 1);
    let sent = job.vector_bytes as f64 * (2 * (n - 1) + more) as f64 / n as f64;
    let part = |(at, samples): (&usize, &u64)| Part {
        machine: *at,
        span: 0,
        bytes,
        samples: *samples,
        computes: *samples as f64 * 1e3 / machines[*at].speed.max(1) as f64,
        sends: sent / rate(&machines[*at]),
    };
    let parts: Vec<Part> = holders.iter().zip(&samples).map(part).collect();
    let longest = |of: fn(&Part) -> f64| largest(&parts, of);
    let (computing, line) = (longest(|part| part.computes), longest(|part| part.sends));
    let trips = holders
        .iter()
        .map(|at| round_trip(&machines[*at]))
        .fold(0.0, f64::max);
    let exchange = line.sends + trips * ((2 + more) * others) as f64 / 2.0;
    Some(Forecast {
        round: computing.computes + exchange,
        bottleneck: match exchange > computing.computes {
            true => Bottleneck::Exchange(line.machine),
            false => Bottleneck::Computing(computing.machine),
        },
        parts,
    })
}

/// The part of which something is largest; among equals the first.
fn largest(parts: &[Part], of: impl Fn(&Part) -> f64) -> Part {
    let more = |a: Part, b: Part| if of(&b) > of(&a) { b } else { a };
    parts.iter().copied().reduce(more).expect("somebody has a part")
}

fn split(table: &Table<'_>, machines: &[Machine], spans: &[Span], lanes: u16) -> Option<Forecast> {
    let mut rest: Option<Rest> = None;
    let mut times = Vec::new();
    for span in spans.iter().rev() {
        let holders = span.holders.iter().map(|at| &machines[*at]);
        let group = Group::of(table, holders, lanes);
        let next = before(table, &group, (&span.steps, lanes), rest.as_ref())?;
        times.push(Times::of(table, &group, &span.steps, rest.as_ref()));
        rest = Some(next);
    }
    times.reverse();
    let parts = parts(table, machines, spans, lanes);
    let bottleneck = bottleneck(&times, &parts);
    let trips = parts.iter().map(|part| round_trip(&machines[part.machine]));
    Some(Forecast {
        // All tell all that they have their sums, and that they can commit.
        round: rest?.left + trips.fold(0.0, f64::max),
        bottleneck,
        parts,
    })
}

/// Each holder's part.
fn parts(table: &Table<'_>, machines: &[Machine], spans: &[Span], lanes: u16) -> Vec<Part> {
    let mut parts = Vec::new();
    for (at, span) in spans.iter().enumerate() {
        let (of_lanes, needs) = (Lanes::of(table.job, lanes), table.needs(&span.steps));
        let (behind, count) = (spans.len() - 1 - at, span.holders.len());
        let work = if behind == 0 { needs.last } else { needs.work } as f64;
        let boundary = |step: Option<usize>| step.map_or(0, |step| table.job.boundaries[step]);
        let sides =
            boundary(span.steps.start.checked_sub(1)) + boundary((behind > 0).then(|| span.steps.end - 1));
        for (machine, share) in span.holders.iter().zip(of_lanes.shares(count)) {
            let microbatches = of_lanes.microbatches(share);
            let own = (needs.parameters - needs.tied) as f64 * summing(of_lanes, share, count);
            let tied = (needs.tied * NUMBER * (share + 1)) as f64;
            let sent = (microbatches * sides) as f64 + own + tied;
            parts.push(Part {
                machine: *machine,
                span: at,
                bytes: table.bytes(&span.steps, behind, lanes),
                samples: (microbatches * table.job.micro_batch).min(table.job.batch),
                computes: work * microbatches as f64 * table.unit(&machines[*machine]),
                sends: sent / rate(&machines[*machine]),
            });
        }
    }
    parts
}

/// What bounds the span for which the round waits.
fn bottleneck(times: &[Times], parts: &[Part]) -> Bottleneck {
    let (mut before, mut longest) = (0.0, (0.0, 0));
    for (span, times) in times.iter().enumerate() {
        if before + times.own() > longest.0 {
            longest = (before + times.own(), span);
        }
        before += times.one;
    }
    let (span, here) = (longest.1, times[longest.1]);
    let holders: Vec<Part> = parts.iter().filter(|part| part.span == span).copied().collect();
    let line = largest(&holders, |part| part.sends).machine;
    let works = here.computes.max(here.boundary).max(here.waits);
    match () {
        _ if here.sums > works => Bottleneck::Exchange(line),
        _ if here.computes == works => Bottleneck::Computing(largest(&holders, |part| part.computes).machine),
        _ if here.boundary == works => Bottleneck::Boundary(line),
        _ => Bottleneck::Delays(holders[0].machine),
    }
}
