//! The context of every phase: the run, the time, the links, and what the peer holds. It knows no phase.

mod lies;
mod revoking;

use crate::access::invitation::{Admission, Role, Root};
use crate::access::signature::Scheme;
use crate::base::id::{Contact, Digest, PeerId};
use crate::base::planted::Bug;
use crate::base::time::Time;
use crate::collective::Assembly;
use crate::ledger::check::{Fault, RecordError};
use crate::ledger::conviction::Outlaws;
use crate::ledger::fork::Fork;
use crate::ledger::revocations::Revocations;
use crate::ledger::saved::Saved;
use crate::ledger::tickets::Barred;
use crate::ledger::{Founder, Head, Member, Record};
use crate::numeric::feedback::Feedback;
use crate::numeric::optim::Step;
use crate::peer::barren::Barren;
use crate::peer::device::Device;
use crate::peer::interface::{Event, Lane, Output};
use crate::peer::keeping::{self, Keeping};
use crate::peer::speed::Speed;
use crate::peer::spot::Spot;
use crate::reach::allowance::Allowance;
use crate::reach::checks::{Budget, Checks};
use crate::reach::detector::Detector;
use crate::reach::links::Links;
use crate::reach::pauses::Pauses;
use crate::reach::probation::Probation;
use crate::run::config::{MAX_PEERS, Manifest, Settings};
use crate::state::lineage::Lineage;
use crate::state::{State, plan};
use crate::wire::early::EarlyPieces;
use crate::wire::rights::{Kind, Refused};
use crate::wire::{Message, Standing, ViewKey};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Most peers of which anything is remembered, besides what the head says of members.
pub(crate) const MAX_REMEMBERED: usize = 4 * MAX_PEERS;

/// Most left lineages that are remembered: more than a liar can lead back to while anybody listens to it.
const LEFT: usize = 64;

/// A peer's progress, as told to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not a member: its state may be old.
    Newcomer,
    /// Not a member either, but it shows the lineage of the members that it follows.
    Follower,
    Member,
    Finished,
}

/// The context of every phase.
pub(crate) struct Shared {
    pub manifest: Arc<Manifest>,
    pub root: Root,
    pub settings: Settings,
    pub now: Time,
    pub out: VecDeque<Output>,
    pub links: Links,
    pub detector: Detector,
    pub lineage: Lineage,
    pub device: Device,
    pub feedback: Feedback,
    pub early: EarlyPieces,
    pub outlaws: Outlaws,
    /// Members whose headers differ from this one's, which has sent them its own: until when they may show the
    /// contradiction.
    pub differing: BTreeMap<PeerId, Time>,
    /// Revocations that the head does not know: to be said with the next headers.
    pub revocations: Revocations,
    /// Peers that the last round removed. Their links are cut after the next.
    pub ousted: Vec<PeerId>,
    /// How fast its device is.
    pub speed: Speed,
    /// Its checks of guests' work.
    pub spot: Spot,
    pub leaving: bool,
    /// Whether its evaluations show no gain any more.
    pub stalled: bool,
    /// Peers that have finished: nobody needs to wait for them at the end.
    pub ended: BTreeSet<PeerId>,
    /// Detects numbers beyond rescue.
    pub barren: Barren,
    pub committed_at: Time,
    /// Duration of the last round's exchange; zero if it had none, or if its first attempt failed.
    pub exchange: Duration,
    /// How long the last round took; zero if it took no part in it.
    pub round_took: Duration,
    /// When the round before this one began.
    pub began_before: Time,
    /// Whether it continues from a checkpoint and has met nobody since. Then it does not know its members of after
    /// the checkpoint.
    pub forgetful: bool,
    /// The last places in whose next round this peer was a member and is not any more.
    pub left: VecDeque<Fork>,
    /// The last lineage after which this peer has taken part in a round since it was started, ...
    pub member_at: Option<Digest>,
    /// ... and whether it has asked to be admitted since then. It does not know what it signed before it was
    /// started.
    pub has_asked: bool,
    /// Peers that were excluded and come back.
    pub probation: Probation,
    /// Peers that claimed more samples than they then showed, which are not believed for a while.
    pub boasts: Probation,
    /// The samples of the lineage for which this peer has left its own, and who claimed them.
    pub promised: Option<(PeerId, u64)>,
    /// Number and time of the last probe of all members.
    pub probed: Option<(u32, Time)>,
    /// When each peer outside of the view was last told the standing.
    told: BTreeMap<PeerId, (Time, Standing)>,
    pub allowance: Allowance,
    /// Signature checks for peers that are no members.
    pub checks: Checks,
    /// When the state was last compared with its digest because a newcomer could not use it.
    pub examined_at: Option<Time>,
    /// When the ring paused for a newcomer.
    pub pauses: Pauses,
    /// Messages dropped because their sender had no right to send them.
    pub refused: Refused,
    /// The parts of the moments that it fetches, hands out and waits for.
    pub keeping: Keeping,
    /// In a split run, the parts on its disk.
    pub saved: Vec<Saved>,
}

