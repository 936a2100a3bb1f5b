//! Recomputes a committed round of a split run on one peer alone, for a replay.
//!
//! It does not matter which member computed what: gradients are summed for each step and lane in the order of
//! microbatches, and these sums are added in one order. So the whole batch goes through one sequence of steps after
//! the other, forward and then back. Memory need not hold more than one such sequence; a [`Workshop`] stores all
//! else. This module knows neither how members agree or send, nor where the workshop stores things.

use crate::base::id::PeerId;
use crate::collective::{Cut, Kept, add_up};
use crate::ledger::route::Batch;
use crate::ledger::{Head, Record};
use crate::numeric::codec::Codec;
use crate::run::config::Manifest;
use crate::run::parts::Parts;
use crate::run::split::Split;
use crate::state::moments::Moments;
use crate::state::pass::{Pass, SpanDone};
use crate::state::plan_by;
use std::ops::Range;

/// Why a round could not be recomputed.
#[derive(Debug, thiserror::Error)]
pub enum RecomputeError<E> {
    /// The workshop failed.
    #[error(transparent)]
    Workshop(E),
    /// The device gave a result of the wrong length.
    #[error(
        "the computation of steps {} to {} has a result of the wrong length: is this the run's model?",
        .0.start, .0.end - 1
    )]
    Length(Range<usize>),
}

/// Computes passes, and stores what need not be in memory: all parts of weights and moments, and intermediate
/// numbers.
pub trait Workshop {
    /// Why it fails.
    type Error;

    /// Computes one pass of a microbatch through some steps. A pass without weights uses those of the pass before.
    /// Weights of other steps are given again before they are needed.
    ///
    /// # Errors
    ///
    /// If the device fails, or a result is not finite.
    fn pass(&mut self, steps: Range<usize>, pass: Pass) -> Result<SpanDone, Self::Error>;

    /// The weights of some elements.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    fn weights(&mut self, range: Range<usize>) -> Result<Vec<f32>, Self::Error>;

    /// One part, and nothing else.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    fn part(&mut self, part: u16) -> Result<Moments, Self::Error>;

    /// Stores a part that was stepped.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    fn put_part(&mut self, part: u16, stepped: Moments) -> Result<(), Self::Error>;

    /// Numbers that were stored in this round.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    fn take_up(&mut self, place: Range<usize>) -> Result<Vec<f32>, Self::Error>;

    /// Stores numbers from a place on.
    ///
    /// # Errors
    ///
    /// If they cannot be written.
    fn lay_down(&mut self, place: usize, values: &[f32]) -> Result<(), Self::Error>;
}

/// Recomputes a committed round and steps weights and moments by it. `runs` are sequences of steps, each within a
/// span, that are computed one after the other. False for a round without a step.
///
/// # Errors
///
/// If the workshop fails, or gives a result of the wrong length. Its contents are of no use then.
///
/// # Panics
///
/// If the run's model is not split, or `runs` are not all of its steps in order.
pub fn recompute<W: Workshop>(
    (manifest, head, record): (&Manifest, &Head, &Record),
    runs: &[Range<usize>],
    workshop: &mut W,
) -> Result<bool, RecomputeError<W::Error>> {
    if record.weight() == 0 || !head.trains_record(manifest, record) {
        return Ok(false);
    }
    let split = &*head.split(manifest).expect("the model is split");
    let borders = runs.iter().map(|run| run.end);
    assert!(
        runs.iter()
            .map(|run| run.start)
            .eq(std::iter::once(0).chain(borders.take(runs.len() - 1)))
            && runs.last().map(|run| run.end) == Some(split.steps.len()),
        "the runs are not all steps in order"
    );
    let batch = Batch::new(split, &head.allot(manifest).batch);
    let mut round = Anew {
        places: Places::new(split, &batch, runs),
        split,
        batch,
        workshop,
        has_weights: None,
    };
    round.forward()?;
    round.back()?;
    let names: Vec<PeerId> = record.headers.iter().map(|header| header.peer).collect();
    let kept = Cut::of(manifest, head, &names).kept;
    let kept = kept.as_ref().expect("the round trains");
    let parts = Parts::of_len(manifest.layout.len);
    let squared = match manifest.clip {
        Some(_) => round.squared(kept, parts)?,
        None => 0.0,
    };
    let step = plan_by(manifest, head, record, || squared);
    let step = step.expect("the round trains");
    for part in parts.iter() {
        let mut sums = Vec::with_capacity(parts.range(part).map_or(0, |range| range.len()));
        for (range, _) in kept.of_part(part) {
            sums.extend(round.sum(range)?);
        }
        let mut stepped = round.workshop.part(part).map_err(RecomputeError::Workshop)?;
        stepped.step_part(manifest, &step, part, &sums);
        round
            .workshop
            .put_part(part, stepped)
            .map_err(RecomputeError::Workshop)?;
    }
    Ok(true)
}

