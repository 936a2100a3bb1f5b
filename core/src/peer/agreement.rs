//! Agreement after a failure, without a leader.
//!
//! A member that waits too long probes all members, and suspects those that stay silent. It floods a suspicion as a
//! *flush*, which freezes the sender's attempt: its statement ("I have not committed this round") stays true. Sets
//! of suspects only grow. A member that has equal sets from all members it does not suspect has the decision: the
//! attempt is given up and repeated without the suspects. A member that has committed the round never flushes for
//! it, but answers with the commit, so that nobody can decide against it.
//!
//! Without any one of these three rules, runs diverge or hang:
//! - a flush or decision that excludes a peer makes it a newcomer, even if it has committed the round;
//! - a peer that is out tells those that still take it for a member, which counts as a suspicion;
//! - a decision or a commit is accepted only from a peer that is not suspected.
//!
//! One member's statement excludes others, but it must not exclude everybody. A member that would continue with
//! fewer than half of the head's members is itself the one that is cut off. The members that it names stay and
//! suspect it; members that see the same failures, the smaller side of a partition, continue with it.
//!
//! This module does not know how values are summed: an attempt ends, or it does not.

mod probing;

use self::probing::Probing;
use crate::access::signature::Signature;
use crate::base::id::PeerId;
use crate::base::planted::Bug;
use crate::base::time::Time;
use crate::collective::Run;
use crate::ledger::Record;
use crate::ledger::allot::Allotment;
use crate::ledger::check::{Fault, RecordError};
use crate::ledger::decision::{Decided, Known, sign, signed};
use crate::peer::interface::Event;
use crate::peer::next::Outcast;
use crate::peer::reason::{OutcastReason, Reason};
use crate::peer::shared::Shared;
use crate::reach::laggard::{Laggards, patience};
use crate::wire::view::View;
use crate::wire::{Message, ViewKey};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Most aborted attempts of a round that are remembered. A peer that is further behind is told where this lineage
/// stands.
const DECIDED: usize = 64;

/// The consequence for the attempt.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Nothing yet.
    Wait,
    /// It is given up; the next one has these members.
    Retry(Vec<PeerId>),
    /// The others continue without this peer.
    Outcast(Outcast),
    /// It is committed: some member may have done so, and all that are left can.
    Commit,
}

/// The statement of a member that has stopped the attempt: its suspects, its signature, and whether it had said
/// before that it can commit.
type Heard = (BTreeSet<PeerId>, Signature, bool);

/// A stopped attempt without a decision.
#[derive(Debug)]
pub(crate) struct Flush {
    pub suspects: BTreeSet<PeerId>,
    /// The last statement of each other member.
    heard: BTreeMap<PeerId, Heard>,
    reasons: BTreeMap<PeerId, Reason>,
    /// When to repeat the flush, since it may be lost with its link.
    again_at: Time,
    /// When members that have not said the same become suspects too.
    until: Time,
}

/// A commit that another member has reported, while its pieces come.
#[derive(Debug)]
pub(crate) struct Told {
    pub by: PeerId,
    pub record: Record,
    /// When it was last asked for the missing pieces.
    asked_at: Time,
}

/// The attempt that is judged.
#[derive(Clone, Copy)]
pub(crate) struct Work<'a> {
    pub view: &'a View,
    /// The shares of all members.
    pub allotment: &'a Allotment,
    pub reduce: &'a Run,
    /// Whether this member itself works on something that others wait for.
    pub at_work: bool,
}

/// This member's part in the agreement about one attempt.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    /// When the round began here.
    began: Time,
    /// When this member's values were put into this attempt.
    in_since: Option<Time>,
    /// Members that owe pieces by their own count, and since when none has come from them.
    owed_since: BTreeMap<PeerId, Time>,
    /// When the wait for the next piece becomes long.
    quiet_at: Option<Time>,
    /// When the exchange, over all attempts, has lasted long enough to look for a laggard, and how long one may be
    /// behind. To others a slow member looks as if frames were lost.
    pace_at: Option<(Time, Duration)>,
    laggards: Laggards,
    probing: Option<Probing>,
    /// Probes in a row that found all members well and none at work.
    idle_probes: u32,
    /// Tensors and pieces of learned parts that came meanwhile. The attempt's own pieces wait behind them.
    pub beside: u32,
    /// How much all others together had received, by their own count, at the last probe ...
    others_got: u64,
    /// ... and how often an increase was reason enough to wait.
    waited_for_others: u32,
    flush: Option<Flush>,
    told: Option<Told>,
    /// Members that have reported a commit in this attempt. Repeating the report gains no time.
    tellers: BTreeSet<PeerId>,
    /// Aborted attempts of this round, for peers that have not heard.
    decided: Vec<Decided>,
    /// In a split run: this member has said that it can commit the attempt.
    held: bool,
}

