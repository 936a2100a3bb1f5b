//! What every phase of a peer needs: the run, the time, the ways to others, and what it holds. It knows no phase.

use crate::allowance::Allowance;
use crate::check::{Fault, RecordError};
use crate::config::{MAX_PEERS, Manifest, Settings};
use crate::detector::Detector;
use crate::device::Device;
use crate::early::EarlyPieces;
use crate::id::{Contact, PeerId};
use crate::interface::{Event, Lane, Output};
use crate::ledger::{Head, Record};
use crate::lineage::Lineage;
use crate::links::Links;
use crate::planted::Bug;
use crate::probation::Probation;
use crate::rights::{Kind, Refused};
use crate::state::State;
use crate::time::Time;
use crate::wire::{Message, Standing};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Most peers of which anything is remembered beside what the head says of its members.
pub(crate) const MAX_REMEMBERED: usize = 4 * MAX_PEERS;

/// How far a peer is in the run, as others are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Newcomer,
    Member,
    Finished,
}

/// What every phase needs.
pub(crate) struct Shared {
    pub manifest: Arc<Manifest>,
    pub settings: Settings,
    pub now: Time,
    pub out: VecDeque<Output>,
    pub links: Links,
    pub detector: Detector,
    pub lineage: Lineage,
    pub device: Device,
    pub early: EarlyPieces,
    /// Measured speed in samples per 1,000 seconds.
    pub speed: Option<u64>,
    pub leaving: bool,
    /// Who said that it has finished: nobody needs to wait for it at the end.
    pub ended: BTreeSet<PeerId>,
    /// Rounds running in which nothing was finite.
    pub barren: u32,
    pub committed_at: Time,
    /// Samples counted when a peer ceased to be in this peer's view: what is lost if its lineage stands.
    pub parted: BTreeMap<PeerId, u64>,
    /// Who was excluded, and comes back.
    pub probation: Probation,
    /// Number of the last probe of all members, and when it was sent.
    pub probed: Option<(u32, Time)>,
    /// When a peer that is not in the view was last told the standing.
    told: BTreeMap<PeerId, (Time, Standing)>,
    pub allowance: Allowance,
    /// When the state was last compared with its digest because a newcomer could make nothing of it.
    pub examined_at: Option<Time>,
    /// What was dropped because its sender had no right to say it.
    pub refused: Refused,
}

impl Shared {
    pub fn new(manifest: Arc<Manifest>, settings: Settings, state: State, head: Head, now: Time) -> Self {
        Self {
            lineage: Lineage::new(head, state),
            links: Links::new(settings.me),
            early: EarlyPieces::new(manifest.codec.encoded_len(manifest.layout.len)),
            allowance: Allowance::new(&manifest),
            manifest,
            settings,
            now,
            out: VecDeque::new(),
            detector: Detector::default(),
            device: Device::default(),
            speed: None,
            leaving: false,
            ended: BTreeSet::new(),
            barren: 0,
            committed_at: now,
            parted: BTreeMap::new(),
            probation: Probation::default(),
            probed: None,
            told: BTreeMap::new(),
            examined_at: None,
            refused: Refused::default(),
        }
    }

    pub fn me(&self) -> PeerId {
        self.settings.me
    }

    pub fn head(&self) -> &Head {
        &self.lineage.head
    }

    /// Sends on the lane for what is small and urgent. False if there is no way.
    pub fn control(&mut self, to: PeerId, message: Message) -> bool {
        self.links.send(&mut self.out, to, Lane::Control, message)
    }

    /// Sends on the lane of pieces and blocks. False if there is no way.
    pub fn bulk(&mut self, to: PeerId, message: Message) -> bool {
        self.links.send(&mut self.out, to, Lane::Bulk, message)
    }

    /// Whether a peer may be given so many bytes more of what it asks for. If not, its question is refused.
    pub fn allow(&mut self, peer: PeerId, bytes: usize, question: Kind) -> bool {
        let answer = self.detector.answer();
        let may = self.allowance.take(peer, bytes, self.now, answer);
        if !may {
            self.refused.count(question);
        }
        may
    }

