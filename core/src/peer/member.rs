//! The phase of a member, one round at a time: contribute and reduce here, then `member/commit.rs`. When another
//! member fails, `agreement.rs` decides about the attempt. `sponsor.rs` serves newcomers.

mod commit;
mod heard;
mod spans;
mod updates;

use self::spans::Flowing;
use self::updates::NotKept;
use crate::access::signature::Signed;
use crate::base::id::{PeerId, Round};
use crate::base::planted::Bug;
use crate::base::time::Time;
use crate::collective::{Plan, Run, Sends, Violation, Wrong};
use crate::ledger::allot::Allotment;
use crate::ledger::check::MAX_COMPUTE_US;
use crate::ledger::conviction::Conviction;
use crate::ledger::seal::Seal;
use crate::ledger::tickets::Barred;
use crate::ledger::{self, Header};
use crate::numeric::optim::Step;
use crate::numeric::vector::Vector;
use crate::peer::agreement::{Agreement, Verdict, Work};
use crate::peer::contribution::Contribution;
use crate::peer::device::Made;
use crate::peer::disk;
use crate::peer::handover;
use crate::peer::interface::{Event, Exit, Input};
use crate::peer::keeping;
use crate::peer::late::{self};
use crate::peer::meeting::Shown;
use crate::peer::next::{Next, Outcast};
use crate::peer::reason::{OutcastReason, Reason};
use crate::peer::shared::{Shared, Stage};
use crate::peer::sponsor::{InWork, Sponsor, hand_out_digests};
use crate::peer::spot_check;
use crate::run::parts::PartSet;
use crate::state::apply::Applying;
use crate::wire::rights::Kind;
use crate::wire::view::View;
use crate::wire::{Leg, Message, ViewKey};
use std::collections::BTreeSet;
use std::time::Duration;

/// A member in the round after the head.
pub(crate) struct Member {
    pub view: View,
    /// Whether the view is too small to train: its rounds only change the membership.
    is_null: bool,
    pub agreement: Agreement,
    /// The shares of all members, in any attempt.
    allotment: Allotment,
    contribution: Contribution,
    /// Its computation, in a split run.
    flowing: Option<Flowing>,
    /// Since when its device has been at its present task there.
    at_work_since: Time,
    pub reduce: Run,
    /// The round is committed, and is being applied to the state.
    applying: Option<Box<Applying>>,
    /// Publishers of updates of this round that do not follow from their sums here, with the parts.
    doubted: BTreeSet<(PeerId, u16)>,
    /// The step with which this member has published updates in this attempt.
    out_by: Option<Step>,
    /// When others were last told where this lineage stands.
    told_at: Time,
    pub sponsor: Sponsor,
}

/// How often a waiting member tells peers outside of its view where its lineage stands. An earlier answer may have
/// been held back, or taken for that of a member, and no round follows that would repeat it.
const TELL_AGAIN: Duration = Duration::from_secs(10);

