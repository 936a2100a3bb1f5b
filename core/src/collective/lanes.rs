//! The inputs of each piece in a split run, and the order in which they are added.
//!
//! A piece is used by some steps of the model, mostly by one. Each of these steps has a sum for each lane of the
//! round, which the holder that computed the lane sends as it is. So the member that adds them up need not know who
//! computed what: it adds lanes in order, then steps in order.

use crate::ledger::route::Route;
use crate::run::split::Split;
use std::ops::Range;

/// The lanes of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// The cut of the model.
    pub split: Split,
    /// Which member computes which lane.
    pub route: Route,
    /// Number of lanes.
    pub count: usize,
}

impl Lanes {
    /// The inputs of a piece as steps and lanes, in the order of addition: all lanes of one step, then those of the
    /// next.
    pub fn inputs(&self, piece: &Range<usize>) -> Vec<(usize, usize)> {
        let users = self.split.users(piece);
        let lanes = |step| (0..self.count).map(move |lane| (step, lane));
        users.into_iter().flat_map(lanes).collect()
    }

    /// The member that sends a step's sum of a lane.
    pub fn by(&self, (step, lane): (usize, usize)) -> usize {
        self.route.of(self.split.span_of(step), lane)
    }

    /// Where that sum of a piece is in the member's contribution, which has its spans and lanes one after the
    /// other.
    pub fn place(
        &self,
        member: usize,
        (step, lane): (usize, usize),
        piece: &Range<usize>,
    ) -> Option<Range<usize>> {
        let span = self.split.span_of(step);
        let before = self.route.by(member).take_while(|own| *own != (span, lane));
        let start: usize = before.map(|(span, _)| self.split.gradient_len(span)).sum();
        let start = start + self.split.gradient_of(span, step).start;
        let inside = self.split.steps[step].place(piece)?;
        Some(start + inside.start..start + inside.end)
    }

    /// The length of a member's contribution.
    pub fn len_of(&self, member: usize) -> usize {
        let own = self.route.by(member);
        own.map(|(span, _)| self.split.gradient_len(span)).sum()
    }
}

/// Adds up the inputs of a piece in order: for each step its lanes, then the steps.
pub(crate) fn add_up(inputs: &[Vec<f32>], lanes: usize) -> Vec<f32> {
    let add = |mut sum: Vec<f32>, next: &Vec<f32>| {
        sum.iter_mut().zip(next).for_each(|(sum, next)| *sum += next);
        sum
    };
    let of_step = |inputs: &[Vec<f32>]| inputs[1..].iter().fold(inputs[0].clone(), add);
    let steps: Vec<Vec<f32>> = inputs.chunks(lanes.max(1)).map(of_step).collect();
    match steps.split_first() {
        Some((first, others)) => others.iter().fold(first.clone(), add),
        None => Vec::new(),
    }
}
