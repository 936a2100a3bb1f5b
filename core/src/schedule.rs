//! Who sends which chunk to whom at which step. Pure index arithmetic: the ring all-reduce of
//! Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009),
//! section 3: reduce-scatter, then all-gather, 2(n-1)/n of the vector per member and direction.
//!
//! Chunk `c` is owned by member `c`. Its sum starts at member `c+1`, passes every member in ring order
//! and is finished by its owner; the finished chunk then goes round once more, as far as `c-1`.

use std::ops::Range;

/// A ring of `n` members over a vector of `len` elements, cut into pieces of at most `piece` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Members.
    pub n: usize,
    /// Elements of the vector.
    pub len: usize,
    /// Elements of a piece.
    pub piece: usize,
}

impl Ring {
    /// Elements of a chunk.
    pub fn chunk(&self, chunk: usize) -> Range<usize> {
        // In 128 bits, so that it holds on 32-bit targets too.
        let border = |c: usize| (self.len as u128 * c as u128 / self.n as u128) as usize;
        border(chunk)..border(chunk + 1)
    }

    /// Pieces of a chunk: at least one, since headers ride on it.
    pub fn pieces(&self, chunk: usize) -> usize {
        self.chunk(chunk).len().div_ceil(self.piece).max(1)
    }

    /// Elements of a piece, if there is such a piece.
    pub fn range(&self, chunk: usize, piece: usize) -> Option<Range<usize>> {
        if chunk >= self.n || piece >= self.pieces(chunk) {
            return None;
        }
        let whole = self.chunk(chunk);
        let start = whole.start + piece * self.piece;
        Some(start..whole.end.min(start + self.piece))
    }

    /// Where the piece that holds an element ends; the vector's end if there is no such element.
    pub fn piece_end(&self, element: usize) -> usize {
        let chunk = (0..self.n).map(|c| self.chunk(c)).find(|c| c.contains(&element));
        chunk.map_or(self.len, |whole| {
            let pieces = (element - whole.start) / self.piece + 1;
            whole.end.min(whole.start + pieces * self.piece)
        })
    }

    /// The member after another.
    pub fn next(&self, member: usize) -> usize {
        (member + 1) % self.n
    }

    /// The member before another.
    pub fn previous(&self, member: usize) -> usize {
        (member + self.n - 1) % self.n
    }

    /// The chunk whose sum starts at a member.
    pub fn starts_at(&self, member: usize) -> usize {
        self.previous(member)
    }

    /// How many members a chunk's sum has passed when it reaches a member.
    pub fn passed(&self, chunk: usize, member: usize) -> usize {
        (member + self.n - self.next(chunk)) % self.n
    }

    /// The member that is `passed` hops into a chunk's way.
    pub fn hop(&self, chunk: usize, passed: usize) -> usize {
        (chunk + 1 + passed) % self.n
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_tile_the_vector(n in 1usize..20, len in 0usize..500, piece in 1usize..70) {
            let ring = Ring { n, len, piece };
            let mut end = 0;
            for chunk in 0..n {
                for p in 0..ring.pieces(chunk) {
                    let range = ring.range(chunk, p).unwrap();
                    prop_assert_eq!(range.start, end);
                    prop_assert!(range.clone().all(|element| ring.piece_end(element) == range.end));
                    prop_assert!(range.len() <= piece);
                    end = range.end;
                }
                prop_assert!(ring.range(chunk, ring.pieces(chunk)).is_none());
            }
            prop_assert_eq!(end, len);
            prop_assert!(ring.range(n, 0).is_none());
        }

        #[test]
        fn every_chunk_passes_every_member_once_and_ends_at_its_owner(n in 1usize..40) {
            let ring = Ring { n, len: 100, piece: 8 };
            for chunk in 0..n {
                let way: Vec<usize> = (0..n).map(|h| ring.hop(chunk, h)).collect();
                prop_assert_eq!(*way.last().unwrap(), chunk);
                prop_assert_eq!(ring.starts_at(way[0]), chunk);
                for (passed, member) in way.iter().enumerate() {
                    prop_assert_eq!(ring.passed(chunk, *member), passed);
                    prop_assert_eq!(ring.previous(ring.next(*member)), *member);
                }
                let mut sorted = way.clone();
                sorted.sort_unstable();
                prop_assert_eq!(sorted, (0..n).collect::<Vec<_>>());
            }
        }
    }
}
