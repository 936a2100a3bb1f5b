//! Maps the spans of a split model to the parts of the flat vector that they need.

use crate::run::parts::{MOST_PARTS, PartSet, Parts};
use crate::run::room::Room;
use crate::run::split::Split;
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

// Room for the most parts that there can be is room for any span.
const _: () = assert!(Room::of(1).parts as usize == MOST_PARTS);

impl Room {
    /// Whether it suffices for one of the spans, given the parts that each needs.
    pub fn takes(self, span: usize, spans: &[PartSet]) -> bool {
        self.reads(span, spans.len()) && spans[span].len() <= self.parts.into()
    }
}

/// The parts of the spans that a member takes if it founds a run alone.
pub(crate) fn first_spans(split: &Split, parts: Parts, room: Room) -> PartSet {
    let spans = split.needs(parts);
    let takes = (0..spans.len()).filter(|span| room.takes(*span, &spans));
    all_needed(&spans, takes.take(room.spans.into()))
}

/// The union of the parts of some spans.
pub(crate) fn all_needed(spans: &[PartSet], of: impl Iterator<Item = usize>) -> PartSet {
    of.fold(PartSet::default(), |all, span| all.or(&spans[span]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_room_for_few_parts_takes_no_span_that_needs_more() {
        let spans = [2, 3, 4].map(|parts| (0..parts).collect::<PartSet>());
        let narrow = Room {
            parts: 3,
            ..Room::of(1)
        };
        let takes = |room: Room| [0, 1, 2].map(|span| room.takes(span, &spans));
        assert_eq!(takes(narrow), [true, true, false]);
        assert_eq!(takes(Room::inner(1)), [false, true, false]);
    }
}