/// A round under recomputation.
struct Anew<'a, W> {
    split: &'a Split,
    batch: Batch,
    places: Places<'a>,
    workshop: &'a mut W,
    /// The sequence whose weights were given last.
    has_weights: Option<usize>,
}

/// Where the round's numbers are stored.
struct Places<'a> {
    runs: &'a [Range<usize>],
    /// By sequence: where its inputs begin, microbatch after microbatch, and their length for a sample. Once a
    /// microbatch has gone back, its gradient is stored there instead.
    inputs: Vec<(usize, usize)>,
    /// By step: where its sum begins within that of a lane.
    steps: Vec<usize>,
    /// Where the first lane's sums begin, and the length of a lane's sums.
    lanes: (usize, usize),
}

impl<'a> Places<'a> {
    fn new(split: &Split, batch: &Batch, runs: &'a [Range<usize>]) -> Self {
        let (mut end, mut inputs) = (0, Vec::with_capacity(runs.len()));
        for run in runs {
            let before = run.start.checked_sub(1);
            let width = before.map_or(0, |step| split.steps[step].boundary as usize);
            inputs.push((end, width));
            end += width * batch.samples() as usize;
        }
        let mut len = 0;
        let before = |step: &crate::run::split::Step| {
            let start = len;
            len += step.len();
            start
        };
        let steps = split.steps.iter().map(before).collect();
        Self {
            runs,
            inputs,
            steps,
            lanes: (end, len),
        }
    }

    /// The place of a sequence's input of a microbatch, or of its gradient.
    fn input(&self, run: usize, batch: &Batch, microbatch: u32) -> Range<usize> {
        let (start, width) = self.inputs[run];
        let before = microbatch as usize * batch.len(0) as usize;
        let start = start + width * before;
        start..start + width * batch.len(microbatch) as usize
    }

    /// The place of a lane's sums from a step on.
    fn sums(&self, lane: usize, step: usize) -> usize {
        let (start, len) = self.lanes;
        start + lane * len + self.steps[step]
    }
}

