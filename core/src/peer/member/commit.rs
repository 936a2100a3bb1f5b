//! From a complete reduce to the next round.

use super::Member;
use crate::access::signature::Signed;
use crate::base::id::PeerId;
use crate::base::planted::Bug;
use crate::base::time::Time;
use crate::ledger::check::RecordError;
use crate::ledger::tickets::Barred;
use crate::ledger::{Header, Record};
use crate::numeric::feedback::compensate;
use crate::peer::commit::CommittedRound;
use crate::peer::handover;
use crate::peer::interface::Event;
use crate::peer::next::{Next, Outcast};
use crate::peer::reason::OutcastReason;
use crate::peer::shared::Shared;
use crate::peer::spot_check;
use crate::run::config::{Manifest, TensorRule};
use crate::state::apply::{Applying, Progress};
use crate::wire::Message;
use std::sync::Arc;

impl Member {
    /// Commits once all is there: from the headers that came with the pieces, or from another member's report.
    pub(super) fn try_commit(&mut self, shared: &mut Shared) -> Next {
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
        if let Err(error) = shared.check_said(&record) {
            if let RecordError::Header { peer, fault } = error
                && fault.is_of_state()
            {
                shared.show_seals(&record, peer);
                if peer == shared.me() {
                    let reason = OutcastReason::Diverged;
                    // The rest of its parts is what all have said, and perhaps nobody else has it.
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

    /// Whether a header names a newcomer whose ticket has expired by this member's clock. Nobody can tell which clock
    /// is wrong. So its author hears of that, all try again, and it names others. This member has the author's values
    /// with the header, or before it finishes its own chunk; so nobody can commit meanwhile without it.
    pub(super) fn refuse_expired(&mut self, shared: &mut Shared) -> Option<Next> {
        let over = self.agreement.told().is_some() || self.reduce.has_said_held();
        let late: Vec<PeerId> = match over {
            true => return None,
            false => self.reduce.names_expired(shared.clock_s()).collect(),
        };
        for sponsor in late.iter().copied() {
            let why = Barred::Expired;
            shared.control(sponsor, Message::Barred { why });
        }
        let verdict = (!late.is_empty()).then(|| self.agreement.stop(&self.view, shared))?;
        Some(self.conclude(verdict, shared))
    }

    /// This attempt's record, of these headers.
    pub(super) fn record(&self, headers: Vec<Signed<Header>>) -> Record {
        Record {
            round: self.view.key.round,
            attempt: self.view.key.attempt,
            headers,
        }
    }

    /// Applies a round, if it changes the state.
    pub(super) fn commit(&mut self, record: Record, shared: &mut Shared) -> Next {
        handover::prove(&record, shared);
        let Some(mut step) = shared.plan(&record, &self.reduce.gathered) else {
            return self.applied(record, shared.now, shared);
        };
        if self.out_by.is_some_and(|by| by != step) {
            // A liar has told it another norm, which has been repaired since. Its published updates are as false as
            // if it had lied.
            return Next::Outcast(Outcast::damaged(OutcastReason::Diverged));
        }
        if shared.settings.planted(Bug::RoundByPlace) {
            step.step += self.view.me as u64;
        }
        if shared.manifest.split.is_some() {
            return self.step_spans(record, &step, shared);
        }
        self.doubted = self.doubt(&step, shared);
        // Two full members with different states have no majority.
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

    /// Applies a part of a committed round. After the last part the next round begins.
    pub fn apply_part(&mut self, shared: &mut Shared) -> Next {
        let Some(mut applying) = self.applying.take() else {
            return Next::Stay;
        };
        let manifest = rules(shared);
        let jobs = &*shared.settings.jobs;
        match applying.part(&manifest, &mut self.reduce.gathered, &mut shared.lineage, jobs) {
            Progress::More => self.applying = Some(applying),
            Progress::Done => {
                return self.applied(applying.record, applying.complete_at, shared);
            }
            Progress::Damaged => return Next::Outcast(Outcast::damaged(OutcastReason::Damaged)),
        }
        Next::Stay
    }

    /// The state is that after the round, which was complete at the given time.
    pub(super) fn applied(&mut self, record: Record, complete_at: Time, shared: &mut Shared) -> Next {
        let liars = handover::judge(&record, std::mem::take(&mut self.doubted), shared);
        let idlers = spot_check::judge(&record, shared);
        let next = self.go_on(record, complete_at, shared);
        for (peer, part) in liars {
            shared.tell(Event::FalseUpdate { peer, part });
            shared.outlaw(peer, None);
        }
        for peer in idlers {
            shared.tell(Event::FalseWork { peer });
            shared.outlaw(peer, None);
        }
        next
    }

    /// Acts on a round that is in the state.
    pub(super) fn go_on(&mut self, record: Record, complete_at: Time, shared: &mut Shared) -> Next {
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
        let anew = record.headers.iter().any(|h| h.peer == me && h.anew);
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
        // Kept parts are marked as current at once, also of a peer that leaves: stepped or reset. If the round has
        // gone back, they belong to an undone round.
        match shared.head().stepped {
            now if now == stepped => {}
            now if now == shared.head().chain => handover::begin_anew(shared),
            _ => handover::go_on(shared),
        }
        let after = shared.lineage.head.chain;
        let errors = errors.filter(|_| changed);
        shared.feedback.commit((before, after), errors, anew);
        shared.device.commit(before, after, counted);
        match exit {
            Some(exit) => Next::Finish(exit),
            None => Next::Round(std::mem::take(&mut self.sponsor)),
        }
    }
}

/// The manifest by whose rules this member applies rounds: the run's, but for a planted bug.
fn rules(shared: &Shared) -> Arc<Manifest> {
    let mut manifest = shared.manifest.clone();
    if shared.settings.planted(Bug::OptimizeMeans) {
        let tensors = &mut Arc::make_mut(&mut manifest).layout.tensors;
        tensors
            .iter_mut()
            .for_each(|tensor| tensor.rule = TensorRule::Step);
    }
    manifest
}
