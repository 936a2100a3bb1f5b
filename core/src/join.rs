//! Becoming a member: follow a sponsor's rounds, fetch the state block by block from several members at
//! once, bring each block up to date (`catchup.rs`), say "ready". No round waits for it. Here is whom a newcomer
//! follows and when it goes on; a member that was excluded is a newcomer too.

use crate::catchup::{Block, Logged};
use crate::id::{Digest, PeerId, Round};
use crate::ledger::{Member, Record};
use crate::peer::{Event, Exit, Lane, Output, Peer, Phase};
use crate::planted::Bug;
use crate::reduce::Assembly;
use crate::state::State;
use crate::time::Time;
use crate::wire::{Message, Standing, ViewKey};
use std::collections::{BTreeMap, VecDeque};

/// Without any other peer for so many answer deadlines, a peer that holds a whole state goes on alone.
const LONELY: u32 = 8;

/// A newcomer's progress.
#[derive(Debug)]
pub(crate) struct Join {
    /// Whether the peer's state and head are still a whole old state.
    pub whole: bool,
    pub sponsor: Option<PeerId>,
    pub following: bool,
    /// When the sponsor was last asked or heard.
    pub heard_at: Time,
    /// When the sponsor was asked to be one.
    asked_at: Time,
    /// Who did not answer in time and may still do so, and when it was first asked.
    late: Option<(PeerId, Time)>,
    pub asked_alive: bool,
    /// Who cannot be followed, and the standing of the whole state that it holds.
    pub refused: BTreeMap<PeerId, Option<Standing>>,
    lonely_since: Time,
    /// The sponsor's digest at the head.
    pub expected: Digest,
    pub blocks: Vec<Block>,
    pub log: VecDeque<Logged>,
    pub told: Option<(ViewKey, Record, Digest, Assembly)>,
    pub synced: bool,
    /// The lineage at which the whole state last was what it should be.
    pub sound: Option<Digest>,
    /// Whether blocks of several members did not fit together.
    pub sponsor_only: bool,
    /// The sponsor's lineage when it accepted this peer without having it in its view: the round after
    /// that goes on without this peer, even if the ledger names it as a member.
    pub excluded_after: Option<Digest>,
    /// The sponsor's round when it accepted this peer: what was held before that leads to no round in work.
    pub since: Round,
    /// Whether the state held is known to be wrong: good for going on alone, not for resuming.
    damaged: bool,
    /// The round held when the sponsor was told "ready".
    pub ready: Option<Round>,
}

impl Join {
    pub(crate) fn new(now: Time, whole: bool) -> Self {
        Self {
            whole,
            sponsor: None,
            following: false,
            heard_at: now,
            asked_at: now,
            late: None,
            asked_alive: false,
            refused: BTreeMap::new(),
            lonely_since: now,
            expected: Digest([0; 32]),
            blocks: Vec::new(),
            log: VecDeque::new(),
            told: None,
            synced: false,
            sound: None,
            sponsor_only: false,
            excluded_after: None,
            since: 0,
            damaged: false,
            ready: None,
        }
    }

    /// A peer answers. When it was asked, if this peer had given up waiting for it.
    fn no_longer_late(&mut self, from: PeerId) -> Option<Time> {
        self.late
            .take_if(|(peer, _)| *peer == from)
            .map(|(_, asked_at)| asked_at)
    }
}

impl Peer {
    pub(crate) fn joining(&mut self) -> Option<&mut Join> {
        match &mut self.phase {
            Phase::Joining(join) => Some(join),
            _ => None,
        }
    }

    /// Ceases to be a member; joins again, through the peer that said so if there is one.
    pub(crate) fn outcast(&mut self, reason: &'static str, via: Option<PeerId>) {
        self.cast_out(reason, via, false);
    }

    /// As [`Peer::outcast`], and what it holds is wrong.
    pub(crate) fn outcast_damaged(&mut self, reason: &'static str) {
        self.cast_out(reason, None, true);
    }

