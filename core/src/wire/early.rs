//! Pieces for views that this peer has not reached yet: it keeps them, within bounds, until it does.
//!
//! Nobody can tell yet whether such a piece is genuine: a newcomer that was just admitted is a stranger to all but
//! its sponsor until they commit that round. So pieces are kept whoever sent them, but strangers' pieces are
//! dropped first, and then those of the sender with most.

use crate::base::id::PeerId;
use crate::ledger::seal::Seal;
use crate::run::config::MAX_PEERS;
use crate::wire::{Message, ViewKey};
use std::collections::{BTreeMap, VecDeque};

/// Most early pieces, for vectors so short that bytes are no bound.
const PIECES_LIMIT: usize = 1 << 16;

/// Most senders of early pieces: a view's members, and as many again that may be in the next.
const AUTHORS_LIMIT: usize = 2 * MAX_PEERS;

/// Room for the headers of a view, besides its vectors.
const HEADERS_BYTES: usize = 128 << 10;

/// The early pieces of one peer, in order.
#[derive(Debug, Default)]
struct Author {
    known: bool,
    bytes: usize,
    /// Each with its number among all that were kept.
    pieces: VecDeque<(u64, Message)>,
}

/// Pieces that came before their view, by sender. Of each sender the oldest are dropped first.
#[derive(Debug)]
pub(crate) struct EarlyPieces {
    authors: BTreeMap<PeerId, Author>,
    kept: u64,
    pieces: usize,
    bytes: usize,
    limit_bytes: usize,
}

impl EarlyPieces {
    /// Room for two vectors of this many bytes.
    pub fn new(vector_bytes: usize) -> Self {
        Self {
            authors: BTreeMap::new(),
            kept: 0,
            pieces: 0,
            bytes: 0,
            limit_bytes: 2 * vector_bytes + HEADERS_BYTES,
        }
    }

    /// Bytes of everything that it holds.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps a piece of a `known` peer or of a stranger.
    pub fn keep(&mut self, from: PeerId, known: bool, piece: Message) {
        let bytes = weight(&piece);
        let author = self.authors.entry(from).or_default();
        author.known = known;
        author.bytes += bytes;
        author.pieces.push_back((self.kept, piece));
        self.kept += 1;
        self.pieces += 1;
        self.bytes += bytes;
        while self.bytes > self.limit_bytes
            || self.pieces > PIECES_LIMIT
            || self.authors.len() > AUTHORS_LIMIT
        {
            self.drop_one();
        }
    }

    /// Drops the oldest piece of a stranger or, without strangers, of the sender with most.
    fn drop_one(&mut self) {
        let most = |(_, author): &(&PeerId, &Author)| (!author.known, author.bytes, author.pieces.len());
        let Some(peer) = self.authors.iter().max_by_key(most).map(|(peer, _)| *peer) else {
            return;
        };
        let author = self.authors.get_mut(&peer).expect("just found");
        if let Some((_, piece)) = author.pieces.pop_front() {
            let bytes = weight(&piece);
            author.bytes -= bytes;
            self.bytes -= bytes;
            self.pieces -= 1;
        }
        if author.pieces.is_empty() {
            self.authors.remove(&peer);
        }
    }

    /// Removes and returns the pieces of one view, in the order of arrival. Drops pieces that are too old to
    /// matter.
    pub fn take(&mut self, wanted: ViewKey) -> Vec<(PeerId, Message)> {
        let mut taken = Vec::new();
        for (peer, author) in &mut self.authors {
            for (number, piece) in std::mem::take(&mut author.pieces) {
                match &piece {
                    Message::Piece { view, .. } | Message::Want { view, .. } if *view == wanted => {
                        taken.push((number, *peer, piece));
                    }
                    Message::Piece { view, .. } | Message::Want { view, .. }
                        if (view.round, view.attempt) >= (wanted.round, wanted.attempt) =>
                    {
                        author.pieces.push_back((number, piece));
                    }
                    _ => {}
                }
            }
            author.bytes = author.pieces.iter().map(|(_, piece)| weight(piece)).sum();
        }
        self.authors.retain(|_, author| !author.pieces.is_empty());
        self.pieces = self.authors.values().map(|author| author.pieces.len()).sum();
        self.bytes = self.authors.values().map(|author| author.bytes).sum();
        taken.sort_unstable_by_key(|(number, ..)| *number);
        taken.into_iter().map(|(_, peer, piece)| (peer, piece)).collect()
    }
}

/// Bytes that a piece holds: itself, its values, its decoded headers, and their encoded form, which shares the
/// frame with the values.
fn weight(message: &Message) -> usize {
    match message {
        Message::Piece {
            headers, seal, data, ..
        } => {
            let seal = if seal.is_some() { size_of::<Seal>() } else { 0 };
            size_of::<(u64, Message)>()
                + seal
                + data.len()
                + 2 * headers.iter().map(|h| h.bytes()).sum::<usize>()
        }
        Message::Want { have, .. } => size_of::<(u64, Message)>() + size_of_val(&have[..]),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Leg;
    use bytes::Bytes;

    const KEY: ViewKey = ViewKey {
        round: 2,
        attempt: 0,
        id: 7,
    };

    fn piece(number: u32, bytes: usize) -> Message {
        Message::Piece {
            view: KEY,
            leg: Leg::Partial,
            chunk: 0,
            piece: number,
            headers: Vec::new(),
            all: None,
            seal: None,
            data: Bytes::from(vec![0; bytes]),
        }
    }

    fn authors(taken: &[(PeerId, Message)]) -> Vec<u8> {
        taken.iter().map(|(peer, _)| peer.0[0]).collect()
    }

    #[test]
    fn a_stranger_drives_out_strangers_and_whoever_has_most_its_own() {
        let mut early = EarlyPieces::new(1 << 20);
        let limit = early.limit_bytes;
        let (member, other, stranger) = (PeerId([1; 32]), PeerId([2; 32]), PeerId([3; 32]));
        early.keep(member, true, piece(0, 1000));
        for number in 0..2000 {
            early.keep(stranger, false, piece(number, 10_000));
            early.keep(other, true, piece(number, 10_000));
            assert!(early.bytes <= limit);
        }
        let taken = early.take(KEY);
        assert_eq!(authors(&taken)[0], 1, "the first that came is still there");
        assert!(taken.iter().all(|(peer, _)| *peer != stranger));
        assert!(
            taken.len() > 200,
            "there is room for two vectors: {}",
            taken.len()
        );
        assert_eq!((early.bytes(), early.authors.len()), (0, 0));
    }

    #[test]
    fn pieces_come_out_in_the_order_in_which_they_came() {
        let mut early = EarlyPieces::new(1000);
        for (number, name) in [3, 1, 2, 1, 3].into_iter().enumerate() {
            early.keep(PeerId([name; 32]), name != 2, piece(number as u32, 8));
        }
        assert_eq!(authors(&early.take(KEY)), [3, 1, 2, 1, 3]);
    }
}
