//! The cut of a vector if members keep parts of the moments: the pieces, and the keepers that each sum passes.
//!
//! Contributions to a piece go to the first of its keepers, which adds them up. The finished sum passes all
//! keepers, and each holds it. The last keeper sends the *update* to all, in place of a finished piece: the weights
//! after the step, or their change. So a *chunk* consists of the pieces whose last keeper is one member, and an
//! update is out only after every keeper holds the sum. The other keepers compute the update from the sum as the
//! last one does, so they are only notified that it is out.
//!
//! A chunk may begin with a *word*, a piece without elements. It carries headers if its member sums nothing, since
//! no other frames would go there that they could ride on. In runs that clip by the global norm, it also carries
//! the squares of the sums: one `f64` for each part that the member is the first keeper of.

use super::lanes::Lanes;
use crate::ledger::keepers::Chain;
use crate::numeric::optim::norm_squared_without;
use crate::run::parts::Parts;
use std::ops::Range;

/// One piece.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    range: Range<usize>,
    /// `None` for the word.
    part: Option<u16>,
}

/// The pieces, and the members that their sums pass. Members are positions in the view.
#[derive(Debug, PartialEq, Eq)]
pub struct Kept {
    /// By chunk.
    pieces: Vec<Vec<Piece>>,
    /// By part.
    chains: Vec<Chain>,
    /// By member: the parts that it is the first keeper of, in order.
    firsts: Vec<Vec<u16>>,
    /// All pieces of the vector, in its order, with their places.
    order: Vec<(Range<usize>, (usize, usize))>,
    /// If members exchange the squares of their sums: the elements that these leave out.
    pub clips: Option<Vec<Range<usize>>>,
    /// The lanes, if the model is split. Then sums pass all keepers of a part's weights, and members publish only
    /// words.
    pub lanes: Option<Lanes>,
}

impl Kept {
    /// The pieces, of at most `piece` elements, of parts whose sums pass these of `members` members.
    ///
    /// # Panics
    /// If a part has no keeper.
    pub fn new(
        parts: Parts,
        chains: Vec<Chain>,
        (members, piece): (usize, usize),
        clips: Option<Vec<Range<usize>>>,
    ) -> Self {
        Self::with_lanes(parts, chains, (members, piece), clips, None)
    }

    /// The pieces of a split model: no piece lies across the border of a step.
    ///
    /// # Panics
    /// If a part has no keeper.
    pub fn with_lanes(
        parts: Parts,
        chains: Vec<Chain>,
        (members, piece): (usize, usize),
        clips: Option<Vec<Range<usize>>>,
        lanes: Option<Lanes>,
    ) -> Self {
        let borders = lanes
            .as_ref()
            .map(|lanes| lanes.split.borders())
            .unwrap_or_default();
        let (mut pieces, mut firsts) = (vec![Vec::new(); members], vec![Vec::new(); members]);
        for (part, chain) in parts.iter().zip(&chains) {
            let (first, last) = (chain.members[0], chain.members[chain.members.len() - 1]);
            firsts[first].push(part);
            for range in parts.pieces(part, piece) {
                let part = Some(part);
                let inner = borders.range(range.start + 1..range.end.max(range.start + 1));
                let mut start = range.start;
                for end in inner.copied().chain([range.end]) {
                    let range = start..end;
                    pieces[last].push(Piece { range, part });
                    start = end;
                }
            }
        }
        for (pieces, firsts) in pieces.iter_mut().zip(&firsts) {
            if clips.is_some() || lanes.is_some() || pieces.is_empty() || firsts.is_empty() {
                let (range, part) = (0..0, None);
                pieces.insert(0, Piece { range, part });
            }
        }
        let chunks = pieces.iter().enumerate();
        let order = chunks.flat_map(|(c, pieces)| {
            let places = pieces
                .iter()
                .enumerate()
                .filter(|(_, piece)| piece.part.is_some());
            places.map(move |(p, piece)| (piece.range.clone(), (c, p)))
        });
        let mut order: Vec<_> = order.collect();
        order.sort_unstable_by_key(|(range, _)| range.start);
        Self {
            pieces,
            chains,
            firsts,
            order,
            clips,
            lanes,
        }
    }

    /// Number of pieces of a chunk.
    pub fn pieces(&self, chunk: usize) -> usize {
        self.pieces[chunk].len()
    }

