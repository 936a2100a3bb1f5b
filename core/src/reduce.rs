//! One all-reduce attempt of one member, piece by piece. A hop adds its own values to a piece and passes
//! it on at once (cut-through); it never waits for a whole chunk.

use crate::codec::Codec;
use crate::id::PeerId;
use crate::ledger::Header;
use crate::schedule::Ring;
use crate::wire::{Message, Phase, ViewKey};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;

/// The finished chunks of one attempt, encoded as they travel.
#[derive(Clone, Debug)]
pub struct Assembly {
    /// The attempt.
    pub view: ViewKey,
    /// How the vector is cut.
    pub ring: Ring,
    codec: Codec,
    pieces: Vec<Vec<Option<Bytes>>>,
    lacking: usize,
    /// Sums before they were encoded, by their first element: only for a planted bug.
    #[cfg(feature = "sim")]
    exact: std::collections::BTreeMap<usize, Vec<f32>>,
}

/// What one step of a member's part gives.
#[derive(Debug, Default)]
pub struct Hops {
    /// Messages to the successor.
    pub next: Vec<Message>,
    /// Pieces that are finished and that this member did not hold before.
    pub finished: Vec<Message>,
}

impl Assembly {
    /// Nothing is there yet.
    pub fn new(view: ViewKey, ring: Ring, codec: Codec) -> Self {
        let pieces: Vec<_> = (0..ring.n).map(|c| vec![None; ring.pieces(c)]).collect();
        let lacking = pieces.iter().map(Vec::len).sum();
        Self {
            view,
            ring,
            codec,
            pieces,
            lacking,
            #[cfg(feature = "sim")]
            exact: Default::default(),
        }
    }

    /// Where the piece that holds an element ends; the vector's end if there is no such element.
    pub fn piece_end(&self, element: usize) -> usize {
        self.ring.piece_end(element)
    }

    /// Takes a piece. `None` if it cannot be one of this vector, `Some(false)` if it is there already.
    pub fn put(&mut self, chunk: u16, piece: u32, data: Bytes) -> Option<bool> {
        let range = self.ring.range(usize::from(chunk), piece as usize)?;
        if data.len() != self.codec.encoded_len(range.len()) {
            return None;
        }
        let slot = &mut self.pieces[usize::from(chunk)][piece as usize];
        let new = slot.is_none();
        if new {
            *slot = Some(data);
            self.lacking -= 1;
        }
        Some(new)
    }

    /// A piece, if it is there.
    pub fn get(&self, chunk: u16, piece: u32) -> Option<&Bytes> {
        self.pieces.get(usize::from(chunk))?.get(piece as usize)?.as_ref()
    }

    /// Whether all pieces are there.
    pub fn is_complete(&self) -> bool {
        self.lacking == 0
    }

    /// A piece as it travels, if it is there.
    pub fn message(&self, chunk: u16, piece: u32) -> Option<Message> {
        Some(Message::Piece {
            view: self.view,
            phase: Phase::Gather,
            chunk,
            piece,
            headers: Vec::new(),
            data: self.get(chunk, piece)?.clone(),
        })
    }

    /// All pieces that are there, as they travel.
    pub fn messages(&self) -> impl Iterator<Item = Message> {
        let chunks = self.pieces.iter().zip(0..);
        let all =
            chunks.flat_map(|(pieces, chunk)| (0..pieces.len() as u32).map(move |piece| (chunk, piece)));
        all.filter_map(|(chunk, piece)| self.message(chunk, piece))
    }

    /// Chunk and number of the pieces that are not there.
    pub fn missing(&self) -> Vec<(u16, u32)> {
        let chunks = self.pieces.iter().enumerate();
        chunks
            .flat_map(|(c, pieces)| {
                let lacking = pieces.iter().enumerate().filter(|(_, p)| p.is_none());
                lacking.map(move |(p, _)| (c as u16, p as u32))
            })
            .collect()
    }

