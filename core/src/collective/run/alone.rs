//! Values of one member that another receives before anything is added to them.

use super::Run;
use crate::base::id::PeerId;
use std::collections::BTreeMap;
use std::ops::Range;

impl Run {
    /// The pieces in which another member sends this one its own values alone, with their elements.
    pub fn alone(&self, other: PeerId) -> BTreeMap<(u16, u32), Range<usize>> {
        let cut = &self.plan.cut;
        let Some(other) = self.members.iter().position(|member| *member == other) else {
            return BTreeMap::new();
        };
        let places =
            (0..cut.members).flat_map(|chunk| (0..cut.pieces(chunk)).map(move |piece| (chunk, piece)));
        let comes = |place| self.plan.partial_to(place, other) == Some(self.me);
        let alone = places.filter(|place| comes(*place) && self.plan.contributions(*place, other) == 1);
        let found = alone.filter_map(|(chunk, piece)| {
            let elements = cut.range(chunk, piece).filter(|range| !range.is_empty())?;
            Some(((chunk as u16, piece as u32), elements))
        });
        found.collect()
    }
}