impl Shared {
    pub fn new(manifest: Arc<Manifest>, settings: Settings, state: State, head: Head, now: Time) -> Self {
        let root = manifest.root();
        let vector = match settings.planted(Bug::HoldWithoutEnd) {
            true => 1 << 30,
            false => manifest.codec.encoded_len(manifest.layout.len),
        };
        Self {
            lineage: Lineage::new(head, state),
            links: Links::new(&settings, root.run),
            root,
            early: EarlyPieces::new(vector),
            allowance: Allowance::new(&manifest),
            checks: Checks::default(),
            outlaws: Outlaws::default(),
            differing: BTreeMap::new(),
            revocations: Revocations::default(),
            ousted: Vec::new(),
            manifest,
            settings,
            now,
            out: VecDeque::new(),
            detector: Detector::default(),
            device: Device::default(),
            feedback: Feedback::default(),
            speed: Speed::default(),
            spot: Spot::default(),
            leaving: false,
            stalled: false,
            ended: BTreeSet::new(),
            barren: Barren::default(),
            committed_at: now,
            exchange: Duration::ZERO,
            round_took: Duration::ZERO,
            began_before: now,
            forgetful: false,
            left: VecDeque::new(),
            member_at: None,
            has_asked: false,
            probation: Probation::default(),
            boasts: Probation::default(),
            promised: None,
            probed: None,
            told: BTreeMap::new(),
            examined_at: None,
            pauses: Pauses::default(),
            refused: Refused::default(),
            keeping: Keeping::default(),
            saved: Vec::new(),
        }
    }

    pub fn me(&self) -> PeerId {
        self.settings.me
    }

    pub fn head(&self) -> &Head {
        &self.lineage.head
    }

    /// Sends on the stream for small, urgent messages. False if there is no way.
    pub fn control(&mut self, to: PeerId, message: Message) -> bool {
        self.send(to, Lane::Control, message)
    }

    /// Sends on the stream of pieces and blocks. False if there is no way.
    pub fn bulk(&mut self, to: PeerId, message: Message) -> bool {
        self.send(to, Lane::Bulk, message)
    }

    fn send(&mut self, to: PeerId, lane: Lane, message: Message) -> bool {
        // No relayed frame goes to an outlaw either.
        !self.outlaws.contains(to) && self.links.send(&mut self.out, to, lane, message)
    }

    /// Whether a peer may get this many more bytes on request. If not, its request counts as refused.
    pub fn allow(&mut self, peer: PeerId, bytes: usize, question: Kind) -> bool {
        let answer = self.detector.answer();
        let may = self.allowance.take(peer, bytes, self.now, answer);
        if !may {
            self.refused.count(question);
        }
        may
    }

    /// Whether to check this many signatures for a peer that is no member. If not for long, its link is cut. `has_place`: it
    /// follows this peer.
    pub fn may_check(&mut self, peer: PeerId, has_place: bool, checks: usize) -> bool {
        let budget = self.checks.take(peer, has_place, checks, self.now);
        if budget == Budget::Overdrawn {
            self.hang_up(peer);
        }
        budget == Budget::Granted
    }

    pub fn tell(&mut self, event: Event) {
        self.out.push_back(Output::Event(event));
    }

