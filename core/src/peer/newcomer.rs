//! The phase of a newcomer: it follows a sponsor's rounds, fetches the state block by block from several members at
//! once, brings each block up to date (`catchup.rs`), and says "ready". No round waits for it. A member that was
//! excluded is a newcomer too.

mod seek;

use crate::access::invitation::Role;
use crate::base::id::{Digest, PeerId, Round};
use crate::base::planted::Bug;
use crate::base::time::Time;
use crate::ledger::aside::Aside;
use crate::ledger::check::READY_ROUNDS;
use crate::ledger::tickets::Barred;
use crate::ledger::{Head, Ready, Record};
use crate::peer::catchup::{CatchUp, Fit};
use crate::peer::handover;
use crate::peer::interface::{Commit, Event, Exit, Input};
use crate::peer::late;
use crate::peer::meeting::{Shown, counted_apart};
use crate::peer::next::Next;
use crate::peer::shared::{Shared, Stage};
use crate::peer::sponsor::Sponsor;
use crate::state::{State, root};
use crate::wire::{Claim, Doing, Leg, Message, Standing, ViewKey};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A peer that may not continue alone gives up after this long without a full member that anybody follows. A guess:
/// time to start one again.
const NO_MEMBER: Duration = Duration::from_secs(300);

/// A follower this many peers away from a member gives no hope: it may only repeat this peer's own statement.
const FAR: u8 = 4;

/// Rounds in a row, already past here, that a sponsor may report. A sponsor that claimed to be further on than it
/// is reports nothing else.
const PAST: u8 = 3;

/// A newcomer's progress.
#[derive(Debug)]
pub(crate) struct Newcomer {
    /// Whether the peer's state and head are still a whole old state.
    pub whole: bool,
    /// Whether they are of its own lineage: it has followed nobody since it was a member.
    own: bool,
    /// Whether the state is known to be wrong: usable to continue alone, not to resume.
    damaged: bool,
    sponsor: Option<PeerId>,
    following: bool,
    /// When the sponsor was last asked or heard.
    heard_at: Time,
    /// When some of a round last came from the sponsor.
    came_at: Time,
    /// When the sponsor was asked to be one.
    asked_at: Time,
    /// A peer that did not answer in time but still may, and when it was first asked.
    late: Option<(PeerId, Time)>,
    asked_alive: bool,
    /// Peers that cannot be followed, and the standing of the whole state that each holds.
    refused: BTreeMap<PeerId, Option<Standing>>,
    /// Peers that do not admit it, since it last followed a peer or was admitted.
    barred_by: BTreeSet<PeerId>,
    /// Since when there are any, and the reason that they gave.
    barred: Option<(Time, Barred)>,
    /// Members that have no place for it, since it last asked all ...
    full: BTreeSet<PeerId>,
    /// ... and until when it asks nobody, once all have said so.
    waits_until: Time,
    /// How often it has waited because its line is too slow.
    too_slow: u32,
    /// When it last began to rest, if it has stood aside, and at which round.
    rested: Option<(Time, Round)>,
    /// Since when it has had nobody to follow, as far as that matters.
    lonely_since: Time,
    /// Whether it reports each round that it follows, as a watcher does.
    watching: bool,
    /// When there last was a reason to believe that a peer holds the state.
    hope_at: Time,
    /// When it last heard of a peer that follows a member, and at what distance.
    heard_of: Option<(Time, u8)>,
    /// The two peers that it last told of each other.
    acquainted: Option<(PeerId, PeerId)>,
    catchup: CatchUp,
    synced: bool,
    /// The lineage at which the whole state was last verified.
    sound: Option<Digest>,
    /// The sponsor's lineage when it accepted this peer without having it in its view. The round after that
    /// continues without this peer, even if the ledger names it as a member.
    excluded_after: Option<Digest>,
    /// The sponsor's round when it accepted this peer. Older states lead to no round in work.
    since: Round,
    /// The round that it had reached when it told the sponsor "ready" ...
    ready: Option<Round>,
    /// ... and when it last did.
    said: Round,
    /// Rounds in a row that the sponsor has reported, and that are past here.
    past: u8,
}

