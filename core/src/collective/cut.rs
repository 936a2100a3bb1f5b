//! How a vector is cut: a chunk for each member, its owner, and each chunk into pieces. Pure index arithmetic.

use super::kept::Kept;
use super::lanes::Lanes;
use crate::base::id::PeerId;
use crate::ledger::Head;
use crate::ledger::route::Batch;
use crate::run::config::Manifest;
use crate::run::parts::Parts;
use std::ops::Range;
use std::sync::Arc;

/// A vector of `len` elements, cut into `members` chunks, as equal as their borders allow, and these into pieces of
/// at most `piece` elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Number of members, and of chunks.
    pub members: usize,
    /// Elements of the vector.
    pub len: usize,
    /// Elements of a piece.
    pub piece: usize,
    /// Chunks begin at multiples of this.
    pub grain: usize,
    /// Set if members keep parts of the moments. Then a chunk is what its owner publishes, and is not contiguous.
    pub kept: Option<Arc<Kept>>,
}

impl Cut {
    /// The cut of a run's vector among these members, in the round after a head. If they are too few to train, the
    /// vector has no elements.
    pub fn of(manifest: &Manifest, head: &Head, members: &[PeerId]) -> Self {
        let trains = head.trains(manifest, members);
        let piece = manifest.piece.get() as usize;
        let kept = Parts::of(manifest).filter(|_| trains).map(|parts| {
            let chains = head.chains(parts, members);
            let lanes = head.split(manifest).map(|split| {
                let count = Batch::new(&split, &head.allot(manifest).batch).lanes();
                Lanes {
                    route: head.route(&split, parts, members, count),
                    split: split.into_owned(),
                    count,
                }
            });
            let sizes = (members.len(), piece);
            Arc::new(Kept::with_lanes(
                parts,
                chains,
                sizes,
                manifest.clip.map(|_| manifest.layout.means()),
                lanes,
            ))
        });
        Self {
            members: members.len(),
            len: if trains { manifest.layout.len } else { 0 },
            piece,
            grain: manifest.moments.grain(),
            kept,
        }
    }

    /// Elements of a chunk, if members do not keep parts.
    pub fn chunk(&self, chunk: usize) -> Range<usize> {
        // In 128 bits, so that it does not overflow on 32-bit targets.
        let even = |c: usize| (self.len as u128 * c as u128 / self.members as u128) as usize;
        let border = |c: usize| {
            if c == self.members {
                self.len
            } else {
                even(c) / self.grain * self.grain
            }
        };
        border(chunk)..border(chunk + 1)
    }

    /// Number of pieces of a chunk: at least one, to carry the headers.
    pub fn pieces(&self, chunk: usize) -> usize {
        if let Some(kept) = &self.kept {
            return kept.pieces(chunk);
        }
        self.chunk(chunk).len().div_ceil(self.piece).max(1)
    }

    /// Elements of a piece, if it exists.
    pub fn range(&self, chunk: usize, piece: usize) -> Option<Range<usize>> {
        if let Some(kept) = &self.kept {
            return kept.range(chunk, piece);
        }
        if chunk >= self.members || piece >= self.pieces(chunk) {
            return None;
        }
        let whole = self.chunk(chunk);
        let start = whole.start + piece * self.piece;
        Some(start..whole.end.min(start + self.piece))
    }

    /// The lanes of a split model.
    pub fn lanes(&self) -> Option<&Lanes> {
        self.kept.as_ref()?.lanes.as_ref()
    }

    /// Number of pieces of a chunk that are sent to all once finished.
    pub fn told(&self, chunk: usize) -> usize {
        match &self.kept {
            Some(kept) => kept.told(chunk),
            None => self.pieces(chunk),
        }
    }

    /// The end of the piece with an element; the vector's end if there is no such element.
    pub fn piece_end(&self, element: usize) -> usize {
        if let Some(kept) = &self.kept {
            return kept.piece_end(element).unwrap_or(self.len);
        }
        let chunk = (0..self.members)
            .map(|c| self.chunk(c))
            .find(|c| c.contains(&element));
        chunk.map_or(self.len, |whole| {
            let pieces = (element - whole.start) / self.piece + 1;
            whole.end.min(whole.start + pieces * self.piece)
        })
    }
}
