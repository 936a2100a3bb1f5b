//! What an owner signs of the chunk that it finishes.
//!
//! Where each member gets a finished chunk from its owner alone, that could send each something else. So it signs the hash
//! of all that it sends, once in an attempt, and nobody takes a chunk that does not have the hash that came with it. Whoever
//! holds other sums than somebody else then holds one half of a proof, and the other has the other half: they show them to
//! each other as soon as their states are seen to differ.

use crate::access::signature::{Attempt, Signed, Statement};
use crate::base::id::{Digest, PeerId, ViewKey};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// "The pieces of my chunk have these hashes, in their order": the hash of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished(pub Digest);

impl Statement for Finished {
    const KIND: &'static str = "finished";
    type Bound = Attempt;
}

impl Finished {
    /// What is said of a chunk with these pieces.
    pub fn of(pieces: &[Digest]) -> Self {
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.0).collect();
        Self(Digest::of(&bytes))
    }
}

/// An owner's word on its chunk.
pub type Seal = Signed<Finished>;

/// The words of all owners in an attempt that was committed.
#[derive(Clone, Debug)]
pub(crate) struct Sealed {
    pub attempt: Attempt,
    /// In ring order, which is that of the seals.
    pub members: Vec<PeerId>,
    pub seals: Vec<Seal>,
}

/// Rounds whose seals are kept: the one in which states are found to differ is the next, and who hears of it late may be
/// one further.
const KEPT: usize = 3;

/// The seals of the last rounds.
#[derive(Debug, Default)]
pub(crate) struct Seals(VecDeque<Sealed>);

impl Seals {
    /// A round is committed.
    pub fn keep(&mut self, sealed: Sealed) {
        if self.0.len() >= KEPT {
            self.0.pop_front();
        }
        self.0.push_back(sealed);
    }

    /// Those of an attempt.
    pub fn of(&self, view: ViewKey) -> Option<&Sealed> {
        self.0.iter().find(|sealed| sealed.attempt.view == view)
    }

    /// Bytes that they hold.
    pub fn bytes(&self) -> usize {
        let one = size_of::<PeerId>() + size_of::<Seal>();
        self.0.iter().map(|sealed| sealed.seals.len() * one).sum()
    }
}