/// Whether this peer is a member after the head, and became one since it was started: let in by the last round, or
/// a member in the round before, which others may have committed without it. A peer that was restarted so soon that
/// the others have not missed it finds itself among the members of a round for which it may have signed something
/// else. It must not take part in that round.
fn is_own_membership(shared: &Shared) -> bool {
    let (head, me) = (shared.head(), shared.me());
    let was_there = |chain: Digest| shared.member_at == Some(chain);
    let before = head.before.as_ref().is_some_and(|before| was_there(before.chain));
    let is_new = shared.has_asked && head.admissions.is_fresh(me);
    head.position(me).is_some() && (is_new || before || was_there(head.chain))
}

impl Newcomer {
    /// A newcomer without any state.
    pub fn new(now: Time) -> Self {
        Self {
            whole: false,
            own: false,
            damaged: false,
            acquainted: None,
            sponsor: None,
            following: false,
            heard_at: now,
            came_at: now,
            asked_at: now,
            late: None,
            asked_alive: false,
            refused: BTreeMap::new(),
            barred_by: BTreeSet::new(),
            barred: None,
            full: BTreeSet::new(),
            waits_until: now,
            too_slow: 0,
            rested: None,
            lonely_since: now,
            watching: false,
            hope_at: now,
            heard_of: None,
            catchup: CatchUp::default(),
            synced: false,
            sound: None,
            excluded_after: None,
            since: 0,
            ready: None,
            said: 0,
            past: 0,
        }
    }

    /// A former member that looks for a sponsor, first the peer that reported the exclusion, if any.
    pub fn outcast(damaged: bool, via: Option<PeerId>, shared: &mut Shared) -> Self {
        let mut newcomer = Self {
            whole: true,
            own: true,
            damaged,
            ..Self::new(shared.now)
        };
        newcomer.seek(via, shared);
        newcomer
    }

    /// When [`Input::Tick`] is due.
    pub fn wake_at(&self, shared: &Shared) -> Time {
        self.heard_at + shared.detector.answer()
    }

    /// Takes an input.
    pub fn handle(&mut self, input: Input, shared: &mut Shared) -> Next {
        match input {
            Input::Message { from, message } => return self.on_message(from, message, shared),
            Input::LinkUp { peer, .. } => self.on_candidate(peer, None, shared),
            Input::LinkDown { peer } => self.on_lost(peer, shared),
            Input::Warm { .. } => self.say_ready(shared),
            Input::Contribution { gradient, .. } => {
                shared.device.take_back(gradient);
                self.say_ready(shared);
            }
            Input::Span(_) => {
                shared.device.asked = None;
                self.say_ready(shared);
            }
            Input::Leave => return Next::Exit(Exit::Left),
            Input::DialFailed {
                peer,
                barred: Some(why),
            } => return self.on_barred(peer, why, shared),
            Input::Tick | Input::DialFailed { .. } | Input::Revoke(_) | Input::Line { .. } => {}
            Input::Stalled(_) | Input::Saved(_) | Input::Restored { .. } => {}
        }
        Next::Stay
    }