    fn cast_out(&mut self, reason: &'static str, via: Option<PeerId>, damaged: bool) {
        let lost = via
            .and_then(|v| self.parted.get(&v))
            .map_or(0, |then| self.head.samples - then);
        self.out.push_back(Output::Event(Event::Outcast { reason, lost }));
        for (follower, _) in std::mem::take(&mut self.followers) {
            self.links.send(
                &mut self.out,
                follower,
                Lane::Control,
                Message::NotMember { standing: None },
            );
        }
        if self.leaving {
            self.out.push_back(Output::Exit(Exit::Left));
            self.phase = Phase::Gone;
            return;
        }
        self.last = None;
        self.barren = 0;
        let join = Join {
            damaged,
            ..Join::new(self.now, true)
        };
        self.phase = Phase::Joining(Box::new(join));
        self.seek(via);
    }

    /// The standing of a whole state held by a peer that is not a member.
    pub(crate) fn whole_standing(&self) -> Option<Standing> {
        match &self.phase {
            Phase::Joining(join) => join.whole.then(|| Standing::of(&self.head)),
            _ => None,
        }
    }

    /// Asks a peer to be the sponsor: the one given, else any that can be reached and has not refused.
    pub(crate) fn seek(&mut self, via: Option<PeerId>) {
        let have = self.whole_standing();
        let Phase::Joining(join) = &mut self.phase else {
            return;
        };
        let have = have.filter(|_| !join.damaged);
        let next = via.filter(|v| self.links.is_up(*v));
        let next = next.or_else(|| self.links.reachable().find(|p| !join.refused.contains_key(p)));
        let former = std::mem::replace(&mut join.sponsor, next).filter(|former| Some(*former) != next);
        join.following = false;
        // What is asked for now goes on from what is held now.
        join.told = None;
        join.ready = None;
        join.heard_at = self.now;
        join.asked_at = self.now;
        join.asked_alive = false;
        if let Some(former) = former {
            // Else it would be admitted there, and waited for.
            let round = self.head.round;
            let ready = Message::Ready { speed: None, round };
            self.links.send(&mut self.out, former, Lane::Control, ready);
        }
        if let Some(sponsor) = next {
            let contact = self.settings.contact.clone();
            self.links.send(
                &mut self.out,
                sponsor,
                Lane::Control,
                Message::Follow { have, contact },
            );
        }
    }

    /// A peer cannot be followed.
    pub(crate) fn on_refused(&mut self, from: PeerId, standing: Option<Standing>) {
        let Some(join) = self.joining() else { return };
        join.no_longer_late(from);
        join.refused.insert(from, standing);
        for block in &mut join.blocks {
            if matches!(block, Block::Asked { from: asked, .. } if *asked == from) {
                *block = Block::Missing;
            }
        }
        if join.sponsor == Some(from) {
            self.seek(None);
            self.resume_if_last();
        } else {
            self.fetch();
        }
    }

    /// A member is there, and perhaps it says where its lineage stands.
    pub(crate) fn on_candidate(&mut self, from: PeerId, standing: Option<Standing>) {
        // Members of the lineage that is followed are a round or two ahead of a newcomer; who is not of them and
        // further ahead is of another. Lineages that take turns in leading do not make a newcomer go to and fro.
        let lead = 2 * u64::from(self.manifest.batch);
        let (here, stranger) = (self.head.samples, self.head.position(from).is_none());
        let ahead = stranger && standing.is_some_and(|s| s.samples > here + lead) && self.links.is_up(from);
        let Some(join) = self.joining() else { return };
        join.refused.remove(&from);
        // A sponsor tells its standing only to those who do not follow it: it has let go of this peer.
        let dropped = join.sponsor == Some(from) && join.following;
        if join.sponsor.is_none() || dropped {
            self.seek(Some(from));
        } else if ahead && join.following {
            self.follow_elsewhere(from);
        }
    }

