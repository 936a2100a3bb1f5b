//! The shortest round of a model that is split, over a graph of which machines are used: each span is an edge.
//!
//! A state of the dynamic programming is how many spans there are from one on, which machines they use and where the first
//! of them begins. Of two ways to come to one only that is kept with which less of the round is left, though the other
//! might have a better line to what comes before it, which takes two microbatches' time on it at most.

use super::time::{Group, Rest, Table, before};
use super::{Machine, Span};
use std::ops::Range;

/// Which machines may be used after which. The first state is that of none.
pub(super) struct Graph {
    lanes: u16,
    states: Vec<State>,
    groups: Vec<(Group, Vec<usize>)>,
}

#[derive(Default)]
struct State {
    machines: usize,
    /// Seconds from the farthest of them to another and back.
    round_trip: f64,
    /// Groups that may come next, and the state that they lead to.
    next: Vec<(usize, usize)>,
}

/// What is left of a round before some steps; how many of these its first span has, which group, and the state behind it.
type Left = Option<(Rest, usize, usize, usize)>;

/// What was found.
pub(super) struct Found {
    /// Steps for which there is no room.
    pub open: usize,
    /// Seconds of a round.
    pub round: f64,
    /// Spans with kinds of machines in the place of holders.
    pub placement: Option<Vec<Span>>,
}

impl Found {
    /// No placement, for so many steps lack room.
    pub fn nothing(open: usize) -> Self {
        Self {
            open,
            round: f64::INFINITY,
            placement: None,
        }
    }
}

impl Graph {
    pub fn new(lanes: u16) -> Self {
        let (states, groups) = Default::default();
        Self {
            lanes,
            states,
            groups,
        }
    }

    /// Machines of these kinds are used.
    pub fn add_state(&mut self, kinds: &[Machine], used: &[usize]) {
        let trips = used.iter().map(|kind| kinds[*kind].round_trip_us);
        self.states.push(State {
            machines: used.len(),
            round_trip: trips.max().unwrap_or(0) as f64 / 1e6,
            next: Vec::new(),
        });
    }

    /// Machines of these kinds may have a span together.
    pub fn add_group(&mut self, table: &Table<'_>, kinds: &[Machine], group: Vec<usize>) -> usize {
        let machines = group.iter().map(|kind| &kinds[*kind]);
        self.groups.push((Group::of(table, machines, self.lanes), group));
        self.groups.len() - 1
    }

    /// A group leads from a state to another.
    pub fn add_edge(&mut self, from: usize, group: usize, to: usize) {
        self.states[from].next.push((group, to));
    }

    /// The placement with the shortest round, if that is below a bound.
    pub fn shortest(&self, table: &Table<'_>, bound: f64) -> Found {
        let (spans, steps) = (&table.job.spans, table.job.steps.len());
        let most = self.states.iter().map(|state| state.machines).max().unwrap_or(0);
        let (mut best, mut open): (Option<(f64, usize, usize)>, _) = (None, steps);
        let mut layers: Vec<Vec<Vec<Left>>> = Vec::new();
        for behind in 0..most.min(steps).min(*spans.end()) {
            let layer = self.layer(table, layers.last(), bound);
            for (at, (state, left)) in self.states.iter().zip(&layer).enumerate() {
                let reached = left.iter().position(Option::is_some);
                open = open.min(reached.unwrap_or(steps));
                let least = best.map_or(bound, |(round, ..)| round);
                let is_allowed = behind > 0 && spans.contains(&(behind + 1));
                let round = left[0].map(|(rest, ..)| rest.left + state.round_trip);
                if let Some(round) = round.filter(|round| is_allowed && *round < least) {
                    best = Some((round, behind, at));
                }
            }
            layers.push(layer);
        }
        match best {
            None => Found::nothing(open.max(1)),
            Some((round, behind, at)) => Found {
                open: 0,
                round,
                placement: Some(self.walk(&layers[..=behind], at)),
            },
        }
    }

    /// With one span more than the last layer.
    fn layer(&self, table: &Table<'_>, last: Option<&Vec<Vec<Left>>>, bound: f64) -> Vec<Vec<Left>> {
        let steps = table.job.steps.len();
        let mut layer: Vec<Vec<Left>> = vec![vec![None; steps + 1]; self.states.len()];
        for (from, state) in self.states.iter().enumerate() {
            for end in 1..=steps {
                let rest = match last {
                    None if from == 0 && end == steps => None,
                    Some(last) if last[from][end].is_some() => last[from][end].map(|(rest, ..)| rest),
                    _ => continue,
                };
                let spans = rest.map_or(0, |rest| rest.spans);
                for (group, to) in state.next.iter().copied() {
                    let of = &self.groups[group];
                    if of.1.len() < table.job.copies.into()
                        || !may_add(table, (spans, state.machines), of.1.len())
                    {
                        continue;
                    }
                    for begin in (0..end).rev() {
                        let span: Range<usize> = begin..end;
                        let found = before(table, &of.0, (&span, self.lanes), rest.as_ref());
                        let place = &mut layer[to][begin];
                        let least = place.map_or(bound, |(least, ..)| least.left);
                        if let Some(found) = found.filter(|found| found.left < least) {
                            *place = Some((found, span.len(), group, from));
                        }
                    }
                }
            }
        }
        layer
    }

    /// The spans on the way to a state.
    fn walk(&self, layers: &[Vec<Vec<Left>>], mut state: usize) -> Vec<Span> {
        let mut begin = 0;
        let mut spans = Vec::new();
        for layer in layers.iter().rev() {
            let (_, len, group, from) = layer[state][begin].expect("it was come from");
            spans.push(Span {
                steps: begin..begin + len,
                holders: self.groups[group].1.clone(),
            });
            (begin, state) = (begin + len, from);
        }
        spans
    }
}

/// Whether one span more may have `count` machines, if so many spans behind it have so many: where they are to be even, they
/// differ by one at most, and the first ones have more.
fn may_add(table: &Table<'_>, (spans, machines): (usize, usize), count: usize) -> bool {
    match (table.job.even, spans) {
        (false, _) | (true, 0) => true,
        (true, _) if machines.is_multiple_of(spans) => {
            (machines / spans..=machines / spans + 1).contains(&count)
        }
        (true, _) => count == machines / spans + 1,
    }
}