    fn on_message(&mut self, from: PeerId, message: Message, shared: &mut Shared) -> Next {
        match message {
            Message::Piece { view, leg, piece, .. } => {
                let is_finished = leg == Leg::Finished;
                return self.on_piece(from, view, is_finished, piece == 0, message, shared);
            }
            Message::Probe { view, nonce } => self.on_probe(from, view, nonce, shared),
            Message::Alive { .. } if self.sponsor == Some(from) => self.heard(shared),
            Message::Flush { view, suspects, .. } => self.on_flush(from, view, &suspects, shared),
            Message::Committed { view, record, digest } if self.follows(from) => {
                self.heard(shared);
                match self.catchup.on_commit(from, (view, record, digest), shared) {
                    Fit::Next => {
                        self.past = 0;
                        return self.apply_told(shared);
                    }
                    Fit::Gap => self.begin_elsewhere(from, shared),
                    Fit::Old if self.past == PAST => self.begin_elsewhere(from, shared),
                    Fit::Old => self.past += 1,
                    Fit::False => return self.on_refused(from, None, shared),
                }
            }
            Message::Repair { view, .. } => late::answer(from, view, None, None, Stage::Newcomer, shared),
            Message::Out { .. } => return self.on_refused(from, None, shared),
            // Honest members refuse a second peer of this name at the door, not here.
            Message::Barred { why: Barred::InUse } => return self.on_refused(from, None, shared),
            Message::Barred { why } => return self.on_barred(from, why, shared),
            Message::NoPlace { slow } if self.sponsor == Some(from) => self.on_no_place(from, slow, shared),
            Message::Seals { view, seals } => {
                if let Some((peer, _)) = shared.compare_seals(from, view, &seals) {
                    return self.on_refused(peer, None, shared);
                }
            }
            Message::Convicted(proof) => {
                let convicted = match self.follows(from) {
                    true => shared.convict_anybody(*proof),
                    false => shared.convict(*proof),
                };
                if let Some(peer) = convicted {
                    return self.on_refused(peer, None, shared);
                }
            }
            Message::NotMember { standing, follows } => {
                return self.on_not_member(from, standing, follows, shared);
            }
            Message::Status {
                standing,
                places,
                claim,
                member: true,
                finished,
            } => {
                let shown = Shown {
                    standing,
                    places: &places,
                    claim: claim.as_deref(),
                };
                if self.stays_aside(from, &shown, shared) {
                    return Next::Stay;
                }
                // A result needs no place.
                self.waits_until = if finished { shared.now } else { self.waits_until };
                self.on_candidate(from, Some(shown), shared);
            }
            Message::Following {
                head,
                digest,
                resumes,
                member,
                claim,
            } => {
                if self.sponsor == Some(from) {
                    // A peer that shows a false signature is cut off for it.
                    let signed = |claim: &Claim| claim.is_signed(shared.scheme());
                    shared.lineage.followed = claim.map(|claim| *claim).filter(signed);
                }
                return self.on_following(from, *head, digest, resumes, member, shared);
            }
            Message::Follow { .. } | Message::Fetch { .. } => {
                let standing = self.whole_standing(shared);
                let follows = self.follower_away(shared);
                shared.control(from, Message::NotMember { standing, follows });
            }
            Message::Block {
                block,
                round,
                chain,
                data,
            } if self.following => return self.on_block(block, (round, chain), &data, shared),
            Message::Digests { chain, data } if self.follows(from) => {
                self.heard(shared);
                self.catchup.on_digests(chain, data);
                return self.catch_up(None, shared);
            }
            _ => {}
        }
        Next::Stay
    }

    /// A peer cannot be followed, but perhaps it follows a member itself.
    fn on_not_member(
        &mut self,
        from: PeerId,
        standing: Option<Standing>,
        follows: Option<u8>,
        shared: &mut Shared,
    ) -> Next {
        if follows.is_some() || standing.is_some() {
            self.hope_at = shared.now;
        }
        if let Some(away) = follows.filter(|away| *away < FAR) {
            self.heard_of = Some((shared.now, away));
        }
        if self.sponsor == Some(from) {
            self.note_whole(shared);
        }
        self.on_refused(from, standing, shared)
    }

    /// A block of the state has come.
    fn on_block(&mut self, block: u32, at: (Round, Digest), data: &[u8], shared: &mut Shared) -> Next {
        if !self.catchup.take_block(block, at, data, shared) {
            return Next::Stay;
        }
        self.heard_at = shared.now;
        self.catchup.tell_progress(shared);
        self.fetch(shared);
        self.catch_up(None, shared)
    }

    /// The distance of the nearest known peer that follows a member, or rests and will, if that was heard lately.
    fn follower_away(&self, shared: &Shared) -> Option<u8> {
        let while_it_holds = 4 * shared.detector.answer();
        let heard_of = self.heard_of.filter(|(at, _)| shared.now - *at < while_it_holds);
        match self.following || self.rests(shared) {
            true => Some(0),
            false => heard_of.map(|(_, away)| away + 1),
        }
    }

    /// Whether a peer was asked to be the sponsor, and may still answer.
    pub fn has_asked(&self, peer: PeerId) -> bool {
        self.sponsor == Some(peer) || self.late.is_some_and(|(late, _)| late == peer)
    }

    /// Bytes that it holds on behalf of others, besides the state.
    pub fn bytes(&self) -> usize {
        let barred = self.barred_by.len() * size_of::<PeerId>();
        let full = self.full.len() * size_of::<PeerId>();
        self.catchup.bytes() + barred + full + self.refused.len() * size_of::<(PeerId, Option<Standing>)>()
    }

    /// Whether it follows somebody.
    #[cfg(feature = "sim")]
    pub fn is_following(&self) -> bool {
        self.following
    }

    fn follows(&self, peer: PeerId) -> bool {
        self.sponsor == Some(peer) && self.following
    }

