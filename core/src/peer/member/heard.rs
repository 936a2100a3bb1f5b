//! Messages to a member other than pieces: probes, flushes, commits, and standings.

use super::{Member, in_work};
use crate::access::signature::Signature;
use crate::base::id::PeerId;
use crate::ledger::Record;
use crate::ledger::conviction::Conviction;
use crate::peer::agreement::{Verdict, ask_for_commit};
use crate::peer::late::{self, Here};
use crate::peer::meeting::{Shown, Side, Stands, meet};
use crate::peer::next::{Next, Outcast};
use crate::peer::reason::{OutcastReason, Reason};
use crate::peer::shared::{Shared, Stage};
use crate::peer::sponsor::Asked;
use crate::wire::{Doing, Message, ViewKey};

impl Member {
    /// A peer probes this one.
    pub(super) fn on_probe(&mut self, from: PeerId, view: ViewKey, nonce: u32, shared: &mut Shared) {
        let behind = view.round <= self.view.key.round && !self.view.contains(from);
        if behind && !self.sponsor.has(from) {
            return late::tell_stranger(from, view, self.here(), Stage::Member, shared);
        }
        let null = self.is_null;
        let doing = match self.contribution.made() {
            _ if null && !self.reduce.is_started() => Doing::Idle,
            None if self.contribution.held_until().is_some() => Doing::Pausing,
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
                    beside: self.agreement.beside,
                }
            }
        };
        let round = shared.head().round + 1;
        shared.control(from, Message::Alive { nonce, round, doing });
    }

    /// Another member has stopped an attempt.
    pub(super) fn on_flush(
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
    pub(super) fn on_committed(
        &mut self,
        from: PeerId,
        view: ViewKey,
        record: Record,
        shared: &mut Shared,
    ) -> Next {
        if view != self.view.key {
            return Next::Stay;
        }
        // Others may have committed an outlaw's statements. It is cut off all the same once the round is over, but
        // its own reports are not accepted.
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

    /// A peer lacks pieces of a committed round, or has not heard that it is committed.
    pub(super) fn on_repair(
        &mut self,
        from: PeerId,
        view: ViewKey,
        missing: &[(u16, u32)],
        shared: &mut Shared,
    ) {
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

    pub(super) fn here(&self) -> Option<Here<'_>> {
        Some(Here {
            view: &self.view,
            decided: self.agreement.decided(),
        })
    }

    /// Answers a message about an attempt or round that is over here.
    pub(super) fn answer_late(
        &self,
        from: PeerId,
        view: ViewKey,
        flush: Option<Vec<PeerId>>,
        shared: &mut Shared,
    ) {
        late::answer(from, view, flush, self.here(), Stage::Member, shared);
    }

    pub(super) fn after_asked(&mut self, from: PeerId, asked: Asked, shared: &mut Shared) -> Next {
        match asked {
            Asked::Well => self.start_if_ready(shared),
            Asked::IsOut => self.suspect(from, Reason::Out, shared),
            Asked::Damaged => Next::Outcast(Outcast::damaged(OutcastReason::Damaged)),
        }
    }

    /// A peer that is not a member shows signatures of the members that it follows.
    pub(super) fn on_followed_status(
        &mut self,
        from: PeerId,
        shown: &Shown<'_>,
        shared: &mut Shared,
    ) -> Next {
        let side = Side {
            members: &self.view.members,
            until: shared.lineage.standing().round,
            lead: 0,
            is_own: true,
        };
        match meet(&side, from, shown, shared) {
            Stands::Theirs(via) => Next::Outcast(Outcast::new(OutcastReason::OtherLineage, Some(via))),
            Stands::Forged => {
                shared.outlaw(from, None);
                Next::Stay
            }
            Stands::Ours => Next::Stay,
        }
    }

    /// Another lineage's standing.
    pub(super) fn on_status(
        &mut self,
        from: PeerId,
        shown: &Shown<'_>,
        finished: bool,
        shared: &mut Shared,
    ) -> Next {
        // A member follows nobody.
        self.sponsor.forget(from);
        let (mine, standing) = (shared.lineage.standing(), shown.standing);
        let known = self.view.contains(from);
        let side = Side {
            members: &self.view.members,
            until: mine.round,
            lead: 0,
            is_own: true,
        };
        if known && standing.round == mine.round + 1 {
            // Frames of a member that is one round ahead are no other lineage.
            if finished || self.is_null {
                // It stays only to answer peers that lack something of the last round. Or it has continued without
                // this peer, which waits for nothing of it and so would never find out.
                ask_for_commit(from, self.view.key, shared);
            }
            return Next::Stay;
        }
        let stuck = self.is_null && standing == mine;
        match meet(&side, from, shown, shared) {
            // It would be barred there, and come back. Its next header says so, and then it is out here too.
            Stands::Theirs(_) if shared.is_revoked() => {}
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
            // A member may have said this before it caught up. If it is in another lineage, this one's claim makes
            // it a newcomer.
            Stands::Ours if standing.chain != mine.chain => shared.send_status(from, Stage::Member),
            Stands::Ours if stuck && !known => {
                // It has ignored what it was told before it excluded this peer.
                shared.forget_told(from);
                shared.send_status(from, Stage::Member);
            }
            Stands::Ours => {}
        }
        Next::Stay
    }
}
