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
//!
//! One member's word excludes others, so it must not exclude everybody: who would go on with fewer than half of the head's
//! members is itself the one that is cut off. Those whom it names stay and suspect it; those who see the same as it
//! does, a partition's smaller side, go on with it.
//!
//! How values are summed is not known here: an attempt ends, or it does not.

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

/// Aborted attempts of a round that are remembered: who is further behind hears where this lineage stands.
const DECIDED: usize = 64;

/// What follows for the attempt.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Nothing yet.
    Wait,
    /// It is aborted: the next one is of these members.
    Retry(Vec<PeerId>),
    /// The others go on without this peer.
    Outcast(Outcast),
    /// It is committed: somebody may have done so, and all that are left can.
    Commit,
}

/// What a member says that has stopped the attempt: whom it suspects, what it has signed of that, and whether it had said before
/// that it can commit.
type Heard = (BTreeSet<PeerId>, Signature, bool);

/// A stop of the attempt that has not been decided yet.
#[derive(Debug)]
pub(crate) struct Flush {
    pub suspects: BTreeSet<PeerId>,
    /// What the others last said, and signed.
    heard: BTreeMap<PeerId, Heard>,
    reasons: BTreeMap<PeerId, Reason>,
    /// When to say it again: a flush may be lost with its link.
    again_at: Time,
    /// When those who have not said the same are suspected too.
    until: Time,
}

/// A commit that another member told of, while its pieces come.
#[derive(Debug)]
pub(crate) struct Told {
    pub by: PeerId,
    pub record: Record,
    /// When it was asked for the missing pieces last.
    asked_at: Time,
}

/// The attempt that is judged.
#[derive(Clone, Copy)]
pub(crate) struct Work<'a> {
    pub view: &'a View,
    /// Who works on what.
    pub allotment: &'a Allotment,
    pub reduce: &'a Run,
    /// Whether this member itself is at work on what others wait for.
    pub at_work: bool,
}

/// This member's part in the agreement about one attempt.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    /// When the round began here.
    began: Time,
    /// When this member's values were put into this attempt.
    in_since: Option<Time>,
    /// Who owes pieces by its own account, and since when none has come from it.
    owed_since: BTreeMap<PeerId, Time>,
    /// When the wait for the next piece becomes long.
    quiet_at: Option<Time>,
    /// When the exchange, all attempts at it together, has lasted so long that it is to be known who is behind, and how
    /// long that one may be: who is slow looks to others as if frames were lost.
    pace_at: Option<(Time, Duration)>,
    laggards: Laggards,
    probing: Option<Probing>,
    /// Probes in a row that found everybody well and nobody at work.
    idle_probes: u32,
    /// Tensors, and pieces of learnt parts, that have come meanwhile: while these are on their way an attempt's wait behind them.
    pub beside: u32,
    /// What all others together had got, by their own account, when they were asked last ...
    others_got: u64,
    /// ... and how often it was reason enough to wait that this had become more.
    waited_for_others: u32,
    flush: Option<Flush>,
    told: Option<Told>,
    /// Who has told of one in this attempt: by saying it again nobody gets more time.
    tellers: BTreeSet<PeerId>,
    /// Aborted attempts of this round, for those who have not heard.
    decided: Vec<Decided>,
    /// This member has said that it can commit the attempt, where a model is split.
    held: bool,
}

impl Agreement {
    /// About the first attempt at a round that begins now.
    pub fn new(now: Time) -> Self {
        Self {
            began: now,
            ..Self::default()
        }
    }

    /// About the next attempt at the same round.
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

    /// Whether a peer is believed what it says of an attempt's end.
    fn trusts(&self, peer: PeerId, shared: &Shared) -> bool {
        !self.suspects(peer) || shared.settings.planted(Bug::TrustSuspects)
    }

    pub fn flush(&self) -> Option<&Flush> {
        self.flush.as_ref()
    }

    pub fn told(&self) -> Option<&Told> {
        self.told.as_ref()
    }

    /// When this member's values were put into this attempt: what others took in earlier ones is no usual wait.
    pub fn in_since(&self) -> Option<Time> {
        self.in_since
    }

    pub fn decided(&self) -> &[Decided] {
        &self.decided
    }

    /// Bytes that others have had it hold.
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

    /// The record that another member told of, once its sums are whole.
    pub fn take_told_if(&mut self, whole: bool) -> Option<Record> {
        self.told.take_if(|_| whole).map(|told| told.record)
    }

    /// Whether this member has stopped the attempt. What it said of it must stay true.
    pub fn is_frozen(&self, shared: &Shared) -> bool {
        self.flush.is_some() && !shared.settings.planted(Bug::FlushDoesNotFreeze)
    }

    /// This member says that it can commit the attempt.
    pub fn hold(&mut self) {
        self.held = true;
    }

    /// What others compute of the attempt is awaited from now on.
    pub fn expect(&mut self, shared: &Shared) {
        self.quiet_at = Some(shared.now + shared.detector.quiet());
    }

    /// The attempt's pieces are awaited from now on.
    pub fn watch(&mut self, shared: &Shared) {
        let long = patience(shared.detector.quiet(), shared.now - self.began) / 2;
        self.in_since = Some(shared.now);
        self.pace_at.get_or_insert((shared.now + long, long));
        self.quiet_at = Some(shared.now + shared.detector.quiet());
    }