    /// The sponsor is there.
    fn heard(&mut self, shared: &Shared) {
        self.heard_at = shared.now;
        self.asked_alive = false;
    }

    /// A peer answers. Returns when it was asked, if this peer had given up waiting for it.
    fn no_longer_late(&mut self, from: PeerId) -> Option<Time> {
        let late = self.late.take_if(|(peer, _)| *peer == from);
        late.map(|(_, asked_at)| asked_at)
    }

    /// The standing of its whole state, if it has one.
    fn whole_standing(&self, shared: &Shared) -> Option<Standing> {
        self.whole.then(|| shared.lineage.standing())
    }

    /// Requests blocks.
    fn fetch(&mut self, shared: &mut Shared) {
        if self.following {
            let usable = |peer| !self.refused.contains_key(&peer);
            self.catchup.fetch(self.sponsor, usable, shared);
        }
    }

    /// It leaves a sponsor that is not at fault: blocks that are all at the head are a whole state.
    fn note_whole(&mut self, shared: &Shared) {
        self.whole |= self.sound == Some(shared.head().chain) && self.catchup.is_at_head(shared);
    }

    /// The sponsor has accepted.
    fn on_following(
        &mut self,
        from: PeerId,
        head: Head,
        digest: Digest,
        resumes: Option<Digest>,
        member: bool,
        shared: &mut Shared,
    ) -> Next {
        let now = shared.now;
        if let Some(late) = self.no_longer_late(from) {
            // Otherwise only short paths would ever be measured, and the deadline would never fit a long one.
            shared.detector.saw_answer(from, now - late);
        }
        // An answer to an older request may be about the state of then.
        let current = resumes.is_none_or(|resumes| self.whole && resumes == shared.head().chain);
        if !current || self.sponsor != Some(from) {
            return Next::Stay;
        }
        shared.shows(from, head.samples);
        if head.check_itself(&shared.manifest).is_err() {
            return self.on_refused(from, None, shared);
        }
        if !self.following {
            shared.detector.saw_answer(from, now - self.asked_at);
        }
        self.following = true;
        self.hope_at = now;
        self.heard(shared);
        self.refused.clear();
        self.barred_by.clear();
        self.barred = None;
        self.full.clear();
        self.ready = None;
        self.excluded_after = (!member).then_some(head.chain);
        self.since = head.round;
        for member in head.members.iter().filter(|m| !shared.outlaws.contains(m.peer)) {
            shared.links.want(member.peer, &member.contact, now);
        }
        if resumes.is_some() {
            let same = head.chain == shared.head().chain;
            // A lineage's hash covers the counted samples, not the round number, which the previous sponsor may
            // have invented.
            if !same && head.round != shared.head().round + 1 {
                self.whole = false;
                self.seek(Some(from), shared);
                return Next::Stay;
            }
            if same && shared.lineage.head != head {
                shared.lineage.head = head;
                handover::follow(shared);
            }
            let expected = if same { digest } else { shared.lineage.digest };
            self.catchup.resume(expected, shared);
        } else {
            // In a split run nobody has the whole state.
            let elements = match shared.manifest.split {
                None => shared.manifest.layout.len,
                Some(_) => 0,
            };
            if shared.lineage.state.params.len() != elements {
                shared.lineage.state = State::new(vec![0.0; elements], &shared.manifest);
            }
            let samples = match std::mem::take(&mut self.own) {
                true => counted_apart(shared.head(), &head, from, shared.me()),
                false => 0,
            };
            let is_news = |aside: &&Aside| aside.since > shared.head().round;
            let aside = head.asides.of(shared.me()).filter(is_news).cloned();
            shared.go_over(head);
            if let Some(aside) = aside {
                // The others went on without it before it had this from the record.
                shared.tell(Event::Aside(aside));
            }
            if samples > 0 {
                shared.tell(Event::Lost { samples });
            }
            handover::follow(shared);
            self.whole = false;
            self.sound = None;
            self.synced = false;
            self.watching = false;
            self.catchup.restart(digest, shared);
            self.catchup.tell_progress(shared);
        }
        self.fetch(shared);
        self.catch_up(None, shared)
    }

    /// Whether this newcomer may have been admitted to a view without having heard of it.
    fn may_become(&self, view: ViewKey) -> bool {
        self.ready.is_some_and(|ready| view.round >= ready + 2)
    }

