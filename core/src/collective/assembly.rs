//! The finished pieces of one attempt, in their encoded form.

use super::sum::{Room, sum_encode};
use super::{Cut, Kept, Plan};
use crate::base::jobs::{Job, Jobs, PART};
use crate::numeric::codec::Codec;
use crate::wire::{Leg, Message, ViewKey};
use bytes::Bytes;
use std::ops::Range;

/// The finished pieces of one attempt that have come so far.
#[derive(Clone, Debug)]
pub struct Assembly {
    cut: Cut,
    codec: Codec,
    pieces: Vec<Vec<Option<Bytes>>>,
    lacking: usize,
    /// Whether its pieces are sums even if members keep parts of the moments.
    is_serial: bool,
    /// Pieces of the elements before this one are in the state, and kept only there.
    in_state: usize,
    /// Sums before they were encoded, by their first element. Only for a planted bug.
    #[cfg(feature = "sim")]
    pub(super) exact: std::collections::BTreeMap<usize, Vec<f32>>,
}

impl Assembly {
    /// An assembly without pieces.
    pub fn new(cut: Cut, codec: Codec) -> Self {
        let pieces: Vec<_> = (0..cut.members).map(|c| vec![None; cut.told(c)]).collect();
        let lacking = pieces.iter().map(Vec::len).sum();
        Self {
            cut,
            codec,
            pieces,
            lacking,
            is_serial: false,
            in_state: 0,
            #[cfg(feature = "sim")]
            exact: Default::default(),
        }
    }

    /// The squared norm of the sum: what each member has summed, part by part in the order of the vector. `None` if
    /// members do not exchange it.
    pub fn squared(&self) -> Option<f64> {
        let kept = self.cut.kept.as_deref().filter(|kept| kept.clips.is_some())?;
        if self.is_serial {
            return Some(self.squared_of_all(kept));
        }
        let mut told: Vec<(u16, f64)> = Vec::new();
        for chunk in 0..self.cut.members {
            let word = self.get(chunk as u16, 0)?;
            let squares = word
                .as_chunks::<8>()
                .0
                .iter()
                .map(|bytes| f64::from_le_bytes(*bytes));
            told.extend(kept.firsts(chunk).iter().copied().zip(squares));
        }
        told.sort_unstable_by_key(|(part, _)| *part);
        Some(told.iter().map(|(_, squared)| squared).sum())
    }

    /// The squared norm of the sum, computed from all sums.
    fn squared_of_all(&self, kept: &Kept) -> f64 {
        let mut parts = Vec::new();
        self.decode(0..self.cut.len, |range, values| {
            let part = kept.part_at(range.start);
            let squared = kept.squared(range.start, values);
            match parts.last_mut() {
                Some((last, all)) if *last == part => *all += squared,
                _ => parts.push((part, squared)),
            }
        });
        parts.iter().map(|(_, squared)| squared).sum()
    }

    /// All sums that are there, by the first element of their piece.
    pub fn sums(&self) -> impl Iterator<Item = (Range<usize>, &Bytes)> {
        let order = self
            .cut
            .kept
            .iter()
            .flat_map(|kept| kept.touching(&(0..self.cut.len)));
        order.filter_map(|(range, (c, p))| Some((range.clone(), self.pieces[*c][*p].as_ref()?)))
    }

    /// Whether bytes can be a piece. Updates are not sums, so they may be any numbers.
    fn fits(&self, chunk: usize, piece: usize, data: &Bytes) -> bool {
        let told = self.cut.kept.as_ref().is_none_or(|kept| piece < kept.told(chunk));
        let Some(range) = self.cut.range(chunk, piece).filter(|_| told) else {
            return false;
        };
        match &self.cut.kept {
            _ if self.is_serial => self.codec.is_summable(data, range.len(), self.cut.members),
            None => self.codec.is_summable(data, range.len(), self.cut.members),
            Some(kept) if kept.part(chunk, piece).is_none() => data.len() == kept.word_len(chunk),
            Some(_) if self.codec == Codec::F32 => data.len() == Codec::F32.encoded_len(range.len()),
            Some(_) => self.codec.is_summable(data, range.len(), 1),
        }
    }

