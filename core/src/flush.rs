//! Agreement after a failure, without a leader.
//!
//! Who waits too long asks all members whether they are there; the silent are suspected. A suspicion is
//! flooded as a *flush*, which freezes its sender's attempt: what it said ("I have not committed this
//! round") stays true. Sets of suspects only grow. Whoever holds equal sets from all that it does not
//! suspect has the decision: the attempt is aborted and tried again without the suspects. A member that
//! has committed the round never flushes for it; it answers with the commit, so that an abort cannot be
//! decided against it.
//!
//! Without any one of these three rules runs diverge or hang:
//! - a flush or decision that excludes a peer makes it a newcomer, even if it has committed the round;
//! - who is out says so to those who still take it for a member, which counts as a suspicion;
//! - a decision or a commit is taken only from a peer that is not suspected.

use crate::id::{Digest, PeerId, Round};
use crate::ledger::Record;
use crate::peer::{Change, Event, Lane, Output, Peer, Phase};
use crate::planted::Bug;
use crate::round::{Told, Working};
use crate::time::Time;
use crate::wire::{Doing, Message, Standing, ViewKey};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// An aborted attempt.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    pub view: ViewKey,
    pub suspects: BTreeSet<PeerId>,
}

/// This member's part in the agreement about one attempt.
#[derive(Debug)]
pub(crate) struct Flush {
    pub suspects: BTreeSet<PeerId>,
    /// What the others last said.
    heard: BTreeMap<PeerId, BTreeSet<PeerId>>,
    reasons: BTreeMap<PeerId, (Change, &'static str)>,
    /// When to say it again: a flush may be lost with its link.
    again_at: Time,
    /// When those who have not said the same are suspected too.
    until: Time,
}

/// A question to all members.
#[derive(Debug)]
pub(crate) struct Probing {
    nonce: u32,
    until: Time,
    answers: BTreeMap<PeerId, (Round, Doing)>,
}

/// So many probes that find nobody at work mean that frames were lost: the attempt is repeated. Twice as many each
/// time that it was (RFC 6298, rule 5.5), or a round whose pieces take longer than that would never end.
const IDLE_PROBES: u32 = 3;
/// Most that this is doubled.
const DOUBLINGS: usize = 6;

impl Working {
    pub(crate) fn suspects(&self, peer: PeerId) -> bool {
        self.flush.as_ref().is_some_and(|f| f.suspects.contains(&peer))
    }
}

impl Peer {
    /// Nothing has come for long: asks all members what they do.
    fn probe_all(&mut self) {
        let nonce = self.probed.map_or(1, |(nonce, _)| nonce.wrapping_add(1));
        self.probed = Some((nonce, self.now));
        let until = self.now + self.detector.answer();
        let Phase::Member(w) = &mut self.phase else {
            return;
        };
        w.quiet_at = None;
        w.probing = Some(Probing {
            nonce,
            until,
            answers: BTreeMap::new(),
        });
        let probe = Message::Probe {
            view: w.view.key,
            nonce,
        };
        for peer in w.view.others() {
            self.links.send(&mut self.out, peer, Lane::Control, probe.clone());
        }
    }

    /// A link to a peer is open again: the question, or its answer, may have been lost with the old one.
    pub(crate) fn probe_again(&mut self, peer: PeerId) {
        let until = self.now + self.detector.answer();
        let Phase::Member(w) = &mut self.phase else {
            return;
        };
        let view = w.view.key;
        let Some(probing) = w.probing.as_mut().filter(|p| !p.answers.contains_key(&peer)) else {
            return;
        };
        let nonce = probing.nonce;
        probing.until = until;
        self.probed = Some((nonce, self.now));
        self.links
            .send(&mut self.out, peer, Lane::Control, Message::Probe { view, nonce });
    }

    /// Somebody asks.
    pub(crate) fn on_probe(&mut self, from: PeerId, view: ViewKey, nonce: u32) {
        let stranger = match &self.phase {
            Phase::Member(w) => view.round <= w.view.key.round && !w.view.contains(from),
            Phase::Lingering { .. } => {
                view.round <= self.head.round && self.last.as_ref().is_none_or(|l| l.view != view)
            }
            _ => false,
        };
        if stranger && !self.followers.contains_key(&from) {
            return self.tell_stranger(from, view);
        }
        let round = self.head.round + 1;
        let alive = Message::Alive {
            nonce,
            round,
            doing: self.doing(),
        };
        self.links.send(&mut self.out, from, Lane::Control, alive);
    }