    /// A peer shows the samples of its lineage. They may be fewer than it has claimed.
    pub fn shows(&mut self, peer: PeerId, samples: u64) {
        if let Some((_, claimed)) = self.promised.take_if(|(by, _)| *by == peer)
            && samples < claimed
        {
            self.boasts.failed(peer, self.now);
        }
    }

    /// A peer says that it has finished, or that it has not.
    pub fn says_ended(&mut self, peer: PeerId, ended: bool) {
        if !ended {
            self.ended.remove(&peer);
        } else if self.ended.len() < MAX_REMEMBERED {
            self.ended.insert(peer);
        }
    }

    /// Whether it has something to announce that is worth a round by itself.
    pub fn has_news(&self) -> bool {
        self.leaving || !self.revocations.is_empty()
    }

    /// Continues alone from its own state, as the only member so far.
    pub fn go_on_alone(&mut self) {
        let may = (self.settings.role(), self.settings.room(&self.manifest));
        let keeper = keeping::alone(&mut self.lineage, may, &mut self.keeping.pending, &self.manifest);
        let founder = Founder {
            member: Member {
                keeper,
                ..Member::new(&self.settings, self.speed.told())
            },
            at: self.settings.started.wrapping_add(self.now.0),
        };
        self.lineage.head = self.head().clone().continued_by(founder.clone());
        self.lineage.founder = Some(founder);
    }

    /// This peer is not a member of the round after its head any more. It does not become one again, whatever a
    /// sponsor says, because it must not sign for that round a second time.
    pub fn leave_round(&mut self) {
        if self.left.len() >= LEFT {
            self.left.pop_front();
        }
        self.left.push_back(self.lineage.head.place());
    }

    /// The clock, in seconds since 1970.
    pub fn clock_s(&self) -> u64 {
        self.settings.epoch_s + self.now.0 / 1_000_000
    }

    /// Checks whether a peer with a valid proof may come in now. A watcher may stay after its ticket has expired.
    ///
    /// # Errors
    ///
    /// Why it may not.
    pub fn may_enter(&self, peer: PeerId, admission: &Admission, is_new: bool) -> Result<(), Barred> {
        let expires = is_new || admission.role() > Role::Watch;
        if expires && admission.chain.has_expired(self.clock_s()) {
            return Err(Barred::Expired);
        }
        if self.outlaws.bars(admission, self.root.run, self.settings.bug()) {
            return Err(Barred::Convicted);
        }
        if self.revocations.against(admission, self.root.run).is_some() {
            return Err(Barred::Revoked);
        }
        self.head().tickets.check(admission, peer, self.root.run)
    }

    /// Whether this peer, by what it knows itself, would be let in again.
    pub fn may_come_back(&self) -> bool {
        self.may_enter(self.me(), &self.settings.admission, true).is_ok()
    }

    /// Bytes that it holds on behalf of others.
    pub fn bytes(&self) -> usize {
        let peers = self.ended.len() + self.told.len() + self.allowance.len() + self.checks.len();
        let last = self.lineage.last.as_ref().map_or(0, |last| last.sums.bytes());
        self.early.bytes()
            + self.links.bytes()
            + self.outlaws.bytes()
            + last
            + self.lineage.seals.bytes()
            + self.keeping.bytes()
            + self.spot.bytes()
            + peers * size_of::<(PeerId, (Time, Standing))>()
    }

    /// Keeps links to the head's members up.
    pub fn want_members(&mut self) {
        let members = self.lineage.head.members.iter();
        for member in members.clone().filter(|m| !self.outlaws.contains(m.peer)) {
            self.links.want(member.peer, &member.contact, self.now);
        }
        self.links.bearers = members.map(|member| member.peer).collect();
        let before = self.lineage.head.before.as_ref();
        let is_new = |peer: &&PeerId| before.is_none_or(|before| !before.members.contains(peer));
        self.links.new_bearers = self.links.bearers.iter().filter(is_new).copied().collect();
    }

    /// This peer leaves. Introduces peers that only know each other through it.
    pub fn say_goodbye(&mut self) {
        let all = self.links.acquaintances(MAX_PEERS);
        for peer in self.links.reachable().collect::<Vec<_>>() {
            let others = all.iter().filter(|(other, _)| *other != peer);
            let acquaintances = others.cloned().collect();
            self.control(peer, Message::Acquaintances { acquaintances });
        }
    }