    /// Carries a plan out in one place, from all contributions: the result is what every member would hold.
    /// `contributions` are in the order of the view, each as long as the vector. So are `errors`, which receive the
    /// rounding errors of each member's sums.
    pub fn serial(
        plan: Plan,
        codec: Codec,
        contributions: &[impl AsRef<[f32]>],
        errors: Option<&mut [Vec<f32>]>,
    ) -> Self {
        assert_eq!(contributions.len(), plan.cut.members);
        let mut all = Self::new(plan.cut.clone(), codec);
        all.is_serial = true;
        let mut serial = Serial {
            plan: plan.clone(),
            codec,
            contributions,
            errors,
            room: Room::default(),
        };
        for chunk in 0..plan.cut.members {
            for piece in 0..plan.cut.pieces(chunk) {
                let range = plan.cut.range(chunk, piece).expect("a piece of this chunk");
                let sums = serial.plan.sums((chunk, piece));
                let sum = serial.sum((chunk, piece), sums, range);
                let put = all.put(chunk as u16, piece as u32, sum.into());
                assert_eq!(put, Some(true), "a piece of this vector");
            }
        }
        all
    }

    /// The cut of the vector.
    pub fn cut(&self) -> &Cut {
        &self.cut
    }

    /// The codec of its pieces.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Adds a piece. `None` if it cannot be a sum of this vector, `Some(false)` if it is there already.
    pub fn put(&mut self, chunk: u16, piece: u32, data: Bytes) -> Option<bool> {
        if usize::from(chunk) >= self.cut.members || !self.fits(usize::from(chunk), piece as usize, &data) {
            return None;
        }
        Some(self.add(chunk, piece, data))
    }

    /// Adds a piece that is a sum of this vector, since this member has made it. False if it is there already.
    pub(super) fn add(&mut self, chunk: u16, piece: u32, data: Bytes) -> bool {
        debug_assert!(
            self.fits(usize::from(chunk), piece as usize, &data),
            "what can be summed gives what can be a sum"
        );
        let slot = &mut self.pieces[usize::from(chunk)][piece as usize];
        let new = slot.is_none();
        if new {
            *slot = Some(data);
            self.lacking -= 1;
        }
        new
    }

    /// A piece, if it is there.
    pub fn get(&self, chunk: u16, piece: u32) -> Option<&Bytes> {
        self.pieces.get(usize::from(chunk))?.get(piece as usize)?.as_ref()
    }

    /// Declares that all pieces before an element are in the state. If updates are `f32`, they are the parameters
    /// themselves, so those pieces are dropped to save a vector of memory. They are needed again only if a member
    /// lacks some.
    pub(crate) fn let_go(&mut self, until: usize) {
        let Some(kept) = self.cut.kept.clone().filter(|_| self.codec == Codec::F32) else {
            return;
        };
        for (range, (c, p)) in kept.touching(&(self.in_state..until)) {
            if let Some(data) = self.pieces[*c][*p].as_mut().filter(|_| range.end <= until) {
                *data = Bytes::new();
            }
        }
        self.in_state = until;
    }

    /// The elements of a piece that was dropped. The parameters there are its content.
    pub(crate) fn gone(&self, chunk: u16, piece: u32) -> Option<Range<usize>> {
        let range = self.cut.range(chunk.into(), piece as usize)?;
        (self.get(chunk, piece)?.is_empty() && !range.is_empty()).then_some(range)
    }

    /// Drops the pieces of a chunk.
    pub fn drop_chunk(&mut self, chunk: usize) {
        let pieces = &mut self.pieces[chunk];
        self.lacking += pieces.iter().flatten().count();
        pieces.fill(None);
    }

    /// Bytes of the pieces that are there.
    pub fn bytes(&self) -> usize {
        self.pieces.iter().flatten().flatten().map(Bytes::len).sum()
    }

    /// Whether all pieces are there.
    pub fn is_complete(&self) -> bool {
        self.lacking == 0
    }

    /// A piece as a message of an attempt, if it is there.
    pub fn message(&self, view: ViewKey, chunk: u16, piece: u32) -> Option<Message> {
        let data = self.get(chunk, piece)?.clone();
        Some(finished_piece(view, (chunk, piece), data))
    }

    /// All pieces that are there, as messages of an attempt.
    pub fn messages(&self, view: ViewKey) -> impl Iterator<Item = Message> {
        let chunks = self.pieces.iter().zip(0..);
        let all =
            chunks.flat_map(|(pieces, chunk)| (0..pieces.len() as u32).map(move |piece| (chunk, piece)));
        all.filter_map(move |(chunk, piece)| self.message(view, chunk, piece))
    }

    /// Chunk and number of the missing pieces.
    pub fn missing(&self) -> Vec<(u16, u32)> {
        let chunks = self.pieces.iter().enumerate();
        chunks
            .flat_map(|(c, pieces)| {
                let lacking = pieces.iter().enumerate().filter(|(_, p)| p.is_none());
                lacking.map(move |(p, _)| (c as u16, p as u32))
            })
            .collect()
    }

