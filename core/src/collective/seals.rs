//! The owners' seals of their chunks in one attempt, as one member knows them, and whether its pieces match them.
//!
//! Pieces are hashed as they pass. A seal rides on the last piece of the chunk that the owner sends, or on each
//! piece that is sent because it was missing.

use super::Cut;
use crate::access::signature::{Attempt, Key};
use crate::base::id::Digest;
use crate::ledger::seal::{Finished, Seal};

/// One chunk.
#[derive(Debug, Default)]
struct Chunk {
    /// Of its pieces; arbitrary for missing ones.
    hashes: Vec<Digest>,
    /// Number of missing pieces.
    lacking: usize,
    /// Whether this member has computed some of it itself, although it is another's.
    made: bool,
    /// The owner's seal.
    seal: Option<Seal>,
    /// Whether all pieces are there and match the seal.
    whole: bool,
}

impl Chunk {
    /// Adds a missing piece. After the last one, returns the statement about the chunk.
    fn take(&mut self, piece: usize, data: &[u8]) -> Option<Finished> {
        self.hashes[piece] = Digest::of(data);
        self.lacking -= 1;
        (self.lacking == 0).then(|| Finished::of(&self.hashes))
    }
}

/// The chunks of one attempt.
#[derive(Debug)]
pub(super) struct Seals(Vec<Chunk>);

/// A chunk is whole, but does not match its seal.
#[derive(Debug)]
pub(super) enum Broken {
    /// All of it came from others.
    AsItCame,
    /// This member has computed some of it.
    AsMade,
}

impl Seals {
    pub fn new(cut: &Cut) -> Self {
        let chunk = |chunk| Chunk {
            hashes: vec![Digest([0; 32]); cut.told(chunk)],
            lacking: cut.told(chunk),
            ..Chunk::default()
        };
        Self((0..cut.members).map(chunk).collect())
    }

    /// Adds a piece, perhaps with the owner's seal. Once all pieces are there, they must match it, and its
    /// signature must be `sound`. With `trusted`, neither is checked.
    pub fn take(
        &mut self,
        (chunk, piece): (usize, usize),
        data: &[u8],
        seal: Option<Seal>,
        trusted: bool,
        sound: impl Fn(&Seal, usize) -> bool,
    ) -> Result<(), Broken> {
        let of = &mut self.0[chunk];
        of.seal = seal.or(of.seal.take());
        let Some(finished) = of.take(piece, data) else {
            return Ok(());
        };
        let good = |seal: &Seal| trusted || (seal.content == finished && sound(seal, chunk));
        of.whole = of.seal.as_ref().is_some_and(good);
        let broken = match of.made {
            true => Broken::AsMade,
            false => Broken::AsItCame,
        };
        of.whole.then_some(()).ok_or(broken)
    }

    /// Adds a seal that came without a piece.
    pub fn tell(&mut self, chunk: usize, seal: Seal) {
        self.0[chunk].seal = Some(seal);
    }

    /// Notes that this member computes some of another's chunk.
    pub fn make(&mut self, chunk: usize) {
        self.0[chunk].made = true;
    }

    /// Whether this member has computed some of a chunk, and it matches the seal.
    pub fn has_made(&self, chunk: usize) -> bool {
        let of = &self.0[chunk];
        of.made && of.whole
    }

    /// Adds a finished piece of this member's own chunk. After the last one, returns its seal.
    pub fn finish(
        &mut self,
        (chunk, piece): (usize, usize),
        data: &[u8],
        attempt: &Attempt,
        key: &Key,
    ) -> Option<Seal> {
        let of = &mut self.0[chunk];
        of.seal = Some(key.signed(attempt, of.take(piece, data)?));
        of.whole = true;
        of.seal.clone()
    }

    /// A planted bug: a member that computes another's update itself needs no seal.
    pub fn trust(&mut self, (chunk, piece): (usize, usize), data: &[u8]) {
        let of = &mut self.0[chunk];
        of.whole |= of.take(piece, data).is_some();
    }

    /// Whether a chunk is there and matches its seal.
    pub fn has(&self, chunk: usize) -> bool {
        self.0[chunk].whole
    }

    /// Forgets the pieces of a chunk.
    pub fn drop(&mut self, chunk: usize) {
        let of = &mut self.0[chunk];
        (of.lacking, of.seal) = (of.hashes.len(), None);
        (of.made, of.whole) = (false, false);
    }

    /// All seals, once all chunks match them.
    pub fn all(&self) -> Option<Vec<Seal>> {
        let seal = |chunk: &Chunk| chunk.seal.clone().filter(|_| chunk.whole);
        self.0.iter().map(seal).collect()
    }

    pub fn are_complete(&self) -> bool {
        self.0.iter().all(|chunk| chunk.whole)
    }
}
