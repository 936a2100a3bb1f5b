//! Which parts of the flat vector the spans of a model need.

use crate::parts::{PartSet, Parts};
use crate::room::Room;
use crate::split::Split;
use std::ops::Range;

impl Split {
    /// The parts that a span needs.
    pub fn parts(&self, parts: Parts, span: usize) -> PartSet {
        self.parts_of(parts, self.span(span))
    }

    /// The parts that some steps need.
    pub fn parts_of(&self, parts: Parts, steps: Range<usize>) -> PartSet {
        let of = |range: &Range<usize>| parts.part_of(range.start)..=parts.part_of(range.end - 1);
        let ranges = self.steps[steps].iter().flat_map(|step| &step.ranges);
        ranges.flat_map(of).collect()
    }

    /// The parts that each span needs.
    pub fn needs(&self, parts: Parts) -> Vec<PartSet> {
        (0..self.spans.len())
            .map(|span| self.parts(parts, span))
            .collect()
    }
}

/// The parts of the spans that a member with some room begins with, if nobody else is there.
pub(crate) fn first_spans(split: &Split, parts: Parts, room: Room) -> PartSet {
    let spans = split.needs(parts);
    let takes = (0..spans.len()).filter(|span| room.takes(*span, &spans));
    let first = takes.take(room.spans.into());
    first.fold(PartSet::default(), |all, span| all.or(&spans[span]))
}
