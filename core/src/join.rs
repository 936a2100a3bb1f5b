//! Becoming a member: follow a sponsor's rounds, fetch the state block by block from several members at
//! once, bring each block up to date, say "ready". No round waits for it.
//!
//! The members do not stop to take a snapshot, nor do they copy their state: each block comes as it is
//! when it is asked for and says after which round that is. The rounds that follow are applied to the
//! blocks that are there (as a database restores a fuzzy backup from its log). When all blocks stand at
//! the same round, the digest tells whether the state is the members'.

use crate::id::{Digest, PeerId, Round};
use crate::ledger::{Member, Record};
use crate::optim::Step;
use crate::peer::{Event, Exit, Lane, Output, Peer, Phase};
use crate::planted::Bug;
use crate::reduce::Assembly;
use crate::round::view_id;
use crate::schedule::Ring;
use crate::state::{State, plan};
use crate::time::Time;
use crate::wire::{Message, Phase as Half, Standing, ViewKey};
use std::collections::{BTreeMap, VecDeque};

/// Blocks on their way from one member at a time: enough to hide a round trip, few enough that the
/// members' own traffic hardly notices.
const WINDOW: usize = 2;

/// Followed rounds that are kept to bring late blocks up to date. A member that serves blocks is at most
/// one round behind the sponsor.
const LOG: usize = 2;

/// Without any other peer for so many answer deadlines, a peer that holds a whole state goes on alone.
const LONELY: u32 = 8;

#[derive(Clone, Copy, Debug)]
enum Block {
    Missing,
    Asked { from: PeerId, at: Time },
    Held { round: Round, chain: Digest },
}

#[derive(Debug)]
struct Logged {
    /// Lineage before the round.
    before: Standing,
    step: Option<Step>,
    sums: Assembly,
}

/// A newcomer's progress.
#[derive(Debug)]
pub(crate) struct Join {
    /// Whether the peer's state and head are still a whole old state.
    whole: bool,
    sponsor: Option<PeerId>,
    following: bool,
    /// When the sponsor was last asked or heard.
    heard_at: Time,
    /// When the sponsor was asked to be one.
    asked_at: Time,
    asked_alive: bool,
    /// Who cannot be followed, and the standing of the whole state that it holds.
    refused: BTreeMap<PeerId, Option<Standing>>,
    lonely_since: Time,
    /// The sponsor's digest at the head.
    expected: Digest,
    blocks: Vec<Block>,
    log: VecDeque<Logged>,
    told: Option<(ViewKey, Record, Digest, Assembly)>,
    synced: bool,
    /// The lineage at which the whole state last was what it should be.
    sound: Option<Digest>,
    /// Whether blocks of several members did not fit together.
    sponsor_only: bool,
    /// The sponsor's lineage when it accepted this peer without having it in its view: the round after
    /// that goes on without this peer, even if the ledger names it as a member.
    excluded_after: Option<Digest>,
    /// The sponsor's round when it accepted this peer: what was held before that leads to no round in work.
    since: Round,
    /// Whether the state held is known to be wrong: good for going on alone, not for resuming.
    damaged: bool,
    /// The round held when the sponsor was told "ready".
    ready: Option<Round>,
}