    /// Somebody answers.
    pub(crate) fn on_alive(&mut self, from: PeerId, nonce: u32, round: Round, doing: Doing) {
        let Phase::Member(w) = &mut self.phase else {
            return;
        };
        if let Some((_, sent)) = self.probed.filter(|(number, _)| *number == nonce) {
            // Also if it is late: else only short ways would ever be measured.
            self.detector.saw_answer(self.now - sent);
        }
        let Some(probing) = w.probing.as_mut().filter(|p| p.nonce == nonce) else {
            return;
        };
        probing.answers.insert(from, (round, doing));
        if w.view
            .others()
            .all(|peer| w.probing.as_ref().is_some_and(|p| p.answers.contains_key(&peer)))
        {
            self.judge_answers();
        }
    }

    /// All have answered, or the time for it is over.
    fn judge_answers(&mut self) {
        let Phase::Member(w) = &mut self.phase else {
            return;
        };
        let Some(probing) = w.probing.take() else {
            return;
        };
        let silent: BTreeSet<PeerId> = w
            .view
            .others()
            .filter(|p| !probing.answers.contains_key(p))
            .collect();
        if !silent.is_empty() {
            return self.suspect_because(silent, Change::Failed, "silent");
        }
        let mut slow = BTreeSet::new();
        let mut at_work = false;
        let mut ahead = None;
        for (peer, (round, doing)) in &probing.answers {
            if *round > w.view.key.round {
                ahead = Some(*peer);
            }
            match doing {
                Doing::Computing { elapsed_us } if *round == w.view.key.round => {
                    at_work = true;
                    let place = self.head.position(*peer);
                    let (share, speed) =
                        place.map_or((0, 1), |i| (w.allotment.len(i), self.head.members[i].speed));
                    if Duration::from_micros(*elapsed_us) > self.detector.compute(*peer, share, speed) {
                        slow.insert(*peer);
                    }
                }
                _ => {}
            }
        }
        w.quiet_at = Some(self.now + self.detector.quiet());
        w.idle_probes = if at_work { 0 } else { w.idle_probes + 1 };
        let repeated = w.decided.iter().filter(|d| d.suspects.is_empty()).count();
        let idle = w.idle_probes >= IDLE_PROBES << repeated.min(DOUBLINGS);
        let view = w.view.key;
        if !slow.is_empty() {
            self.suspect_because(slow, Change::Evicted, "too slow");
        } else if let Some(peer) = ahead.filter(|_| !idle) {
            let ask = Message::Repair {
                view,
                missing: Vec::new(),
            };
            self.links.send(&mut self.out, peer, Lane::Control, ask);
        } else if idle {
            self.suspect_because(BTreeSet::new(), Change::Failed, "frames were lost");
        }
    }

    /// Suspects members that broke the protocol or said that they are out.
    pub(crate) fn suspect(&mut self, peers: BTreeSet<PeerId>) {
        self.suspect_because(peers, Change::Failed, "said that it is out");
    }

    fn suspect_because(&mut self, peers: BTreeSet<PeerId>, change: Change, reason: &'static str) {
        let (now, answer) = (self.now, self.detector.answer());
        let Phase::Member(w) = &mut self.phase else {
            return;
        };
        let fresh = w.flush.is_none();
        let flush = w.flush.get_or_insert_with(|| Flush {
            suspects: BTreeSet::new(),
            heard: BTreeMap::new(),
            reasons: BTreeMap::new(),
            again_at: now,
            until: now + answer,
        });
        let before = flush.suspects.len();
        for peer in peers {
            flush.reasons.entry(peer).or_insert((change, reason));
            flush.suspects.insert(peer);
        }
        w.probing = None;
        if w.told
            .as_ref()
            .is_some_and(|told| flush.suspects.contains(&told.by))
        {
            w.told = None;
        }
        // Who told of a commit and is still trusted is still waited for, and not for ever.
        w.quiet_at = w.quiet_at.filter(|_| w.told.is_some());
        if fresh || flush.suspects.len() > before {
            flush.until = now + answer;
            self.flood();
        }
        self.decide_if_agreed();
    }

    fn flood(&mut self) {
        let Phase::Member(w) = &mut self.phase else {
            return;
        };
        let Some(flush) = &mut w.flush else { return };
        flush.again_at = self.now + self.detector.answer() / 4;
        let message = Message::Flush {
            view: w.view.key,
            suspects: flush.suspects.iter().copied().collect(),
        };
        for peer in w.view.others() {
            self.links
                .send(&mut self.out, peer, Lane::Control, message.clone());
        }
    }