impl<W: Workshop> Anew<'_, W> {
    fn last(&self) -> usize {
        self.places.runs.len() - 1
    }

    /// All forward passes but those of the last sequence, which does both at once.
    fn forward(&mut self) -> Result<(), RecomputeError<W::Error>> {
        for run in 0..self.last() {
            for microbatch in 0..self.batch.microbatches() {
                let given = self.pass(run, microbatch, None)?;
                let place = self.places.input(run + 1, &self.batch, microbatch);
                self.hand_on(run + 1, place, given.output, run)?;
            }
        }
        Ok(())
    }

    /// All backward passes, those of the last sequence first.
    fn back(&mut self) -> Result<(), RecomputeError<W::Error>> {
        for run in (0..self.places.runs.len()).rev() {
            let steps = self.places.runs[run].clone();
            let len = self.split.steps[steps.clone()]
                .iter()
                .map(|step| step.len())
                .sum();
            for lane in 0..self.batch.lanes() {
                let mut sum = vec![0.0; len];
                for microbatch in self.batch.lane(lane) {
                    let given = self.pass(run, microbatch, Some(sum))?;
                    sum = given.sum;
                    if sum.len() != len {
                        return Err(RecomputeError::Length(steps));
                    }
                    make_sound(&mut sum);
                    let place = self.places.input(run, &self.batch, microbatch);
                    self.hand_on(run, place, given.output, run)?;
                }
                let place = self.places.sums(lane, steps.start);
                self.workshop
                    .lay_down(place, &sum)
                    .map_err(RecomputeError::Workshop)?;
            }
        }
        Ok(())
    }

    /// One pass; backward if there is a sum to add to.
    fn pass(
        &mut self,
        run: usize,
        microbatch: u32,
        sum: Option<Vec<f32>>,
    ) -> Result<SpanDone, RecomputeError<W::Error>> {
        let steps = self.places.runs[run].clone();
        let failed = RecomputeError::Workshop;
        let mut weights = None;
        if self.has_weights != Some(run) {
            let mut all = Vec::new();
            for range in self.split.used_by(steps.clone()) {
                all.extend(self.workshop.weights(range).map_err(failed)?);
            }
            weights = Some(all);
            self.has_weights = Some(run);
        }
        let mut tensor = |run| {
            let place = self.places.input(run, &self.batch, microbatch);
            self.workshop.take_up(place).map_err(failed)
        };
        let input = if run == 0 { Vec::new() } else { tensor(run)? };
        let gradient = match sum {
            Some(_) if run < self.places.runs.len() - 1 => tensor(run + 1)?,
            _ => Vec::new(),
        };
        let pass = Pass {
            back: sum.is_some(),
            positions: self.batch.of(microbatch),
            weights,
            input,
            gradient,
            sum: sum.unwrap_or_default(),
        };
        self.workshop.pass(steps, pass).map_err(failed)
    }

    /// Stores a sequence's output. If it crosses from one span to another before `to`, it is encoded and decoded as
    /// on the wire.
    fn hand_on(
        &mut self,
        to: usize,
        place: Range<usize>,
        mut values: Vec<f32>,
        by: usize,
    ) -> Result<(), RecomputeError<W::Error>> {
        if values.len() != place.len() {
            return Err(RecomputeError::Length(self.places.runs[by].clone()));
        }
        make_sound(&mut values);
        let begins = self.places.runs[to].start;
        if self.split.spans().any(|span| span.start == begins) {
            let mut travelled = Vec::new();
            self.split.boundary.encode(&values, &mut travelled);
            let decoded = self.split.boundary.decode(&travelled, &mut values);
            decoded.expect("it was just encoded");
        }
        let laid = self.workshop.lay_down(place.start, &values);
        laid.map_err(RecomputeError::Workshop)
    }

    /// The sum of a piece over all lanes and steps that use it.
    fn sum(&mut self, piece: &Range<usize>) -> Result<Vec<f32>, RecomputeError<W::Error>> {
        let (mut inputs, lanes) = (Vec::new(), self.batch.lanes());
        for step in self.split.users(piece) {
            let place = self.split.steps[step].place(piece).expect("it is a user");
            for lane in 0..lanes {
                let start = self.places.sums(lane, step);
                let place = start + place.start..start + place.end;
                inputs.push(self.workshop.take_up(place).map_err(RecomputeError::Workshop)?);
            }
        }
        Ok(add_up(&inputs, lanes))
    }

    /// The squared norm of all sums, part by part.
    fn squared(&mut self, kept: &Kept, parts: Parts) -> Result<f64, RecomputeError<W::Error>> {
        let mut all = 0.0;
        for part in parts.iter() {
            let mut of_part = 0.0;
            for (range, _) in kept.of_part(part) {
                of_part += kept.squared(range.start, &self.sum(range)?);
            }
            all += of_part;
        }
        Ok(all)
    }
}

/// Replaces a tensor that is not finite by nothing, as members do.
fn make_sound(values: &mut [f32]) {
    if !values.iter().all(|x| x.abs() <= Codec::LARGEST) {
        values.fill(0.0);
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests;