impl Agreement {
    /// For the first attempt at a round that begins now.
    pub fn new(now: Time) -> Self {
        Self {
            began: now,
            ..Self::default()
        }
    }

    /// For the next attempt at the same round.
    pub fn next_attempt(&mut self) {
        *self = Self {
            decided: std::mem::take(&mut self.decided),
            pace_at: self.pace_at,
            owed_since: std::mem::take(&mut self.owed_since),
            laggards: std::mem::take(&mut self.laggards),
            ..Self::new(self.began)
        };
    }

    pub fn suspects(&self, peer: PeerId) -> bool {
        self.flush.as_ref().is_some_and(|f| f.suspects.contains(&peer))
    }

    /// Whether a peer's statement about the end of an attempt is accepted.
    fn trusts(&self, peer: PeerId, shared: &Shared) -> bool {
        !self.suspects(peer) || shared.settings.planted(Bug::TrustSuspects)
    }

    pub fn flush(&self) -> Option<&Flush> {
        self.flush.as_ref()
    }

    pub fn told(&self) -> Option<&Told> {
        self.told.as_ref()
    }

    /// When this member's values were put into this attempt. The duration of earlier attempts is no usual wait.
    pub fn in_since(&self) -> Option<Time> {
        self.in_since
    }

    pub fn decided(&self) -> &[Decided] {
        &self.decided
    }

    /// Bytes that it holds on behalf of others.
    pub fn bytes(&self) -> usize {
        let names = |set: &BTreeSet<PeerId>| set.len() * size_of::<PeerId>();
        let heard = self
            .flush
            .iter()
            .flat_map(|flush| flush.heard.values())
            .map(|(set, ..)| names(set));
        let told = self
            .told
            .iter()
            .flat_map(|told| &told.record.headers)
            .map(|h| h.bytes());
        let decided = self.decided.iter().map(Decided::bytes);
        names(&self.tellers) + heard.chain(told).chain(decided).sum::<usize>()
    }

    pub fn take_decided(&mut self) -> Vec<Decided> {
        std::mem::take(&mut self.decided)
    }

    /// The record of a reported commit, once its sums are whole.
    pub fn take_told_if(&mut self, whole: bool) -> Option<Record> {
        self.told.take_if(|_| whole).map(|told| told.record)
    }

    /// Whether this member has stopped the attempt. Its statement about it must stay true.
    pub fn is_frozen(&self, shared: &Shared) -> bool {
        self.flush.is_some() && !shared.settings.planted(Bug::FlushDoesNotFreeze)
    }

    /// Notes that this member says that it can commit the attempt.
    pub fn hold(&mut self) {
        self.held = true;
    }

    /// Starts to wait for what others compute in the attempt.
    pub fn expect(&mut self, shared: &Shared) {
        self.quiet_at = Some(shared.now + shared.detector.quiet());
    }

    /// Starts to wait for the attempt's pieces.
    pub fn watch(&mut self, shared: &Shared) {
        let long = patience(shared.detector.quiet(), shared.now - self.began) / 2;
        self.in_since = Some(shared.now);
        self.pace_at.get_or_insert((shared.now + long, long));
        self.quiet_at = Some(shared.now + shared.detector.quiet());
    }

    /// A piece came.
    pub fn saw_piece(&mut self, from: PeerId, shared: &Shared) {
        self.owed_since.remove(&from);
        // While it waited for an answer there was no other deadline.
        let waits = self.quiet_at.is_some() || self.probing.is_some();
        self.quiet_at = waits.then(|| shared.now + self.quiet(shared));
        self.probing.take_if(|probing| !probing.paces);
        self.idle_probes = 0;
    }