    /// Another member has stopped an attempt.
    pub(crate) fn on_flush(&mut self, from: PeerId, view: ViewKey, suspects: Vec<PeerId>) {
        let excludes_me =
            suspects.contains(&self.settings.me) && !self.settings.planted(Bug::IgnoreExclusion);
        let Phase::Member(w) = &mut self.phase else {
            return;
        };
        let mine = w.view.key;
        let trusts = !w.suspects(from) || self.settings.planted(Bug::TrustSuspects);
        if view == mine {
            if !w.view.contains(from) || !trusts {
                return;
            }
            if excludes_me {
                return self.outcast("excluded by another member", Some(from));
            }
            self.merge_flush(from, suspects.into_iter().collect());
        } else if view.round > mine.round || (view.round == mine.round && view.attempt > mine.attempt) {
            if !w.view.contains(from) || !trusts {
                return;
            }
            if excludes_me {
                self.outcast("excluded by another member", Some(from));
            } else if view.round == mine.round {
                // It has decided about this attempt; a flush of one's own brings the decision.
                self.suspect_because(BTreeSet::new(), Change::Failed, "");
            } else {
                let ask = Message::Repair {
                    view: mine,
                    missing: Vec::new(),
                };
                self.links.send(&mut self.out, from, Lane::Control, ask);
            }
        } else {
            self.on_late(from, view, Some(suspects));
        }
    }

    fn merge_flush(&mut self, from: PeerId, theirs: BTreeSet<PeerId>) {
        let merge = !self.settings.planted(Bug::KeepSuspectsApart);
        self.suspect_because(
            if merge { theirs.clone() } else { BTreeSet::new() },
            Change::Failed,
            "suspected by another member",
        );
        let Phase::Member(w) = &mut self.phase else {
            return;
        };
        let Some(flush) = &mut w.flush else { return };
        flush.heard.insert(from, theirs.clone());
        if flush.suspects != theirs {
            let suspects = flush.suspects.iter().copied().collect();
            let message = Message::Flush {
                view: w.view.key,
                suspects,
            };
            self.links.send(&mut self.out, from, Lane::Control, message);
        }
        self.decide_if_agreed();
    }

    fn decide_if_agreed(&mut self) {
        let Phase::Member(w) = &self.phase else {
            return;
        };
        let Some(flush) = &w.flush else { return };
        let apart = self.settings.planted(Bug::KeepSuspectsApart);
        let agreed = w
            .view
            .others()
            .filter(|peer| !flush.suspects.contains(peer))
            .all(|peer| {
                flush
                    .heard
                    .get(&peer)
                    .is_some_and(|heard| apart || *heard == flush.suspects)
            });
        if agreed && w.told.is_none() {
            let suspects = flush.suspects.clone();
            self.abort(suspects);
        }
    }

    /// The attempt is over: the next is without the suspects.
    fn abort(&mut self, suspects: BTreeSet<PeerId>) {
        let Phase::Member(w) = &mut self.phase else {
            return;
        };
        let decision = Message::Decision {
            view: w.view.key,
            suspects: suspects.iter().copied().collect(),
        };
        w.decided.push(Decided {
            view: w.view.key,
            suspects: suspects.clone(),
        });
        let members: Vec<PeerId> = w
            .view
            .members
            .iter()
            .copied()
            .filter(|m| !suspects.contains(m))
            .collect();
        let reasons = w.flush.take().map(|f| f.reasons).unwrap_or_default();
        for peer in suspects {
            let (change, reason) = reasons
                .get(&peer)
                .copied()
                .unwrap_or((Change::Failed, "suspected by another member"));
            self.out
                .push_back(Output::Event(Event::Member { peer, change, reason }));
            self.links
                .send(&mut self.out, peer, Lane::Control, decision.clone());
            self.parted.insert(peer, self.head.samples);
        }
        self.next_attempt(members);
    }

    /// Another member has decided.
    pub(crate) fn on_decision(&mut self, from: PeerId, view: ViewKey, suspects: Vec<PeerId>) {
        let Phase::Member(w) = &self.phase else {
            return;
        };
        let mine = w.view.key;
        if w.suspects(from) && !self.settings.planted(Bug::TrustSuspects) {
            return;
        }
        let excludes_me =
            suspects.contains(&self.settings.me) && !self.settings.planted(Bug::IgnoreExclusion);
        if excludes_me && (view.round == mine.round || view.round + 1 == mine.round) {
            self.outcast("excluded by the others' decision", Some(from));
        } else if view == mine && w.view.contains(from) {
            self.abort(suspects.into_iter().collect());
        }
    }

