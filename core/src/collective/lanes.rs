//! Where a model is split over the members: who gives which gradients of a piece, and in which order they are added.
//!
//! A piece is used by some steps of the model, mostly by one, and each of these has a sum for each lane of the round, which the
//! holder that has computed the lane sends as it is. So who adds them up needs not know who has computed what with whom: lanes
//! are added in their order, then steps in theirs.

use crate::ledger::route::Route;
use crate::run::split::Split;
use std::ops::Range;

/// The lanes of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// How the model is cut.
    pub split: Split,
    /// Who computes what.
    pub route: Route,
    /// How many lanes there are.
    pub count: usize,
}

impl Lanes {
    /// The steps and lanes that a piece has a sum of, in the order in which they are added: lane by lane of one step, then of
    /// the next.
    pub fn inputs(&self, piece: &Range<usize>) -> Vec<(usize, usize)> {
        let users = self.split.users(piece);
        let lanes = |step| (0..self.count).map(move |lane| (step, lane));
        users.into_iter().flat_map(lanes).collect()
    }

    /// Who gives a step's sum of a lane.
    pub fn by(&self, (step, lane): (usize, usize)) -> usize {
        self.route.of(self.split.span_of(step), lane)
    }

    /// Where in a member's contribution, its spans and lanes one after the other, that sum of a piece is.
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

    /// How long a member's contribution is.
    pub fn len_of(&self, member: usize) -> usize {
        let own = self.route.by(member);
        own.map(|(span, _)| self.split.gradient_len(span)).sum()
    }
}

/// Adds up what has come of a piece, in order: of each step its lanes, then the steps.
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
