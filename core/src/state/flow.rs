//! One member's part of a round in a split run: which microbatch goes forward or backward next, its inputs, and its
//! outputs, which it keeps until the round is committed.
//!
//! A tensor is named by its span, direction and microbatch, not by the attempt: it is the same whoever computes it.
//! So when a member fails, those that take over its lanes ask its neighbours for its inputs, and nobody else
//! computes anything again.
//!
//! Gradients of a lane are summed as its microbatches go backward, in the order of their numbers. This module knows
//! nothing of messages or time.

use crate::ledger::route::{Batch, Route};
use crate::numeric::codec::Codec;
use crate::placement::{Work as Step, in_flight_limit, next_work};
use crate::run::split::Split;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A tensor: the span that computes it, whether it goes back, and its microbatch.
pub(crate) type Name = (usize, bool, u32);

/// The next computation of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub span: usize,
    pub lane: usize,
    pub microbatch: u32,
    /// Whether it is the backward pass. In the last span it is both.
    pub back: bool,
}

/// The progress of a lane in a span.
#[derive(Debug, Default)]
struct Lane {
    /// The next microbatch to go forward ...
    forward: u32,
    /// ... and the next to go backward.
    backward: u32,
    /// The sum of the gradients so far. Empty while the device adds to it, and once it was handed in.
    sum: Vec<f32>,
    /// In the last span, the sum of the losses.
    loss: f32,
}

/// The result of a device.
#[derive(Debug, Default)]
pub(crate) struct Given {
    /// Activations, or the gradient of the input; empty if no span needs it.
    pub output: Vec<f32>,
    /// The lane's sum with this microbatch's gradient, after a backward pass.
    pub sum: Vec<f32>,
    /// In the last span, the sum of the losses.
    pub loss: f32,
}

/// One member's part of a round.
#[derive(Debug)]
pub(crate) struct Flow {
    pub split: Split,
    pub batch: Batch,
    route: Route,
    /// This member's place in the attempt.
    me: usize,
    /// By span and lane, whoever computes it now.
    lanes: BTreeMap<(usize, usize), Lane>,
    /// Inputs that came from others or from this member, and are still needed.
    here: BTreeMap<Name, Bytes>,
    /// Outputs of this member.
    stash: BTreeMap<Name, Bytes>,
    /// Outputs that others want in this attempt: span, lane and direction.
    wanted: BTreeSet<(usize, usize, bool)>,
    /// A value was not finite.
    pub refuses: bool,
    bugs: (bool, bool),
}

impl Flow {
    /// A flow before any computation. `bugs`: outputs are dropped, and gradients counted twice.
    pub fn new(split: Split, batch: Batch, (route, me): (Route, usize), bugs: (bool, bool)) -> Self {
        let mut flow = Self {
            split,
            batch,
            me,
            route: route.clone(),
            lanes: BTreeMap::new(),
            here: BTreeMap::new(),
            stash: BTreeMap::new(),
            wanted: BTreeSet::new(),
            refuses: false,
            bugs,
        };
        flow.begin_attempt(route, me);
        flow
    }

    /// Begins another attempt with another assignment. Finished work stays.
    pub fn begin_attempt(&mut self, route: Route, me: usize) {
        (self.route, self.me) = (route, me);
        self.wanted.clear();
        let own: Vec<(usize, usize)> = self.route.by(me).collect();
        for (span, lane) in own {
            let first = self.batch.lane(lane).start;
            let len = self.split.gradient_len(span);
            self.lanes.entry((span, lane)).or_insert_with(|| Lane {
                forward: first,
                backward: first,
                sum: vec![0.0; len],
                loss: 0.0,
            });
            // Outputs that went to others before, and are this member's own inputs now.
            for microbatch in self.batch.lane(lane) {
                for name in [
                    (span.wrapping_sub(1), false, microbatch),
                    (span + 1, true, microbatch),
                ] {
                    if let Some(data) = self.stash.get(&name).filter(|_| self.needs(span, name)) {
                        self.here.insert(name, data.clone());
                    }
                }
            }
        }
        if self.bugs.1 {
            self.do_again();
        }
    }

    /// A planted bug: gradients that were computed are added once more.
    fn do_again(&mut self) {
        let first = |lane: usize| self.batch.lane(lane).start;
        for ((_, lane), work) in &mut self.lanes {
            if work.forward == work.backward && work.backward > first(*lane) {
                work.forward -= 1;
                work.backward -= 1;
            }
        }
    }

