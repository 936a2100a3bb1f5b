//! The choice among all placements.
//!
//! Machines that have all of the model: the fastest of those whose lines are good enough, for each number of them and each
//! bound on lines; exact, `O(machines^3)` sets looked at.
//!
//! Spans: [dynamic programming](super::graph) over which machines are used and which steps are done, from the last span to the
//! first. Over all sets of machines, where those that are alike are only counted, that is `3^machines` pairs of a set and
//! the machines of one more span. Where these are too many, over machines in an order, those of a span after each other,
//! which is improved by moving one or changing two as long as that shortens rounds.

use super::graph::{Found, Graph};
use super::time::{Table, whole, whole_bytes};
use super::{Job, Machine, Parallelism, Placement, Span};
use std::cmp::Reverse;

/// Steps of the dynamic programming that may be taken for all of it: some seconds.
const MOST_WORK: usize = 300_000_000;

/// The placement whose rounds are shortest of all that are looked at.
pub(super) fn best(job: &Job, machines: &[Machine]) -> Option<Placement> {
    let mut best: Option<(f64, Placement)> = None;
    let mut offer = |(round, placement): (f64, Placement)| {
        if best.as_ref().is_none_or(|(least, _)| round < *least) {
            best = Some((round, placement));
        }
    };
    if job.spans.contains(&1) {
        for way in [Parallelism::Replicas, Parallelism::Sharded] {
            wholes(job, machines, way).into_iter().for_each(&mut offer);
        }
    }
    if *job.spans.end() > 1 && job.steps.len() > 1 && !machines.is_empty() {
        let (table, kinds) = (Table::new(job), Kinds::of(machines));
        let most = MOST_WORK / job.lanes.len().max(1);
        for lanes in job.lanes.iter().copied() {
            let found = match kinds.work(job) > most {
                false => kinds.sets(&table, lanes).shortest(&table, f64::INFINITY),
                true => kinds.orders(&table, lanes, most),
            };
            let placement = found.placement.map(|spans| kinds.assign(spans));
            let way = Parallelism::Split { lanes };
            placement
                .into_iter()
                .for_each(|spans| offer((found.round, Placement { way, spans })));
        }
    }
    best.map(|(_, placement)| placement)
}

/// The best sets of machines that have all weights, with seconds of a round.
fn wholes(job: &Job, machines: &[Machine], way: Parallelism) -> Vec<(f64, Placement)> {
    let mut found = Vec::new();
    for (count, line) in (1..=machines.len()).flat_map(|count| machines.iter().map(move |line| (count, line)))
    {
        for trip in machines {
            let bytes = whole_bytes(job, way, count);
            let is_able = |at: &usize| {
                let machine = &machines[*at];
                let line = machine.rate >= line.rate && machine.round_trip_us <= trip.round_trip_us;
                machine.memory_bytes >= bytes && (line || count == 1)
            };
            let mut able: Vec<usize> = (0..machines.len()).filter(is_able).collect();
            able.sort_by_key(|at| Reverse(machines[*at].speed));
            // Who begins needs room for what others take over later.
            let founds = |at: &usize| machines[*at].memory_bytes >= whole_bytes(job, way, 1);
            let Some(first) = able.iter().position(founds) else {
                continue;
            };
            able[..=first].rotate_right(1);
            able.truncate(count);
            if let Some(forecast) = whole(job, machines, (way, &able)).filter(|_| able.len() == count) {
                let steps = 0..job.steps.len();
                let spans = vec![Span { steps, holders: able }];
                found.push((forecast.round, Placement { way, spans }));
            }
        }
    }
    found
}

/// Machines by what they are like, the fastest first.
struct Kinds {
    kinds: Vec<Machine>,
    /// The numbers of those of each kind.
    machines: Vec<Vec<usize>>,
}

impl Kinds {
    fn of(machines: &[Machine]) -> Self {
        let mut kinds = machines.to_vec();
        kinds.sort_by_key(|kind| {
            (
                Reverse(kind.speed),
                kind.memory_bytes,
                kind.rate,
                kind.round_trip_us,
            )
        });
        kinds.dedup();
        let of = |kind: &Machine| (0..machines.len()).filter(|at| machines[*at] == *kind).collect();
        let machines = kinds.iter().map(of).collect();
        Self { kinds, machines }
    }

    /// Steps of the dynamic programming over all sets.
    fn work(&self, job: &Job) -> usize {
        let pairs = |of: &Vec<usize>| (of.len() + 1) * (of.len() + 2) / 2;
        let pairs = self.machines.iter().map(pairs).fold(1, usize::saturating_mul);
        let machines: usize = self.machines.iter().map(Vec::len).sum();
        let (steps, spans) = (job.steps.len(), machines.min(job.steps.len()));
        pairs.saturating_mul(steps * steps * spans / 4)
    }