    /// Another member is no longer one.
    pub(crate) fn on_out(&mut self, from: PeerId, view: ViewKey) {
        match &self.phase {
            Phase::Member(w) if w.view.key.round == view.round && w.view.contains(from) => {
                self.suspect([from].into());
            }
            Phase::Joining(_) => self.on_refused(from, None),
            _ => {}
        }
    }

    /// A message about an attempt or round that is over here.
    pub(crate) fn on_late(&mut self, from: PeerId, view: ViewKey, flush: Option<Vec<PeerId>>) {
        let here = match &self.phase {
            Phase::Member(w) => w.decided.iter().find(|d| d.view == view),
            _ => None,
        };
        let last = self.last.as_ref();
        let decided = here.or_else(|| last.and_then(|last| last.decided.iter().find(|d| d.view == view)));
        if let Some(decided) = decided {
            let suspects = decided.suspects.iter().copied().collect();
            let message = Message::Decision { view, suspects };
            self.links.send(&mut self.out, from, Lane::Control, message);
        } else if let Some(last) = last.filter(|last| last.view == view) {
            let Some(suspects) = flush else { return };
            let committed = Message::Committed {
                view,
                record: last.record.clone(),
                digest: last.digest,
            };
            let message = match self.settings.planted(Bug::CommittedFlushes) {
                true => Message::Flush { view, suspects },
                false => committed,
            };
            self.links.send(&mut self.out, from, Lane::Control, message);
        } else {
            self.tell_stranger(from, view);
        }
    }

    /// Tells a peer that is not in this peer's view where this lineage stands.
    fn tell_stranger(&mut self, from: PeerId, view: ViewKey) {
        let member = match &self.phase {
            Phase::Member(w) => w.view.contains(from),
            _ => false,
        };
        if member {
            return;
        }
        if let Phase::Member(w) = &self.phase
            && let Some(decided) = w.decided.iter().rev().find(|d| d.suspects.contains(&from))
            && view.round >= decided.view.round
        {
            let suspects = decided.suspects.iter().copied().collect();
            let message = Message::Decision {
                view: decided.view,
                suspects,
            };
            self.links.send(&mut self.out, from, Lane::Control, message);
            return;
        }
        self.send_status(from);
    }

    /// Another member has committed the round.
    pub(crate) fn on_committed(&mut self, from: PeerId, view: ViewKey, record: Record, digest: Digest) {
        let Phase::Member(w) = &mut self.phase else {
            return self.on_followed_commit(from, view, record, digest);
        };
        let trusts = !w.suspects(from) || self.settings.planted(Bug::TrustSuspects);
        let members = record.headers.iter().map(|h| h.peer);
        if view != w.view.key
            || !trusts
            || record.round != view.round
            || !members.eq(w.view.members.iter().copied())
        {
            return;
        }
        w.told = Some(Told { by: from, record });
        let missing = w.reduce.gathered.missing();
        if !missing.is_empty() {
            w.quiet_at = Some(self.now + self.detector.quiet());
            let ask = Message::Repair { view, missing };
            self.links.send(&mut self.out, from, Lane::Control, ask);
        }
        self.try_commit();
    }

    /// Somebody lacks pieces of a committed round, or has not heard that it is committed.
    pub(crate) fn on_repair(&mut self, from: PeerId, view: ViewKey, missing: Vec<(u16, u32)>) {
        self.linger_on();
        let Some(last) = self.last.as_ref().filter(|last| last.view == view) else {
            if self.followers.contains_key(&from) {
                return self.restart_follower(from);
            }
            return self.on_late(from, view, None);
        };
        if missing.is_empty() {
            let committed = Message::Committed {
                view,
                record: last.record.clone(),
                digest: last.digest,
            };
            self.links.send(&mut self.out, from, Lane::Control, committed);
        }
        for (chunk, piece) in missing {
            if let Some(message) = last.sums.message(chunk, piece) {
                self.links.send(&mut self.out, from, Lane::Bulk, message);
            }
        }
    }