    /// If nobody that can be reached is a member, the best whole state goes on.
    fn resume_if_last(&mut self) {
        let mine = Standing::of(&self.head);
        let patience = self.detector.answer();
        let Phase::Joining(join) = &self.phase else {
            return;
        };
        if !join.whole || join.sponsor.is_some() {
            return;
        }
        let waited = self.now - join.lonely_since;
        let nobody = self.links.reachable().next().is_none();
        let all_refused = self.links.reachable().all(|p| join.refused.contains_key(&p));
        let best = join
            .refused
            .iter()
            .all(|(p, s)| !self.links.is_up(*p) || s.is_none_or(|s| !s.beats(&mine)));
        if (nobody && waited > LONELY * patience) || (!nobody && all_refused && best && waited > 2 * patience)
        {
            let me = Member::new(&self.settings, self.speed);
            self.head = self.head.clone().continued_by(me);
            self.out.push_back(Output::Event(Event::Continued));
            self.enter_round();
        }
    }

    /// The sponsor has accepted.
    pub(crate) fn on_following(
        &mut self,
        from: PeerId,
        head: crate::ledger::Head,
        digest: Digest,
        resumes: Option<Digest>,
        member: bool,
    ) {
        let now = self.now;
        let chain = self.head.chain;
        if let Some(late) = self.joining().and_then(|join| join.no_longer_late(from)) {
            // Else only short ways would ever be measured, and the deadline would never fit a long one.
            self.detector.saw_answer(now - late);
        }
        // An answer to an older question may be about what was held then.
        let current = resumes.is_none_or(|resumes| resumes == chain && self.whole_standing().is_some());
        let Some(join) = self.joining().filter(|j| current && j.sponsor == Some(from)) else {
            return;
        };
        let wait = (!join.following).then(|| now - join.asked_at);
        join.following = true;
        join.heard_at = now;
        join.asked_alive = false;
        join.refused.clear();
        join.told = None;
        join.ready = None;
        join.excluded_after = (!member).then_some(head.chain);
        join.since = head.round;
        if let Some(wait) = wait {
            self.detector.saw_answer(wait);
        }
        for member in &head.members {
            self.links.want(member.peer, &member.contact, now);
        }
        if resumes.is_some() {
            // What is held goes on from here.
            let held = Block::Held {
                round: self.head.round,
                chain: self.head.chain,
            };
            let blocks = self.state.blocks(&self.manifest) as usize;
            let expected = if head.chain == self.head.chain {
                digest
            } else {
                self.digest
            };
            let Some(join) = self.joining() else { return };
            join.blocks = vec![held; blocks];
            join.expected = expected;
            join.log.clear();
        } else {
            let elements = self.manifest.layout.len;
            if self.state.params.len() != elements {
                self.state = State::new(vec![0.0; elements], &self.manifest);
            }
            let blocks = self.state.blocks(&self.manifest) as usize;
            self.head = head;
            let Some(join) = self.joining() else { return };
            join.whole = false;
            join.synced = false;
            join.blocks = vec![Block::Missing; blocks];
            join.expected = digest;
            join.log.clear();
            self.tell_progress();
        }
        self.fetch();
        self.catch_up();
    }

    /// Whether a view may be one that this newcomer was admitted to without having heard of it yet.
    pub(crate) fn may_become(&self, view: ViewKey) -> bool {
        match &self.phase {
            Phase::Joining(join) => join.ready.is_some_and(|ready| view.round >= ready + 2),
            _ => false,
        }
    }

    /// Tells a peer that still takes this one for a member.
    pub(crate) fn say_out(&mut self, to: PeerId, view: ViewKey) {
        if !self.settings.planted(Bug::ExcludedStaysSilent) {
            self.links
                .send(&mut self.out, to, Lane::Control, Message::Out { view });
        }
    }

    /// A member wants to know whether this peer is there.
    pub(crate) fn on_probe_while_joining(&mut self, from: PeerId, view: ViewKey, nonce: u32) {
        if self.may_become(view) {
            let alive = Message::Alive {
                nonce,
                round: self.head.round + 1,
                doing: self.doing(),
            };
            self.links.send(&mut self.out, from, Lane::Control, alive);
        } else {
            self.say_out(from, view);
        }
    }

    /// Members agree about an attempt that this newcomer may be part of.
    pub(crate) fn on_flush_while_joining(&mut self, from: PeerId, view: ViewKey, suspects: &[PeerId]) {
        if !self.may_become(view) {
            return self.say_out(from, view);
        }
        let Some(join) = self.joining() else { return };
        let sponsor_is_gone = join.sponsor.is_none_or(|s| suspects.contains(&s));
        if sponsor_is_gone {
            self.follow_elsewhere(from);
        }
    }