impl Member {
    /// In the first attempt at the round. Returns the followers if this peer is not among the members, or if no
    /// member is a full one.
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
                // Its other parts are intact, and perhaps nobody else has them.
                Some(_) => Outcast::new(OutcastReason::Behind, None),
            });
        }
        if shared.keeping.is_damaged {
            return Next::Outcast(Outcast::new(OutcastReason::Damaged, None));
        }
        if !self.is_null {
            spot_check::begin_round(&self.allotment, shared);
        }
        if self.is_null {
            self.tell_waiting(shared);
        } else if self.flows(shared) {
            // It begins to compute with the attempt.
        } else if self.allotment.len(self.view.me) > 0 {
            self.contribution.ask(&self.allotment, shared);
        } else {
            self.contribution.make_empty(shared);
            self.contribution.ask_ahead(shared);
            self.contribution.try_out(shared);
        }
        self.begin_attempt(shared)
    }

    /// Begins an attempt, the first or a later one.
    fn begin_attempt(&mut self, shared: &mut Shared) -> Next {
        spot_check::begin_attempt(&self.reduce, &self.allotment, shared);
        self.tell_strangers(shared);
        shared.differing.retain(|peer, _| self.view.contains(*peer));
        let head = shared.head();
        let is_bound = |peer| {
            let (run, bug) = (shared.root.run, shared.settings.bug());
            let bars = |m: &ledger::Member| m.peer == peer && shared.outlaws.bars(&m.admission, run, bug);
            head.admissions.is_fresh(peer) && head.members.iter().any(bars)
        };
        let outlaws = self
            .view
            .others()
            .filter(|m| shared.outlaws.contains(*m) || is_bound(*m));
        let outlaws: BTreeSet<PeerId> = outlaws.collect();
        if !outlaws.is_empty() {
            // The sponsor that let them in has not heard of it.
            let is_proven = |peer: &PeerId| shared.outlaws.proof(*peer).is_some() || is_bound(*peer);
            let why = match outlaws.iter().any(is_proven) {
                true => Reason::Convicted,
                false => Reason::FalseValues,
            };
            self.view.others().for_each(|other| shared.tell_proofs(other));
            let verdict = self.agreement.suspect(&self.view, outlaws, why, shared);
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

    /// Begins the next attempt at the same round, without some members, from contributions that it still has.
    fn next_attempt(&mut self, members: Vec<PeerId>, shared: &mut Shared) -> Next {
        let counts = |m: &PeerId| shared.head().is_full(*m) || shared.settings.planted(Bug::GuestsGoOn);
        if !members.iter().any(counts) {
            return Next::Outcast(Outcast::new(OutcastReason::NoMember, None));
        }
        let attempt = self.view.key.attempt + 1;
        let Some(view) = View::new(shared.head(), attempt, members, shared.me()) else {
            return Next::Outcast(Outcast::new(OutcastReason::Excluded, None));
        };
        // Members that this one suspects may commit the attempt that ends here.
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

    /// Tells all reachable peers outside of this peer's view where this lineage stands. Links outlive views, so
    /// lineages may meet without a new link.
    fn tell_strangers(&mut self, shared: &mut Shared) {
        self.told_at = shared.now;
        let strangers: Vec<PeerId> = self.strangers(shared).collect();
        for peer in strangers {
            shared.send_status(peer, Stage::Member);
        }
    }

    fn strangers(&self, shared: &Shared) -> impl Iterator<Item = PeerId> {
        let sponsor = &self.sponsor;
        let stranger = |peer: &PeerId| {
            !self.view.contains(*peer) && !sponsor.has(*peer) && !sponsor.keeps_waiting(*peer)
        };
        shared.links.reachable().filter(stranger)
    }

    /// When it repeats that, if it waits and there are such peers.
    fn tells_again_at(&self, shared: &Shared) -> Option<Time> {
        let waits = self.is_null && self.strangers(shared).next().is_some();
        waits.then(|| self.told_at + TELL_AGAIN)
    }

    /// Until when to wait for parts that members learn and a round needs to train. A learner may be gone by then,
    /// and only a round shows that.
    fn learns_until(&self, shared: &Shared) -> Option<Time> {
        let none = PartSet::default();
        let has_come = |m: &ledger::Member| m.is_full() && m.keeper.kept == none && m.peer != shared.me();
        let learns =
            |m: &ledger::Member| self.view.contains(m.peer) && (m.keeper.learns != none || has_come(m));
        let waits = shared.manifest.split.is_some() && self.is_null;
        let wait = shared.settings.waits.fetching;
        (waits && shared.head().members.iter().any(learns)).then(|| self.contribution.began + wait)
    }

    /// Until when a contributor waits for full members to which it has no link. While nothing is allotted nobody is
    /// probed, so only a round shows whether they are gone; until then a newcomer finds nobody to follow.
    fn waits_for_full_until(&self, shared: &Shared) -> Option<Time> {
        let head = shared.head();
        let can_begin =
            |peer: PeerId| head.is_full(peer) && (peer == shared.me() || shared.links.is_up(peer));
        let waits = self.is_null && !self.view.members.iter().copied().any(can_begin);
        waits.then(|| self.contribution.began + shared.settings.waits.full_members)
    }

    pub fn is_applying(&self) -> bool {
        self.applying.is_some()
    }

    /// When [`Input::Tick`] is due.
    pub fn wake_at(&self, shared: &Shared) -> Option<Time> {
        let differing = self.view.others().filter_map(|peer| shared.differing.get(&peer));
        let patience = keeping::patience(&shared.manifest, &shared.settings.waits);
        [
            self.agreement.wake_at(),
            self.contribution.held_until(),
            differing.min().copied(),
            shared.keeping.wake_at(patience, shared.now),
            self.tells_again_at(shared),
            self.learns_until(shared).filter(|at| *at > shared.now),
            self.waits_for_full_until(shared).filter(|at| *at > shared.now),
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
            // Alone it would continue in its own lineage for ever, and so would the other peer of its name, with
            // the members.
            Input::DialFailed {
                barred: Some(Barred::InUse),
                ..
            } if self.view.members.len() == 1 => {
                return Next::Outcast(Outcast::new(OutcastReason::InUse, None));
            }
            Input::Tick | Input::DialFailed { .. } | Input::Warm { .. } | Input::Line { .. } => {}
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
                late,
            } => {
                let made = Made {
                    gradient: gradient.into(),
                    weight,
                    loss,
                    compute,
                    late,
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
            Input::Stalled(_) => {}
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
            Message::Barred { why: Barred::Expired } => self.sponsor.on_expired(shared),
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
            Message::Fetch { block } => self.sponsor.on_fetch(from, block, shared),
            Message::Doubt => hand_out_digests(from, shared),
            Message::Learn { part } => return self.on_learn(from, part, shared),
            Message::Moments {
                part,
                piece,
                stepped,
                data,
            } => {
                let came = handover::on_moments(from, (part, piece), stepped, &data, shared);
                came.then(|| self.agreement.saw_another(from, shared));
            }
            _ => {}
        }
        Next::Stay
    }

    /// A member asks for a part of this peer, which may turn out to have changed by itself.
    fn on_learn(&self, from: PeerId, part: u16, shared: &mut Shared) -> Next {
        handover::on_learn(from, part, !self.reduce.is_started(), shared);
        match shared.keeping.is_damaged {
            true => Next::Outcast(Outcast::new(OutcastReason::Damaged, None)),
            false => Next::Stay,
        }
    }

    /// Handles deadlines that have passed.
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

    /// The attempt, and the agreement that judges it.
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

    /// The device is done.
    fn on_contribution(&mut self, round: Round, given: Made, shared: &mut Shared) -> Next {
        let Some(made) = self.contribution.take(round, given, &self.allotment, shared) else {
            self.contribution.ask_ahead(shared);
            return Next::Stay;
        };
        self.put(made, shared);
        self.start_if_ready(shared)
    }

    /// The values are there. The device may continue with the next round's.
    fn put(&mut self, made: Made, shared: &mut Shared) {
        let until = match self.sponsor.waits(&self.view, shared) {
            true => shared.pauses.mine(shared.me(), &shared.manifest, shared.now),
            false => None,
        };
        self.contribution.put(made, until, shared.now);
        self.contribution.ask_ahead(shared);
        spot_check::go_on(shared);
    }

    /// Hands in values held back for a slow newcomer, once it need not or cannot wait any longer.
    fn release(&mut self, shared: &mut Shared) -> Next {
        let Some(until) = self.contribution.held_until() else {
            return Next::Stay;
        };
        if shared.now < until && self.sponsor.waits(&self.view, shared) {
            return Next::Stay;
        }
        self.contribution.release(shared.now);
        self.start_if_ready(shared)
    }

    /// Puts this member's values into the reduce, if they are there and nothing prevents it.
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
            speed: shared.speed.told().unwrap_or(1),
            compute_us: (made.compute.as_micros() as u64).min(MAX_COMPUTE_US),
            exchange_us: (shared.exchange.as_micros() as u64).min(MAX_COMPUTE_US),
            round_us: (shared.round_took.as_micros() as u64).min(MAX_COMPUTE_US),
            digest: shared.lineage.digest,
            ahead: made.ahead,
            anew: made.anew,
            ready: self.sponsor.ready(&self.view, shared),
            revoked: shared.revocations_to_say(),
            leaving: shared.leaving,
            stalled: shared.stalled,
            late: made.late,
            keeps,
        };
        let header = shared
            .settings
            .key
            .signed(&self.view.attempt(shared.head()), said);
        spot_check::bound_guests(made, &mut self.reduce, shared);
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

    /// When a newcomer that was kept waiting may enter a run that waits itself.
    fn newcomers_wait_until(&self, shared: &Shared) -> Option<Time> {
        self.is_null.then(|| self.sponsor.waits_until(shared))?
    }

    fn has_news_of_newcomers(&self, shared: &Shared) -> bool {
        self.sponsor.has_ready(&self.view, shared)
    }

    fn has_news_of_parts(&self, shared: &Shared) -> bool {
        let until = [self.learns_until(shared), self.waits_for_full_until(shared)];
        let is_late = until.into_iter().flatten().any(|at| at <= shared.now);
        is_late || handover::has_news(shared, &self.view.members)
    }

    /// Routes a piece to its attempt, or keeps it until that begins.
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

    /// Handles the pieces that waited for the view that has begun.
    fn take_early(&mut self, shared: &mut Shared) -> Next {
        let here = self.view.key;
        for (from, piece) in shared.early.take(here) {
            if self.view.key != here {
                break;
            }
            let next = match piece {
                // It came before the attempt, when its right could not be checked.
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
        let nothing = Vector::default();
        let own = match self.contribution.made() {
            _ if null => Some(&nothing),
            made => made.map(|made| &made.gradient),
        };
        let checked = match &piece {
            Message::Piece {
                leg: Leg::Partial,
                chunk,
                piece,
                data,
                ..
            } if told_by.is_none() && shared.spot.hears(from) => Some((from, (*chunk, *piece), data.clone())),
            _ => None,
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
        if let Some(checked) = checked {
            spot_check::note(checked, &self.reduce, &self.allotment, shared);
            if self.contribution.is_made() {
                spot_check::go_on(shared);
            }
        }
        match self.carry_out(sends, shared) {
            Next::Stay if null => self.start_if_ready(shared),
            next => next,
        }
    }

    /// Carries out what the reduce asks for.
    fn carry_out(&mut self, mut sends: Sends, shared: &mut Shared) -> Next {
        if let Some(next) = self.refuse_expired(shared) {
            return next;
        }
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

    /// A member has broken the protocol.
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

    /// A peer has contradicted itself.
    fn on_proof(&mut self, proof: Conviction, shared: &mut Shared) -> Next {
        match shared.convict(proof) {
            Some(peer) if self.view.contains(peer) => self.suspect(peer, Reason::Convicted, shared),
            _ => Next::Stay,
        }
    }

    /// A peer whose state differs shows the owners' seals of the last round.
    fn on_seals(&mut self, from: PeerId, view: ViewKey, seals: &[Seal], shared: &mut Shared) -> Next {
        match shared.compare_seals(from, view, seals) {
            Some((peer, why)) if self.view.contains(peer) => self.suspect(peer, why, shared),
            _ => Next::Stay,
        }
    }

    /// A member's headers differ from this member's.
    fn on_headers(&mut self, view: ViewKey, headers: &[Signed<Header>], shared: &mut Shared) -> Next {
        let proof = if view == self.view.key {
            let attempt = self.view.attempt(shared.head());
            Conviction::find(attempt, &self.reduce.known_headers(), headers)
        } else {
            late::contradiction(view, headers, shared)
        };
        proof.map_or(Next::Stay, |proof| self.on_proof(proof, shared))
    }
}

fn in_work<'a>(view: &'a View, reduce: &'a Run) -> Option<InWork<'a>> {
    Some(InWork {
        view,
        finished: &reduce.gathered,
    })
}

/// An attempt's reduce before its first frame.
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