impl Join {
    pub(crate) fn new(now: Time, whole: bool) -> Self {
        Self {
            whole,
            sponsor: None,
            following: false,
            heard_at: now,
            asked_at: now,
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
}

impl Peer {
    fn joining(&mut self) -> Option<&mut Join> {
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
            let ready = Message::Ready { speed: None };
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

    /// A member, or a peer that was one, is there.
    pub(crate) fn on_candidate(&mut self, from: PeerId, member: bool) {
        let Some(join) = self.joining() else { return };
        if member {
            join.refused.remove(&from);
            // A sponsor tells its standing only to those who do not follow it: it has let go of this peer.
            let dropped = join.sponsor == Some(from) && join.following;
            if join.sponsor.is_none() || dropped {
                self.seek(Some(from));
            }
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
            let me = self.myself();
            self.head = self.head.clone().continued_by(me);
            self.out.push_back(Output::Event(Event::Continued));
            self.enter_round();
        }
    }

    /// This peer as a member.
    pub(crate) fn myself(&self) -> Member {
        Member {
            peer: self.settings.me,
            speed: self.speed.unwrap_or(1),
            contact: self.settings.contact.clone(),
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

    /// Asks for blocks, from all members that can be reached, within the window of each.
    fn fetch(&mut self) {
        let patience = 2 * self.detector.answer();
        let now = self.now;
        let Phase::Joining(join) = &mut self.phase else {
            return;
        };
        if !join.following {
            return;
        }
        let members = self.head.members.iter().map(|m| m.peer);
        let mut room: Vec<(PeerId, usize)> = members
            .filter(|p| self.links.is_up(*p) && !join.refused.contains_key(p))
            .filter(|p| !join.sponsor_only || join.sponsor == Some(*p))
            .map(|p| (p, WINDOW))
            .collect();
        if room.is_empty() {
            // The sponsor is a member, even if only a relay reaches it.
            room.extend(join.sponsor.map(|s| (s, WINDOW)));
        }
        for block in &mut join.blocks {
            if let Block::Asked { from, at } = *block {
                if now - at > patience {
                    *block = Block::Missing;
                } else if let Some((_, room)) = room.iter_mut().find(|(p, _)| *p == from) {
                    *room = room.saturating_sub(1);
                }
            }
        }
        let mut turn = 0;
        for (i, block) in join.blocks.iter_mut().enumerate() {
            if !matches!(block, Block::Missing) {
                continue;
            }
            let Some(k) = (0..room.len())
                .map(|k| (turn + k) % room.len())
                .find(|k| room[*k].1 > 0)
            else {
                break;
            };
            let (from, left) = &mut room[k];
            *left -= 1;
            turn = k + 1;
            *block = Block::Asked { from: *from, at: now };
            self.links.send(
                &mut self.out,
                *from,
                Lane::Control,
                Message::Fetch { block: i as u32 },
            );
        }
    }

    /// A block of the state has come.
    pub(crate) fn on_block(&mut self, block: u32, round: Round, chain: Digest, data: &[u8]) {
        let now = self.now;
        let Phase::Joining(join) = &mut self.phase else {
            return;
        };
        let Some(slot) = join.blocks.get_mut(block as usize) else {
            return;
        };
        if matches!(slot, Block::Held { .. }) || !join.following {
            return;
        }
        *slot = Block::Missing;
        let here = Standing::of(&self.head);
        let first = join
            .log
            .iter()
            .position(|l| l.before.round == round && l.before.chain == chain);
        let fits = round > here.round || (round == here.round && chain == here.chain) || first.is_some();
        if fits && self.state.write_block(&self.manifest, block, data) {
            let range = self
                .state
                .block_range(&self.manifest, block)
                .expect("it was written");
            let mut held = (round, chain);
            if let Some(first) = first {
                for logged in join.log.range(first..) {
                    if let Some(step) = &logged.step {
                        self.state
                            .apply_round(&self.manifest, step, &logged.sums, range.clone());
                    }
                }
                held = (here.round, here.chain);
            }
            join.blocks[block as usize] = Block::Held {
                round: held.0,
                chain: held.1,
            };
        }
        join.heard_at = now;
        self.tell_progress();
        self.fetch();
        self.catch_up();
    }

    fn tell_progress(&mut self) {
        let Phase::Joining(join) = &self.phase else {
            return;
        };
        let held = join
            .blocks
            .iter()
            .filter(|b| matches!(b, Block::Held { .. }))
            .count() as u64;
        let total = 4 * (self.state.params.len() * (1 + self.state.slots.len())) as u64;
        let bytes = total * held / (join.blocks.len().max(1) as u64);
        self.out.push_back(Output::Event(Event::Syncing {
            bytes,
            total,
            round: self.head.round,
        }));
    }

    /// The sponsor has committed a round.
    pub(crate) fn on_followed_commit(&mut self, from: PeerId, view: ViewKey, record: Record, digest: Digest) {
        let null = record.headers.len() < usize::from(self.manifest.min_peers);
        let len = if null { 0 } else { self.manifest.layout.len };
        let ring = Ring {
            n: record.headers.len(),
            len,
            piece: self.manifest.piece as usize,
        };
        let next = self.head.round + 1;
        let codec = self.manifest.codec;
        let now = self.now;
        let members: Vec<PeerId> = record.headers.iter().map(|h| h.peer).collect();
        let fits = view.id == view_id(&self.head, record.attempt, &members);
        let Some(join) = self.joining().filter(|j| j.sponsor == Some(from) && j.following) else {
            return;
        };
        join.heard_at = now;
        join.asked_alive = false;
        if record.round != next || view.round != next || !fits {
            if record.round >= next {
                // A round is missing between, or it is one of another lineage: begin again.
                self.seek(Some(from));
            }
            return;
        }
        let mut sums = Assembly::new(view, ring, codec);
        for (sender, message) in self.drain_early(view) {
            match message {
                Message::Piece {
                    phase: Half::Gather,
                    chunk,
                    piece,
                    data,
                    ..
                } if sender == from => {
                    sums.put(chunk, piece, data);
                }
                _ => {}
            }
        }
        let missing = sums.missing();
        if !missing.is_empty() {
            self.links.send(
                &mut self.out,
                from,
                Lane::Control,
                Message::Repair { view, missing },
            );
        }
        let Some(join) = self.joining() else { return };
        join.told = Some((view, record, digest, sums));
        self.apply_followed();
    }

    /// A finished piece, as the sponsor forwards it.
    pub(crate) fn on_followed_piece(&mut self, from: PeerId, message: Message) {
        let Phase::Joining(join) = &mut self.phase else {
            return;
        };
        let Message::Piece {
            view,
            phase,
            chunk,
            piece,
            ref data,
            ..
        } = message
        else {
            return;
        };
        if join.sponsor == Some(from) && phase == Half::Gather {
            join.heard_at = self.now;
            if let Some((_, _, _, sums)) = join.told.as_mut().filter(|told| told.0 == view) {
                sums.put(chunk, piece, data.clone());
                return self.apply_followed();
            }
            return self.keep_early(from, message);
        }
        if self.may_become(view) {
            self.keep_early(from, message);
        } else if piece == 0 {
            self.say_out(from, view);
        }
    }

    /// Whether a view may be one that this newcomer was admitted to without having heard of it yet.
    fn may_become(&self, view: ViewKey) -> bool {
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

    /// Applies the round that the sponsor told of, once all its pieces are there.
    fn apply_followed(&mut self) {
        let before = Standing::of(&self.head);
        let Phase::Joining(join) = &mut self.phase else {
            return;
        };
        let Some((_, record, digest, sums)) = join.told.take_if(|told| told.3.is_complete()) else {
            return;
        };
        let step = plan(&self.manifest, self.head.steps, &record, &sums);
        join.whole = false;
        for (i, block) in join.blocks.iter_mut().enumerate() {
            let Block::Held { round, chain } = block else {
                continue;
            };
            if (*round, *chain) == (before.round, before.chain) {
                let range = self
                    .state
                    .block_range(&self.manifest, i as u32)
                    .expect("own block");
                if let Some(step) = &step {
                    self.state.apply_round(&self.manifest, step, &sums, range);
                }
                *round += 1;
            } else if *round <= before.round {
                *block = Block::Missing;
            }
        }
        self.apply_record(&record);
        let head = Standing::of(&self.head);
        let sponsor = {
            let Some(join) = self.joining() else { return };
            for block in &mut join.blocks {
                if let Block::Held { round, chain } = block
                    && *round == head.round
                {
                    if before.round + 1 == *round && *chain == before.chain {
                        *chain = head.chain;
                    }
                    // It came from a member of another lineage.
                    if *chain != head.chain {
                        *block = Block::Missing;
                    }
                }
            }
            join.expected = digest;
            join.log.push_back(Logged { before, step, sums });
            if join.log.len() > LOG {
                join.log.pop_front();
            }
            join.sponsor
        };
        for member in self.head.members.clone() {
            self.links.want(member.peer, &member.contact, self.now);
        }
        if let Some(sponsor) = sponsor {
            self.links.send(
                &mut self.out,
                sponsor,
                Lane::Control,
                Message::Followed { round: head.round },
            );
        }
        self.fetch();
        self.catch_up();
    }

    /// Checks whether the whole state is here, and what follows from that.
    fn catch_up(&mut self) {
        let unchecked = self.settings.planted(Bug::JoinUnchecked);
        let here = (self.head.round, self.head.chain);
        let Phase::Joining(join) = &mut self.phase else {
            return;
        };
        let at_head = |b: &Block| matches!(b, Block::Held { round, chain } if (*round, *chain) == here);
        if !join.following || !join.blocks.iter().all(at_head) {
            return;
        }
        let digest = self.state.digest();
        if digest != join.expected && !unchecked {
            // What the sponsor holds, the others do not share, or a block was damaged: all from the sponsor
            // then, and if even that does not fit together, another sponsor.
            join.blocks.fill(Block::Missing);
            join.whole = false;
            join.synced = false;
            join.log.clear();
            let mut sponsor = join.sponsor;
            if join.sponsor_only {
                join.refused.extend(sponsor.take().map(|s| (s, None)));
            }
            join.sponsor_only = true;
            return self.seek(sponsor);
        }
        self.digest = digest;
        join.synced = true;
        join.sound = Some(here.1);
        join.sponsor_only = false;
        let admitted = self.head.position(self.settings.me).is_some()
            && self.head.round >= join.since
            && join.excluded_after != Some(self.head.chain);
        if self.head.finished(&self.manifest) || admitted {
            self.committed_at = self.now;
            self.last = None;
            self.out.push_back(Output::Event(Event::Entered));
            return self.enter_round();
        }
        self.say_ready();
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
                Message::Ready { speed: Some(speed) },
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
