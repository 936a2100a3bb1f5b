//! How the flat vector is cut into parts that members keep, and sets of parts. Pure index arithmetic; it does not
//! know who keeps what.

use crate::numeric::optim::BLOCK;
use crate::run::config::Manifest;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Most parts of a vector: four times the members of a view, so that each can have its share. A set of them is 32
/// bytes.
pub const MOST_PARTS: usize = 256;

/// A short vector has no more parts than this ...
const FEW: usize = 8;
/// ... and a longer one no parts shorter than this, since each part takes a frame of its own.
const SHORTEST: usize = 4096;

/// Words of a set.
const WORDS: usize = MOST_PARTS / 64;

/// How a vector is cut: into parts of equal length, a multiple of 256 elements. The last part may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Elements of the vector.
    len: usize,
    /// Elements of a part.
    part: usize,
}

impl Parts {
    /// The parts of a run's vector; `None` if each member keeps all.
    pub fn of(manifest: &Manifest) -> Option<Self> {
        manifest.copies.map(|_| Self::of_len(manifest.layout.len))
    }

    /// The parts of a vector of this many elements.
    pub fn of_len(len: usize) -> Self {
        let least = len.div_ceil(FEW).min(SHORTEST);
        let part = len.div_ceil(MOST_PARTS).max(least).max(1);
        Self {
            len,
            part: part.next_multiple_of(BLOCK),
        }
    }

    /// The number of parts.
    pub fn count(&self) -> usize {
        self.len.div_ceil(self.part)
    }

    /// The elements of a part, if it exists.
    pub fn range(&self, part: u16) -> Option<Range<usize>> {
        let start = usize::from(part) * self.part;
        (start < self.len).then(|| start..self.len.min(start + self.part))
    }

    /// The part with this element.
    pub fn part_of(&self, element: usize) -> u16 {
        (element / self.part) as u16
    }

    /// All parts, as a set.
    pub fn all(&self) -> PartSet {
        self.iter().collect()
    }

    /// All parts, in order.
    pub fn iter(&self) -> impl Iterator<Item = u16> + use<> {
        0..self.count() as u16
    }

    /// The elements of a part's pieces, at most `piece` each.
    pub fn pieces(&self, part: u16, piece: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let whole = self.range(part).unwrap_or(0..0);
        whole
            .clone()
            .step_by(piece)
            .map(move |start| start..whole.end.min(start + piece))
    }
}

/// A set of parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartSet([u64; WORDS]);

impl PartSet {
    /// Whether it has a part.
    pub fn contains(&self, part: u16) -> bool {
        let word = self.0.get(usize::from(part) / 64);
        word.is_some_and(|word| word >> (part % 64) & 1 == 1)
    }

    /// Adds a part.
    ///
    /// # Panics
    /// If no vector has such a part.
    pub fn insert(&mut self, part: u16) {
        self.0[usize::from(part) / 64] |= 1 << (part % 64);
    }

    /// Removes a part.
    pub fn remove(&mut self, part: u16) {
        if let Some(word) = self.0.get_mut(usize::from(part) / 64) {
            *word &= !(1 << (part % 64));
        }
    }

    /// The number of parts in it.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether it has no parts.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// Its parts, in order.
    pub fn iter(&self) -> impl Iterator<Item = u16> + use<> {
        let set = *self;
        (0..MOST_PARTS as u16).filter(move |part| set.contains(*part))
    }

    /// The union with another set.
    pub fn or(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] | other.0[i]))
    }

    /// The intersection with another set.
    pub fn and(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    /// Its parts that are not in another set.
    pub fn without(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] & !other.0[i]))
    }
}

impl FromIterator<u16> for PartSet {
    fn from_iter<I: IntoIterator<Item = u16>>(parts: I) -> Self {
        let mut set = Self::default();
        parts.into_iter().for_each(|part| set.insert(part));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_vector_and_begin_at_blocks() {
        for len in [
            0,
            1,
            255,
            256,
            257,
            2400,
            5000,
            101_770,
            1 << 24,
            (1 << 24) + 1,
            1 << 30,
        ] {
            let parts = Parts::of_len(len);
            assert!(parts.count() <= MOST_PARTS, "{len}: {}", parts.count());
            let mut end = 0;
            for part in parts.iter() {
                let range = parts.range(part).unwrap();
                assert_eq!((range.start, range.start % BLOCK), (end, 0));
                assert_eq!(parts.part_of(range.start), part);
                assert_eq!(parts.part_of(range.end - 1), part);
                let mut pieces = range.start;
                for piece in parts.pieces(part, 1000) {
                    assert_eq!(piece.start, pieces);
                    assert!(piece.len() <= 1000 && !piece.is_empty());
                    pieces = piece.end;
                }
                assert_eq!(pieces, range.end);
                end = range.end;
            }
            assert_eq!(end, len);
            assert_eq!(parts.all().len(), parts.count());
            assert_eq!(parts.range(parts.count() as u16), None);
        }
    }

    #[test]
    fn a_set_holds_what_was_put_in() {
        let mut set: PartSet = [0, 63, 64, 255].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 64, 255]);
        set.remove(64);
        assert!(!set.contains(64) && set.contains(255) && !set.contains(256));
        assert_eq!((set.len(), set.is_empty()), (3, false));
        let other: PartSet = [63, 70].into_iter().collect();
        assert_eq!(set.and(&other).iter().collect::<Vec<_>>(), [63]);
        assert_eq!(set.or(&other).len(), 4);
        assert_eq!(set.without(&other).iter().collect::<Vec<_>>(), [0, 255]);
    }
}
