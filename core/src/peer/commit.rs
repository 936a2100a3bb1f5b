//! The consequences of a committed round: updates the ledger's head, tells others, reports who came and went, and
//! observes waits.

use crate::access::signature::Attempt;
use crate::base::id::{Digest, PeerId};
use crate::base::planted::Bug;
use crate::base::time::Time;
use crate::collective::Assembly;
use crate::ledger::allot::Allotment;
use crate::ledger::aside::Aside;
use crate::ledger::decision::Decided;
use crate::ledger::seal::{Seal, Sealed};
use crate::ledger::tickets::Barred;
use crate::ledger::{Member, Record};
use crate::peer::interface::{Commit, Event, Exit};
use crate::peer::reason::{Change, Reason};
use crate::peer::shared::{Shared, Stage};
use crate::peer::sponsor::Sponsor;
use crate::reach::detector::Detector;
use crate::state::lineage::Committed;
use crate::wire::ViewKey;
use std::time::Duration;

/// A round whose sums are in the state, as its member has seen it.
pub(crate) struct CommittedRound<'a> {
    pub view: ViewKey,
    /// Hash of the ledger's head before it.
    pub head: Digest,
    pub record: Record,
    pub sums: Assembly,
    /// The owners' seals of the sums, if they sign.
    pub seals: Option<Vec<Seal>>,
    /// The attempts that were given up on the way to it.
    pub decided: Vec<Decided>,
    pub allotment: &'a Allotment,
    pub began: Time,
    /// When this member's contribution was handed in.
    pub made_at: Option<Time>,
    /// When it was put into the attempt that succeeded.
    pub in_since: Option<Time>,
    pub complete_at: Time,
    /// Whether it only changed the membership.
    pub is_null: bool,
    /// Whether it was neither reported nor stopped by anyone: then its wait was a usual one.
    pub healthy: bool,
}