    /// A piece came.
    pub fn saw_piece(&mut self, from: PeerId, shared: &Shared) {
        self.owed_since.remove(&from);
        // While an answer was awaited there was no other deadline.
        let waits = self.quiet_at.is_some() || self.probing.is_some();
        self.quiet_at = waits.then(|| shared.now + self.quiet(shared));
        self.probing.take_if(|probing| !probing.paces);
        self.idle_probes = 0;
    }

    /// Something else came that an attempt's pieces wait behind.
    pub fn saw_another(&mut self, from: PeerId, shared: &Shared) {
        self.beside += 1;
        self.saw_piece(from, shared);
    }

    /// How long the next piece may be awaited. From one that has told of a commit pieces come only when it has been asked.
    fn quiet(&self, shared: &Shared) -> Duration {
        let quiet = shared.detector.quiet();
        match self.told {
            Some(_) => quiet.max(shared.detector.answer()),
            None => quiet,
        }
    }

    /// A member's link is gone: asks at once what that means, if anything is awaited.
    pub fn hurry(&mut self, now: Time) {
        self.quiet_at = self.quiet_at.map(|_| now);
    }

    /// A record cannot be committed. All members see the same, so all try again without the author of what is wrong.
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

    /// Stops the attempt, with these suspects beside those that there are.
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
        // Who told of a commit and is still trusted is still waited for, and not for ever.
        self.quiet_at = self.quiet_at.filter(|_| self.told.is_some());
        if fresh || flush.suspects.len() > before {
            flush.until = now + answer;
            self.flood(view, shared);
        }
        self.decide_if_agreed(view, shared)
    }

    /// How long an answer of those that are not suspected is awaited.
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
            // It has decided about this attempt; a flush of one's own brings the decision.
            return self.stop(view, shared);
        }
        ask_for_commit(from, view.key, shared);
        Verdict::Wait
    }

    /// Stops the attempt without a suspect.
    fn stop(&mut self, view: &View, shared: &mut Shared) -> Verdict {
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

    /// The attempt is over: the next is without the suspects.
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
            shared.probation.excluded(*peer, shared.now);
        }
        if self.decided.len() >= DECIDED {
            self.decided.remove(0);
        }
        self.decided.push(decided);
        Verdict::Retry(members)
    }

    /// Others have decided, and somebody says so.
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
            // A member has decided about an attempt that comes after this one: a flush brings the decision about this.
            let later = theirs.round == view.key.round && view.is_before(&theirs);
            return match later && view.contains(from) {
                true => self.stop(view, shared),
                false => Verdict::Wait,
            };
        };
        // Who agrees about suspects that it has not named cannot prove it.
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

    /// An attempt that this peer has been in: this one, or one before it in this round or the last.
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

    /// Another member has committed the round. If it is believed, the pieces that are missing come from it.
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
            // What was asked for is on its way here: of others, it would have to be asked for again.
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

    /// What is due.
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
                // Who told of the commit does not deliver.
                self.quiet_at = None;
                return self.suspect(view, [told.by].into(), Reason::Silent, shared);
            }
            self.probe_all(view, shared);
        }
        Verdict::Wait
    }

    /// When [`Agreement::on_time`] has something to do.
    pub fn wake_at(&self) -> Option<Time> {
        // Told of a commit, nobody is waited for but who told.
        let until = |until| if self.told.is_some() { None } else { Some(until) };
        let flush = self
            .flush
            .as_ref()
            .and_then(|f| [Some(f.again_at), until(f.until)].into_iter().flatten().min());
        let probing = self.probing.as_ref().map(|p| p.until);
        let pace = self.pace_due().map(|(at, _)| at);
        [flush, probing, pace, self.quiet_at].into_iter().flatten().min()
    }

    /// When to ask who is behind, and how long that one may be, unless something else is asked or decided.
    fn pace_due(&self) -> Option<(Time, Duration)> {
        let idle = self.probing.is_none() && self.flush.is_none() && self.told.is_none();
        self.pace_at.filter(|_| idle)
    }

    /// This peer was stopped for longer than the others wait for an answer: they may have gone on without it.
    /// Its own deadlines say nothing of the others now. And pieces that waited for it could complete an attempt
    /// that they have given up, so it asks before it commits, if it has put its values `in`.
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

    /// What all whom it leaves in have signed.
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

/// Whether who goes on without these is the one that is cut off: with fewer than half of the head's full members,
/// whatever attempt it is.
pub(crate) fn is_cut_off(view: &View, suspects: &[PeerId], shared: &Shared) -> bool {
    let full = shared.head().members.iter().filter(|m| m.is_full());
    let rest = full
        .clone()
        .filter(|m| view.contains(m.peer) && !suspects.contains(&m.peer));
    2 * rest.count() < full.count()
}

/// Asks a member that has left this view's round behind for the commit.
pub(crate) fn ask_for_commit(peer: PeerId, view: ViewKey, shared: &mut Shared) {
    let missing = Vec::new();
    shared.control(peer, Message::Repair { view, missing });
}