    /// Something else came that the attempt's pieces wait behind.
    pub fn saw_another(&mut self, from: PeerId, shared: &Shared) {
        self.beside += 1;
        self.saw_piece(from, shared);
    }

    /// How long to wait for the next piece. A member that reported a commit sends pieces only when it is asked.
    fn quiet(&self, shared: &Shared) -> Duration {
        let quiet = shared.detector.quiet();
        match self.told {
            Some(_) => quiet.max(shared.detector.answer()),
            None => quiet,
        }
    }

    /// A member's link is down. Asks at once what that means, if it waits for anything.
    pub fn hurry(&mut self, now: Time) {
        self.quiet_at = self.quiet_at.map(|_| now);
    }

    /// A record cannot be committed. All members see the same fault, so all try again without its author.
    pub fn refuse(&mut self, view: &View, error: RecordError, shared: &mut Shared) -> Verdict {
        match error {
            RecordError::Header {
                peer,
                fault: Fault::Digest | Fault::Moments,
            } => self.suspect(view, [peer].into(), Reason::Diverged, shared),
            RecordError::Header { peer, fault } => {
                self.suspect(view, [peer].into(), Reason::Header(fault), shared)
            }
            _ => self.stop(view, shared),
        }
    }

    /// Stops the attempt, with these suspects in addition to the known ones.
    pub fn suspect(
        &mut self,
        view: &View,
        peers: BTreeSet<PeerId>,
        reason: Reason,
        shared: &mut Shared,
    ) -> Verdict {
        let (now, answer) = (shared.now, self.answer(view, shared));
        let fresh = self.flush.is_none();
        let flush = self.flush.get_or_insert_with(|| Flush {
            suspects: BTreeSet::new(),
            heard: BTreeMap::new(),
            reasons: BTreeMap::new(),
            again_at: now,
            until: now + answer,
        });
        let before = flush.suspects.len();
        for peer in peers {
            flush.reasons.entry(peer).or_insert(reason);
            flush.suspects.insert(peer);
        }
        self.probing = None;
        self.told.take_if(|told| flush.suspects.contains(&told.by));
        // A member that reported a commit and is still trusted is still waited for, but not for ever.
        self.quiet_at = self.quiet_at.filter(|_| self.told.is_some());
        if fresh || flush.suspects.len() > before {
            flush.until = now + answer;
            self.flood(view, shared);
        }
        self.decide_if_agreed(view, shared)
    }

    /// How long to wait for answers of members that are not suspected.
    fn answer(&self, view: &View, shared: &Shared) -> Duration {
        shared
            .detector
            .answers(view.others().filter(|peer| !self.suspects(*peer)))
    }

    fn flood(&mut self, view: &View, shared: &mut Shared) {
        let Some(flush) = &mut self.flush else { return };
        flush.again_at = shared.now + shared.detector.answer() / 4;
        let message = flush.message(view, self.held, shared);
        for peer in view.others() {
            shared.control(peer, message.clone());
        }
    }

    /// A member has stopped this attempt, or a later one.
    pub fn on_flush(
        &mut self,
        view: &View,
        from: PeerId,
        theirs: ViewKey,
        (suspects, signature): (Vec<PeerId>, Signature),
        shared: &mut Shared,
    ) -> Verdict {
        if !view.contains(from) || !self.trusts(from, shared) {
            return Verdict::Wait;
        }
        let mut held = false;
        if theirs == view.key {
            let attempt = view.attempt(shared.head());
            let trusted = shared.settings.planted(Bug::TrustFlushes);
            let said = signed(&attempt, from, &suspects, (&signature, shared.scheme()));
            if !trusted && said.is_none() {
                shared.outlaw(from, None);
                return self.suspect(view, [from].into(), Reason::Forged, shared);
            }
            held = said == Some(true);
        }
        if suspects.contains(&shared.me()) && !shared.settings.planted(Bug::IgnoreExclusion) {
            if is_cut_off(view, &suspects, shared) {
                return self.suspect(view, [from].into(), Reason::CutOff, shared);
            }
            return Verdict::Outcast(Outcast::new(OutcastReason::Suspected, Some(from)));
        }
        if theirs == view.key {
            let said = (suspects.into_iter().collect(), signature, held);
            return self.merge_flush(view, from, said, shared);
        }
        if theirs.round == view.key.round {
            // It has decided about this attempt; this member's own flush brings the decision.
            return self.stop(view, shared);
        }
        ask_for_commit(from, view.key, shared);
        Verdict::Wait
    }

