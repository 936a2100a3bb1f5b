//! The rules that honest members agree on: whether a record can follow a head, and whether a head is possible at
//! all.
//!
//! A peer checks each record before it applies it: before a commit, from a member that reports one, as a follower,
//! from a file. All members hold the same headers, so all refuse the same records and know whose header is wrong.

use crate::access::invitation::{Revocation, Role, Root};
use crate::access::signature::{Attempt, Scheme, Signed};
use crate::base::id::{Digest, PeerId, Round, RunId, ViewKey};
use crate::ledger::admission::MAX_NAMED;
use crate::ledger::allot::Allotment;
use crate::ledger::cut::{Given, SampleRange};
use crate::ledger::fork::{FORKS, Fork};
use crate::ledger::route::Batch;
use crate::ledger::{Head, Header, Member, Newcomer, Ready, Record};
use crate::run::config::{MAX_PEERS, Manifest, Settings};
use crate::run::parts::{PartSet, Parts};
use std::collections::{BTreeMap, BTreeSet};

/// Fastest speed that a header may claim, in samples per 1,000 seconds. A guess, far above any device.
pub const MAX_SPEED: u64 = 1_000_000_000_000_000;

/// Rounds for which "ready" is valid: a few times the allowed lag of a newcomer. So a sponsor that has kept the
/// statement cannot name a peer that has left since.
pub const READY_ROUNDS: Round = 4 * Settings::LAG;

/// Longest compute and exchange time that a header may claim, in microseconds: twelve days. Keeps deadlines from
/// overflow.
pub const MAX_COMPUTE_US: u64 = 1 << 40;

/// Most rounds of a run. A guess, far above any run; keeps arithmetic from overflow.
pub const MAX_ROUND: Round = 1 << 48;

/// Why a record cannot follow a head. The head has not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// It is not of the round after the head's.
    #[error("it does not follow round {head}")]
    Round {
        /// The head's round.
        head: Round,
        /// The record's.
        record: Round,
    },
    /// It has no headers.
    #[error("it has no contributors")]
    Empty,
    /// No full member took part. Contributors alone cannot carry on a run.
    #[error("it has no contributor that is a full member")]
    NoMember,
    /// It is a first attempt without the headers of all members.
    #[error("a member is missing in its first attempt")]
    Missing,
    /// A header is wrong.
    #[error("the header of {peer} {fault}")]
    Header {
        /// Its author.
        peer: PeerId,
        /// The fault.
        fault: Fault,
    },
}

/// Why a header is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Its author is not a member.
    #[error("is not of a member")]
    NotAMember,
    /// It is not at its author's place in the ring, or occurs twice.
    #[error("is not in ring order")]
    Order,
    /// Its author has not signed it, or not for this attempt.
    #[error("is not signed by its author")]
    Signature,
    /// It counts more samples than its author's share has.
    #[error("counts {counted} samples of a share of {share}")]
    Samples {
        /// The samples that it counts.
        counted: u32,
        /// The samples of the share.
        share: u64,
    },
    /// It counts samples in a round with fewer members than the run needs to train.
    #[error("counts samples in a round of too few members")]
    TooFew,
    /// Its loss is not finite, or not zero although it counts no samples.
    #[error("has an impossible loss")]
    Loss,
    /// Its speed is 0 or above [`MAX_SPEED`].
    #[error("has an impossible speed")]
    Speed,
    /// Its compute or exchange time is longer than [`MAX_COMPUTE_US`].
    #[error("has an impossible time")]
    Time,
    /// Its author's state differs from the majority's.
    #[error("starts from another state than the majority")]
    Digest,
    /// It names an impossible newcomer: a contributor, the same one twice, one without a signature or a valid
    /// ticket. Or its author may not name any.
    #[error("names an impossible newcomer")]
    Ready,
    /// It revokes a ticket without the signature of an issuer.
    #[error("has a revocation that no issuer has signed")]
    Revocation,
    /// It names a newcomer too soon after one that did not come.
    #[error("names a newcomer too soon after one that did not come")]
    Barred,
    /// It names a newcomer that stands aside, or while another is tried out.
    #[error("names a newcomer that has to stand aside")]
    Aside,
    /// It claims parts of the moments that its author cannot have.
    #[error("claims parts of the moments that its author cannot have")]
    Keeps,
    /// Its author's moments of some part differ from those of most keepers.
    #[error("has other moments than most keepers")]
    Moments,
}

