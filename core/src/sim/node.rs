//! One peer of a world, and its driver's state.

use super::heard::Heard;
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

/// The fault of a contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spoil {
    NotFinite,
    Partial,
    /// Its data does not come in time.
    Late,
}

/// A peer's checkpoint.
pub(super) type Saved = (State, Head, Vec<(PeerId, Contact)>);

/// One peer, and its driver's state.
pub(super) struct Node {
    pub id: PeerId,
    pub key: Key,
    pub name: String,
    pub peer: Option<Box<Peer>>,
    pub exit: Option<Exit>,
    pub dialable: bool,
    /// Whether it is not a full member.
    pub is_guest: bool,
    pub frozen: bool,
    pub leaving: bool,
    /// The ticket that it came by was taken back.
    pub is_revoked: bool,
    /// The revocations that it has heard of.
    pub heard: Heard,
    pub slow: f64,
    pub doom: Option<Doom>,
    pub spoil: Option<Spoil>,
    /// Its lies, if it is a liar.
    pub liar: Option<Box<Liar>>,
    /// A bit of its state has flipped without its knowledge: the digest that it believes in.
    pub damage: Option<Digest>,
    /// A bit of its state has flipped, so the state and its consequences may differ from its lineage.
    pub flipped: bool,
    /// A liar has given it some of its state, which may be false until it was seen to be right.
    pub misled: bool,
    /// Lineage and digest when it was last checked, if it was a member then.
    pub stands: Option<(Digest, Digest)>,
    pub was_member: bool,
    /// It has entered, and committed nothing since.
    pub has_entered: bool,
    /// Its suspects in its attempt, and whether a commit was reported to it, as of its present input.
    pub suspects: BTreeSet<PeerId>,
    pub is_told: bool,
    /// Lineages in whose next round it was a member and is not any more.
    pub left: BTreeSet<Digest>,
    /// Where it was when it last ceased to be a member, until it follows others.
    pub came_from: Option<Digest>,
    pub commits: u64,
    /// In a split run, its parts and their digests when it is done.
    pub kept: Vec<(u16, u64)>,
    pub last_commit_at: u64,
    /// When it last had to wait for a trial.
    pub waits_at: u64,
    pub sponsor: Option<usize>,
    /// It came when the honest peers were done, and only a liar was left to join.
    pub is_late: bool,
    pub speed: f64,
    /// Of its device.
    pub moments: LocalOptimizer,
    /// Of its device: the weights of spans that it has.
    pub weights: BTreeMap<usize, Vec<f32>>,
    pub clock: u64,
    /// Number of its starts. Results for an earlier start are dropped.
    pub life: u32,
    /// Its last checkpoint, with the peers that it knew then.
    pub saved: Option<Saved>,
    /// In a split run: the parts of its last checkpoints, the latest at the end.
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
    /// The world's `i`th peer, before its start.
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
            is_revoked: false,
            heard: Heard::default(),
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

    /// In a split run, the parts on its disk, as its driver announces them.
    pub fn on_disk(&self) -> Vec<OnDisk> {
        let saved = |kept: &Moments| OnDisk {
            stepped: kept.stepped,
            parts: kept.set(),
        };
        self.disk.iter().map(saved).collect()
    }

    /// Its parts of one lineage there.
    pub fn read(&self, stepped: Digest) -> Option<Box<Moments>> {
        let kept = self.disk.iter().rfind(|kept| kept.stepped == stepped);
        kept.cloned().map(Box::new)
    }

    /// Whether its state may differ from its lineage's.
    pub fn is_doubtful(&self) -> bool {
        self.flipped || self.misled
    }

    pub fn is_alive(&self) -> bool {
        self.peer.is_some()
    }

    pub fn is_member(&self) -> bool {
        self.peer.as_ref().is_some_and(|p| p.is_member())
    }

    /// Number of full members after its last round.
    pub fn full_members(&self) -> usize {
        self.peer
            .as_ref()
            .map_or(0, |peer| peer.head().full_members().count())
    }

    /// Number of members of its attempt.
    pub fn view_len(&self) -> usize {
        match self.peer.as_ref().map(|p| &p.phase) {
            Some(Phase::Member(w)) => w.view.members.len(),
            _ => 0,
        }
    }

    /// Flips a bit of its state. False if it does not have that element.
    pub fn flip(&mut self, at: usize, bit: u32) -> bool {
        let Some(peer) = &mut self.peer else {
            return false;
        };
        if peer.manifest().split.is_some() {
            let flips = peer.flip_kept(at, bit);
            self.flipped |= flips;
            return flips;
        }
        // If members keep parts of the moments, every other flip hits one of these.
        if bit.is_multiple_of(2) || !peer.flip_kept(at, bit) {
            peer.flip_bit(at, bit);
        }
        self.flipped = true;
        // Two flips may cancel out.
        self.damage = (peer.state().digest() != peer.digest()).then(|| peer.digest());
        true
    }
}
