//! A member's way through one round: contribute, reduce, commit. When another member fails, `agreement.rs` says what
//! follows for the attempt; what newcomers need is in `sponsor.rs`.

mod spans;

use self::spans::Flowing;
use crate::agreement::{Agreement, Verdict, Work, ask_for_commit};
use crate::allot::Allotment;
use crate::apply::{Applying, Progress};
use crate::check::{MAX_COMPUTE_US, RecordError};
use crate::collective::{Plan, Run, Sends, Violation, Wrong};
use crate::commit::CommittedRound;
use crate::contribution::Contribution;
use crate::conviction::Conviction;
use crate::device::Made;
use crate::disk;
use crate::feedback::compensate;
use crate::handover;
use crate::id::{PeerId, Round};
use crate::interface::{Event, Exit, Input};
use crate::invitation::Revocation;
use crate::keeping::LOST;
use crate::late::{self, Here};
use crate::ledger::{self, Header, Record};
use crate::meeting::{Shown, Side, Stands, compare};
use crate::next::{Next, Outcast};
use crate::optim::Step;
use crate::parts::{PartSet, Parts};
use crate::planted::Bug;
use crate::reason::{OutcastReason, Reason};
use crate::rights::Kind;
use crate::seal::Seal;
use crate::shared::{Shared, Stage};
use crate::signature::{Signature, Signed};
use crate::sponsor::{Asked, InWork, Sponsor, hand_out, hand_out_digests};
use crate::state::{encode_update, plan};
use crate::time::Time;
use crate::view::View;
use crate::wire::{Doing, Message, ViewKey};
use std::collections::BTreeSet;
use std::time::Duration;

/// A member in the round after the head.
pub(crate) struct Member {
    pub view: View,
    /// Whether the view is too small to train: its rounds only change the membership.
    is_null: bool,
    pub agreement: Agreement,
    /// Who works on what, whatever attempt it is.
    allotment: Allotment,
    contribution: Contribution,
    /// What it computes, where the model is split.
    flowing: Option<Flowing>,
    /// Since when its device is at work on what it was last asked for of that.
    at_work_since: Time,
    pub reduce: Run,
    /// The round is committed, and on its way into the state.
    applying: Option<Box<Applying>>,
    /// Who has let out an update of this round that its sum does not give here, and of which part.
    doubted: BTreeSet<(PeerId, u16)>,
    /// The step by which this member has let updates out in this attempt.
    out_by: Option<Step>,
    /// When others were last told where this lineage stands.
    told_at: Time,
    pub sponsor: Sponsor,
}

/// Who waits for others tells those that are not in its view so often where its lineage stands: an answer may have been
/// held back, or taken for that of a member, and no round follows in which it would be told again.
const TELL_AGAIN: Duration = Duration::from_secs(10);

impl Member {
    /// In the first attempt at the round. Gives the followers back if this peer is not among the members, or no full one is.
    pub fn new(sponsor: Sponsor, shared: &Shared) -> Result<Self, Sponsor> {
        let head = shared.head();
        let members: Vec<PeerId> = head.members.iter().map(|m| m.peer).collect();
        let view = View::new(head, 0, members, shared.me());
        let counts = |m: &ledger::Member| m.is_full() || shared.settings.planted(Bug::GuestsGoOn);
        let Some(view) = view.filter(|_| head.members.iter().any(counts)) else {
            return Err(sponsor);
        };
        Ok(Self {
            is_null: !head.trains(&shared.manifest, &view.members),
            reduce: new_reduce(&view, shared),
            agreement: Agreement::new(shared.now),
            allotment: head.allot(&shared.manifest),
            contribution: Contribution::new(view.key.round, shared.now),
            flowing: None,
            at_work_since: shared.now,
            applying: None,
            doubted: BTreeSet::new(),
            out_by: None,
            told_at: shared.now,
            sponsor,
            view,
        })
    }

    /// Begins the round.
    pub fn begin(&mut self, shared: &mut Shared) -> Next {
        if !handover::begin_round(shared) {
            return Next::Outcast(match shared.manifest.split {
                None => Outcast::damaged(OutcastReason::Behind),
                // What it does have is as it should be, and perhaps nobody else has it.
                Some(_) => Outcast::new(OutcastReason::Behind, None),
            });
        }
        if shared.keeping.is_damaged {
            return Next::Outcast(Outcast::new(OutcastReason::Damaged, None));
        }
        if self.is_null {
            self.tell_waiting(shared);
        } else if self.flows(shared) {
            // It begins to compute with the attempt.
        } else if self.allotment.len(self.view.me) > 0 {
            if let Some(made) = self.contribution.begin(&self.allotment, shared) {
                self.put(made, shared);
            }
        } else {
            self.contribution.make_empty(shared);
            self.contribution.ask_ahead(shared);
            self.contribution.try_out(shared);
        }
        self.begin_attempt(shared)
    }