    /// Decodes all pieces that touch a range of elements and hands each over with the elements that it covers.
    pub fn decode(&self, range: Range<usize>, mut each: impl FnMut(Range<usize>, &[f32])) {
        let mut values = Vec::new();
        for (c, pieces) in self.pieces.iter().enumerate() {
            let chunk = self.ring.chunk(c);
            if chunk.end <= range.start || chunk.start >= range.end {
                continue;
            }
            let first = range.start.saturating_sub(chunk.start) / self.ring.piece;
            for (p, data) in pieces.iter().enumerate().skip(first) {
                let whole = self.ring.range(c, p).expect("own piece");
                if whole.start >= range.end {
                    break;
                }
                let part = whole.start.max(range.start)..whole.end.min(range.end);
                let Some(data) = data.as_ref().filter(|_| !part.is_empty()) else {
                    continue;
                };
                values.resize(whole.len(), 0.0);
                self.codec
                    .decode(data, &mut values)
                    .expect("length was checked when it came");
                #[cfg(feature = "sim")]
                if let Some(exact) = self.exact.get(&whole.start) {
                    values.copy_from_slice(exact);
                }
                each(
                    part.clone(),
                    &values[part.start - whole.start..part.end - whole.start],
                );
            }
        }
    }
}

/// A piece that contradicts the protocol: its sender is not what it says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation;

/// One member's part in one attempt.
#[derive(Debug)]
pub struct Reduce {
    me: usize,
    members: Vec<PeerId>,
    codec: Codec,
    header: Option<Header>,
    headers: Vec<Option<Header>>,
    /// Partial sums that came before this member's contribution was made. At most one vector.
    waiting: BTreeMap<(u16, u32), (Vec<Header>, Bytes)>,
    /// Room for sums that are being made.
    room: Vec<f32>,
    /// What is finished.
    pub gathered: Assembly,
    #[cfg(feature = "sim")]
    keep_exact: bool,
}

impl Reduce {
    /// Before anything has come or gone.
    pub fn new(view: ViewKey, members: Vec<PeerId>, me: usize, ring: Ring, codec: Codec) -> Self {
        debug_assert_eq!(members.len(), ring.n);
        Self {
            me,
            codec,
            header: None,
            headers: vec![None; members.len()],
            members,
            waiting: BTreeMap::new(),
            room: Vec::new(),
            gathered: Assembly::new(view, ring, codec),
            #[cfg(feature = "sim")]
            keep_exact: false,
        }
    }

    /// With the planted bug that an owner applies what it has, not what the others will decode.
    #[cfg(feature = "sim")]
    pub(crate) fn keeping_exact(mut self, keep_exact: bool) -> Self {
        self.keep_exact = keep_exact;
        self
    }

    /// What is finished, once it is no longer needed here.
    pub fn take_gathered(&mut self) -> Assembly {
        let view = self.gathered.view;
        let ring = Ring {
            n: 1,
            len: 0,
            piece: 1,
        };
        std::mem::replace(&mut self.gathered, Assembly::new(view, ring, self.codec))
    }

    /// The member that all messages go to.
    pub fn successor(&self) -> PeerId {
        self.members[self.gathered.ring.next(self.me)]
    }

    /// Whether this member's values are in.
    pub fn is_started(&self) -> bool {
        self.header.is_some()
    }