    /// Where lineages meet: the one with fewer samples yields.
    pub(crate) fn on_status(&mut self, from: PeerId, standing: Standing, member: bool, finished: bool) {
        let mine = Standing::of(&self.head);
        if member {
            // Who is a member follows nobody.
            self.followers.remove(&from);
        }
        if finished {
            self.ended.insert(from);
        }
        match &mut self.phase {
            Phase::Lingering { waits_for, .. } => {
                if finished || standing.round >= mine.round {
                    waits_for.remove(&from);
                }
                self.linger();
            }
            Phase::Joining(_) if member => self.on_candidate(from, Some(standing)),
            Phase::Member(w) if member => {
                let known = w.view.contains(from);
                let stuck = w.is_null(&self.manifest) && standing == mine;
                if standing.beats(&mine) && standing.chain != mine.chain {
                    // Frames of a member that is one round ahead are no other lineage.
                    let ahead = known && standing.round == mine.round + 1;
                    if ahead && finished {
                        // It stays only to answer those who lack something of the last round.
                        let ask = Message::Repair {
                            view: w.view.key,
                            missing: Vec::new(),
                        };
                        self.links.send(&mut self.out, from, Lane::Control, ask);
                    } else if !ahead {
                        self.outcast("another lineage counts more samples", Some(from));
                    }
                } else if !known && stuck && from < self.settings.me {
                    // Both have excluded each other from a round that neither can do alone.
                    self.outcast("another part of the same lineage waits too", Some(from));
                } else if mine.beats(&standing) || (!known && stuck) {
                    // A member may have said this before it caught up; if it is in another lineage, this peer's
                    // standing makes it a newcomer.
                    self.send_status(from);
                }
            }
            _ => {}
        }
    }

    /// Timers of a member.
    pub(crate) fn on_member_time(&mut self) {
        let now = self.now;
        let Phase::Member(w) = &mut self.phase else {
            return;
        };
        if let Some(flush) = &w.flush {
            let (again, over) = (flush.again_at <= now, flush.until <= now);
            if over && w.told.is_none() {
                let mut silent: BTreeSet<PeerId> = w.view.others().collect();
                silent.retain(|p| !flush.suspects.contains(p) && flush.heard.get(p) != Some(&flush.suspects));
                let until = now + self.detector.answer();
                w.flush.as_mut().expect("flushing").until = until;
                return self.suspect_because(silent, Change::Failed, "silent");
            }
            if again {
                self.flood();
            }
        }
        let Phase::Member(w) = &mut self.phase else {
            return;
        };
        if w.probing.as_ref().is_some_and(|p| p.until <= now) {
            self.judge_answers();
        } else if w.quiet_at.is_some_and(|at| at <= now) {
            if let Some(told) = w.told.take() {
                // Who told of the commit does not deliver.
                w.quiet_at = None;
                return self.suspect_because([told.by].into(), Change::Failed, "silent");
            }
            self.probe_all();
        }
    }

    /// When [`Peer::on_member_time`] has something to do.
    pub(crate) fn member_wake_at(&self) -> Option<Time> {
        let Phase::Member(w) = &self.phase else {
            return None;
        };
        // Told of a commit, nobody is waited for but who told.
        let until = |until| if w.told.is_some() { None } else { Some(until) };
        let flush = w
            .flush
            .as_ref()
            .and_then(|f| [Some(f.again_at), until(f.until)].into_iter().flatten().min());
        let probing = w.probing.as_ref().map(|p| p.until);
        let held = w.held.as_ref().map(|h| h.until);
        [flush, probing, held, w.quiet_at].into_iter().flatten().min()
    }

    /// This peer was stopped for longer than the others wait for an answer: they may have gone on without it.
    /// Its own deadlines say nothing of the others now. And pieces that waited for it could complete an attempt
    /// that they have given up, so it asks before it commits.
    pub(crate) fn overslept(&mut self) {
        let until = self.now + self.detector.answer();
        let quiet_at = self.now + self.detector.quiet();
        let Phase::Member(w) = &mut self.phase else {
            return;
        };
        if let Some(probing) = &mut w.probing {
            probing.until = until;
        }
        w.quiet_at = w.quiet_at.map(|_| quiet_at);
        match &mut w.flush {
            Some(flush) => {
                flush.until = until;
                flush.again_at = self.now;
            }
            None if w.made_at.is_some() && w.told.is_none() && w.view.members.len() > 1 => {
                self.suspect_because(BTreeSet::new(), Change::Failed, "");
            }
            None => {}
        }
    }

    /// A member's link is gone: ask at once what that means, if anything is awaited.
    pub(crate) fn hurry(&mut self, peer: PeerId) {
        let now = self.now;
        if let Phase::Member(w) = &mut self.phase
            && w.view.contains(peer)
            && w.quiet_at.is_some()
        {
            w.quiet_at = Some(now);
        }
    }
}