    /// Stops the attempt without a suspect.
    pub fn stop(&mut self, view: &View, shared: &mut Shared) -> Verdict {
        self.suspect(view, BTreeSet::new(), Reason::Suspected, shared)
    }

    fn merge_flush(
        &mut self,
        view: &View,
        from: PeerId,
        (theirs, signature, held): Heard,
        shared: &mut Shared,
    ) -> Verdict {
        let merge = !shared.settings.planted(Bug::KeepSuspectsApart);
        let suspects = if merge { theirs.clone() } else { BTreeSet::new() };
        let verdict = self.suspect(view, suspects, Reason::Suspected, shared);
        let (Some(flush), Verdict::Wait) = (&mut self.flush, &verdict) else {
            return verdict;
        };
        let differs = flush.suspects != theirs;
        flush.heard.insert(from, (theirs, signature, held));
        if differs {
            let message = flush.message(view, self.held, shared);
            shared.control(from, message);
        }
        self.decide_if_agreed(view, shared)
    }

    fn decide_if_agreed(&mut self, view: &View, shared: &mut Shared) -> Verdict {
        let Some(flush) = &self.flush else {
            return Verdict::Wait;
        };
        let apart = shared.settings.planted(Bug::KeepSuspectsApart);
        let same = |(heard, ..): &Heard| apart || *heard == flush.suspects;
        let agreed = view
            .others()
            .filter(|peer| !flush.suspects.contains(peer))
            .all(|peer| flush.heard.get(&peer).is_some_and(same));
        if agreed && self.told.is_none() {
            let mut rest = view.others().filter(|peer| !flush.suspects.contains(peer));
            let holds = |peer: PeerId| flush.heard.get(&peer).is_some_and(|(.., held)| *held);
            if self.held && rest.all(holds) && !shared.settings.planted(Bug::GiveUpHeld) {
                return Verdict::Commit;
            }
            let (suspects, proof) = (flush.suspects.clone(), flush.proof(view, self.held, shared));
            return self.abort(view, suspects, proof, shared);
        }
        Verdict::Wait
    }

    /// Ends the attempt: the next is without the suspects.
    fn abort(
        &mut self,
        view: &View,
        suspects: BTreeSet<PeerId>,
        proof: Vec<(PeerId, Signature)>,
        shared: &mut Shared,
    ) -> Verdict {
        let reasons = self.flush.take().map(|f| f.reasons).unwrap_or_default();
        let members = view.members.iter().copied();
        let members = members.filter(|m| !suspects.contains(m)).collect();
        let decided = Decided {
            view: view.key,
            members: view.members.clone(),
            suspects,
            proof,
        };
        // Nobody hears of those that a liar has only invented.
        for peer in decided.suspects.iter().filter(|peer| view.contains(**peer)) {
            let reason = reasons.get(peer).copied().unwrap_or(Reason::Suspected);
            shared.tell(Event::member(*peer, reason));
            shared.control(*peer, Message::decision(&decided));
            shared.probation.failed(*peer, shared.now);
        }
        if self.decided.len() >= DECIDED {
            self.decided.remove(0);
        }
        self.decided.push(decided);
        Verdict::Retry(members)
    }

