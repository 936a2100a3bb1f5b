//! Pieces of views that this peer has not reached yet: kept within bounds until it does.

use crate::id::PeerId;
use crate::wire::{Message, ViewKey};
use std::collections::VecDeque;

/// Most pieces that wait for their view, for vectors so short that bytes are no bound.
const PIECES_LIMIT: usize = 1 << 16;

/// Pieces that came before their view, each with its sender. The oldest are dropped first.
#[derive(Debug)]
pub(crate) struct EarlyPieces {
    pieces: VecDeque<(PeerId, Message)>,
    bytes: usize,
    limit_bytes: usize,
}

impl EarlyPieces {
    /// Room for two vectors of so many bytes.
    pub fn new(vector_bytes: usize) -> Self {
        Self {
            pieces: VecDeque::new(),
            bytes: 0,
            limit_bytes: 2 * vector_bytes + (64 << 10),
        }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn keep(&mut self, from: PeerId, piece: Message) {
        self.bytes += payload(&piece);
        self.pieces.push_back((from, piece));
        while self.bytes > self.limit_bytes || self.pieces.len() > PIECES_LIMIT {
            let Some((_, dropped)) = self.pieces.pop_front() else {
                break;
            };
            self.bytes -= payload(&dropped);
        }
    }

    /// Takes the pieces of one view out, and drops those that are too old to matter.
    pub fn take(&mut self, wanted: ViewKey) -> Vec<(PeerId, Message)> {
        let mut taken = Vec::new();
        for (from, piece) in std::mem::take(&mut self.pieces) {
            match &piece {
                Message::Piece { view, .. } if *view == wanted => taken.push((from, piece)),
                Message::Piece { view, .. }
                    if (view.round, view.attempt) >= (wanted.round, wanted.attempt) =>
                {
                    self.pieces.push_back((from, piece));
                }
                _ => {}
            }
        }
        self.bytes = self.pieces.iter().map(|(_, piece)| payload(piece)).sum();
        taken
    }
}

fn payload(message: &Message) -> usize {
    match message {
        Message::Piece { data, .. } => data.len(),
        _ => 0,
    }
}