impl Fault {
    /// Whether it means that the author's state differs from the others'.
    pub(crate) fn is_of_state(self) -> bool {
        matches!(self, Self::Digest | Self::Moments)
    }
}

/// Why a head cannot occur in any ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// Its members are too many, or one occurs twice.
    #[error("it has too many members, or one of them twice")]
    Members,
    /// It has more rounds than [`MAX_ROUND`].
    #[error("it has too many rounds")]
    Round,
    /// Its admissions are impossible.
    #[error("its newcomers are impossible")]
    Admissions,
    /// Its tickets are impossible.
    #[error("its tickets are impossible")]
    Tickets,
    /// Its keepers are impossible.
    #[error("its keepers of moments are impossible")]
    Keepers,
    /// Its saved rounds are impossible.
    #[error("its saved rounds are impossible")]
    Points,
    /// Its lost members are impossible.
    #[error("its lost members are impossible")]
    Forks,
    /// What it says of peers that stand aside cannot be.
    #[error("its peers that stand aside are impossible")]
    Asides,
    /// Its pace contradicts the manifest.
    #[error("its exchange settings contradict the manifest")]
    Pace,
    /// It moves a member to a span that does not exist, or a member that does not exist.
    #[error("it moves an unknown member, or one to an unknown span")]
    Shifts,
    /// Its holes do not lie below its cursor, in order.
    #[error("its holes are not below its cursor, in order")]
    Holes,
    /// Samples that are counted, given up and in holes do not add up to those allotted, or exceed the run's target.
    #[error("its samples do not add up")]
    Sums,
}

impl Head {
    /// The state digest that most full members started from; on a tie, that of the first in ring order. `None` if
    /// no full member contributed.
    pub fn majority(&self, record: &Record) -> Option<Digest> {
        let full = record.headers.iter().filter(|h| self.is_full(h.peer));
        let digests: Vec<Digest> = full.map(|h| h.digest).collect();
        let votes = |digest| digests.iter().filter(|d| **d == digest).count();
        let first_of_most = |best, other| if votes(other) > votes(best) { other } else { best };
        digests.iter().copied().reduce(first_of_most)
    }

    /// Whether a member may name newcomers in the next round, given who takes part in it.
    pub(crate) fn may_name(&self, peer: PeerId, takes_part: impl Fn(PeerId) -> bool) -> bool {
        let (round, full) = (self.round + 1, self.full_members());
        self.admissions.may_name(peer, round, full, takes_part)
    }

    /// Whether a member may not name newcomers in the next round because some that it named did not come.
    pub(crate) fn bars_namer(&self, peer: PeerId) -> bool {
        let (round, full) = (self.round + 1, self.full_members());
        self.admissions.is_barred(peer, round, full)
    }

    /// Checks that the members of this head can have agreed on a record, and have signed for it.
    ///
    /// # Errors
    ///
    /// The first fault found.
    pub fn check(&self, record: &Record, manifest: &Manifest, scheme: Scheme) -> Result<(), RecordError> {
        self.check_said(record, manifest, scheme)?;
        let attempt = self.attempt_of(record);
        for header in &record.headers {
            if !header.is_by(header.peer, &attempt, scheme) {
                return Err(RecordError::Header {
                    peer: header.peer,
                    fault: Fault::Signature,
                });
            }
        }
        Ok(())
    }

    /// The attempt that the headers of a following record are bound to.
    pub fn attempt_of(&self, record: &Record) -> Attempt {
        let members: Vec<PeerId> = record.headers.iter().map(|h| h.peer).collect();
        Attempt {
            chain: self.chain,
            view: ViewKey::of(self.hash(), self.round + 1, record.attempt, &members),
        }
    }

