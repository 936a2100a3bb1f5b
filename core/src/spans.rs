//! Which parts of the flat vector the spans of a model need.

use crate::config::Manifest;
use crate::parts::{PartSet, Parts};
use crate::room::Room;
use crate::split::Split;
use std::ops::Range;

impl Split {
    /// The parts that a span needs.
    pub fn parts(&self, parts: Parts, span: usize) -> PartSet {
        let of = |range: &Range<usize>| parts.part_of(range.start)..=parts.part_of(range.end - 1);
        let steps = &self.steps[self.span(span)];
        steps.iter().flat_map(|step| &step.ranges).flat_map(of).collect()
    }

    /// The parts that each span needs.
    pub fn needs(&self, parts: Parts) -> Vec<PartSet> {
        (0..self.spans.len())
            .map(|span| self.parts(parts, span))
            .collect()
    }
}

/// The parts of the spans that a member with some room begins with, if nobody else is there.
pub(crate) fn first_spans(manifest: &Manifest, room: Room) -> PartSet {
    let (Some(split), Some(parts)) = (&manifest.split, Parts::of(manifest)) else {
        return PartSet::default();
    };
    let spans = split.spans.len();
    let takes = (0..spans).filter(|span| room.takes(*span, spans));
    let first = takes.take(room.spans.into());
    first.fold(PartSet::default(), |all, span| all.or(&split.parts(parts, span)))
}