    fn last(&self) -> usize {
        self.split.spans.len() - 1
    }

    /// Bytes of the tensors that it holds.
    pub fn bytes(&self) -> usize {
        let tensors = self.here.values().chain(self.stash.values());
        tensors.map(Bytes::len).sum()
    }

    /// Whether this member computes a lane of a span.
    fn is_own(&self, span: usize, lane: usize) -> bool {
        span <= self.last() && self.route.of(span, lane) == self.me
    }

    /// The tensors to ask for: the span that needs them, the lane, the direction, the member that has them, and the
    /// microbatches that need not be sent.
    pub fn wants(&self) -> Vec<(usize, usize, bool, usize, Vec<u32>)> {
        let mut wants = Vec::new();
        for (span, lane) in self.route.by(self.me) {
            for back in [false, true] {
                let Some(giver) = self.giver(span, back) else {
                    continue;
                };
                let from = self.route.of(giver, lane);
                let here = |m: &u32| {
                    !self.needs(span, (giver, back, *m)) || self.here.contains_key(&(giver, back, *m))
                };
                let have: Vec<u32> = self.batch.lane(lane).filter(here).collect();
                if from != self.me && have.len() < self.batch.lane(lane).len() {
                    wants.push((span, lane, back, from, have));
                }
            }
        }
        wants
    }

    /// The span that provides a span's input in a direction.
    fn giver(&self, span: usize, back: bool) -> Option<usize> {
        match back {
            true => Some(span + 1).filter(|giver| *giver <= self.last()),
            false => span.checked_sub(1),
        }
    }

    /// The span that receives a span's output in a direction.
    fn taker(&self, span: usize, back: bool) -> Option<usize> {
        self.giver(span, !back)
    }

    /// Whether a span here still needs a tensor.
    fn needs(&self, span: usize, (_, _, microbatch): Name) -> bool {
        let lane = self.batch.lane_of(microbatch);
        let work = lane.and_then(|lane| self.lanes.get(&(span, lane)));
        work.is_some_and(|work| microbatch >= work.backward)
    }

    /// A member asks for inputs of its span. Returns those that are there; `None` if it has no right to them.
    pub fn on_want(
        &mut self,
        from: usize,
        (span, lane, back): (usize, usize, bool),
        have: &[u32],
    ) -> Option<Vec<(Name, Bytes)>> {
        if span > self.last() || lane >= self.batch.lanes() || self.route.of(span, lane) != from {
            return None;
        }
        let giver = self.giver(span, back).filter(|giver| self.is_own(*giver, lane))?;
        self.wanted.insert((giver, lane, back));
        let lacking = self.batch.lane(lane).filter(|m| have.binary_search(m).is_err());
        let names: Vec<Name> = lacking.map(|m| (giver, back, m)).collect();
        let of = |name: Name| Some((name, self.stash.get(&name)?.clone()));
        let there: Vec<(Name, Bytes)> = names.into_iter().filter_map(of).collect();
        self.drop_sent(&there);
        Some(there)
    }

    fn drop_sent(&mut self, sent: &[(Name, Bytes)]) {
        if self.bugs.0 {
            sent.iter().for_each(|(name, _)| drop(self.stash.remove(name)));
        }
    }

    /// Handles a tensor from a member. Whether this member waits for it from there.
    pub fn on_tensor(&mut self, from: usize, name: Name, data: Bytes) -> bool {
        let (giver, back, microbatch) = name;
        let Some(lane) = self.batch.lane_of(microbatch).filter(|_| giver <= self.last()) else {
            return false;
        };
        let span = self.taker(giver, back).filter(|span| self.is_own(*span, lane));
        let (Some(span), true) = (span, self.route.of(giver, lane) == from) else {
            return false;
        };
        if !data.is_empty() && !self.split.boundary.is_summable(&data, self.len_of(name), 1) {
            return false;
        }
        if self.needs(span, name) {
            // Its author may be gone, and its report that a value was not finite with it.
            self.refuses |= data.is_empty();
            self.here.entry(name).or_insert(data);
        }
        true
    }

    /// Elements of a tensor.
    fn len_of(&self, (giver, back, microbatch): Name) -> usize {
        let before = if back { giver - 1 } else { giver };
        self.split.boundary_after(before) * self.batch.len(microbatch) as usize
    }