    /// Elements of a piece, if it exists.
    pub fn range(&self, chunk: usize, piece: usize) -> Option<Range<usize>> {
        Some(self.pieces.get(chunk)?.get(piece)?.range.clone())
    }

    /// The part of a piece; `None` for the word.
    pub fn part(&self, chunk: usize, piece: usize) -> Option<u16> {
        self.pieces[chunk][piece].part
    }

    /// The members that the sum of a piece passes, in order. A word passes its member alone.
    pub fn chain(&self, chunk: usize, piece: usize) -> &[usize] {
        const ALL: [usize; crate::run::config::MAX_PEERS] = {
            let mut all = [0; crate::run::config::MAX_PEERS];
            let mut i = 0;
            while i < all.len() {
                all[i] = i;
                i += 1;
            }
            all
        };
        match self.part(chunk, piece) {
            Some(part) => &self.chains[usize::from(part)].members,
            None => &ALL[chunk..=chunk],
        }
    }

    /// Whether a member computes the update of a piece from the sum, as a keeper that is not the last. In a split
    /// run nobody makes updates: each member steps its own parts.
    pub fn makes(&self, chunk: usize, piece: usize, member: usize) -> bool {
        let piece = self.pieces.get(chunk).and_then(|pieces| pieces.get(piece));
        let part = piece.and_then(|piece| piece.part);
        let chain = part.map(|part| &self.chains[usize::from(part)]);
        let makes = chain.and_then(|chain| chain.members.get(chain.learners..chain.members.len() - 1));
        self.lanes.is_none() && makes.is_some_and(|makes| makes.contains(&member))
    }

    /// The parts that a member is the first keeper of, in order.
    pub fn firsts(&self, member: usize) -> &[u16] {
        &self.firsts[member]
    }

    /// The number of sums that a member must hold before anybody commits. In a split run these are all pieces that
    /// pass it.
    pub fn to_hold(&self, member: usize) -> usize {
        let passes = |(_, (c, p)): &&(Range<usize>, (usize, usize))| self.chain(*c, *p).contains(&member);
        match self.lanes {
            Some(_) => self.order.iter().filter(passes).count(),
            None => 0,
        }
    }

    /// Whether a finished piece is sent to all. In a split run only words are.
    pub fn is_told(&self, chunk: usize, piece: usize) -> bool {
        self.lanes.is_none() || self.part(chunk, piece).is_none()
    }

    /// Number of pieces of a chunk that are sent to all once finished. These come first.
    pub fn told(&self, chunk: usize) -> usize {
        match self.lanes {
            Some(_) => 1,
            None => self.pieces(chunk),
        }
    }

    /// The pieces of a part, in order, with their places.
    pub fn of_part(&self, part: u16) -> impl Iterator<Item = &(Range<usize>, (usize, usize))> {
        let of = move |(_, (c, p)): &&(Range<usize>, (usize, usize))| self.pieces[*c][*p].part == Some(part);
        let first = self
            .order
            .partition_point(move |(_, (c, p))| self.pieces[*c][*p].part < Some(part));
        self.order[first..].iter().take_while(of)
    }

    /// All pieces of the vector that touch a range, in its order, with their places.
    pub fn touching(&self, range: &Range<usize>) -> &[(Range<usize>, (usize, usize))] {
        let first = self.order.partition_point(|(piece, _)| piece.end <= range.start);
        let last = self.order.partition_point(|(piece, _)| piece.start < range.end);
        &self.order[first..last.max(first)]
    }

    /// The part with an element, if there is such an element.
    pub fn part_at(&self, element: usize) -> Option<u16> {
        let at = self.order.partition_point(|(piece, _)| piece.end <= element);
        let (_, (c, p)) = self.order.get(at)?;
        self.pieces[*c][*p].part
    }

    /// The end of the piece with an element, if there is such an element.
    pub fn piece_end(&self, element: usize) -> Option<usize> {
        let at = self.order.partition_point(|(piece, _)| piece.end <= element);
        self.order.get(at).map(|(piece, _)| piece.end)
    }

    /// Bytes of a word.
    pub fn word_len(&self, chunk: usize) -> usize {
        match self.clips {
            Some(_) => 8 * self.firsts[chunk].len(),
            None => 0,
        }
    }

    /// The square of the sums from an element on, for the norm.
    pub fn squared(&self, start: usize, sums: &[f32]) -> f64 {
        norm_squared_without(self.clips.as_deref().unwrap_or_default(), start, sums)
    }
}
