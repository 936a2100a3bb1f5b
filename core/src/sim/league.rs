//! What a world and its liars remember about lies. `liars` decides who lies when.

use super::lie::Episode;
use super::rng::Rng;
use crate::base::id::{Digest, PeerId};
use crate::wire::{Message, ViewKey};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The state of a liar.
pub(super) struct Liar {
    pub rng: Rng,
    pub episode: Option<Episode>,
    pub heard: Vec<Message>,
    /// Names that it has invented, each with the peer that it is linked to.
    pub invented: Vec<(PeerId, usize)>,
}

/// What a world knows of its liars' doings.
#[derive(Default)]
pub(super) struct Lies {
    /// Since when there are lies.
    pub since: Option<u64>,
    /// Attempts in which a liar sent other values than its peer meant to. Members' sums may then differ, and only
    /// the next round can show it.
    pub spoilt: BTreeSet<ViewKey>,
    /// All invented names.
    pub invented: BTreeSet<PeerId>,
    /// Lies seen: by which peer, in which attempt, of which liar, and when.
    pub seen: BTreeMap<(usize, ViewKey, PeerId), u64>,
    /// By attempt: the digest that honest members have committed, and the first of them.
    pub committed: BTreeMap<ViewKey, (Digest, usize)>,
    /// Peers that have signed two finished chunks in an attempt, and when honest members have seen that their
    /// states differ.
    pub sealed_twice: BTreeMap<PeerId, u64>,
    /// By honest member and liar: false shares of the liar that the member could have found out.
    pub unfound: BTreeMap<(usize, PeerId), u32>,
    /// When an honest member last committed a round.
    pub committed_at: u64,
    /// Honest peers that are not members, and since when.
    pub outside: BTreeMap<usize, u64>,
    /// Honest full members but the founder: when each came, and for how long it has been no member since then.
    pub away: BTreeMap<usize, (u64, u64)>,
    /// When the founder has committed rounds that took more than one attempt, within a minute.
    pub held_up: VecDeque<u64>,
}