    /// Checks a record except for its signatures, which were checked on arrival.
    ///
    /// # Errors
    ///
    /// The first fault found.
    pub fn check_said(
        &self,
        record: &Record,
        manifest: &Manifest,
        scheme: Scheme,
    ) -> Result<(), RecordError> {
        if record.round != self.round + 1 {
            return Err(RecordError::Round {
                head: self.round,
                record: record.round,
            });
        }
        if record.headers.is_empty() {
            return Err(RecordError::Empty);
        }
        let allotment = self.allot(manifest);
        let trains = self.trains_record(manifest, record);
        let majority = self.majority(record).ok_or(RecordError::NoMember)?;
        let takes_part = |peer| record.headers.iter().any(|h| h.peer == peer);
        let computed = self.computed(record, manifest, &allotment, trains);
        let mut next = 0;
        for header in &record.headers {
            let wrong = |fault| RecordError::Header {
                peer: header.peer,
                fault,
            };
            let place = self.position(header.peer).ok_or(wrong(Fault::NotAMember))?;
            if place < next {
                return Err(wrong(Fault::Order));
            }
            next = place + 1;
            let names_nobody = header.ready.is_empty() || !trains;
            let may_name = names_nobody || self.may_name(header.peer, takes_part);
            let admits = !trains || header.ready.iter().all(|n| self.admits(n.peer(), manifest));
            let share = match &computed {
                Some(computed) => computed.get(&header.peer).copied().unwrap_or(0),
                None => allotment.len(place),
            };
            check_samples(header, trains, share)
                .and_then(|()| match computed {
                    Some(_) => check_computed(header, share),
                    None => Ok(()),
                })
                .and_then(|()| check_claims(header))
                .and_then(|()| self.check_ready(header, record, manifest, scheme))
                .and_then(|()| check_revoked(header, manifest, scheme))
                .and_then(|()| self.check_keeps(header, manifest))
                .and_then(|()| self.check_saved(header, manifest))
                .and(if may_name { Ok(()) } else { Err(Fault::Barred) })
                .and(if admits { Ok(()) } else { Err(Fault::Aside) })
                .map_err(wrong)?;
        }
        if record.attempt == 0 && record.headers.len() < self.members.len() {
            return Err(RecordError::Missing);
        }
        // Checked last, so that a header with this fault has no other.
        let minority = record.headers.iter().find(|h| h.digest != majority);
        let minority = minority.map(|header| (header.peer, Fault::Digest));
        let keeper = || self.differing_keeper(record).map(|peer| (peer, Fault::Moments));
        match minority.or_else(keeper) {
            Some((peer, fault)) => Err(RecordError::Header { peer, fault }),
            None => Ok(()),
        }
    }

    /// In a split run, the samples whose losses each contributor reports: those of its lanes of the last span.
    fn computed(
        &self,
        record: &Record,
        manifest: &Manifest,
        allotment: &Allotment,
        trains: bool,
    ) -> Option<BTreeMap<PeerId, u64>> {
        let (split, parts) = (self.split(manifest)?, Parts::of(manifest)?);
        let mut computed = BTreeMap::new();
        let batch = Batch::new(&split, &allotment.batch);
        if trains && !batch.is_empty() {
            let members: Vec<PeerId> = record.headers.iter().map(|h| h.peer).collect();
            let route = self.route(&split, parts, &members, batch.lanes());
            for lane in 0..batch.lanes() {
                let member = members[route.of(split.spans.len() - 1, lane)];
                *computed.entry(member).or_default() += batch.lane_len(lane);
            }
        }
        Some(computed)
    }