    /// A peer reports a decision of others.
    pub fn on_decision(
        &mut self,
        view: &View,
        from: PeerId,
        theirs: ViewKey,
        (suspects, proof): (Vec<PeerId>, Vec<(PeerId, Signature)>),
        shared: &mut Shared,
    ) -> Verdict {
        if !self.trusts(from, shared) {
            return Verdict::Wait;
        }
        let Some(known) = self.known(view, theirs, shared) else {
            // A member has decided about an attempt after this one: a flush brings the decision about this.
            let later = theirs.round == view.key.round && view.is_before(&theirs);
            return match later && view.contains(from) {
                true => self.stop(view, shared),
                false => Verdict::Wait,
            };
        };
        // A bug that agrees to suspects which it has not named itself cannot prove the decision.
        let trusted = [Bug::KeepSuspectsApart, Bug::TrustDecisions];
        let proven = trusted.into_iter().any(|bug| shared.settings.planted(bug))
            || known.proves(&suspects, &proof, shared.scheme());
        if !proven {
            return match theirs == view.key && view.contains(from) {
                true => self.suspect(view, [from].into(), Reason::FalseDecision, shared),
                false => Verdict::Wait,
            };
        }
        if suspects.contains(&shared.me()) && !shared.settings.planted(Bug::IgnoreExclusion) {
            match is_cut_off(view, &suspects, shared) {
                false => Verdict::Outcast(Outcast::new(OutcastReason::Decided, Some(from))),
                true if view.contains(from) => self.suspect(view, [from].into(), Reason::CutOff, shared),
                true => Verdict::Wait,
            }
        } else if theirs == view.key {
            self.abort(view, suspects.into_iter().collect(), proof, shared)
        } else {
            Verdict::Wait
        }
    }

    /// An attempt of this peer: this one, or one before it in this round or the last.
    fn known(&self, view: &View, key: ViewKey, shared: &Shared) -> Option<Known> {
        let chain = shared.head().chain;
        if key == view.key {
            return Some(Known {
                attempt: view.attempt(shared.head()),
                members: view.members.clone(),
            });
        }
        let decided = self.decided.iter().find(|d| d.view == key);
        let of_last = || shared.lineage.last.as_ref()?.attempt(key);
        decided.map(|d| d.known(chain)).or_else(of_last)
    }

    /// Another member reports that it has committed the round. If it is trusted, it sends the missing pieces.
    pub fn on_committed(
        &mut self,
        view: &View,
        from: PeerId,
        record: Record,
        reduce: &mut Run,
        shared: &mut Shared,
    ) -> Verdict {
        if !view.contains(from) || !self.trusts(from, shared) {
            return Verdict::Wait;
        }
        let members = record.headers.iter().map(|h| h.peer);
        let named = record.attempt == view.key.attempt && members.eq(view.members.iter().copied());
        if !named || shared.check(&record).is_err() {
            return self.suspect(view, [from].into(), Reason::FalseCommit, shared);
        }
        let (now, patience) = (shared.now, shared.detector.answer() / 4);
        if let Some(told) = &mut self.told {
            // The pieces are on their way from that member; another would have to be asked for them again.
            let is_due = now - told.asked_at >= patience;
            if is_due && told.by == from {
                told.asked_at = now;
                let (view, missing) = (view.key, reduce.missing());
                shared.control(from, Message::Repair { view, missing });
            }
            if !is_due || self.tellers.contains(&from) {
                return Verdict::Wait;
            }
        }
        let is_new = self.tellers.insert(from);
        let missing = reduce.give_up();
        self.told = Some(Told {
            by: from,
            record,
            asked_at: now,
        });
        if !missing.is_empty() {
            if is_new || self.quiet_at.is_none() {
                self.quiet_at = Some(now + self.quiet(shared));
            }
            let view = view.key;
            shared.control(from, Message::Repair { view, missing });
        }
        Verdict::Wait
    }

    /// Handles deadlines that have passed.
    pub fn on_time(&mut self, work: Work<'_>, shared: &mut Shared) -> Verdict {
        let (view, now) = (work.view, shared.now);
        if let Some(flush) = &mut self.flush {
            let (again, over) = (flush.again_at <= now, flush.until <= now);
            if over && self.told.is_none() {
                let mut silent: BTreeSet<PeerId> = view.others().collect();
                silent.retain(|p| !flush.suspects.contains(p) && !flush.agrees(*p));
                flush.until = now + shared.detector.answers(view.others());
                return self.suspect(view, silent, Reason::Silent, shared);
            }
            if again {
                self.flood(view, shared);
            }
        }
        let over: BTreeSet<PeerId> = view
            .others()
            .filter(|peer| shared.differs_for_long(*peer))
            .collect();
        if !over.is_empty() {
            shared.differing.retain(|peer, _| !over.contains(peer));
            return self.suspect(view, over, Reason::Silent, shared);
        }
        if self.probing.as_ref().is_some_and(|p| p.until <= now) {
            return self.judge_answers(work, shared);
        }
        if let Some((_, long)) = self.pace_due().filter(|(at, _)| *at <= now) {
            self.ask_all(view, long, true, shared);
        }
        if self.quiet_at.is_some_and(|at| at <= now) {
            if let Some(told) = self.told.take() {
                // The member that reported the commit does not deliver.
                self.quiet_at = None;
                return self.suspect(view, [told.by].into(), Reason::Silent, shared);
            }
            self.probe_all(view, shared);
        }
        Verdict::Wait
    }