    /// What an attempt begins with, the first and any other.
    fn begin_attempt(&mut self, shared: &mut Shared) -> Next {
        self.tell_strangers(shared);
        shared.differing.retain(|peer, _| self.view.contains(*peer));
        let head = shared.head();
        let is_bound = |peer| {
            let bars =
                |m: &ledger::Member| m.peer == peer && shared.outlaws.bars(&m.admission, shared.root.run);
            head.admissions.is_fresh(peer) && head.members.iter().any(bars)
        };
        let outlaws = self
            .view
            .others()
            .filter(|m| shared.outlaws.contains(*m) || is_bound(*m));
        let outlaws: BTreeSet<PeerId> = outlaws.collect();
        if !outlaws.is_empty() {
            // Whoever let them in has not heard of it.
            self.view.others().for_each(|other| shared.tell_proofs(other));
            let verdict = self
                .agreement
                .suspect(&self.view, outlaws, Reason::Convicted, shared);
            return self.conclude(verdict, shared);
        }
        match self.begin_flow(shared) {
            Next::Stay => {}
            next => return next,
        }
        match self.start_if_ready(shared) {
            Next::Stay => self.take_early(shared),
            next => next,
        }
    }

    /// The next attempt at the same round, without some members, from the contributions still held.
    fn next_attempt(&mut self, members: Vec<PeerId>, shared: &mut Shared) -> Next {
        let counts = |m: &PeerId| shared.head().is_full(*m) || shared.settings.planted(Bug::GuestsGoOn);
        if !members.iter().any(counts) {
            return Next::Outcast(Outcast::new(OutcastReason::NoMember, None));
        }
        let attempt = self.view.key.attempt + 1;
        let Some(view) = View::new(shared.head(), attempt, members, shared.me()) else {
            return Next::Outcast(Outcast::new(OutcastReason::Excluded, None));
        };
        // Whom this one suspects may commit the attempt that ends here.
        self.keep_pending(shared);
        self.is_null = !shared.head().trains(&shared.manifest, &view.members);
        self.view = view;
        self.reduce = new_reduce(&self.view, shared);
        self.agreement.next_attempt();
        self.out_by = None;
        if shared.settings.planted(Bug::FeedTwice) {
            self.contribution.feed_again(shared);
        }
        if self.is_null {
            self.tell_waiting(shared);
        }
        self.sponsor.begin_attempt(shared);
        self.begin_attempt(shared)
    }

    fn conclude(&mut self, verdict: Verdict, shared: &mut Shared) -> Next {
        match verdict {
            Verdict::Wait => Next::Stay,
            Verdict::Retry(members) => self.next_attempt(members, shared),
            Verdict::Outcast(outcast) => Next::Outcast(outcast),
            Verdict::Commit => self.commit_held(shared),
        }
    }

    fn tell_waiting(&self, shared: &mut Shared) {
        let members = self.view.members.len();
        handover::tell_lacking(&self.view.members, shared);
        if !shared.manifest.trains(members) {
            shared.tell(Event::Waiting { members });
        }
    }

    /// Tells all peers that can be reached and are not in this peer's view where this lineage stands: links
    /// outlive views, so lineages may meet without a link coming up.
    fn tell_strangers(&mut self, shared: &mut Shared) {
        self.told_at = shared.now;
        let strangers: Vec<PeerId> = self.strangers(shared).collect();
        for peer in strangers {
            shared.send_status(peer, Stage::Member);
        }
    }

    fn strangers(&self, shared: &Shared) -> impl Iterator<Item = PeerId> {
        let stranger = |peer: &PeerId| !self.view.contains(*peer) && !self.sponsor.has(*peer);
        shared.links.reachable().filter(stranger)
    }

    /// When it tells strangers again where its lineage stands, if it waits and there are any.
    fn tells_again_at(&self, shared: &Shared) -> Option<Time> {
        let waits = self.is_null && self.strangers(shared).next().is_some();
        waits.then(|| self.told_at + TELL_AGAIN)
    }

    /// Until when what members learn that a round needs to train is waited for: who has said that it learns, or has just come
    /// and is to take something, may be gone since, and only a round shows that.
    fn learns_until(&self, shared: &Shared) -> Option<Time> {
        let none = PartSet::default();
        let has_come = |m: &ledger::Member| m.is_full() && m.keeper.kept == none && m.peer != shared.me();
        let learns =
            |m: &ledger::Member| self.view.contains(m.peer) && (m.keeper.learns != none || has_come(m));
        let waits = shared.manifest.split.is_some() && self.is_null;
        (waits && shared.head().members.iter().any(learns)).then(|| self.contribution.began + LOST)
    }

    pub fn is_applying(&self) -> bool {
        self.applying.is_some()
    }