    /// A member that was excluded from this round may be a newcomer again; a contributor of the round may not.
    fn check_ready(
        &self,
        header: &Header,
        record: &Record,
        manifest: &Manifest,
        scheme: Scheme,
    ) -> Result<(), Fault> {
        if header.ready.is_empty() {
            return Ok(());
        }
        let root = manifest.root();
        let can_be = |newcomer: &Newcomer| {
            newcomer.contact.is_bounded()
                && record.headers.iter().all(|h| h.peer != newcomer.peer())
                && newcomer.ready.is_good(self.round, manifest, root.run, scheme)
                && newcomer.may_enter(root, scheme)
                && self
                    .tickets
                    .check(&newcomer.admission, newcomer.peer(), root.run)
                    .is_ok()
        };
        let sound = self.is_full(header.peer)
            && header.ready.len() <= MAX_NAMED
            && header.ready.is_sorted_by(|a, b| a.peer() < b.peer())
            && header.ready.iter().all(can_be);
        if sound { Ok(()) } else { Err(Fault::Ready) }
    }

    /// Checks that records can have led to this head.
    ///
    /// # Errors
    ///
    /// The first fault found.
    pub fn check_itself(&self, manifest: &Manifest) -> Result<(), HeadError> {
        let need = |ok: bool, error| if ok { Ok(()) } else { Err(error) };
        let names: BTreeSet<PeerId> = self.members.iter().map(|m| m.peer).collect();
        need(
            names.len() == self.members.len() && names.len() <= MAX_PEERS,
            HeadError::Members,
        )?;
        need(self.round <= MAX_ROUND, HeadError::Round)?;
        let is_member = |peer| names.contains(&peer);
        need(self.admissions.is_sound(is_member), HeadError::Admissions)?;
        need(self.tickets.is_sound(), HeadError::Tickets)?;
        let trials = self.members.iter().all(|m| m.trials.is_sound());
        need(trials, HeadError::Members)?;
        need(self.accounts.is_sound(), HeadError::Tickets)?;
        let parts = Parts::of(manifest).map(|parts| parts.all()).unwrap_or_default();
        let of_guests = |m: &Member| !m.is_full() && m.keeper.kept.or(&m.keeper.learns) != PartSet::default();
        let held = self.members.iter().map(|m| m.keeper.kept.or(&m.keeper.learns));
        let all = held.fold(self.untrained, |all, held| all.or(&held));
        let spans = manifest.split.as_ref().map_or(0, |split| split.spans.len());
        let room = |m: &Member| m.keeper.room == m.keeper.room.within(spans);
        need(
            all.without(&parts).is_empty()
                && !self.members.iter().any(of_guests)
                && self.members.iter().all(room),
            HeadError::Keepers,
        )?;
        need(self.has_sound_points(manifest), HeadError::Points)?;
        need(self.pace.is_sound(manifest), HeadError::Pace)?;
        need(self.asides.is_sound(), HeadError::Asides)?;
        let cut = match &manifest.split {
            Some(split) => split.can_be(&self.spans),
            None => self.spans.is_empty(),
        };
        let shifts = self.shifts.is_sound(self.round, manifest, is_member);
        need(cut && shifts, HeadError::Shifts)?;
        let few = |names: &[PeerId]| names.len() <= MAX_PEERS;
        let bounded = |f: &Fork| few(&f.lost) && few(&f.members) && f.samples <= self.samples;
        let sound = self.forks.len() <= FORKS && self.forks.iter().chain(&self.before).all(bounded);
        need(sound, HeadError::Forks)?;
        let open = self.open();
        let apart = open.is_sorted_by(|a, b| a.end <= b.start);
        let ordered = self.holes.is_sorted_by(|a, b| a.end <= b.start);
        let good = |hole: &SampleRange| hole.start < hole.end && hole.end <= self.cursor;
        let to_members = self.ahead.iter().all(|given| self.position(given.peer).is_some());
        let is_cut = |given: &Given| match &given.cut {
            None => manifest.local.is_none(),
            Some(cut) => {
                let share = given.share.iter().map(|hole| hole.len()).sum();
                manifest.local.is_some() && cut.is_sound(share, manifest)
            }
        };
        let given = to_members && self.ahead.len() <= MAX_PEERS && manifest.overlap;
        let ahead = self.ahead.is_empty() || given;
        need(
            ordered && apart && ahead && open.iter().all(|hole| good(hole)) && self.ahead.iter().all(is_cut),
            HeadError::Holes,
        )?;
        let returned: u64 = open.iter().map(|hole| hole.len()).sum();
        let sum = self.counted().checked_add(self.skipped);
        let sum = sum.and_then(|sum| sum.checked_add(returned));
        need(
            sum == Some(self.cursor)
                && (!self.stopped || manifest.early_stop.is_some())
                && self.cursor <= manifest.target.get()
                && self.steps <= self.round,
            HeadError::Sums,
        )
    }
}