    pub fn tell(&mut self, event: Event) {
        self.out.push_back(Output::Event(event));
    }

    /// Somebody says that it has finished.
    pub fn has_ended(&mut self, peer: PeerId) {
        if self.ended.len() < MAX_REMEMBERED {
            self.ended.insert(peer);
        }
    }

    /// A peer ceases to be in this peer's view.
    pub fn part_from(&mut self, peer: PeerId) {
        let samples = self.head().samples;
        if self.parted.len() < MAX_REMEMBERED {
            self.parted.insert(peer, samples);
        }
    }

    /// Bytes that others have had it hold.
    pub fn bytes(&self) -> usize {
        let peers = self.ended.len() + self.parted.len() + self.told.len() + self.allowance.len();
        let last = self.lineage.last.as_ref().map_or(0, |last| last.sums.bytes());
        self.early.bytes() + self.links.bytes() + last + peers * size_of::<(PeerId, (Time, Standing))>()
    }

    /// Keeps links to the head's members up.
    pub fn want_members(&mut self) {
        let members = &self.lineage.head.members;
        for member in members {
            self.links.want(member.peer, &member.contact, self.now);
        }
        self.links.bearers = members.iter().map(|member| member.peer).collect();
    }

    /// This peer leaves: those who only know each other through it would lose each other.
    pub fn say_goodbye(&mut self) {
        let all = self.links.acquaintances(MAX_PEERS);
        for peer in self.links.reachable().collect::<Vec<_>>() {
            let others = all.iter().filter(|(other, _)| *other != peer);
            let acquaintances = others.cloned().collect();
            self.control(peer, Message::Goodbye { acquaintances });
        }
    }

    /// A peer that leaves has told whom it knows. Only one of the run's members, or of those that it was, is listened to;
    /// who has met nobody else listens to anybody.
    pub fn meet(&mut self, from: PeerId, acquaintances: Vec<(PeerId, Contact)>) {
        let alone = self.head().members.iter().all(|m| m.peer == self.me());
        let was = self
            .lineage
            .last
            .as_ref()
            .is_some_and(|last| last.record.headers.iter().any(|h| h.peer == from));
        if alone || was || self.head().position(from).is_some() {
            for (peer, contact) in acquaintances {
                self.links.want(peer, &contact, self.now);
            }
        }
    }

    /// Whether a record follows the head.
    pub fn check(&self, record: &Record) -> Result<(), RecordError> {
        let checked = self.lineage.head.check(record, &self.manifest);
        let ignored = self.settings.planted(Bug::IgnoreDivergence);
        checked.or_else(|error| match error {
            RecordError::Header { fault, .. } if ignored && fault == Fault::Digest => Ok(()),
            error => Err(error),
        })
    }

    pub fn apply_record(&mut self, record: &Record) {
        self.lineage.apply_record(record, &self.manifest, &self.settings);
    }

    /// What this peer was told may have been lost with an older link.
    pub fn forget_told(&mut self, peer: PeerId) {
        self.told.remove(&peer);
    }

    /// Tells a peer that is not in this peer's view where this lineage stands; the same not more often than it
    /// could answer.
    pub fn send_status(&mut self, peer: PeerId, stage: Stage) {
        let (now, patience) = (self.now, self.detector.answer() / 4);
        let standing = self.lineage.standing();
        let told = self.told.get(&peer);
        if told.is_some_and(|(at, told)| now - *at < patience && *told == standing) {
            return;
        }
        self.told.retain(|_, (at, _)| now - *at < patience);
        if self.told.len() < MAX_REMEMBERED {
            self.told.insert(peer, (now, standing));
        }
        let status = Message::Status {
            standing,
            member: stage != Stage::Newcomer,
            finished: stage == Stage::Finished,
        };
        self.control(peer, status);
    }
}
