//! What a world and its peers hold of lies. Who lies when is decided in `liars`.

use super::lie::Episode;
use super::rng::Rng;
use crate::base::id::{Digest, PeerId};
use crate::wire::{Message, ViewKey};
use std::collections::{BTreeMap, BTreeSet};

/// What makes a peer a liar.
pub(super) struct Liar {
    pub rng: Rng,
    pub episode: Option<Episode>,
    pub heard: Vec<Message>,
    /// Names that it has invented, and whom it has given them a link to.
    pub invented: Vec<(PeerId, usize)>,
}

/// What a world knows of its liars' doings.
#[derive(Default)]
pub(super) struct Lies {
    /// Since when there are lies.
    pub since: Option<u64>,
    /// Attempts in which a liar sent other values than its peer meant to: what members hold of these may differ, and only
    /// the next round can show it.
    pub spoilt: BTreeSet<ViewKey>,
    /// All names that nobody has.
    pub invented: BTreeSet<PeerId>,
    /// Who has seen a lie in which attempt by whom, and when.
    pub seen: BTreeMap<(usize, ViewKey, PeerId), u64>,
    /// What honest members have committed in each attempt, and who was the first.
    pub committed: BTreeMap<ViewKey, (Digest, usize)>,
    /// Who has signed two finished chunks in an attempt, and when honest members have seen that their states differ.
    pub sealed_twice: BTreeMap<PeerId, u64>,
    /// When an honest member last committed a round.
    pub committed_at: u64,
}