    /// When [`Input::Tick`] is due.
    pub fn wake_at(&self, shared: &Shared) -> Option<Time> {
        let differing = self.view.others().filter_map(|peer| shared.differing.get(&peer));
        [
            self.agreement.wake_at(),
            self.contribution.held_until(),
            differing.min().copied(),
            shared.keeping.wake_at(shared.now),
            self.tells_again_at(shared),
            self.learns_until(shared).filter(|at| *at > shared.now),
            self.newcomers_wait_until(shared),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Takes an input.
    pub fn handle(&mut self, input: Input, shared: &mut Shared) -> Next {
        match input {
            Input::Tick if self.tells_again_at(shared).is_some_and(|at| at <= shared.now) => {
                self.tell_strangers(shared);
            }
            Input::Tick | Input::DialFailed { .. } | Input::Warm { .. } => {}
            Input::Message { from, message } => return self.on_message(from, message, shared),
            Input::LinkUp { peer, .. } if self.view.contains(peer) => {
                self.agreement.probe_again(&self.view, peer, shared);
            }
            Input::LinkUp { peer, .. } if self.sponsor.has(peer) => {}
            Input::LinkUp { peer, .. } => shared.send_status(peer, Stage::Member),
            Input::LinkDown { peer } => {
                handover::lost(peer, shared);
                self.sponsor.forget(peer);
                if self.view.contains(peer) {
                    self.agreement.hurry(shared.now);
                }
            }
            Input::Contribution {
                round,
                gradient,
                weight,
                loss,
                compute,
            } => {
                let made = Made {
                    gradient: gradient.into(),
                    weight,
                    loss,
                    compute,
                    ..Made::default()
                };
                return self.on_contribution(round, made, shared);
            }
            Input::Span(done) => return self.on_span(*done, shared),
            Input::Saved(_) => disk::ask(shared),
            Input::Restored { stepped, kept } => disk::on_restored(stepped, kept, shared),
            Input::Leave if self.is_null && self.view.members.len() == 1 => {
                return Next::Finish(Exit::Left);
            }
            Input::Leave | Input::Revoke(_) => return self.start_if_ready(shared),
        }
        Next::Stay
    }

    fn on_message(&mut self, from: PeerId, message: Message, shared: &mut Shared) -> Next {
        match message {
            Message::Piece { view, .. } => return self.route_piece(from, view, message, shared),
            Message::Want { .. } => return self.on_want(from, message, shared),
            Message::Tensor { .. } => return self.on_tensor(from, message, shared),
            Message::Held { .. } => return self.on_held(from, shared),
            Message::Probe { view, nonce } => self.on_probe(from, view, nonce, shared),
            Message::Alive { nonce, round, doing } => {
                let (work, agreement) = self.judged(shared);
                let verdict = agreement.on_alive(work, from, (nonce, round, doing), shared);
                return self.conclude(verdict, shared);
            }
            Message::Flush {
                view,
                suspects,
                signature,
            } => return self.on_flush(from, view, (suspects, signature), shared),
            Message::Decision {
                view,
                suspects,
                proof,
            } => {
                let agreement = &mut self.agreement;
                let verdict = agreement.on_decision(&self.view, from, view, (suspects, proof), shared);
                return self.conclude(verdict, shared);
            }
            Message::Committed { view, record, .. } => return self.on_committed(from, view, record, shared),
            Message::Headers { view, headers } => return self.on_headers(view, &headers, shared),
            Message::Seals { view, seals } => return self.on_seals(from, view, &seals, shared),
            Message::Convicted(proof) => return self.on_proof(*proof, shared),
            Message::Repair { view, missing } => self.on_repair(from, view, &missing, shared),
            Message::Out { view } if self.view.key.round == view.round && self.view.contains(from) => {
                return self.suspect(from, Reason::Out, shared);
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
                return self.on_status(from, &shown, finished, shared);
            }
            Message::Status {
                standing,
                places,
                claim: Some(claim),
                member: false,
                ..
            } => {
                let shown = Shown {
                    standing,
                    places: &places,
                    claim: Some(&claim),
                };
                return self.on_followed_status(from, &shown, shared);
            }
            Message::Follow {
                have,
                admission,
                contact,
            } => {
                let work = in_work(&self.view, &self.reduce);
                let asked = self
                    .sponsor
                    .on_follow(from, (have, *admission, contact), work, shared);
                return self.after_asked(from, asked, shared);
            }
            Message::Followed { round } => {
                let work = in_work(&self.view, &self.reduce);
                self.sponsor.on_followed(from, round, work, shared);
                return self.release(shared);
            }
            Message::Ready { ready } => {
                let work = in_work(&self.view, &self.reduce);
                let asked = self.sponsor.on_ready(from, ready, work, shared);
                return self.after_asked(from, asked, shared);
            }
            Message::Fetch { block } => hand_out(from, block, shared),
            Message::Doubt => hand_out_digests(from, shared),
            Message::Learn { part } => return self.on_learn(from, part, shared),
            Message::Moments {
                part,
                piece,
                stepped,
                data,
            } => handover::on_moments(from, (part, piece), stepped, &data, shared),
            _ => {}
        }
        Next::Stay
    }

    /// Somebody asks for a part that this peer keeps, which may turn out to have changed by itself.
    fn on_learn(&self, from: PeerId, part: u16, shared: &mut Shared) -> Next {
        handover::on_learn(from, part, !self.reduce.is_started(), shared);
        match shared.keeping.is_damaged {
            true => Next::Outcast(Outcast::new(OutcastReason::Damaged, None)),
            false => Next::Stay,
        }
    }

    /// What is due.
    pub fn on_time(&mut self, shared: &mut Shared) -> Next {
        match self.release(shared) {
            Next::Stay => {}
            next => return next,
        }
        if self.is_null && (self.has_news_of_parts(shared) || self.has_news_of_newcomers(shared)) {
            match self.start_if_ready(shared) {
                Next::Stay => {}
                next => return next,
            }
        }
        let (work, agreement) = self.judged(shared);
        let verdict = agreement.on_time(work, shared);
        self.conclude(verdict, shared)
    }

    /// The attempt, and who judges it.
    fn judged(&mut self, shared: &Shared) -> (Work<'_>, &mut Agreement) {
        let work = Work {
            at_work: self.at_work_for(shared).is_some(),
            view: &self.view,
            allotment: &self.allotment,
            reduce: &self.reduce,
        };
        (work, &mut self.agreement)
    }

    /// This peer was stopped for longer than the others wait for an answer.
    pub fn overslept(&mut self, shared: &mut Shared) -> Next {
        let made = self.contribution.made_at.is_some();
        let verdict = self.agreement.overslept(&self.view, made, shared);
        self.conclude(verdict, shared)
    }

    /// The device has finished.
    fn on_contribution(&mut self, round: Round, given: Made, shared: &mut Shared) -> Next {
        let Some(made) = self.contribution.take(round, given, &self.allotment, shared) else {
            self.contribution.ask_ahead(shared);
            return Next::Stay;
        };
        self.put(made, shared);
        self.start_if_ready(shared)
    }

    /// The values are there. The device may go on to the next round's.
    fn put(&mut self, made: Made, shared: &mut Shared) {
        let hold = self.sponsor.waits(&self.view, shared);
        self.contribution.put(made, hold, shared.now);
        self.contribution.ask_ahead(shared);
    }

    /// Hands in what is held back for a slow newcomer, once there is no need to wait or no time.
    fn release(&mut self, shared: &mut Shared) -> Next {
        let Some(until) = self.contribution.held_until() else {
            return Next::Stay;
        };
        if shared.now < until && self.sponsor.waits(&self.view, shared) {
            return Next::Stay;
        }
        if let Some(waited) = self.contribution.release(shared.now) {
            self.sponsor.waited(waited);
        }
        self.start_if_ready(shared)
    }

    /// Puts this member's values into the reduce, if they are there and nothing speaks against it.
    fn start_if_ready(&mut self, shared: &mut Shared) -> Next {
        let stopped = self.agreement.flush().is_some() || self.agreement.told().is_some();
        if self.reduce.is_started() || stopped {
            return Next::Stay;
        }
        let null = self.is_null;
        let nothing = Made {
            anew: !shared.feedback.goes_on(shared.head().chain),
            ..Made::default()
        };
        let made = match self.contribution.made() {
            // A round that only changes the membership begins when there is something to change.
            _ if null && self.has_news(shared) => &nothing,
            Some(made) if !null => made,
            _ => return Next::Stay,
        };
        let mut keeps = handover::say(shared);
        let flowing = self.flowing.as_ref().filter(|_| self.flows(shared));
        keeps.refuses = flowing.is_some_and(|flowing| flowing.flow.refuses);
        let said = Header {
            peer: shared.me(),
            weight: made.weight,
            loss: made.loss,
            speed: shared.speed.unwrap_or(1),
            compute_us: (made.compute.as_micros() as u64).min(MAX_COMPUTE_US),
            exchange_us: (shared.exchange.as_micros() as u64).min(MAX_COMPUTE_US),
            digest: shared.lineage.digest,
            ahead: made.ahead,
            anew: made.anew,
            ready: self.sponsor.ready(&self.view, shared),
            revoked: shared
                .revocations
                .iter()
                .take(Revocation::MOST)
                .cloned()
                .collect(),
            leaving: shared.leaving,
            keeps,
        };
        let header = shared
            .settings
            .key
            .signed(&self.view.attempt(shared.head()), said);
        let mut sends = Sends::default();
        let result = self.reduce.start(&made.gradient, header, &mut sends);
        self.agreement.watch(shared);
        if let Err(violation) = result {
            return self.on_violation(violation, shared);
        }
        self.carry_out(sends, shared)
    }

    /// Whether a round that only changes the membership has something to change.
    fn has_news(&self, shared: &Shared) -> bool {
        let here = shared.has_news() || self.has_news_of_parts(shared);
        here || self.has_news_of_newcomers(shared) || self.reduce.waits()
    }

    /// When one that is kept waiting may come into a run that waits itself.
    fn newcomers_wait_until(&self, shared: &Shared) -> Option<Time> {
        self.is_null.then(|| self.sponsor.waits_until(shared))?
    }

    fn has_news_of_newcomers(&self, shared: &Shared) -> bool {
        self.sponsor.has_ready(&self.view, shared)
    }

    fn has_news_of_parts(&self, shared: &Shared) -> bool {
        let is_late = self.learns_until(shared).is_some_and(|at| at <= shared.now);
        is_late || handover::has_news(shared, &self.view.members)
    }

    /// A piece goes to the attempt that it belongs to, or waits for that to begin.
    fn route_piece(&mut self, from: PeerId, view: ViewKey, piece: Message, shared: &mut Shared) -> Next {
        if view == self.view.key {
            return self.on_piece(from, piece, shared);
        }
        if self.view.is_before(&view) {
            let known = self.view.contains(from) || shared.lineage.knows(from);
            shared.early.keep(from, known, piece);
        } else if !self.view.contains(from) {
            self.answer_late(from, view, None, shared);
        }
        Next::Stay
    }

    /// Takes the pieces that waited for the view that has begun.
    fn take_early(&mut self, shared: &mut Shared) -> Next {
        let here = self.view.key;
        for (from, piece) in shared.early.take(here) {
            if self.view.key != here {
                break;
            }
            let next = match piece {
                // It came before the attempt, when nobody could tell whose right it is.
                Message::Want { .. } if self.view.contains(from) => self.on_want(from, piece, shared),
                piece => self.on_piece(from, piece, shared),
            };
            match next {
                Next::Stay => {}
                next => return next,
            }
        }
        Next::Stay
    }

    /// A piece of the current attempt.
    fn on_piece(&mut self, from: PeerId, piece: Message, shared: &mut Shared) -> Next {
        if !self.view.contains(from) {
            // It came before the attempt, when nobody could tell whose right it is.
            shared.refused.count(Kind::Piece);
            return Next::Stay;
        }
        let told_by = self.agreement.told().map(|told| told.by);
        if told_by.is_none() && self.agreement.is_frozen(shared) {
            return Next::Stay;
        }
        let null = self.is_null;
        let own = match self.contribution.made() {
            _ if null => Some(&[][..]),
            made => made.map(|made| &made.gradient[..]),
        };
        let mut sends = Sends::default();
        let result = match told_by {
            Some(told_by) => self.reduce.accept_repair((from, told_by), piece, &mut sends),
            None => self.reduce.accept(from, own, piece, &mut sends),
        };
        if let Err(violation) = result {
            return self.on_violation(violation, shared);
        }
        self.agreement.saw_piece(from, shared);
        match self.carry_out(sends, shared) {
            Next::Stay if null => self.start_if_ready(shared),
            next => next,
        }
    }

    /// Does what the reduce asks for.
    fn carry_out(&mut self, mut sends: Sends, shared: &mut Shared) -> Next {
        match self.let_out(&mut sends, shared) {
            Ok(()) => {}
            Err(NotKept::Damaged) => return Next::Outcast(Outcast::damaged(OutcastReason::Damaged)),
            Err(NotKept::Behind) => return Next::Outcast(Outcast::damaged(OutcastReason::Behind)),
        }
        for (to, message) in sends.to {
            shared.bulk(to, message);
        }
        for piece in sends.finished {
            self.sponsor.forward_piece(&self.view, &piece, shared);
        }
        for other in sends.differing {
            shared.differs(other, self.view.key, self.reduce.known_headers());
        }
        self.try_commit(shared)
    }

    fn suspect(&mut self, peer: PeerId, reason: Reason, shared: &mut Shared) -> Next {
        let verdict = self.agreement.suspect(&self.view, [peer].into(), reason, shared);
        self.conclude(verdict, shared)
    }

    /// A member has done what none may do.
    fn on_violation(&mut self, Violation { by, what }: Violation, shared: &mut Shared) -> Next {
        match what {
            Wrong::Plan => self.suspect(by, Reason::Violation, shared),
            Wrong::Forged => {
                shared.outlaw(by, None);
                self.suspect(by, Reason::Forged, shared)
            }
            Wrong::Contradiction(proof) => self.on_proof(*proof, shared),
        }
    }

    /// Somebody has said two things at once.
    fn on_proof(&mut self, proof: Conviction, shared: &mut Shared) -> Next {
        match shared.convict(proof) {
            Some(peer) if self.view.contains(peer) => self.suspect(peer, Reason::Convicted, shared),
            _ => Next::Stay,
        }
    }

    /// Somebody whose state is another shows what owners have signed of the last round's sums.
    fn on_seals(&mut self, from: PeerId, view: ViewKey, seals: &[Seal], shared: &mut Shared) -> Next {
        match shared.compare_seals(from, view, seals) {
            Some((peer, why)) if self.view.contains(peer) => self.suspect(peer, why, shared),
            _ => Next::Stay,
        }
    }

    /// A member has other headers than this one.
    fn on_headers(&mut self, view: ViewKey, headers: &[Signed<Header>], shared: &mut Shared) -> Next {
        let proof = if view == self.view.key {
            let attempt = self.view.attempt(shared.head());
            Conviction::find(attempt, &self.reduce.known_headers(), headers)
        } else {
            late::contradiction(view, headers, shared)
        };
        proof.map_or(Next::Stay, |proof| self.on_proof(proof, shared))
    }

    /// Commits if all is there: from the headers that rode along, or as another member told.
    fn try_commit(&mut self, shared: &mut Shared) -> Next {
        if self.applying.is_some() {
            return Next::Stay;
        }
        let whole = self.reduce.is_whole() || shared.settings.planted(Bug::CommitWithoutRepair);
        if self.agreement.told().is_some() {
            return match self.agreement.take_told_if(whole) {
                Some(record) => self.commit(record, shared),
                None => Next::Stay,
            };
        }
        if self.agreement.is_frozen(shared) || !self.reduce.is_complete() {
            return Next::Stay;
        }
        let Some(headers) = self.reduce.headers() else {
            return Next::Stay;
        };
        let record = self.record(headers);
        if self.reduce.has_said_held() {
            return match self.reduce.all_hold() {
                true => self.commit(record, shared),
                false => Next::Stay,
            };
        }
        let checked = shared.check_said(&record);
        if let Err(error) = checked.and_then(|()| record.check_expiry(shared.clock_s())) {
            if let RecordError::Header { peer, fault } = error
                && fault.is_of_state()
            {
                shared.show_seals(&record, peer);
                if peer == shared.me() {
                    let reason = OutcastReason::Diverged;
                    // Nobody else may have the rest of what it keeps, and that is as all have said.
                    return Next::Outcast(match handover::let_go_of_differing(&record, shared) {
                        true => Outcast::new(reason, None),
                        false => Outcast::damaged(reason),
                    });
                }
            }
            let verdict = self.agreement.refuse(&self.view, error, shared);
            return self.conclude(verdict, shared);
        }
        match self.all_hold(shared) {
            true => self.commit(record, shared),
            false => Next::Stay,
        }
    }

    /// This attempt's record, of these headers.
    fn record(&self, headers: Vec<Signed<Header>>) -> Record {
        Record {
            round: self.view.key.round,
            attempt: self.view.key.attempt,
            headers,
        }
    }

    /// Applies a round, if it changes the state.
    fn commit(&mut self, record: Record, shared: &mut Shared) -> Next {
        handover::prove(&record, shared);
        let Some(mut step) = plan(&shared.manifest, shared.head(), &record, &self.reduce.gathered) else {
            return self.applied(record, shared.now, shared);
        };
        if self.out_by.is_some_and(|by| by != step) {
            // A liar has told it another norm, which has been repaired since, and its updates are as false as if it had lied.
            return Next::Outcast(Outcast::damaged(OutcastReason::Diverged));
        }
        if shared.settings.planted(Bug::RoundByPlace) {
            step.step += self.view.me as u64;
        }
        if shared.manifest.split.is_some() {
            return self.step_spans(record, &step, shared);
        }
        self.doubted = self.doubt(&step, shared);
        // Two full members of which each has another state have no majority.
        let proves =
            shared.head().full_members().count() == 2 && !shared.settings.planted(Bug::BelieveOneself);
        self.applying = Some(Box::new(Applying::new(
            record,
            step,
            (shared.manifest.codec, self.reduce.take_held()),
            shared.now,
            proves,
        )));
        if Applying::is_short(&shared.manifest) {
            return self.apply_rest(shared);
        }
        Next::Stay
    }

    /// Applies all that is left of a committed round.
    pub fn apply_rest(&mut self, shared: &mut Shared) -> Next {
        while self.applying.is_some() {
            match self.apply_part(shared) {
                Next::Stay => {}
                next => return next,
            }
        }
        Next::Stay
    }

    /// Applies a part of a committed round. After the last the next round begins.
    pub fn apply_part(&mut self, shared: &mut Shared) -> Next {
        let Some(mut applying) = self.applying.take() else {
            return Next::Stay;
        };
        match applying.part(&shared.manifest, &mut self.reduce.gathered, &mut shared.lineage) {
            Progress::More => self.applying = Some(applying),
            Progress::Done => {
                return self.applied(applying.record, applying.complete_at, shared);
            }
            Progress::Damaged => return Next::Outcast(Outcast::damaged(OutcastReason::Damaged)),
        }
        Next::Stay
    }

    /// The state is that after the round, which was complete at the time given.
    fn applied(&mut self, record: Record, complete_at: Time, shared: &mut Shared) -> Next {
        let liars = handover::judge(&record, std::mem::take(&mut self.doubted), shared);
        let next = self.go_on(record, complete_at, shared);
        for (peer, part) in liars {
            shared.tell(Event::FalseUpdate { peer, part });
            shared.outlaw(peer, None);
        }
        next
    }

    /// What follows from a round that is in the state.
    fn go_on(&mut self, record: Record, complete_at: Time, shared: &mut Shared) -> Next {
        let made_at = self.contribution.made_at;
        let healthy = self.reduce.has_headers() && self.agreement.flush().is_none();
        self.contribution.end(&mut shared.device);
        let changed = record.weight() > 0 && !self.is_null;
        let me = shared.me();
        let counted = record.headers.iter().any(|h| h.peer == me && h.weight > 0);
        let (before, errors) = (shared.head().chain, self.reduce.take_errors());
        if shared.settings.planted(Bug::FeedbackIntoState)
            && self.view.me == 0
            && let Some(errors) = errors.as_ref().filter(|_| changed)
        {
            compensate(&mut shared.lineage.state.params, errors);
            let blocks = shared.lineage.state.block_digests();
            shared.lineage.hashed(blocks);
        }
        let round = CommittedRound {
            view: self.view.key,
            head: self.view.head,
            record,
            seals: self.reduce.seals(),
            sums: self.reduce.take_gathered(),
            decided: self.agreement.take_decided(),
            allotment: &self.allotment,
            began: self.contribution.began,
            made_at,
            in_since: self.agreement.in_since(),
            complete_at,
            is_null: self.is_null,
            healthy,
        };
        let stepped = shared.head().stepped;
        let exit = round.enter(&mut self.sponsor, shared);
        // Where the round has gone back, what is kept is of a round that is none any more.
        if shared.head().stepped != stepped && shared.head().stepped == shared.head().chain {
            shared.lineage.state.kept.stepped = shared.head().stepped;
        }
        let after = shared.lineage.head.chain;
        shared.feedback.commit(before, after, errors.filter(|_| changed));
        shared.device.commit(before, after, counted);
        match exit {
            Some(exit) => Next::Finish(exit),
            None => Next::Round(std::mem::take(&mut self.sponsor)),
        }
    }

    /// Somebody asks whether this peer is there.
    fn on_probe(&mut self, from: PeerId, view: ViewKey, nonce: u32, shared: &mut Shared) {
        let behind = view.round <= self.view.key.round && !self.view.contains(from);
        if behind && !self.sponsor.has(from) {
            return late::tell_stranger(from, view, self.here(), Stage::Member, shared);
        }
        let null = self.is_null;
        let doing = match self.contribution.made() {
            _ if null && !self.reduce.is_started() => Doing::Idle,
            None if let Some(elapsed) = self.at_work_for(shared) => Doing::Computing {
                elapsed_us: elapsed.as_micros() as u64,
            },
            None if !null && !self.flows(shared) => Doing::Computing {
                elapsed_us: (shared.now - self.contribution.began).as_micros() as u64,
            },
            _ => {
                let place = self.view.position(from).filter(|_| view == self.view.key);
                Doing::Waiting {
                    sent: place.map_or(0, |place| self.reduce.sent_to(place)),
                    came: place.map_or(0, |place| self.reduce.came_from(place)),
                    of_all: place.map_or(0, |_| self.reduce.came()),
                }
            }
        };
        let round = shared.head().round + 1;
        shared.control(from, Message::Alive { nonce, round, doing });
    }

    /// Another member has stopped an attempt.
    fn on_flush(
        &mut self,
        from: PeerId,
        view: ViewKey,
        said: (Vec<PeerId>, Signature),
        shared: &mut Shared,
    ) -> Next {
        if view != self.view.key && !self.view.is_before(&view) {
            self.answer_late(from, view, Some(said.0), shared);
            return Next::Stay;
        }
        let agreement = &mut self.agreement;
        let verdict = agreement.on_flush(&self.view, from, view, said, shared);
        self.conclude(verdict, shared)
    }

    /// Another member has committed the round.
    fn on_committed(&mut self, from: PeerId, view: ViewKey, record: Record, shared: &mut Shared) -> Next {
        if view != self.view.key {
            return Next::Stay;
        }
        // Others may have committed what an author has said to them. It is cut off all the same, once the round is over; and
        // what the author itself tells is not taken.
        let attempt = self.view.attempt(shared.head());
        let proof = Conviction::find(attempt, &self.reduce.known_headers(), &record.headers);
        if proof.and_then(|proof| shared.convict(proof)) == Some(from) {
            return self.suspect(from, Reason::Convicted, shared);
        }
        let agreement = &mut self.agreement;
        match agreement.on_committed(&self.view, from, record, &mut self.reduce, shared) {
            Verdict::Wait => self.try_commit(shared),
            verdict => self.conclude(verdict, shared),
        }
    }

    /// Somebody lacks pieces of a committed round, or has not heard that it is committed.
    fn on_repair(&mut self, from: PeerId, view: ViewKey, missing: &[(u16, u32)], shared: &mut Shared) {
        let follows = self.sponsor.has(from);
        if late::repair(from, follows, view, missing, shared) {
            return;
        }
        if follows {
            let work = in_work(&self.view, &self.reduce);
            return self.sponsor.restart(from, work, shared);
        }
        self.answer_late(from, view, None, shared);
    }

    fn here(&self) -> Option<Here<'_>> {
        Some(Here {
            view: &self.view,
            decided: self.agreement.decided(),
        })
    }

    /// Answers a message about an attempt or round that is over here.
    fn answer_late(&self, from: PeerId, view: ViewKey, flush: Option<Vec<PeerId>>, shared: &mut Shared) {
        late::answer(from, view, flush, self.here(), Stage::Member, shared);
    }

    fn after_asked(&mut self, from: PeerId, asked: Asked, shared: &mut Shared) -> Next {
        match asked {
            Asked::Well => self.start_if_ready(shared),
            Asked::IsOut => self.suspect(from, Reason::Out, shared),
            Asked::Damaged => Next::Outcast(Outcast::damaged(OutcastReason::Damaged)),
        }
    }

    /// Somebody who is no member shows what members that it follows have signed.
    fn on_followed_status(&mut self, from: PeerId, shown: &Shown<'_>, shared: &mut Shared) -> Next {
        let side = Side {
            members: &self.view.members,
            until: shared.lineage.standing().round,
            lead: 0,
        };
        match compare(&side, from, shown, shared) {
            Stands::Theirs(via) => Next::Outcast(Outcast::new(OutcastReason::OtherLineage, Some(via))),
            Stands::Forged => {
                shared.outlaw(from, None);
                Next::Stay
            }
            Stands::Ours => Next::Stay,
        }
    }

    /// Where lineages meet.
    fn on_status(&mut self, from: PeerId, shown: &Shown<'_>, finished: bool, shared: &mut Shared) -> Next {
        // Who is a member follows nobody.
        self.sponsor.forget(from);
        let (mine, standing) = (shared.lineage.standing(), shown.standing);
        let known = self.view.contains(from);
        let side = Side {
            members: &self.view.members,
            until: mine.round,
            lead: 0,
        };
        if known && standing.round == mine.round + 1 {
            // Frames of a member that is one round ahead are no other lineage.
            if finished || self.is_null {
                // It stays only to answer those who lack something of the last round; or it has gone on without this peer, which
                // waits for nothing of it and so would never find out.
                ask_for_commit(from, self.view.key, shared);
            }
            return Next::Stay;
        }
        let stuck = self.is_null && standing == mine;
        match compare(&side, from, shown, shared) {
            Stands::Theirs(via) => {
                return Next::Outcast(Outcast::new(OutcastReason::OtherLineage, Some(via)));
            }
            Stands::Forged => {
                shared.outlaw(from, None);
                if known {
                    return self.suspect(from, Reason::Forged, shared);
                }
            }
            Stands::Ours
                if stuck && !known && shared.head().position(from).is_some() && from < shared.me() =>
            {
                // Both have excluded each other from a round that neither can do alone.
                return Next::Outcast(Outcast::new(OutcastReason::OtherPart, Some(from)));
            }
            // A member may have said this before it caught up; if it is in another lineage, this one's claim makes it a
            // newcomer.
            Stands::Ours if standing.chain != mine.chain => shared.send_status(from, Stage::Member),
            Stands::Ours if stuck && !known => {
                // What it was told before it had excluded this peer it has not minded.
                shared.forget_told(from);
                shared.send_status(from, Stage::Member);
            }
            Stands::Ours => {}
        }
        Next::Stay
    }
}

fn in_work<'a>(view: &'a View, reduce: &'a Run) -> Option<InWork<'a>> {
    Some(InWork {
        view,
        finished: &reduce.gathered,
    })
}

/// What of the state was found to be what it should be.
#[derive(Debug, Default)]
struct Proven {
    blocks: BTreeSet<u32>,
    parts: PartSet,
}

/// Why a member cannot let an update out.
enum NotKept {
    /// What it would make it of has changed.
    Damaged,
    /// It does not have the moments.
    Behind,
}

impl Member {
    /// Lets the updates out of what all keepers hold the sum of, this member as the last.
    fn let_out(&mut self, sends: &mut Sends, shared: &Shared) -> Result<(), NotKept> {
        loop {
            let due = self.reduce.take_due();
            if due.is_empty() {
                return Ok(());
            }
            let Some(headers) = self.reduce.headers() else {
                return Ok(());
            };
            let record = self.record(headers);
            let step = plan(&shared.manifest, shared.head(), &record, &self.reduce.gathered);
            self.out_by = step;
            // Anew each time: a bit may have flipped since the last.
            let mut proven = Proven::default();
            for place in due {
                let update = self.update(place, step.as_ref(), &mut proven, shared)?;
                let out = self.reduce.let_out(place, update.into(), sends);
                debug_assert!(out.is_ok(), "what this member makes itself is good");
            }
        }
    }