    /// A member probes this peer.
    fn on_probe(&self, from: PeerId, view: ViewKey, nonce: u32, shared: &mut Shared) {
        if !self.may_become(view) {
            return say_out(from, view, shared);
        }
        let alive = Message::Alive {
            nonce,
            round: shared.head().round + 1,
            doing: Doing::Syncing,
        };
        shared.control(from, alive);
    }

    /// Members agree about an attempt that this newcomer may be part of.
    fn on_flush(&mut self, from: PeerId, view: ViewKey, suspects: &[PeerId], shared: &mut Shared) {
        if !self.may_become(view) {
            return say_out(from, view, shared);
        }
        let sponsor_is_gone = self.sponsor.is_none_or(|s| suspects.contains(&s));
        if sponsor_is_gone {
            self.follow_elsewhere(from, shared);
        }
    }

    /// A piece, finished by the sponsor or for a view that this newcomer may be in.
    fn on_piece(
        &mut self,
        from: PeerId,
        view: ViewKey,
        is_finished: bool,
        is_first: bool,
        piece: Message,
        shared: &mut Shared,
    ) -> Next {
        if self.sponsor == Some(from) && is_finished {
            // A peer that has not said where it stands is of no use, whatever else it sends.
            if self.following {
                (self.heard_at, self.came_at) = (shared.now, shared.now);
            }
            if self.catchup.take_piece(view, &piece) {
                return self.apply_told(shared);
            }
            shared.early.keep(from, true, piece);
        } else if self.may_become(view) {
            let known = shared.lineage.knows(from);
            shared.early.keep(from, known, piece);
        } else if is_first {
            say_out(from, view, shared);
        }
        Next::Stay
    }

    /// Applies the round that the sponsor committed, once all its pieces are there.
    fn apply_told(&mut self, shared: &mut Shared) -> Next {
        let Some(told) = self.catchup.apply_told(shared) else {
            return Next::Stay;
        };
        (self.whole, self.own) = (false, false);
        if let Some(sponsor) = self.sponsor {
            let round = shared.head().round;
            shared.control(sponsor, Message::Followed { round });
        }
        self.fetch(shared);
        self.catch_up(Some(told), shared)
    }

    /// Checks whether the whole state is here, perhaps after a round, and acts on it.
    fn catch_up(&mut self, after: Option<(ViewKey, Record)>, shared: &mut Shared) -> Next {
        if !self.following || !self.catchup.is_at_head(shared) {
            self.watching = false;
            return Next::Stay;
        }
        let blocks = shared.lineage.state.block_digests();
        if !self.catchup.expects(root(&blocks)) && !shared.settings.planted(Bug::JoinUnchecked) {
            self.whole = false;
            self.sound = None;
            self.synced = false;
            self.watching = false;
            if self.catchup.mends(&blocks, self.sponsor, shared) {
                self.fetch(shared);
                return Next::Stay;
            }
            // The sponsor's state differs from the others', or it does not say which block is wrong. Then
            // everything comes from the sponsor; if even that does not fit together, from another sponsor.
            self.catchup.discard();
            let mut sponsor = self.sponsor;
            if self.catchup.sponsor_only {
                self.refused.extend(sponsor.take().map(|s| (s, None)));
            }
            self.catchup.sponsor_only = true;
            self.seek(sponsor, shared);
            return Next::Stay;
        }
        shared.lineage.hashed(blocks);
        self.synced = true;
        self.sound = Some(shared.head().chain);
        self.catchup.sponsor_only = false;
        let has_gone_on = after.is_some();
        self.watch(after, shared);
        let head = shared.head();
        let has_left = |chain| shared.left.iter().any(|place| place.chain == chain);
        let admitted = is_own_membership(shared)
            && head.round >= self.since
            && self.excluded_after != Some(head.chain)
            && (!has_left(head.chain) || shared.settings.planted(Bug::ComeBackTooSoon));
        if admitted || head.finished(&shared.manifest) {
            shared.committed_at = shared.now;
            shared.forgetful = false;
            shared.lineage.last = None;
            handover::go_on(shared);
            if !self.watching {
                shared.tell(Event::Entered);
            }
            return Next::Round(Sponsor::default());
        }
        // Its state may be long past, except for the round that it has just heard of.
        match self.who_may_name(shared).filter(|_| has_gone_on) {
            Some(other) => self.follow_elsewhere(other, shared),
            None => self.say_ready(shared),
        }
        Next::Stay
    }

