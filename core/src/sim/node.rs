//! One peer of a world, and what its driver knows of it.

use super::league::Liar;
use super::plan::PeerPlan;
use crate::access::signature::Key;
use crate::base::id::{Contact, Digest, PeerId, Round};
use crate::ledger::Head;
use crate::ledger::local::LocalOptimizer;
use crate::ledger::saved::Saved as OnDisk;
use crate::peer::{Exit, Input, Peer, Phase};
use crate::run::config::Manifest;
use crate::state::State;
use crate::state::moments::Moments;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A crash that waits for its moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doom {
    /// Among the messages that follow a commit.
    AtCommit,
    /// Among several messages sent at once.
    AtSend,
}

/// What is wrong with a contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spoil {
    NotFinite,
    Partial,
}

/// What a peer has on disk.
pub(super) type Saved = (State, Head, Vec<(PeerId, Contact)>);

/// One peer and what its driver knows.
pub(super) struct Node {
    pub id: PeerId,
    pub key: Key,
    pub name: String,
    pub peer: Option<Box<Peer>>,
    pub exit: Option<Exit>,
    pub dialable: bool,
    /// Whether it is no full member.
    pub is_guest: bool,
    pub frozen: bool,
    pub leaving: bool,
    pub slow: f64,
    pub doom: Option<Doom>,
    pub spoil: Option<Spoil>,
    /// What makes it a liar.
    pub liar: Option<Box<Liar>>,
    /// A bit of its state has flipped, and it has not found out yet: what it takes for the state's digest.
    pub damage: Option<Digest>,
    /// A bit of its state has flipped: that may differ from what its lineage says, and what follows from it.
    pub flipped: bool,
    /// A liar has given it some of what it holds, which may be another state than any, until it has been seen to be none.
    pub misled: bool,
    /// Lineage and digest when it last had been looked at, if it was a member then.
    pub stands: Option<(Digest, Digest)>,
    pub was_member: bool,
    /// It has come in, and committed nothing since.
    pub has_entered: bool,
    /// Whom it suspects in the attempt that it is in, and whether it was told of a commit: as of what happens to it now.
    pub suspects: BTreeSet<PeerId>,
    pub is_told: bool,
    /// Lineages in whose next round it was a member and is none any more.
    pub left: BTreeSet<Digest>,
    /// Where it was when it last ceased to be a member, until it follows others.
    pub came_from: Option<Digest>,
    pub commits: u64,
    /// The parts that it has when it is done, where a model is split, and their digests.
    pub kept: Vec<(u16, u64)>,
    pub last_commit_at: u64,
    /// When it last had to wait for a trial.
    pub waits_at: u64,
    pub sponsor: Option<usize>,
    /// The honest were done when it came, and there was nobody but a liar to join.
    pub is_late: bool,
    pub speed: f64,
    /// Of its device.
    pub moments: LocalOptimizer,
    /// Of its device: the weights of spans that it was given.
    pub weights: BTreeMap<usize, Vec<f32>>,
    pub clock: u64,
    /// How many times it has begun: what an earlier life asked for is of no use to a later one.
    pub life: u32,
    /// Its last checkpoint, and whom it knew then.
    pub saved: Option<Saved>,
    /// Where a model is split: the parts of its last checkpoints, the last of all at the end.
    pub disk: VecDeque<Moments>,
    pub freeze_version: u32,
    pub inbox: VecDeque<Input>,
    pub timer_at: Option<u64>,
    pub busy_until: u64,
    /// When its device was last asked for each round's share.
    pub asked_at: BTreeMap<Round, u64>,
    pub stuck: u32,
}

impl Node {
    /// A peer that has not begun yet, the world's `i`th.
    pub fn new(key: Key, i: usize, plan: &PeerPlan, (manifest, now): (&Manifest, u64)) -> Self {
        Self {
            id: key.peer(),
            key,
            name: format!("p{i}"),
            peer: None,
            exit: None,
            dialable: plan.dialable,
            is_guest: plan.is_guest,
            frozen: false,
            leaving: false,
            slow: 1.0,
            doom: None,
            spoil: None,
            liar: None,
            damage: None,
            flipped: false,
            misled: false,
            stands: None,
            was_member: false,
            has_entered: false,
            suspects: BTreeSet::new(),
            is_told: false,
            left: BTreeSet::new(),
            came_from: None,
            commits: 0,
            kept: Vec::new(),
            last_commit_at: now,
            waits_at: 0,
            sponsor: None,
            is_late: false,
            speed: plan.speed,
            moments: LocalOptimizer::new(manifest),
            weights: BTreeMap::new(),
            clock: 0,
            life: 0,
            saved: None,
            disk: VecDeque::new(),
            freeze_version: 0,
            inbox: VecDeque::new(),
            timer_at: None,
            busy_until: 0,
            asked_at: BTreeMap::new(),
            stuck: 0,
        }
    }

    /// What it has on its disk where a model is split, as its driver tells it.
    pub fn on_disk(&self) -> Vec<OnDisk> {
        let saved = |kept: &Moments| OnDisk {
            stepped: kept.stepped,
            parts: kept.set(),
        };
        self.disk.iter().map(saved).collect()
    }

    /// What it has there of one lineage.
    pub fn read(&self, stepped: Digest) -> Option<Box<Moments>> {
        let kept = self.disk.iter().rfind(|kept| kept.stepped == stepped);
        kept.cloned().map(Box::new)
    }

    /// Whether its state may be another than its lineage's.
    pub fn is_doubtful(&self) -> bool {
        self.flipped || self.misled
    }

    pub fn is_alive(&self) -> bool {
        self.peer.is_some()
    }

    pub fn is_member(&self) -> bool {
        self.peer.as_ref().is_some_and(|p| p.is_member())
    }

    /// Full members after its last round.
    pub fn full_members(&self) -> usize {
        self.peer
            .as_ref()
            .map_or(0, |peer| peer.head().full_members().count())
    }

    /// Members of the attempt that it is in.
    pub fn view_len(&self) -> usize {
        match self.peer.as_ref().map(|p| &p.phase) {
            Some(Phase::Member(w)) => w.view.members.len(),
            _ => 0,
        }
    }

    /// Flips a bit of what it holds. False if it holds nothing of that element.
    pub fn flip(&mut self, at: usize, bit: u32) -> bool {
        let Some(peer) = &mut self.peer else {
            return false;
        };
        if peer.manifest().split.is_some() {
            let flips = peer.flip_kept(at, bit);
            self.flipped |= flips;
            return flips;
        }
        // Where members keep parts of the moments, every other flip is one of these.
        if bit.is_multiple_of(2) || !peer.flip_kept(at, bit) {
            peer.flip_bit(at, bit);
        }
        self.flipped = true;
        // Two flips may make one good.
        self.damage = (peer.state().digest() != peer.digest()).then(|| peer.digest());
        true
    }
}