    /// A leaving peer has told which peers it knows. Only present or former members of the run are believed; a peer
    /// that has met nobody else believes anybody.
    pub fn meet(&mut self, from: PeerId, acquaintances: Vec<(PeerId, Contact)>) {
        let alone = self.head().members.iter().all(|m| m.peer == self.me());
        let was = self
            .lineage
            .last
            .as_ref()
            .is_some_and(|last| last.record.headers.iter().any(|h| h.peer == from));
        if alone || was || self.head().position(from).is_some() {
            for (peer, contact) in acquaintances {
                self.links.hear_of(peer, &contact, self.now);
            }
        }
    }

    /// The scheme of signatures.
    pub fn scheme(&self) -> Scheme {
        self.settings.key.scheme()
    }

    /// The step of the head's next round, if it has one: see [`plan`].
    pub fn plan(&self, record: &Record, sums: &Assembly) -> Option<Step> {
        plan(&self.manifest, self.head(), record, sums, &*self.settings.jobs)
    }

    /// Whether a reported record follows the head.
    pub fn check(&self, record: &Record) -> Result<(), RecordError> {
        if self.settings.planted(Bug::TrustCommits) {
            return self.check_said(record);
        }
        let head = &self.lineage.head;
        self.allowed(head.check(record, &self.manifest, self.scheme()))
    }

    /// Whether a record follows the head, if its signatures were checked on arrival.
    pub fn check_said(&self, record: &Record) -> Result<(), RecordError> {
        let head = &self.lineage.head;
        self.allowed(head.check_said(record, &self.manifest, self.scheme()))
    }

    fn allowed(&self, checked: Result<(), RecordError>) -> Result<(), RecordError> {
        let planted = |bug| self.settings.planted(bug);
        checked.or_else(|error| match error {
            _ if planted(Bug::CheckNothing) => Ok(()),
            RecordError::NoMember if planted(Bug::GuestsGoOn) => Ok(()),
            RecordError::Header { fault, .. } => {
                let bug = match fault {
                    Fault::Digest | Fault::Moments => Bug::IgnoreDivergence,
                    Fault::Ready => Bug::TrustSponsors,
                    Fault::Revocation => Bug::TrustRevocations,
                    Fault::Samples { .. } => Bug::CountAboveShare,
                    _ => return Err(error),
                };
                if planted(bug) { Ok(()) } else { Err(error) }
            }
            error => Err(error),
        })
    }

    pub fn apply_record(&mut self, view: ViewKey, record: &Record) {
        let head = self.head();
        let (from, undone, stepped) = (head.round, head.undone, head.stepped);
        self.lineage
            .apply_record(view, record, &self.manifest, &self.settings);
        self.keep_unsaid();
        if let Some(to) = self.head().went_back(stepped).map(|point| point.round) {
            // Reading parts from disk takes a while.
            self.keeping.lacks_since = None;
            let samples = self.head().undone - undone;
            self.tell(Event::WentBack { from, to, samples });
        }
    }

    /// Has nothing more to do with a peer.
    pub fn hang_up(&mut self, peer: PeerId) {
        if self.links.is_up(peer) {
            self.out.push_back(Output::HangUp { peer });
        }
        self.links.drop(peer);
    }

    /// Earlier statements to a peer may have been lost with an older link.
    pub fn forget_told(&mut self, peer: PeerId) {
        self.told.remove(&peer);
    }

    /// Tells a peer outside of this peer's view where this lineage stands; the same statement no more often than it
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
            places: self.lineage.places(),
            claim: self.lineage.claim().filter(|_| stage != Stage::Newcomer),
            member: !matches!(stage, Stage::Newcomer | Stage::Follower),
            finished: stage == Stage::Finished,
        };
        self.control(peer, status);
    }
}

/// Whether this peer deals with another one, now or in the next round.
fn matters(links: &Links, head: &Head, peer: PeerId) -> bool {
    links.knows(peer) || head.position(peer).is_some()
}