    /// A watcher reports its state, and each round from there on.
    fn watch(&mut self, after: Option<(ViewKey, Record)>, shared: &mut Shared) {
        let was_watching = std::mem::replace(&mut self.watching, shared.settings.role() == Role::Watch);
        if !self.watching {
            return;
        }
        let total = shared.now - shared.committed_at;
        shared.committed_at = shared.now;
        match after {
            Some((view, record)) if was_watching => {
                let commit = Commit {
                    record,
                    view,
                    digest: shared.lineage.digest,
                    samples: shared.head().counted(),
                    compute: Duration::ZERO,
                    reduce: Duration::ZERO,
                    total,
                };
                shared.tell(Event::Committed(Box::new(commit)));
            }
            _ if was_watching => {}
            _ => shared.tell(Event::Entered),
        }
    }

    /// Tells the sponsor "ready", once both the state and the device's speed are known.
    fn say_ready(&mut self, shared: &mut Shared) {
        if self.synced && self.following && self.rest_aside(shared) {
            return;
        }
        let round = shared.head().round;
        // The statement is valid only for a while.
        let again = self.ready.is_none() || round >= self.said + READY_ROUNDS / 4;
        // The others would wait for a device that still works for a round given up long ago.
        let free = shared.device.asked.is_none();
        let may = shared.settings.role() > Role::Watch;
        let able = may && free && self.synced && self.following && !shared.leaving && again;
        let (Some(speed), true) = (shared.speed.told(), able) else {
            return;
        };
        self.ready.get_or_insert(round);
        self.said = round;
        shared.has_asked = true;
        if let Some(sponsor) = self.sponsor {
            let peer = shared.me();
            let room = shared.settings.room(&shared.manifest);
            let ready = Ready {
                peer,
                speed,
                round,
                room,
            };
            let ready = Some(shared.settings.key.signed(&shared.root.run, ready));
            shared.control(sponsor, Message::Ready { ready });
        }
    }

    /// Handles deadlines that have passed. A silent sponsor is probed, and then left.
    pub fn on_time(&mut self, shared: &mut Shared) -> Next {
        if shared.now - self.heard_at < shared.detector.answer() {
            return Next::Stay;
        }
        self.heard_at = shared.now;
        if let Some(why) = self.is_barred(shared) {
            return Next::Exit(Exit::Barred(why));
        }
        if self.is_hopeless(shared) {
            return Next::Exit(Exit::Lost);
        }
        if shared.settings.role() != Role::Member {
            // Where others follow a member the run goes on, however long its rounds are; and where there is no place for more.
            if self.follower_away(shared).is_some() || shared.now < self.waits_until {
                self.lonely_since = shared.now;
            }
            if shared.now - self.lonely_since > NO_MEMBER {
                return Next::Exit(Exit::NoMember);
            }
        }
        match self.sponsor {
            Some(sponsor) if self.following && !self.asked_alive => {
                self.asked_alive = true;
                let round = shared.head().round;
                self.catchup.drop_ahead(round);
                let view = ViewKey {
                    round,
                    attempt: 0,
                    id: 0,
                };
                shared.control(sponsor, Message::Probe { view, nonce: 0 });
                self.fetch(shared);
                match self.catchup.doubts() {
                    true => self.catch_up(None, shared),
                    false => Next::Stay,
                }
            }
            Some(sponsor) => {
                self.refused.insert(sponsor, None);
                if !self.following && self.late.is_none_or(|(peer, _)| peer != sponsor) {
                    self.late = Some((sponsor, self.asked_at));
                }
                shared.detector.missed_answer();
                let other = shared.links.reachable().find(|p| *p != sponsor);
                match other {
                    Some(other) => self.follow_elsewhere(other, shared),
                    None => self.seek(None, shared),
                }
                self.resume_if_last(shared)
            }
            None => {
                let next = self.resume_if_last(shared);
                if let Next::Stay = next {
                    if shared.now >= self.waits_until {
                        self.full.clear();
                    }
                    self.refused.clear();
                    self.seek(None, shared);
                }
                next
            }
        }
    }
}

/// Tells a peer that still takes this one for a member that it is not.
fn say_out(to: PeerId, view: ViewKey, shared: &mut Shared) {
    if !shared.settings.planted(Bug::ExcludedStaysSilent) {
        shared.control(to, Message::Out { view });
    }
}
