//! What every phase of a peer needs: the run, the time, the ways to others, and what it holds. It knows no phase.

use crate::check::RecordError;
use crate::config::{Manifest, Settings};
use crate::detector::Detector;
use crate::device::Device;
use crate::early::EarlyPieces;
use crate::id::PeerId;
use crate::interface::{Event, Lane, Output};
use crate::ledger::{Head, Record};
use crate::lineage::Lineage;
use crate::links::Links;
use crate::state::State;
use crate::time::Time;
use crate::wire::{Message, Standing};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

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
    /// Number of the last probe of all members, and when it was sent.
    pub probed: Option<(u32, Time)>,
    /// When a peer that is not in the view was last told the standing.
    told: BTreeMap<PeerId, (Time, Standing)>,
}

impl Shared {
    pub fn new(manifest: Arc<Manifest>, settings: Settings, state: State, head: Head, now: Time) -> Self {
        Self {
            lineage: Lineage::new(head, state),
            links: Links::new(settings.me),
            early: EarlyPieces::new(manifest.codec.encoded_len(manifest.layout.len)),
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
            probed: None,
            told: BTreeMap::new(),
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

    pub fn tell(&mut self, event: Event) {
        self.out.push_back(Output::Event(event));
    }

    /// Keeps links to the head's members up.
    pub fn want_members(&mut self) {
        for member in &self.lineage.head.members {
            self.links.want(member.peer, &member.contact, self.now);
        }
    }

    /// Whether a record follows the head.
    pub fn check(&self, record: &Record) -> Result<(), RecordError> {
        self.lineage.head.check(record, &self.manifest)
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
        self.told.insert(peer, (now, standing));
        let status = Message::Status {
            standing,
            member: stage != Stage::Newcomer,
            finished: stage == Stage::Finished,
        };
        self.control(peer, status);
    }
}
