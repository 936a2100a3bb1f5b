//! How a vector is cut where members keep parts of the moments: which pieces there are, and whom the sum of each passes.
//!
//! Contributions to a piece go to the first of its keepers, which adds them up. The finished sum passes all of them, each
//! holds it, and the last lets the *update* out to all, in the place of a finished piece: the weights after the step, or what
//! they change by. So a *chunk* is what one member lets out: the pieces whose last keeper it is. An update is out only when
//! every keeper holds the sum. Keepers are not sent what they can make of the sum as the last one does: they are told that it is
//! out.
//!
//! A chunk may begin with a *word*, a piece without elements: for the headers, where its member sums nothing, so that no
//! frames of others would go there that they could ride on; and for the squares of what it sums, in runs that clip by the
//! global norm. Of these the bytes are `f64`, one for each part that the member is the first keeper of.

use super::lanes::Lanes;
use crate::ledger::keepers::Chain;
use crate::run::parts::Parts;
use std::ops::Range;

/// One piece.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    range: Range<usize>,
    /// Of none, the word.
    part: Option<u16>,
}

/// Which pieces there are, and whom their sums pass. Members are positions in the view.
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
    /// Whether members tell each other the squares of what they sum.
    pub clips: bool,
    /// Who computes what, where a model is split over the members. Then sums pass all who keep a part's weights, and nobody lets
    /// anything out but its word.
    pub lanes: Option<Lanes>,
}

impl Kept {
    /// The pieces, of at most so many elements, of parts whose sums pass these members.
    ///
    /// # Panics
    /// If nobody keeps a part.
    pub fn new(parts: Parts, chains: Vec<Chain>, members: usize, piece: usize, clips: bool) -> Self {
        Self::with_lanes(parts, chains, (members, piece), clips, None)
    }

    /// Who keeps what where a model is split over the members: no piece lies across the border of a step.
    ///
    /// # Panics
    /// If nobody keeps a part.
    pub fn with_lanes(
        parts: Parts,
        chains: Vec<Chain>,
        (members, piece): (usize, usize),
        clips: bool,
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
            if clips || lanes.is_some() || pieces.is_empty() || firsts.is_empty() {
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

    /// Pieces of a chunk.
    pub fn pieces(&self, chunk: usize) -> usize {
        self.pieces[chunk].len()
    }

    /// Elements of a piece, if there is such a piece.
    pub fn range(&self, chunk: usize, piece: usize) -> Option<Range<usize>> {
        Some(self.pieces.get(chunk)?.get(piece)?.range.clone())
    }

    /// The part that a piece is of; none of the word.
    pub fn part(&self, chunk: usize, piece: usize) -> Option<u16> {
        self.pieces[chunk][piece].part
    }

    /// Whom the sum of a piece passes, in order: of a word, its member alone.
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

    /// Whether there is such a piece, and a member that its sum passes has the moments too, and is not the last. Where a model is
    /// split nobody makes updates: each steps its own parts.
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

    /// How many sums a member is to hold before anybody commits: where a model is split, those of all pieces that pass it.
    pub fn to_hold(&self, member: usize) -> usize {
        let passes = |(_, (c, p)): &&(Range<usize>, (usize, usize))| self.chain(*c, *p).contains(&member);
        match self.lanes {
            Some(_) => self.order.iter().filter(passes).count(),
            None => 0,
        }
    }

    /// Whether a piece travels to all once it is finished: where a model is split a word does, and nothing else.
    pub fn is_told(&self, chunk: usize, piece: usize) -> bool {
        self.lanes.is_none() || self.part(chunk, piece).is_none()
    }

    /// Pieces of a chunk that travel to all once they are finished. These come first.
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

    /// The part that an element is in, if there is such an element.
    pub fn part_at(&self, element: usize) -> Option<u16> {
        let at = self.order.partition_point(|(piece, _)| piece.end <= element);
        let (_, (c, p)) = self.order.get(at)?;
        self.pieces[*c][*p].part
    }

    /// Where the piece that holds an element ends, if there is such an element.
    pub fn piece_end(&self, element: usize) -> Option<usize> {
        let at = self.order.partition_point(|(piece, _)| piece.end <= element);
        self.order.get(at).map(|(piece, _)| piece.end)
    }

    /// Bytes of a word.
    pub fn word_len(&self, chunk: usize) -> usize {
        match self.clips {
            true => 8 * self.firsts[chunk].len(),
            false => 0,
        }
    }
}
