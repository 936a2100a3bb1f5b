//! How a vector is cut: a chunk for each member, its owner, and each chunk into pieces. Pure index arithmetic.
//!
//! An owner may give its chunk any sum, and nobody can tell. So guests own nothing while a full member is there: their
//! chunks have no elements, and one piece that carries headers.

use super::kept::Kept;
use super::lanes::Lanes;
use crate::base::id::PeerId;
use crate::base::planted::{self, Bug};
use crate::ledger::Head;
use crate::ledger::route::Batch;
use crate::run::config::Manifest;
use crate::run::parts::Parts;
use std::ops::Range;
use std::sync::Arc;

/// A vector of `len` elements, cut into `members` chunks, as equal as their borders allow but for those of guests, and
/// these into pieces of at most `piece` elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Number of members, and of chunks.
    pub members: usize,
    /// The places of members that own nothing, in order. There are others.
    pub guests: Vec<usize>,
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
        let is_guest = |place: &usize| !head.is_full(members[*place]);
        let mut guests: Vec<usize> = (0..members.len()).filter(is_guest).collect();
        if guests.len() == members.len() {
            guests.clear();
        }
        Self {
            members: members.len(),
            guests,
            len: if trains { manifest.layout.len } else { 0 },
            piece,
            grain: manifest.moments.grain(),
            kept,
        }
    }

    /// Elements of a chunk, if members do not keep parts.
    pub fn chunk(&self, chunk: usize) -> Range<usize> {
        let before = |place: usize| match planted::here(Bug::GuestsOwn) {
            true => place,
            false => self.owners_before(place),
        };
        let owners = before(self.members);
        // In 128 bits, so that it does not overflow on 32-bit targets.
        let even = |c: usize| (self.len as u128 * c as u128 / owners as u128) as usize;
        let border = |c: usize| {
            if c == owners {
                self.len
            } else {
                even(c) / self.grain * self.grain
            }
        };
        border(before(chunk))..border(before(chunk + 1))
    }

    /// Number of members that own elements, if there are any.
    pub fn owners(&self) -> usize {
        self.members - self.guests.len()
    }

    /// Number of such members before a place.
    pub fn owners_before(&self, place: usize) -> usize {
        place - self.guests.partition_point(|guest| *guest < place)
    }

    /// The place of an owner, given how many there are before it.
    pub fn owner(&self, number: usize) -> usize {
        let passed = |place: usize, guest: &usize| place + usize::from(*guest <= place);
        self.guests.iter().fold(number, passed)
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