    /// What `each` makes of every piece, in the order of the vector.
    pub(crate) fn of_pieces<T: Send>(
        &self,
        each: impl Fn(Range<usize>, &[f32]) -> T + Sync,
        jobs: &dyn Jobs,
    ) -> Vec<T> {
        let mut made: Vec<(Range<usize>, Vec<T>)> = Vec::new();
        let mut start = 0;
        while start < self.cut.len {
            let mut end = start;
            // Kept pieces do not lie in the order of the vector.
            while end < self.cut.len && (end - start < PART || self.cut.kept.is_some()) {
                end = self.cut.piece_end(end);
            }
            made.push((start..end, Vec::new()));
            start = end;
        }
        let each = &each;
        let job = |(range, made): &mut (Range<usize>, Vec<T>)| {
            self.decode(range.clone(), |range, values| made.push(each(range, values)));
        };
        let job = &job;
        jobs.run(
            made.iter_mut()
                .map(|part| Box::new(move || job(part)) as Job<'_>)
                .collect(),
        );
        made.into_iter().flat_map(|(_, made)| made).collect()
    }

    /// Decodes all pieces that touch a range of elements, and passes each to `each` with its elements.
    pub fn decode(&self, range: Range<usize>, mut each: impl FnMut(Range<usize>, &[f32])) {
        let mut values = Vec::new();
        if self.cut.kept.is_some() {
            return self.decode_kept(range, &mut values, each);
        }
        for (c, pieces) in self.pieces.iter().enumerate() {
            let chunk = self.cut.chunk(c);
            if chunk.end <= range.start || chunk.start >= range.end {
                continue;
            }
            let first = range.start.saturating_sub(chunk.start) / self.cut.piece;
            for (p, data) in pieces.iter().enumerate().skip(first) {
                let whole = self.cut.range(c, p).expect("own piece");
                if whole.start >= range.end {
                    break;
                }
                let part = whole.start.max(range.start)..whole.end.min(range.end);
                let Some(data) = data.as_ref().filter(|_| !part.is_empty()) else {
                    continue;
                };
                let here = part.start - whole.start..part.end - whole.start;
                #[cfg(feature = "sim")]
                if let Some(exact) = self.exact.get(&whole.start) {
                    each(part, &exact[here]);
                    continue;
                }
                if let Some(lying) = self.codec.as_it_lies(data) {
                    each(part, &lying[here]);
                    continue;
                }
                values.resize(whole.len(), 0.0);
                let decoded = self.codec.decode(data, &mut values);
                decoded.expect("it was checked when it came");
                each(part, &values[here]);
            }
        }
    }
}

impl Assembly {
    /// Decodes a range of elements into a slice, if members keep parts of the moments. A piece that lies within the
    /// range is not copied in between.
    pub(crate) fn decode_into(&self, range: Range<usize>, out: &mut [f32]) {
        let Some(kept) = &self.cut.kept else { return };
        for (whole, (c, p)) in kept.touching(&range) {
            let here = self.pieces[*c][*p].as_ref();
            let Some(data) = here.filter(|data| !data.is_empty()) else {
                continue;
            };
            let sound = "it was checked when it came";
            if whole.start >= range.start && whole.end <= range.end {
                let out = &mut out[whole.start - range.start..whole.end - range.start];
                self.codec.decode(data, out).expect(sound);
                continue;
            }
            let mut values = vec![0.0; whole.len()];
            self.codec.decode(data, &mut values).expect(sound);
            let part = whole.start.max(range.start)..whole.end.min(range.end);
            out[part.start - range.start..part.end - range.start]
                .copy_from_slice(&values[part.start - whole.start..part.end - whole.start]);
        }
    }

    /// Decodes a range where members keep parts. Chunks are not contiguous then.
    fn decode_kept(
        &self,
        range: Range<usize>,
        values: &mut Vec<f32>,
        mut each: impl FnMut(Range<usize>, &[f32]),
    ) {
        let Some(kept) = &self.cut.kept else { return };
        let pieces = kept.touching(&range);
        for (whole, (c, p)) in pieces {
            let part = whole.start.max(range.start)..whole.end.min(range.end);
            let here = self.pieces[*c][*p].as_ref();
            let Some(data) = here.filter(|data| !data.is_empty()) else {
                continue;
            };
            values.resize(whole.len(), 0.0);
            self.codec
                .decode(data, values)
                .expect("it was checked when it came");
            each(
                part.clone(),
                &values[part.start - whole.start..part.end - whole.start],
            );
        }
    }
}

/// A finished piece as a message of an attempt.
pub(crate) fn finished_piece(view: ViewKey, (chunk, piece): (u16, u32), data: Bytes) -> Message {
    Message::Piece {
        view,
        leg: Leg::Finished,
        chunk,
        piece,
        headers: Vec::new(),
        all: None,
        seal: None,
        data,
    }
}

/// Sums all contributions in one place.
struct Serial<'a, C> {
    plan: Plan,
    codec: Codec,
    contributions: &'a [C],
    errors: Option<&'a mut [Vec<f32>]>,
    room: Room,
}