    /// Whether another member has begun.
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Bytes of partial sums that wait.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting.values().map(|(_, data)| data.len()).sum()
    }

    /// The headers of all members, once this member has them all.
    pub fn headers(&self) -> Option<Vec<Header>> {
        self.headers.iter().cloned().collect()
    }

    /// Puts this member's values in: sends the chunk that starts here and all that waited.
    pub fn start(&mut self, own: &[f32], header: Header, out: &mut Hops) -> Result<(), Violation> {
        let ring = self.gathered.ring;
        debug_assert_eq!(own.len(), ring.len);
        self.headers[self.me] = Some(header.clone());
        self.header = Some(header);
        let chunk = ring.starts_at(self.me);
        for piece in 0..ring.pieces(chunk) {
            let values = &own[ring.range(chunk, piece).expect("own chunk")];
            let mut data = Vec::with_capacity(self.codec.encoded_len(values.len()));
            self.codec.encode(values, &mut data);
            #[cfg(feature = "sim")]
            self.keep_if_exact(chunk, piece, || values.to_vec());
            self.pass_on(chunk as u16, piece as u32, Vec::new(), data.into(), out);
        }
        for ((chunk, piece), (headers, data)) in std::mem::take(&mut self.waiting) {
            self.add(own, chunk, piece, headers, &data, out)?;
        }
        Ok(())
    }

    /// Takes a piece from the predecessor. `own` are this member's values if they are in.
    pub fn accept(&mut self, own: Option<&[f32]>, message: Message, out: &mut Hops) -> Result<(), Violation> {
        let Message::Piece {
            phase,
            chunk,
            piece,
            headers,
            data,
            ..
        } = message
        else {
            return Err(Violation);
        };
        let range = self
            .gathered
            .ring
            .range(usize::from(chunk), piece as usize)
            .ok_or(Violation)?;
        if data.len() != self.codec.encoded_len(range.len()) {
            return Err(Violation);
        }
        match (phase, own) {
            (Phase::Gather, _) => self.gather(chunk, piece, data, out),
            (Phase::Scatter, Some(own)) if self.is_started() => {
                self.add(own, chunk, piece, headers, &data, out)?
            }
            (Phase::Scatter, _) => {
                self.waiting.insert((chunk, piece), (headers, data));
            }
        }
        Ok(())
    }

    /// Whether everything is there to commit.
    pub fn is_complete(&self) -> bool {
        self.is_started() && self.gathered.is_complete() && self.headers.iter().all(Option::is_some)
    }

    /// Adds this member's values to a partial sum.
    fn add(
        &mut self,
        own: &[f32],
        chunk: u16,
        piece: u32,
        headers: Vec<Header>,
        data: &[u8],
        out: &mut Hops,
    ) -> Result<(), Violation> {
        let ring = self.gathered.ring;
        if piece == 0 {
            self.take_headers(usize::from(chunk), &headers)?;
        }
        if ring.starts_at(self.me) == usize::from(chunk) {
            return Err(Violation);
        }
        let range = ring.range(usize::from(chunk), piece as usize).ok_or(Violation)?;
        let (own, codec) = (&own[range], self.codec);
        let mut sum = Vec::with_capacity(data.len());
        codec
            .add_encode(data, own, &mut self.room, &mut sum)
            .map_err(|_| Violation)?;
        #[cfg(feature = "sim")]
        self.keep_if_exact(usize::from(chunk), piece as usize, || {
            let mut exact = vec![0.0; own.len()];
            codec
                .decode_add(data, own, &mut exact)
                .expect("it was added above");
            exact
        });
        self.pass_on(chunk, piece, headers, sum.into(), out);
        Ok(())
    }

    /// Remembers what a finished piece was before it was encoded, if there is a bug to plant.
    #[cfg(feature = "sim")]
    fn keep_if_exact(&mut self, chunk: usize, piece: usize, exact: impl FnOnce() -> Vec<f32>) {
        if self.keep_exact && chunk == self.me {
            let range = self.gathered.ring.range(chunk, piece).expect("own chunk");
            self.gathered.exact.insert(range.start, exact());
        }
    }

    /// Sends a partial sum to the next hop, or the finished one to all.
    fn pass_on(&mut self, chunk: u16, piece: u32, mut headers: Vec<Header>, data: Bytes, out: &mut Hops) {
        if usize::from(chunk) == self.me {
            return self.gather(chunk, piece, data, out);
        }
        headers.extend(self.header.clone().filter(|_| piece == 0));
        let view = self.gathered.view;
        out.next.push(Message::Piece {
            view,
            phase: Phase::Scatter,
            chunk,
            piece,
            headers,
            data,
        });
    }

    /// Keeps a finished piece and forwards it verbatim, unless the next member is where it came from.
    fn gather(&mut self, chunk: u16, piece: u32, data: Bytes, out: &mut Hops) {
        let last = self.gathered.ring.next(self.me) == usize::from(chunk);
        if self.gathered.put(chunk, piece, data) == Some(true)
            && let Some(message) = self.gathered.message(chunk, piece)
        {
            if !last {
                out.next.push(message.clone());
            }
            out.finished.push(message);
        }
    }

    /// Checks that the headers are those of the members passed, and keeps them.
    fn take_headers(&mut self, chunk: usize, headers: &[Header]) -> Result<(), Violation> {
        let ring = self.gathered.ring;
        if headers.len() != ring.passed(chunk, self.me) {
            return Err(Violation);
        }
        for (passed, header) in headers.iter().enumerate() {
            let member = ring.hop(chunk, passed);
            if header.peer != self.members[member] {
                return Err(Violation);
            }
            self.headers[member] = Some(header.clone());
        }
        Ok(())
    }
}