impl CommittedRound<'_> {
    /// Applies the round to the ledger's head and tells everybody who needs to know. Returns why this peer is done,
    /// if it is.
    pub fn enter(self, sponsor: &mut Sponsor, shared: &mut Shared) -> Option<Exit> {
        let before = std::mem::replace(&mut shared.began_before, self.began);
        let names: Vec<PeerId> = self.record.headers.iter().map(|h| h.peer).collect();
        let batch = &self.allotment.batch;
        let work = shared.lineage.head.work_of(&shared.manifest, batch, &names);
        let came_in = shared.lineage.last.is_none();
        self.observe((before, came_in), &work, &mut shared.detector);
        shared.exchange = self.exchange();
        let refused_by = self.refused_by(shared);
        let (before, trail, head) = (shared.lineage.standing(), shared.head().trail, self.head);
        let members_before = shared.head().members.clone();
        shared.apply_record(self.view, &self.record);
        if shared.settings.planted(Bug::PaceByOwnClock) {
            shared.lineage.head.pace.mistake(shared.exchange);
        }
        if shared.settings.planted(Bug::RateByOwnClock) {
            shared.lineage.head.asides.mistake(shared.round_took);
        }
        let made_at = self.made_at.unwrap_or(self.complete_at);
        let commit = Commit {
            view: self.view,
            digest: shared.lineage.digest,
            samples: shared.head().counted(),
            compute: made_at - self.began,
            reduce: self.complete_at - made_at,
            total: shared.now - shared.committed_at,
            record: self.record.clone(),
        };
        shared.round_took = commit.total;
        shared.committed_at = shared.now;
        shared.forgetful &= self.record.headers.len() == 1;
        shared
            .barren
            .take(self.record.weight() > 0, refused_by.into_iter());
        shared.tell(Event::Committed(Box::new(commit)));
        if let Some(turn) = shared.head().pace.turn {
            shared.tell(Event::Pace(turn));
        }
        if let Some(shift) = shared.head().shifts.begun(shared.head().round).cloned() {
            shared.tell(Event::Shift(shift));
        }
        let now = shared.head();
        let aside: Vec<Aside> = now.asides.since(now.round).cloned().collect();
        aside
            .into_iter()
            .for_each(|aside| shared.tell(Event::Aside(aside)));
        tell_changes(&members_before, &self.record, shared);
        let me = shared.me();
        let left = self.record.headers.iter().any(|h| h.leaving && h.peer == me);
        // A peer that keeps parts which others do not keep yet stays for a while.
        let left = left && shared.head().position(me).is_none();
        if let Some(seals) = self.seals {
            let (chain, view) = (before.chain, self.view);
            shared.lineage.seals.keep(Sealed {
                attempt: Attempt { chain, view },
                members: self.record.headers.iter().map(|h| h.peer).collect(),
                seals,
            });
        }
        shared.lineage.last = Some(Committed {
            view: self.view,
            digest: shared.lineage.digest,
            sums: self.sums,
            decided: self.decided,
            before,
            trail,
            head,
            record: self.record,
        });
        sponsor.forward_commit(shared);
        let head = &shared.lineage.head;
        shared.detector.keep(|peer| head.position(*peer).is_some());
        let own = &shared.settings.admission;
        match left {
            true => Some(Exit::Left),
            _ if head.tickets.revokes(own, shared.root.run) => Some(Exit::Barred(Barred::Revoked)),
            _ if shared.barren.is_hopeless(head.full_members()) => Some(Exit::NotFinite),
            false => None,
        }
    }

    /// Members whose numbers were refused: they had a share and counted none of it.
    fn refused_by(&self, shared: &Shared) -> Vec<PeerId> {
        let had_share = |peer| {
            let place = shared.head().position(peer);
            place.is_some_and(|place| self.allotment.len(place) > 0)
        };
        let headers = self.record.headers.iter().filter(|_| !self.is_null);
        let refused = headers.filter(|h| h.keeps.refuses || h.weight == 0 && !h.late && had_share(h.peer));
        refused.map(|h| h.peer).collect()
    }

    /// Duration of the exchange, if it went well.
    fn exchange(&self) -> Duration {
        let in_since = self
            .in_since
            .filter(|_| self.healthy && !self.is_null && self.view.attempt == 0);
        in_since.map_or(Duration::ZERO, |since| self.complete_at - since)
    }

    /// Observes the round's waits.
    fn observe(&self, (began_before, came_in): (Time, bool), work: &[f64], detector: &mut Detector) {
        if let Some(in_since) = self.in_since.filter(|_| self.healthy) {
            detector.saw_reduce(self.complete_at - in_since);
        }
        for (header, work) in self.record.headers.iter().zip(work) {
            let took = Duration::from_micros(header.compute_us);
            let lasted = self.complete_at - if header.ahead { began_before } else { self.began };
            // A share computed ahead, or in a round that this member has joined late, may have begun before this
            // member was there. Its time must not be cut to the round's: if that were the first observation of its
            // author, the author would look too slow from then on.
            if (header.ahead || came_in) && took > lasted {
                continue;
            }
            // Nobody has computed for longer than the round has lasted here, whatever the header claims.
            let took = took.min(lasted);
            let samples = match self.allotment.batch[..] {
                [] => f64::from(header.weight),
                _ => *work,
            };
            detector.saw_compute(header.peer, took, samples);
        }
    }
}

/// Reports who came and went in a committed round.
fn tell_changes(before: &[Member], record: &Record, shared: &mut Shared) {
    for peer in std::mem::take(&mut shared.ousted) {
        shared.hang_up(peer);
    }
    let mut changes = Vec::new();
    let head = &shared.lineage.head;
    for member in before.iter().filter(|m| head.position(m.peer).is_none()) {
        // Why the others ceased to be members was reported with the decision.
        if let Some(header) = record.headers.iter().find(|h| h.peer == member.peer) {
            let revoked = head.tickets.revokes(&member.admission, shared.root.run);
            let stands_aside = head
                .asides
                .since(head.round)
                .any(|aside| aside.peer == member.peer);
            let reason = match () {
                () if revoked => Reason::Revoked,
                () if stands_aside => Reason::StandsAside,
                () if header.leaving => Reason::Goodbye,
                () => Reason::MadeRoom,
            };
            changes.push((member.peer, reason));
        }
    }
    let is_new = |m: &&Member| before.iter().all(|b| b.peer != m.peer);
    let joined = head.members.iter().filter(is_new);
    changes.extend(joined.map(|m| (m.peer, Reason::CaughtUp)));
    for (peer, reason) in changes {
        match reason.change() {
            Change::Left | Change::StandsAside if peer == shared.me() => {}
            Change::StandsAside => shared.send_status(peer, Stage::Member),
            Change::Left => {
                shared.send_status(peer, Stage::Member);
                shared.links.forget(peer);
            }
            // It may still need something of this round.
            Change::Evicted => shared.ousted.push(peer),
            _ => {}
        }
        shared.tell(Event::member(peer, reason));
    }
}