impl<C: AsRef<[f32]>> Serial<'_, C> {
    /// A member's sum of a piece, encoded: its inputs by the plan, and its own values.
    fn sum(&mut self, place: (usize, usize), member: usize, piece: Range<usize>) -> Vec<u8> {
        let inputs = self.plan.inputs(place, member);
        let inputs: Vec<_> = inputs
            .map(|input| self.sum(place, input, piece.clone()))
            .collect();
        let own = &self.contributions[member].as_ref()[piece.clone()];
        let errors = self.errors.as_deref_mut();
        let errors = errors.map(|errors| &mut errors[member][piece]);
        let mut sum = Vec::new();
        sum_encode(self.codec, &inputs, own, &mut self.room, errors, &mut sum).expect("encoded here");
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::jobs::InTurn;
    use crate::ledger::keepers::Chain;
    use crate::run::parts::Parts;
    use std::sync::Arc;

    #[test]
    fn pieces_come_in_the_order_of_the_vector_however_jobs_are_cut() {
        let cut = Cut {
            members: 3,
            guests: Vec::new(),
            len: 2 * PART + 12_345,
            piece: 16_384,
            grain: 1,
            kept: None,
        };
        let mut all = Assembly::new(cut.clone(), Codec::F32);
        for chunk in 0..cut.members {
            for piece in 0..cut.pieces(chunk) {
                let range = cut.range(chunk, piece).unwrap();
                let values: Vec<f32> = range.map(|i| i as f32).collect();
                let data = Bytes::copy_from_slice(bytemuck::cast_slice(&values));
                assert_eq!(all.put(chunk as u16, piece as u32, data), Some(true));
            }
        }
        let mut expected = Vec::new();
        all.decode(0..cut.len, |range, values| expected.push((range, values[0])));
        assert!(expected.len() > 30);
        assert_eq!(
            all.of_pieces(|range, values| (range, values[0]), &InTurn),
            expected
        );
    }

    /// Updates of a vector of 5,000 elements in parts of 768, of two members.
    fn updates() -> (Assembly, Vec<f32>) {
        let parts = Parts::of_len(5000);
        let chains = parts
            .iter()
            .map(|part| Chain {
                members: vec![usize::from(part) % 2],
                learners: 0,
            })
            .collect();
        let cut = Cut {
            members: 2,
            guests: Vec::new(),
            len: 5000,
            piece: 256,
            grain: 1,
            kept: Some(Arc::new(Kept::new(parts, chains, (2, 256), None))),
        };
        let values: Vec<f32> = (0..5000).map(|i| i as f32).collect();
        let mut all = Assembly::new(cut.clone(), Codec::F32);
        for chunk in 0..2 {
            for piece in 0..cut.pieces(chunk) {
                let range = cut.range(chunk, piece).unwrap();
                let mut data = Vec::new();
                Codec::F32.encode(&values[range], &mut data);
                assert_eq!(all.put(chunk as u16, piece as u32, data.into()), Some(true));
            }
        }
        (all, values)
    }

    #[test]
    fn what_is_in_the_state_is_not_held_and_not_missing() {
        let (mut all, _) = updates();
        let bytes = all.bytes();
        assert_eq!(bytes, 4 * 5000);
        // A piece across the border stays whole.
        all.let_go(1000);
        assert_eq!(all.bytes(), bytes - 4 * 768);
        all.let_go(2048);
        assert_eq!(all.bytes(), bytes - 4 * 2048);
        all.let_go(5000);
        assert_eq!((all.bytes(), all.is_complete(), all.missing()), (0, true, vec![]));
        let mut gone: Vec<_> = (0..2u16)
            .flat_map(|chunk| (0..all.cut().pieces(chunk.into()) as u32).map(move |piece| (chunk, piece)))
            .map(|(chunk, piece)| all.gone(chunk, piece).unwrap())
            .collect();
        gone.sort_unstable_by_key(|range| range.start);
        assert_eq!(gone.iter().map(|range| range.len()).sum::<usize>(), 5000);
        assert_eq!((gone[0].start, gone[1].start), (0, 256));
    }

    #[test]
    fn updates_of_a_range_come_as_they_are_wherever_it_begins() {
        let (all, values) = updates();
        for range in [0..5000, 100..4900, 256..512, 300..310, 767..769] {
            let mut out = vec![-1.0; range.len()];
            all.decode_into(range.clone(), &mut out);
            assert_eq!(out, values[range]);
        }
    }
}