    /// The next task of the device, if any: the one nearest to the end first.
    pub fn next(&self) -> Option<Task> {
        let spans = self.split.spans.len();
        let own: Vec<(usize, usize)> = self.route.by(self.me).collect();
        let mut tasks = own.into_iter().rev().filter_map(|(span, lane)| {
            let work = self.lanes.get(&(span, lane))?;
            let end = self.batch.lane(lane).end;
            let is_here = |name: Option<Name>| name.is_none_or(|name| self.here.contains_key(&name));
            let input = |m: u32| self.giver(span, false).map(|giver| (giver, false, m));
            let forward = Some(work.forward).filter(|m| *m < end && is_here(input(*m)));
            let gradient = |m: u32| self.giver(span, true).map(|giver| (giver, true, m));
            let backward = Some(work.backward).filter(|m| *m < work.forward && is_here(gradient(*m)));
            let limit = in_flight_limit(span, spans);
            let next = next_work(forward, backward, work.forward - work.backward, limit)?;
            let (microbatch, back) = match next {
                Step::Forward(m) => (m, span == self.last()),
                Step::Backward(m) => (m, true),
            };
            Some(Task {
                span,
                lane,
                microbatch,
                back,
            })
        });
        let first = tasks.next()?;
        // Backward before forward, in any lane.
        Some(tasks.find(|task| task.back && !first.back).unwrap_or(first))
    }

