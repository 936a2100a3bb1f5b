//! A committed round of a run whose model is split over its members, once more, by one peer that keeps all parts: for whoever
//! computes rounds anew.
//!
//! Who has computed what of the round does not matter: gradients are summed for each step and lane in the order of
//! microbatches, and these sums are added in one order. It must not know how members agree or how anything travels.

use crate::codec::Codec;
use crate::collective::{Cut, Held, Lanes, add_up};
use crate::config::Manifest;
use crate::flow::{Flow, Given};
use crate::id::PeerId;
use crate::interface::{SpanDone, SpanWork};
use crate::ledger::{Head, Record};
use crate::optim::norm_squared;
use crate::route::{Batch, Route};
use crate::split::Split;
use crate::state::{State, plan_by};
use bytes::Bytes;
use std::ops::Range;

/// Why a round could not be computed once more. The state is as it was.
#[derive(Debug, thiserror::Error)]
pub enum RecomputeError<E> {
    /// What computes has failed.
    #[error(transparent)]
    Pass(E),
    /// It has given something of another length than it should.
    #[error(
        "what computes span {0} gives something of another length than it should: is this the run's model?"
    )]
    Length(usize),
}

impl State {
    /// Computes a committed round once more and steps weights and moments by it. `pass` does one pass of a microbatch, as a
    /// driver does when a peer asks it to. False for a round without a step.
    ///
    /// # Errors
    ///
    /// If `pass` fails, or gives something of another length.
    ///
    /// # Panics
    ///
    /// If the run's model is not split, or this state does not keep all parts.
    pub fn recompute<E>(
        &mut self,
        (manifest, head, record): (&Manifest, &Head, &Record),
        mut pass: impl FnMut(SpanWork) -> Result<SpanDone, E>,
    ) -> Result<bool, RecomputeError<E>> {
        if record.weight() == 0 || !head.trains_record(manifest, record) {
            return Ok(false);
        }
        let split = manifest.split.as_ref().expect("the model is split");
        let batch = Batch::new(split, &head.allot(manifest).batch);
        let lanes = Lanes {
            split: split.clone(),
            route: Route::alone(split.spans.len(), batch.lanes()),
            count: batch.lanes(),
        };
        let gradient = self.gradient((manifest, head, split), &lanes, batch, &mut pass)?;
        let names: Vec<PeerId> = record.headers.iter().map(|header| header.peer).collect();
        let (sums, squared) = sums(&Cut::of(manifest, head, &names), &lanes, &gradient);
        let step = plan_by(manifest, head, record, || squared);
        let step = step.expect("the round trains");
        self.kept.step_weights(manifest, &step, &sums);
        Ok(true)
    }

    /// The sums of all lanes of all spans, one after the other.
    fn gradient<E>(
        &self,
        (manifest, head, split): (&Manifest, &Head, &Split),
        lanes: &Lanes,
        batch: Batch,
        pass: &mut impl FnMut(SpanWork) -> Result<SpanDone, E>,
    ) -> Result<Vec<f32>, RecomputeError<E>> {
        let mut flow = Flow::new(split.clone(), batch, (lanes.route.clone(), 0), (false, false));
        let mut has_weights = vec![false; split.spans.len()];
        let weights = |range: Range<usize>| self.kept.weights(manifest, range);
        while let Some(task) = flow.next() {
            let (input, gradient, sum) = flow.input(task);
            let is_first = !std::mem::replace(&mut has_weights[task.span], true);
            let of_span = || split.used(task.span).into_iter().flat_map(weights).collect();
            let done = pass(SpanWork {
                round: head.round + 1,
                span: task.span,
                back: task.back,
                positions: flow.positions(task),
                weights: is_first.then(of_span),
                input,
                gradient,
                sum,
            });
            let SpanDone {
                output, sum, loss, ..
            } = done.map_err(RecomputeError::Pass)?;
            let given = Given { output, sum, loss };
            let length = |_| RecomputeError::Length(task.span);
            flow.done(task, given).map_err(length)?;
        }
        Ok(flow.made().0)
    }

    /// A part of which a member says in its header that it has kept something else before this round than is kept here.
    pub fn differing_part(&self, record: &Record) -> Option<(PeerId, u16)> {
        let differs = |(of, part): &(PeerId, u16)| {
            let keeps = record.headers.iter().find(|header| header.peer == *of);
            keeps.and_then(|header| header.keeps.digest(*part)) != self.kept.digest(*part)
        };
        let told = record.headers.iter();
        let mut told = told.flat_map(|header| header.keeps.kept.iter().map(|part| (header.peer, part)));
        told.find(differs)
    }
}

/// The sums of all pieces, by the element that each begins with, and what their squares add up to, part by part.
fn sums(cut: &Cut, lanes: &Lanes, gradient: &[f32]) -> (Held, f64) {
    let (mut sums, mut parts) = (Held::new(), Vec::new());
    let Some(kept) = &cut.kept else {
        return (sums, 0.0);
    };
    for (range, _) in kept.touching(&(0..cut.len)) {
        let of = |input| lanes.place(0, input, range).map(|place| gradient[place].to_vec());
        let inputs: Vec<Vec<f32>> = lanes.inputs(range).into_iter().filter_map(of).collect();
        let sum = add_up(&inputs, lanes.count);
        let (part, squared) = (kept.part_at(range.start), norm_squared(&sum));
        match parts.last_mut() {
            Some((last, all)) if *last == part => *all += squared,
            _ => parts.push((part, squared)),
        }
        let mut data = Vec::new();
        Codec::F32.encode(&sum, &mut data);
        sums.insert(range.start, Bytes::from(data));
    }
    (sums, parts.iter().map(|(_, squared)| squared).sum())
}