/// A member that computes the last span counts all of its samples, or refuses the batch.
fn check_computed(header: &Header, share: u64) -> Result<(), Fault> {
    let counted = header.weight;
    let whole = if header.keeps.refuses { 0 } else { share };
    let is_whole = (u64::from(counted) == whole).then_some(());
    is_whole.ok_or(Fault::Samples { counted, share })
}

fn check_samples(header: &Header, trains: bool, share: u64) -> Result<(), Fault> {
    let counted = header.weight;
    if counted > 0 && !trains {
        return Err(Fault::TooFew);
    }
    if u64::from(counted) > share || header.late && counted > 0 {
        return Err(Fault::Samples { counted, share });
    }
    if !header.loss.is_finite() || (counted == 0 && header.loss != 0.0) {
        return Err(Fault::Loss);
    }
    Ok(())
}

fn check_claims(header: &Header) -> Result<(), Fault> {
    if !(1..=MAX_SPEED).contains(&header.speed) {
        return Err(Fault::Speed);
    }
    if header.compute_us.max(header.exchange_us).max(header.round_us) > MAX_COMPUTE_US {
        return Err(Fault::Time);
    }
    Ok(())
}

fn check_revoked(header: &Header, manifest: &Manifest, scheme: Scheme) -> Result<(), Fault> {
    if header.revoked.is_empty() {
        return Ok(());
    }
    let root = manifest.root();
    let good = |revocation: &Revocation| revocation.is_good(root, scheme);
    let sound = header.revoked.len() <= Revocation::MOST && header.revoked.iter().all(good);
    if sound { Ok(()) } else { Err(Fault::Revocation) }
}

/// Largest allowed difference between clocks, in seconds. A guess.
const CLOCKS_S: u64 = 300;

impl Header {
    /// Whether it names a newcomer whose ticket has expired, by a clock that may differ from its author's. Rounds that
    /// others have committed stand all the same.
    pub(crate) fn names_expired(&self, now_s: u64) -> bool {
        let at_least_s = now_s.saturating_sub(CLOCKS_S);
        let mut tickets = self.ready.iter().map(|newcomer| &newcomer.admission.chain);
        tickets.any(|chain| chain.has_expired(at_least_s))
    }
}

impl Newcomer {
    /// Whether it may become a member, as far as its own ticket shows. Whether the ticket was used or revoked is
    /// checked elsewhere.
    pub(crate) fn may_enter(&self, root: Root, scheme: Scheme) -> bool {
        self.admission.role() >= Role::Contribute && self.admission.is_of(self.peer(), root, scheme)
    }
}

impl Signed<Ready> {
    /// Whether it may become a member after a round: it must have signed that it is ready, and recently enough.
    pub fn is_good(&self, after: Round, manifest: &Manifest, run: RunId, scheme: Scheme) -> bool {
        let spans = manifest.split.as_ref().map_or(0, |split| split.spans.len());
        (1..=MAX_SPEED).contains(&self.speed)
            && self.room == self.room.within(spans)
            && is_fresh(self.round, after)
            && self.is_by(self.peer, &run, scheme)
    }
}

/// Whether "ready", said after one round, is still valid after another.
pub(crate) fn is_fresh(said: Round, after: Round) -> bool {
    said <= after && after - said <= READY_ROUNDS
}

#[cfg(test)]
mod tests;
