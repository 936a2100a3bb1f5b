//! What owners have signed of their chunks in one attempt, as one member knows it, and whether what it holds is that.
//!
//! Pieces are hashed as they pass. An owner's seal rides on the last piece that it sends of its chunk; on each,
//! where somebody sends what is missing.

use super::Cut;
use crate::access::signature::{Attempt, Key};
use crate::base::id::Digest;
use crate::ledger::seal::{Finished, Seal};

/// One chunk.
#[derive(Debug, Default)]
struct Chunk {
    /// Of its pieces; anything of those that are not there.
    hashes: Vec<Digest>,
    /// Pieces that are not there.
    lacking: usize,
    /// Whether this member has made some of it itself, though it is another's.
    made: bool,
    /// Of its owner.
    seal: Option<Seal>,
    /// Whether all pieces are there, and what the owner has sealed.
    whole: bool,
}

impl Chunk {
    /// Takes a piece that was not there. What is to be said of the chunk, once it was the last.
    fn take(&mut self, piece: usize, data: &[u8]) -> Option<Finished> {
        self.hashes[piece] = Digest::of(data);
        self.lacking -= 1;
        (self.lacking == 0).then(|| Finished::of(&self.hashes))
    }
}

/// The chunks of one attempt.
#[derive(Debug)]
pub(super) struct Seals(Vec<Chunk>);

/// A chunk is whole, and not what its owner has signed.
#[derive(Debug)]
pub(super) enum Broken {
    /// All of it was sent.
    AsItCame,
    /// Some of it this member has made itself.
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

    /// A piece is there, and perhaps the owner's word came with it. Once all pieces are, they must be what the owner has said,
    /// and its signature `sound`; who has `trusted` looks at neither.
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

    /// The owner's word on a chunk, without a piece.
    pub fn tell(&mut self, chunk: usize, seal: Seal) {
        self.0[chunk].seal = Some(seal);
    }

    /// Some of another's chunk is made here.
    pub fn make(&mut self, chunk: usize) {
        self.0[chunk].made = true;
    }

    /// Whether some of a chunk was made here, as its owner has sealed it.
    pub fn has_made(&self, chunk: usize) -> bool {
        let of = &self.0[chunk];
        of.made && of.whole
    }

    /// This member has finished a piece of its own chunk. Its word on that, if it was the last.
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

    /// The planted bug of who makes another's update itself: it needs no seal.
    pub fn trust(&mut self, (chunk, piece): (usize, usize), data: &[u8]) {
        let of = &mut self.0[chunk];
        of.whole |= of.take(piece, data).is_some();
    }

    /// Whether a chunk is what its owner has sealed.
    pub fn has(&self, chunk: usize) -> bool {
        self.0[chunk].whole
    }

    /// Forgets what there is of a chunk.
    pub fn drop(&mut self, chunk: usize) {
        let of = &mut self.0[chunk];
        (of.lacking, of.seal) = (of.hashes.len(), None);
        (of.made, of.whole) = (false, false);
    }

    /// All of them, once all chunks are what their owners have sealed.
    pub fn all(&self) -> Option<Vec<Seal>> {
        let seal = |chunk: &Chunk| chunk.seal.clone().filter(|_| chunk.whole);
        self.0.iter().map(seal).collect()
    }

    pub fn are_complete(&self) -> bool {
        self.0.iter().all(|chunk| chunk.whole)
    }
}