    /// What becomes of a piece of the parameters by its sum, as it travels. It is made of what is as it was after the last round:
    /// what a damaged memory gives would be the same for all, and nobody could tell.
    fn update(
        &self,
        place: (usize, usize),
        step: Option<&Step>,
        proven: &mut Proven,
        shared: &Shared,
    ) -> Result<Vec<u8>, NotKept> {
        let (range, _) = self.reduce.held_sum(place).ok_or(NotKept::Behind)?;
        if self.view.members.len() > 1 {
            proven.prove(&range, shared)?;
        }
        let mut new = self.stepped(place, step, shared)?;
        if shared.settings.planted(Bug::FalseUpdates) {
            new[0] += 1.0;
        }
        let old = &shared.lineage.state.params[range];
        Ok(encode_update(self.reduce.gathered.codec(), old, &new))
    }

    /// Who has let out an update that the sum does not give which this member has given it, and of which part. What it cannot
    /// work out, or only from what a damaged memory holds, it does not doubt.
    fn doubt(&self, step: &Step, shared: &Shared) -> BTreeSet<(PeerId, u16)> {
        let mut doubted = BTreeSet::new();
        for (place, part, update) in self.reduce.given() {
            let (Ok(new), Some((range, _))) = (
                self.stepped(place, Some(step), shared),
                self.reduce.held_sum(place),
            ) else {
                continue;
            };
            let old = &shared.lineage.state.params[range.clone()];
            let is_true = encode_update(self.reduce.gathered.codec(), old, &new) == *update;
            if !is_true && Proven::default().prove(&range, shared).is_ok() {
                doubted.insert((self.view.members[place.0], part));
            }
        }
        doubted
    }

