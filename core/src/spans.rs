//! Which parts of the flat vector the spans of a model need.

use crate::config::Manifest;
use crate::parts::{PartSet, Parts};
use crate::split::Split;
use std::ops::Range;

impl Split {
    /// The parts that a span needs.
    pub fn parts(&self, parts: Parts, span: usize) -> PartSet {
        let of = |range: &Range<usize>| parts.part_of(range.start)..=parts.part_of(range.end - 1);
        self.used(span).iter().flat_map(of).collect()
    }
}

/// The parts of the spans that a member with room for so many begins with, if nobody else is there.
pub(crate) fn first_spans(manifest: &Manifest, room: u16) -> PartSet {
    let (Some(split), Some(parts)) = (&manifest.split, Parts::of(manifest)) else {
        return PartSet::default();
    };
    let spans = 0..usize::from(room).min(split.spans.len());
    spans.fold(PartSet::default(), |all, span| all.or(&split.parts(parts, span)))
}