    /// When [`Agreement::on_time`] must be called.
    pub fn wake_at(&self) -> Option<Time> {
        // After a reported commit, only the member that reported it is waited for.
        let until = |until| if self.told.is_some() { None } else { Some(until) };
        let flush = self
            .flush
            .as_ref()
            .and_then(|f| [Some(f.again_at), until(f.until)].into_iter().flatten().min());
        let probing = self.probing.as_ref().map(|p| p.until);
        let pace = self.pace_due().map(|(at, _)| at);
        [flush, probing, pace, self.quiet_at].into_iter().flatten().min()
    }

    /// When to look for laggards, and how long one may be behind, unless another question or decision is under way.
    fn pace_due(&self) -> Option<(Time, Duration)> {
        let idle = self.probing.is_none() && self.flush.is_none() && self.told.is_none();
        self.pace_at.filter(|_| idle)
    }

    /// This peer was stopped for longer than others wait for an answer, so they may have continued without it. Its
    /// own deadlines say nothing about others now. And pieces that waited for it could complete an attempt that the
    /// others have given up. So it asks before it commits, if its values are `in`.
    pub fn overslept(&mut self, view: &View, in_it: bool, shared: &mut Shared) -> Verdict {
        let until = shared.now + self.answer(view, shared);
        if let Some(probing) = &mut self.probing {
            probing.until = until;
        }
        let quiet_at = shared.now + shared.detector.quiet();
        self.quiet_at = self.quiet_at.map(|_| quiet_at);
        self.laggards = Laggards::default();
        match &mut self.flush {
            Some(flush) => {
                flush.until = until;
                flush.again_at = shared.now;
                Verdict::Wait
            }
            None if in_it && self.told.is_none() && view.members.len() > 1 => self.stop(view, shared),
            None => Verdict::Wait,
        }
    }
}

impl Flush {
    fn message(&self, view: &View, held: bool, shared: &Shared) -> Message {
        let suspects = self.suspects.iter().copied().collect();
        Message::flush(&view.attempt(shared.head()), suspects, held, &shared.settings.key)
    }

    /// Whether a member has last said the same.
    fn agrees(&self, peer: PeerId) -> bool {
        self.heard
            .get(&peer)
            .is_some_and(|(heard, ..)| *heard == self.suspects)
    }

    /// The signatures of all members that the decision leaves in.
    fn proof(&self, view: &View, held: bool, shared: &Shared) -> Vec<(PeerId, Signature)> {
        let suspects: Vec<PeerId> = self.suspects.iter().copied().collect();
        let (attempt, key) = (view.attempt(shared.head()), &shared.settings.key);
        let own = (shared.me(), sign(&attempt, &suspects, held, key));
        let rest = view.members.iter().filter(|m| !self.suspects.contains(m));
        let signature = |peer: &PeerId| match self.heard.get(peer) {
            Some((_, signature, _)) => Some((*peer, *signature)),
            None => Some(own).filter(|(me, _)| me == peer),
        };
        rest.filter_map(signature).collect()
    }
}

/// Whether a member that continues without these is the one that is cut off: it has fewer than half of the head's
/// full members, in whatever attempt.
pub(crate) fn is_cut_off(view: &View, suspects: &[PeerId], shared: &Shared) -> bool {
    let full = shared.head().members.iter().filter(|m| m.is_full());
    let rest = full
        .clone()
        .filter(|m| view.contains(m.peer) && !suspects.contains(&m.peer));
    2 * rest.count() < full.count()
}

/// Asks a member that is past this view's round for the commit.
pub(crate) fn ask_for_commit(peer: PeerId, view: ViewKey, shared: &mut Shared) {
    let missing = Vec::new();
    shared.control(peer, Message::Repair { view, missing });
}