    /// The inputs of a task: the decoded tensors, and the sum of its lane, which comes back with the
    /// [result](Self::done).
    pub fn input(&mut self, task: Task) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let decoded = |name: Option<Name>| {
            let data = name.and_then(|name| Some((name, self.here.get(&name)?)));
            data.map_or(Vec::new(), |(name, data)| {
                let mut values = vec![0.0; self.len_of(name)];
                if data.is_empty() {
                    return values;
                }
                let decoded = self.split.boundary.decode(data, &mut values);
                debug_assert!(decoded.is_ok(), "it was checked when it came");
                values
            })
        };
        let of = |back| {
            self.giver(task.span, back)
                .map(|giver| (giver, back, task.microbatch))
        };
        let gradient = if task.back { decoded(of(true)) } else { Vec::new() };
        let input = decoded(of(false));
        let lane = self.lanes.get_mut(&(task.span, task.lane));
        let sum = lane
            .filter(|_| task.back)
            .map(|work| std::mem::take(&mut work.sum));
        (input, gradient, sum.unwrap_or_default())
    }

    /// Takes the result of a task. Returns the tensors to send now, with their receivers. An error if the result is
    /// malformed.
    pub fn done(&mut self, task: Task, mut given: Given) -> Result<Vec<(usize, Name, Bytes)>, Malformed> {
        let name = (task.span, task.back, task.microbatch);
        let taker = self.taker(task.span, task.back);
        let len = taker.map_or(0, |_| self.len_of(name));
        let is_whole = !task.back || given.sum.len() == self.split.gradient_len(task.span);
        if given.output.len() != len || !is_whole || !self.lanes.contains_key(&(task.span, task.lane)) {
            return Err(Malformed);
        }
        let sound = |values: &mut Vec<f32>| {
            let good = values.iter().all(|x| x.abs() <= Codec::LARGEST);
            if !good {
                values.fill(0.0);
            }
            good
        };
        // A result of an input that was not finite is not finite either.
        let came = [self.giver(task.span, false), self.giver(task.span, true)];
        let mut came = came.into_iter().zip([false, true]);
        let is_nothing = |(giver, back): (Option<usize>, bool)| {
            let name = giver.map(|giver| (giver, back, task.microbatch));
            let data = name
                .and_then(|name| self.here.get(&name))
                .filter(|_| !back || task.back);
            data.is_some_and(Bytes::is_empty)
        };
        let nothing = came.any(is_nothing);
        // A sum that is not finite stays so, whatever is added: one look at the end is enough.
        let ends = task.back && task.microbatch + 1 == self.batch.lane(task.lane).end;
        let sum_is_good = !ends || sound(&mut given.sum);
        let good = sound(&mut given.output) & sum_is_good & given.loss.is_finite() & !nothing;
        self.refuses |= !good;
        let work = self.lanes.get_mut(&(task.span, task.lane)).ok_or(Malformed)?;
        if task.back {
            work.forward = work.forward.max(task.microbatch + 1);
            work.backward = task.microbatch + 1;
            work.sum = given.sum;
            work.loss += if good { given.loss } else { 0.0 };
            let used = [self.giver(task.span, false), self.giver(task.span, true)];
            let used = used.into_iter().zip([false, true]).filter(|_| !self.bugs.1);
            for (giver, back) in used {
                if let Some(giver) = giver {
                    self.here.remove(&(giver, back, task.microbatch));
                }
            }
        } else {
            work.forward = task.microbatch + 1;
        }
        let Some(taker) = taker else { return Ok(Vec::new()) };
        // A tensor that is not finite is sent empty.
        let mut data = Vec::new();
        if good {
            self.split.boundary.encode(&given.output, &mut data);
        }
        let data = Bytes::from(data);
        self.stash.insert(name, data.clone());
        let to = self.route.of(taker, task.lane);
        if to == self.me {
            if self.needs(taker, name) {
                self.here.insert(name, data);
            }
            return Ok(Vec::new());
        }
        if !self.wanted.contains(&(task.span, task.lane, task.back)) {
            return Ok(Vec::new());
        }
        self.drop_sent(&[(name, data.clone())]);
        Ok(vec![(to, name, data)])
    }

    /// A task gave nothing of use: it counts as done, and nothing of the round counts.
    pub fn refuse(&mut self, task: Task) -> Vec<(usize, Name, Bytes)> {
        self.refuses = true;
        let taker = self.taker(task.span, task.back);
        let name = (task.span, task.back, task.microbatch);
        let given = Given {
            output: vec![0.0; taker.map_or(0, |_| self.len_of(name))],
            sum: vec![
                0.0;
                if task.back {
                    self.split.gradient_len(task.span)
                } else {
                    0
                }
            ],
            loss: f32::NAN,
        };
        self.done(task, given).expect("it is as long as it should be")
    }

    /// Whether this member has computed everything that it has to.
    pub fn is_done(&self) -> bool {
        let done = |(span, lane): (usize, usize)| {
            let work = self.lanes.get(&(span, lane));
            work.is_some_and(|work| work.backward == self.batch.lane(lane).end)
        };
        self.route.by(self.me).all(done)
    }

    /// Its contribution: the sums of its lanes, one after the other, which move out; the number of samples whose
    /// losses it knows, and the sum of these.
    pub fn made(&mut self) -> (Vec<f32>, u32, f32) {
        let own: Vec<(usize, usize)> = self.route.by(self.me).collect();
        let (mut gradient, mut weight, mut loss) = (Vec::new(), 0, 0.0);
        let lens = own.iter().map(|(span, _)| self.split.gradient_len(*span));
        let len: usize = lens.sum();
        for (span, lane) in own {
            let Some(work) = self.lanes.get_mut(&(span, lane)) else {
                continue;
            };
            let (sum, of_lane) = (std::mem::take(&mut work.sum), work.loss);
            if gradient.is_empty() {
                gradient = sum;
                gradient.reserve_exact(len - gradient.len());
            } else {
                gradient.extend_from_slice(&sum);
            }
            if span == self.last() {
                weight += self.batch.lane_len(lane) as u32;
                loss += of_lane;
            }
        }
        match self.refuses {
            true => (gradient, 0, 0.0),
            false => (gradient, weight, loss),
        }
    }

    /// Takes its contribution back for another attempt, which may need another one.
    pub fn put_back(&mut self, mut gradient: Vec<f32>) {
        let own: Vec<(usize, usize)> = self.route.by(self.me).collect();
        for (span, lane) in own.into_iter().rev() {
            let start = gradient.len().saturating_sub(self.split.gradient_len(span));
            let sum = match start {
                0 => std::mem::take(&mut gradient),
                _ => gradient.split_off(start),
            };
            if let Some(work) = self.lanes.get_mut(&(span, lane)) {
                work.sum = sum;
            }
        }
    }

    /// The spans of which this member computes lanes.
    pub fn own_spans(&self) -> impl Iterator<Item = usize> {
        self.route.by(self.me).map(|(span, _)| span)
    }

    /// The samples that this member works on, in samples of an average span.
    pub fn samples(&self) -> f64 {
        let own = self.route.by(self.me);
        own.map(|(span, lane)| self.split.work(span, self.batch.lane_len(lane)))
            .sum()
    }

    /// Positions of a task's samples.
    pub fn positions(&self, task: Task) -> Vec<Range<u64>> {
        self.batch.of(task.microbatch)
    }
}

/// A device gave a result of the wrong length.
#[derive(Debug)]
pub(crate) struct Malformed;

#[cfg(test)]
#[path = "flow/tests.rs"]
mod tests;