    /// All sets of machines, as numbers of each kind.
    fn sets(&self, table: &Table<'_>, lanes: u16) -> Graph {
        let mut sets: Vec<Vec<usize>> = vec![Vec::new()];
        for of in &self.machines {
            let with = |set: &Vec<usize>| {
                let set = set.clone();
                (0..=of.len()).map(move |count| [&set[..], &[count]].concat())
            };
            sets = sets.iter().flat_map(with).collect();
        }
        let list = |set: &Vec<usize>| -> Vec<usize> {
            let of = |(kind, count): (usize, &usize)| std::iter::repeat_n(kind, *count);
            set.iter().enumerate().flat_map(of).collect()
        };
        let mut graph = Graph::new(lanes);
        for set in &sets {
            graph.add_state(&self.kinds, &list(set));
        }
        for group in &sets[1..] {
            let added = graph.add_group(table, &self.kinds, list(group));
            for (from, set) in sets.iter().enumerate() {
                let both: Vec<usize> = set.iter().zip(group).map(|(a, b)| a + b).collect();
                // Sets are in order.
                if let Ok(to) = sets.binary_search(&both) {
                    graph.add_edge(from, added, to);
                }
            }
        }
        graph
    }

    /// Machines in this order: those of the last span first.
    fn order(&self, table: &Table<'_>, lanes: u16, order: &[usize]) -> Graph {
        let mut graph = Graph::new(lanes);
        for end in 0..=order.len() {
            graph.add_state(&self.kinds, &order[..end]);
        }
        for (from, to) in (0..order.len()).flat_map(|from| (from + 1..=order.len()).map(move |to| (from, to)))
        {
            let mut group = order[from..to].to_vec();
            // The fastest get more lanes, if some do.
            group.sort_unstable();
            let group = graph.add_group(table, &self.kinds, group);
            graph.add_edge(from, group, to);
        }
        graph
    }

    /// The best of the orders that are looked at.
    fn orders(&self, table: &Table<'_>, lanes: u16, work: usize) -> Found {
        let starts = self.starts();
        let n = starts[0].len();
        let steps = table.job.steps.len();
        let mut tries = work / (n * n * n.min(steps) * steps * steps / 8).max(1);
        let mut try_out = |order: &[usize], best: &mut (Found, Vec<usize>)| {
            tries = tries.saturating_sub(1);
            let found = self.order(table, lanes, order).shortest(table, best.0.round);
            let better = (found.open, found.round) < (best.0.open, best.0.round);
            if better {
                *best = (found, order.to_vec());
            }
            (better, tries == 0)
        };
        let mut best = (Found::nothing(usize::MAX), Vec::new());
        for order in &starts {
            try_out(order, &mut best);
        }
        loop {
            let mut improves = false;
            for (a, b) in (0..n).flat_map(|a| (0..n).map(move |b| (a, b))) {
                let mut order = best.1.clone();
                match a < b {
                    true => order.swap(a, b),
                    false => {
                        let machine = order.remove(a);
                        order.insert(b, machine);
                    }
                }
                if order == best.1 {
                    continue;
                }
                let (better, is_over) = try_out(&order, &mut best);
                improves |= better;
                if is_over {
                    return best.0;
                }
            }
            if !improves {
                return best.0;
            }
        }
    }

    /// Where that begins: by memory, by speed and by both, from either end.
    fn starts(&self) -> Vec<Vec<usize>> {
        let by = |key: fn(&Machine) -> u64| {
            let all = self.machines.iter().enumerate();
            let mut order: Vec<usize> = all
                .flat_map(|(kind, of)| std::iter::repeat_n(kind, of.len()))
                .collect();
            order.sort_by_key(|kind| key(&self.kinds[*kind]));
            let back = order.iter().rev().copied().collect();
            [order, back]
        };
        let keys: [fn(&Machine) -> u64; 3] = [
            |kind| kind.memory_bytes,
            |kind| kind.speed,
            |kind| kind.memory_bytes / kind.speed.max(1),
        ];
        keys.into_iter().flat_map(by).collect()
    }

    /// Machines in place of kinds.
    fn assign(&self, mut spans: Vec<Span>) -> Vec<Span> {
        let mut taken = vec![0; self.kinds.len()];
        for holder in spans.iter_mut().flat_map(|span| &mut span.holders) {
            let kind = *holder;
            *holder = self.machines[kind][taken[kind]];
            taken[kind] += 1;
        }
        spans
    }
}