    /// Goes on with another sponsor from what is held.
    fn follow_elsewhere(&mut self, sponsor: PeerId) {
        let Phase::Joining(join) = &mut self.phase else {
            return;
        };
        // Blocks that all stand at the head are a whole state.
        let here = (self.head.round, self.head.chain);
        let at_head = |b: &Block| matches!(b, Block::Held { round, chain } if (*round, *chain) == here);
        join.whole = join.whole || (join.sound == Some(here.1) && join.blocks.iter().all(at_head));
        self.seek(Some(sponsor));
    }

    /// Tells the sponsor, once both the state and the device's speed are known.
    pub(crate) fn say_ready(&mut self) {
        let round = self.head.round;
        let Phase::Joining(join) = &mut self.phase else {
            return;
        };
        let Some(speed) = self
            .speed
            .filter(|_| join.synced && join.following && !self.leaving)
        else {
            return;
        };
        if join.ready.is_none() {
            join.ready = Some(round);
            let Some(sponsor) = join.sponsor else { return };
            self.links.send(
                &mut self.out,
                sponsor,
                Lane::Control,
                Message::Ready {
                    speed: Some(speed),
                    round,
                },
            );
        }
    }

    /// The link to a peer is gone: what it was asked for does not come.
    pub(crate) fn on_lost_while_joining(&mut self, peer: PeerId) {
        let Phase::Joining(join) = &mut self.phase else {
            return;
        };
        for block in &mut join.blocks {
            if matches!(block, Block::Asked { from, .. } if *from == peer) {
                *block = Block::Missing;
            }
        }
        if join.sponsor == Some(peer) {
            join.sponsor = None;
            let next = self.links.reachable().next();
            match next {
                Some(next) => self.follow_elsewhere(next),
                None => self.seek(None),
            }
        } else {
            self.fetch();
        }
    }

    /// Timers of a newcomer.
    pub(crate) fn on_joining_time(&mut self) {
        let patience = self.detector.answer();
        let next = ViewKey {
            round: self.head.round,
            attempt: 0,
            id: 0,
        };
        let Phase::Joining(join) = &mut self.phase else {
            return;
        };
        if self.now - join.heard_at < patience {
            return;
        }
        join.heard_at = self.now;
        match join.sponsor {
            Some(sponsor) if join.following && !join.asked_alive => {
                join.asked_alive = true;
                // A block that is ahead of a sponsor that does not move is of another lineage.
                let here = self.head.round;
                for block in &mut join.blocks {
                    if matches!(block, Block::Held { round, .. } if *round > here) {
                        *block = Block::Missing;
                        join.sponsor_only = true;
                    }
                }
                let probe = Message::Probe { view: next, nonce: 0 };
                self.links.send(&mut self.out, sponsor, Lane::Control, probe);
                self.fetch();
            }
            Some(sponsor) => {
                join.refused.insert(sponsor, None);
                if !join.following && join.late.is_none_or(|(peer, _)| peer != sponsor) {
                    join.late = Some((sponsor, join.asked_at));
                }
                self.detector.missed_answer();
                let other = self.links.reachable().find(|p| *p != sponsor);
                match other {
                    Some(other) => self.follow_elsewhere(other),
                    None => self.seek(None),
                }
                self.resume_if_last();
            }
            None => {
                self.resume_if_last();
                if let Some(join) = self.joining() {
                    join.refused.clear();
                    self.seek(None);
                }
            }
        }
    }

    /// The sponsor is there.
    pub(crate) fn on_alive_while_joining(&mut self, from: PeerId) {
        let now = self.now;
        if let Some(join) = self.joining().filter(|j| j.sponsor == Some(from)) {
            join.heard_at = now;
            join.asked_alive = false;
        }
    }

    /// When [`Peer::on_joining_time`] has something to do.
    pub(crate) fn joining_wake_at(&self) -> Option<Time> {
        match &self.phase {
            Phase::Joining(join) => Some(join.heard_at + self.detector.answer()),
            _ => None,
        }
    }
}
