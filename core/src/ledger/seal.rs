//! Seals: an owner's signature on the chunk that it finishes.
//!
//! A member that receives a finished chunk only from its owner could receive other bytes than the rest. So the
//! owner signs the hash of the chunk, once in an attempt, and members reject a chunk without the hash that came
//! with it. If an owner signs two, then two members with different sums hold one half of a proof each. They show
//! them to each other as soon as their states differ.

use crate::access::signature::{Attempt, Signed, Statement};
use crate::base::id::{Digest, PeerId, ViewKey};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// "The pieces of my chunk have these hashes, in order": the hash of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished(pub Digest);

impl Statement for Finished {
    const KIND: &'static str = "finished";
    type Bound = Attempt;
}

impl Finished {
    /// The statement about a chunk with these pieces.
    pub fn of(pieces: &[Digest]) -> Self {
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.0).collect();
        Self(Digest::of(&bytes))
    }
}

/// An owner's signed statement about its chunk.
pub type Seal = Signed<Finished>;

/// The seals of all owners in a committed attempt.
#[derive(Clone, Debug)]
pub(crate) struct Sealed {
    pub attempt: Attempt,
    /// In ring order, as the seals are.
    pub members: Vec<PeerId>,
    pub seals: Vec<Seal>,
}

/// Rounds whose seals are kept. States are found to differ in the next round, and a late member may be one round
/// further.
const KEPT: usize = 3;

/// The seals of the last rounds.
#[derive(Debug, Default)]
pub(crate) struct Seals(VecDeque<Sealed>);

impl Seals {
    /// Keeps the seals of a committed round.
    pub fn keep(&mut self, sealed: Sealed) {
        if self.0.len() >= KEPT {
            self.0.pop_front();
        }
        self.0.push_back(sealed);
    }

    /// The seals of an attempt.
    pub fn of(&self, view: ViewKey) -> Option<&Sealed> {
        self.0.iter().find(|sealed| sealed.attempt.view == view)
    }

    /// Bytes that they hold.
    pub fn bytes(&self) -> usize {
        let one = size_of::<PeerId>() + size_of::<Seal>();
        self.0.iter().map(|sealed| sealed.seals.len() * one).sum()
    }
}