    /// What becomes of a piece of the parameters by its sum.
    fn stepped(
        &self,
        place: (usize, usize),
        step: Option<&Step>,
        shared: &Shared,
    ) -> Result<Vec<f32>, NotKept> {
        let state = &shared.lineage.state;
        let (range, data) = self.reduce.held_sum(place).ok_or(NotKept::Behind)?;
        let mut sums = vec![0.0; range.len()];
        let decoded = shared.manifest.codec.decode(data, &mut sums);
        debug_assert!(decoded.is_ok(), "it was checked when it came");
        match step {
            None => Ok(state.params[range].to_vec()),
            Some(step) => {
                let made = state
                    .kept
                    .try_step(&shared.manifest, step, range, &state.params, &sums);
                made.ok_or(NotKept::Behind)
            }
        }
    }
}

impl Proven {
    /// Compares what an update is made of with what it was.
    fn prove(&mut self, range: &std::ops::Range<usize>, shared: &Shared) -> Result<(), NotKept> {
        let lineage = &shared.lineage;
        let state = &lineage.state;
        let len = shared.manifest.block();
        for block in (range.start / len) as u32..range.end.div_ceil(len) as u32 {
            if !self.blocks.insert(block) {
                continue;
            }
            let now = state
                .block_range(block)
                .map(|elements| state.block_digest(elements));
            if now.as_ref() != lineage.blocks.get(block as usize) {
                return Err(NotKept::Damaged);
            }
        }
        let part = Parts::of_len(shared.manifest.layout.len).part_of(range.start);
        if !self.parts.contains(part) {
            self.parts.insert(part);
            state.kept.prove(part).map_err(|_| NotKept::Damaged)?;
        }
        Ok(())
    }
}

/// An attempt's reduce before anything has come or gone.
fn new_reduce(view: &View, shared: &Shared) -> Run {
    let plan = Plan::of(&shared.manifest, shared.head(), &view.members);
    let run = Run::new(
        view.attempt(shared.head()),
        view.members.clone(),
        view.me,
        plan,
        shared.manifest.codec,
        shared.settings.key.clone(),
    );
    let run = match shared.manifest.feedback() {
        true => run.with_errors(),
        false => run,
    };
    #[cfg(feature = "sim")]
    let run = run.with_bug(shared.settings.bug);
    run
}
