//! The head of the ledger, which the records lead to. It is a function of the records alone, so all members derive
//! the same without asking each other.

mod next;

use crate::access::signature::{Attempt, Signed};
use crate::base::id::{Digest, PeerId, Round, RunId, TicketId};
use crate::base::planted::{self, Bug};
use crate::ledger::accounts::{self, Accounts};
use crate::ledger::admission::Admissions;
use crate::ledger::aside::{Aside, Asides, Said, Told};
use crate::ledger::cut::{Given, SampleRange};
use crate::ledger::earned;
use crate::ledger::fork::{self, Fork};
use crate::ledger::pace::Pace;
use crate::ledger::record::{Founder, Header, Member, PLENTY, Record};
use crate::ledger::revocations::Revocations;
use crate::ledger::saved::{Offer, Point};
use crate::ledger::shifts::Shifts;
use crate::ledger::spans::first_spans;
use crate::ledger::tickets::Tickets;
use crate::run::config::Manifest;
use crate::run::parts::{PartSet, Parts};
use serde::{Deserialize, Serialize};
use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::num::NonZeroU16;

/// A round's work, where only each member's part of it matters.
const WHOLE: u64 = 1 << 20;

/// The name of a lineage, to which its members bind their signatures. It includes the samples that the lineage
/// counts.
pub(crate) fn lineage(trail: &Digest, samples: u64) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&trail.0).update(&samples.to_le_bytes());
    Digest(*hasher.finalize().as_bytes())
}

/// The end of the ledger: everything that the next round depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Number of committed rounds.
    pub round: Round,
    /// Number of optimizer steps (rounds with samples).
    pub steps: u64,
    /// Samples counted, including those of rounds that were undone.
    pub samples: u64,
    /// Samples of rounds that were undone: see [`Head::counted`].
    pub undone: u64,
    /// Samples given up because two members had results that were not finite.
    pub skipped: u64,
    /// The first position of the stream that was never allotted.
    pub cursor: u64,
    /// Positions before the cursor that are neither counted nor allotted, in order.
    pub holes: Vec<SampleRange>,
    /// Shares of the next round that were allotted before this round was committed: see [`Head::allot_ahead`].
    pub ahead: Vec<Given>,
    /// Members of the next round in ring order.
    pub members: Vec<Member>,
    /// The place before the last round.
    pub before: Option<Fork>,
    /// The places where members were lost, in order.
    pub forks: Vec<Fork>,
    /// The newcomers that members named, and whether they came.
    pub admissions: Admissions,
    /// Revoked and used tickets.
    pub tickets: Tickets,
    /// Tickets whose guests have failed.
    pub accounts: Accounts,
    /// How often and by which topology members exchange.
    pub pace: Pace,
    /// Peers that stand aside, and the trial of newcomers.
    pub asides: Asides,
    /// The parts whose moments are zero, if members keep parts.
    pub untrained: PartSet,
    /// The lineage after the last round that stepped any part, or that reset the moments of some, if members keep
    /// parts.
    pub stepped: Digest,
    /// In a split run: the rounds that members have saved, in order, ...
    pub points: Vec<Point>,
    /// ... and what they have told of their disks, while no member has the trained values of some parts.
    pub offers: Vec<Offer>,
    /// In a split run: how many steps each span has, at first as in the manifest, ...
    pub spans: Vec<NonZeroU16>,
    /// ... and the moves of members and spans that make rounds shorter.
    pub shifts: Shifts,
    /// Whether the run has stopped early.
    pub stopped: bool,
    /// Hash over all records.
    pub trail: Digest,
    /// The lineage: the hash [`lineage`] of the trail and the samples.
    pub chain: Digest,
}

impl Head {
    /// The head before the first round.
    pub fn genesis(manifest: &Manifest, mut founder: Member) -> Self {
        let head = Self::unfounded(manifest);
        if founder.is_full() {
            founder.keeper.kept = match (&manifest.split, Parts::of(manifest)) {
                (Some(split), Some(parts)) => first_spans(split, parts, founder.keeper.room),
                _ => head.untrained,
            };
        }
        Self {
            members: vec![founder],
            forks: Vec::new(),
            ..head
        }
    }

    /// The head before the first round of a run that several peers may found, each by itself. It has no members
    /// yet. Here the lineages of the founders part, and the head remembers that.
    pub fn unfounded(manifest: &Manifest) -> Self {
        let mut head = Self {
            round: 0,
            steps: 0,
            samples: 0,
            undone: 0,
            skipped: 0,
            cursor: 0,
            holes: Vec::new(),
            ahead: Vec::new(),
            members: Vec::new(),
            before: None,
            forks: Vec::new(),
            admissions: Admissions::default(),
            tickets: Tickets::default(),
            accounts: Accounts::default(),
            pace: Pace::new(manifest),
            asides: Asides::default(),
            untrained: Parts::of(manifest).map(|parts| parts.all()).unwrap_or_default(),
            stepped: Digest([0; 32]),
            points: Vec::new(),
            offers: Vec::new(),
            spans: manifest
                .split
                .iter()
                .flat_map(|split| split.spans.clone())
                .collect(),
            shifts: Shifts::default(),
            stopped: false,
            trail: Digest(manifest.run_id().0),
            chain: lineage(&Digest(manifest.run_id().0), 0),
        };
        head.forks.push(head.place());
        head
    }

    /// The same head, continued by one peer alone: after a restart, or when no member is left. It begins a lineage
    /// of its own.
    pub fn continued_by(mut self, founder: Founder) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(&self.chain.0)
            .update(b"continued")
            .update(&founder.member.peer.0)
            .update(&founder.at.to_le_bytes());
        if self.members.is_empty() {
            // All left together, and nobody was lost. Another may have gone on from where they were.
            fork::lose(&mut self.forks, self.before.take().into_iter(), &[]);
        }
        self.part(vec![founder.member], |_| false);
        // The members that would have computed these shares are gone.
        let given = std::mem::take(&mut self.ahead);
        self.give_back(given.into_iter().flat_map(|given| given.share));
        self.trail = Digest(*hasher.finalize().as_bytes());
        self.chain = lineage(&self.trail, self.samples);
        self.admissions = Admissions::default();
        self.asides = Asides::default();
        self.shifts.under_way = None;
        self
    }

    /// Hash of the whole head. A peer that is handed a head needs this: the lineage names the records only, not
    /// whether they lead to this head.
    pub(crate) fn hash(&self) -> Digest {
        let bytes = Vec::with_capacity(PLENTY * (1 + self.members.len()));
        Digest::of(&postcard::to_extend(self, bytes).expect("a head has only plain data"))
    }

    /// Position of a peer in the ring.
    pub fn position(&self, peer: PeerId) -> Option<usize> {
        self.members.iter().position(|m| m.peer == peer)
    }

    /// Whether a peer is one of its full members.
    pub fn is_full(&self, peer: PeerId) -> bool {
        self.members.iter().any(|m| m.peer == peer && m.is_full())
    }

    /// Its full members in ring order.
    pub fn full_members(&self) -> impl Iterator<Item = PeerId> {
        self.members.iter().filter(|m| m.is_full()).map(|m| m.peer)
    }

    /// Applies a record: counts its samples, returns uncounted ones to the holes, and derives the next view.
    ///
    /// A round with too few contributors to train allots nothing; it only changes the view. The record must have
    /// passed [`Head::check`].
    pub fn apply(&mut self, record: &Record, manifest: &Manifest) {
        let made_by = self.attempt_of(record);
        self.apply_of(&made_by, record, manifest, None);
    }

    /// Applies a record whose attempt is known. Finding the attempt would take a hash of the whole head.
    pub(crate) fn apply_of(
        &mut self,
        made_by: &Attempt,
        record: &Record,
        manifest: &Manifest,
        bug: Option<Bug>,
    ) {
        debug_assert_eq!(record.round, self.round + 1);
        debug_assert_eq!(*made_by, self.attempt_of(record));
        let trail = record.trail_after(made_by);
        self.remember(record);
        let now = self.allot(manifest);
        // The samples computed while this round's sums travelled were allotted before.
        let ahead = self.allot_ahead(manifest);
        let cuts = self.cuts_ahead((&now, &ahead), manifest);
        let (shares, batch, ahead) = (now.shares, now.batch, ahead.shares);
        let trains = self.trains_record(manifest, record);
        // Hashing the manifest takes a while, and in most rounds nobody comes and no ticket matters.
        let run = LazyCell::new(|| manifest.run_id());
        let add = match planted::here(Bug::DropRevocationsByName) {
            true => Revocations::add_by_name,
            false => Revocations::add,
        };
        for said in record.headers.iter().flat_map(|h| &h.revoked) {
            add(&mut self.tickets.revoked, said.clone(), *run);
        }
        self.charge(record, || *run, bug);
        self.stopped |= manifest.early_stop.is_some() && self.has_stalled(record);
        let (mut members, displaced) = self.next_members(record, trains.then_some(&shares[..]), || *run, bug);
        if self.ahead.is_empty() && (trains || manifest.overlap) {
            self.take_out(&shares);
            self.take_out(std::slice::from_ref(&batch));
        }
        self.take_out(&ahead);
        if trains && manifest.split.is_some() {
            self.count_batch(record, &batch);
        } else if trains {
            self.count(record, &shares);
        } else if manifest.overlap {
            self.give_back(shares.into_iter().flatten());
        }
        let revokes = !self.tickets.revoked.is_empty();
        let is_out = |m: &&Member| revokes && self.tickets.revokes(&m.admission, *run);
        let out: Vec<PeerId> = self.members.iter().filter(is_out).map(|m| m.peer).collect();
        members.retain(|m| !out.contains(&m.peer));
        let stand_aside = match manifest.tries_newcomers() {
            true => self.take_aside(record, &members, manifest, bug == Some(Bug::KeepWhoSlows)),
            false => Vec::new(),
        };
        members.retain(|m| !stand_aside.contains(&m.peer));
        if trains && record.weight() > 0 {
            self.untrained = PartSet::default();
        }
        let untrained = self.untrained;
        self.settle(record, &mut members, manifest, bug == Some(Bug::DropLastCopy));
        // Copies of parts whose moments are reset are of no use any more.
        let begins_anew = self.untrained != untrained;
        self.hand_over(ahead.into_iter().zip(cuts), &members);
        self.part(members, |peer| {
            stand_aside.contains(&peer)
                || displaced.contains(&peer)
                || record.headers.iter().any(|h| h.leaving && h.peer == peer)
        });
        self.admit(record, manifest);
        let guests = self.members.iter().any(|member| !member.is_full());
        self.pace.apply(&record.exchanged(guests), manifest);
        (self.round, self.trail) = (record.round, trail);
        self.chain = lineage(&self.trail, self.samples);
        if (trains && record.weight() > 0 || begins_anew) && manifest.copies.is_some() {
            self.stepped = self.chain;
        }
        self.take_offers(record, manifest);
        self.take_shift(manifest, bug == Some(Bug::CutAtOnce));
    }

    /// Charges the tickets of guests that a round has lost.
    fn charge(&mut self, record: &Record, run: impl Fn() -> RunId, bug: Option<Bug>) {
        let is_lost = |m: &&Member| record.headers.iter().all(|h| h.peer != m.peer);
        let account = |m: &Member| match bug {
            Some(Bug::StrikesByName) => Some(TicketId(m.peer.0)),
            _ => accounts::account(&m.admission, run()),
        };
        let guests = self.members.iter().filter(|m| !m.is_full()).filter(is_lost);
        let lost: BTreeSet<TicketId> = guests.filter_map(account).collect();
        let took_us = record.round_before_us(|peer| self.is_full(peer)).unwrap_or(0);
        self.accounts.apply(took_us, &lost);
    }

    /// Those of the next round's members that stand aside instead.
    fn take_aside(
        &mut self,
        record: &Record,
        next: &[Member],
        manifest: &Manifest,
        keeps: bool,
    ) -> Vec<PeerId> {
        let said = |header: &Signed<Header>| Said {
            peer: header.peer,
            leaving: header.leaving,
            speed: header.speed,
            compute_us: header.compute_us,
        };
        let said: Vec<Said> = record.headers.iter().map(said).collect();
        let members = self.members.iter().map(|m| m.peer);
        let work = earned::shares(WHOLE, &self.members, self.round, false);
        let before: Vec<(PeerId, u64)> = members.zip(work).collect();
        let next: Vec<(PeerId, bool)> = next.iter().map(|m| (m.peer, m.is_full())).collect();
        let told = Told {
            round: record.round,
            said: &said,
            round_us: record.round_before_us(|peer| self.is_full(peer)),
            weight: record.weight(),
            trains: self.trains_record(manifest, record),
            as_usual: record.attempt == 0 && !self.pace.tries_topology(),
            before: &before,
            next: &next,
        };
        self.asides.apply(&told, manifest, keeps)
    }

    /// Whether a newcomer may be let in by the next round, if that trains.
    pub fn admits(&self, peer: PeerId, manifest: &Manifest) -> bool {
        !manifest.tries_newcomers() || self.asides.admit(peer)
    }

    /// Those that stand aside since a round.
    pub fn aside_since(&self, round: Round) -> impl Iterator<Item = &Aside> {
        self.asides.since(round)
    }

    /// Replaces the members. If some were lost without announcing that they leave, another lineage may have begun
    /// here or one round before, so the places are remembered. A member that commits a round which the others give
    /// up finds that out in the next round.
    fn part(&mut self, members: Vec<Member>, has_left: impl Fn(PeerId) -> bool) {
        let here = self.place();
        let is_lost = |peer: &PeerId| !has_left(*peer) && members.iter().all(|m| m.peer != *peer);
        let lost: Vec<PeerId> = here.members.iter().copied().filter(is_lost).collect();
        if !lost.is_empty() {
            let places = self.before.take().into_iter().chain([here.clone()]);
            fork::lose(&mut self.forks, places, &lost);
        }
        self.before = Some(here);
        self.tickets.part(&self.members, &members);
        self.members = members;
    }

    /// This head as a place where lineages may part.
    pub(crate) fn place(&self) -> Fork {
        Fork {
            chain: self.chain,
            samples: self.samples,
            members: self.full_members().collect(),
            lost: Vec::new(),
        }
    }

    /// The places at which other lineages may have left this one, the last first.
    pub(crate) fn places(&self) -> impl Iterator<Item = Fork> {
        let here = [Some(self.place()), self.before.clone()];
        here.into_iter().flatten().chain(self.forks.iter().rev().cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::invitation::Admission;
    use crate::access::signature::Scheme;
    use crate::base::id::Contact;
    use crate::ledger::Trials;
    use crate::ledger::keeps::Keeper;
    use crate::run::config::{EarlyStop, Layout};

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    /// A run of two equal members that have both delivered.
    fn two() -> (Head, Manifest) {
        let manifest = Manifest {
            target: 100.try_into().unwrap(),
            batch: 8.try_into().unwrap(),
            ..Manifest::new(Layout::flat(3))
        };
        let member = |n| Member {
            peer: peer(n),
            admission: Admission::stand_in(peer(n), manifest.root()),
            speed: 1000,
            contact: Contact::default(),
            trials: Trials::default(),
            keeper: Keeper::default(),
        };
        let mut head = Head::genesis(&manifest, member(1));
        head.members.push(member(2));
        (head, manifest)
    }

    /// Commits the next round, in which the members in `refuse` give nothing and the others all.
    fn commit(head: &mut Head, manifest: &Manifest, refuse: &[u8]) {
        commit_without(head, manifest, refuse, false);
    }

    /// The same, if they refuse their shares or are too late with them.
    fn commit_without(head: &mut Head, manifest: &Manifest, refuse: &[u8], late: bool) {
        let allotment = head.allot(manifest);
        let header = |(place, member): (usize, &Member)| Header {
            late: late && refuse.iter().any(|n| peer(*n) == member.peer),
            weight: if refuse.iter().any(|n| peer(*n) == member.peer) {
                0
            } else {
                allotment.len(place) as u32
            },
            speed: member.speed,
            ..Header::stand_in(member.peer)
        };
        let headers = head.members.iter().enumerate().map(header).collect();
        let record = Record::signed_by_stand_ins(head, headers);
        assert_eq!(head.check(&record, manifest, Scheme::StandIn), Ok(()));
        head.apply(&record, manifest);
        assert_eq!(head.check_itself(manifest), Ok(()));
    }

    #[test]
    fn a_run_stops_early_once_more_than_half_of_the_full_members_want_it() {
        let (head, manifest) = two();
        let manifest = Manifest {
            early_stop: Some(EarlyStop {
                every: 10.try_into().unwrap(),
                patience: 3.try_into().unwrap(),
            }),
            ..manifest
        };
        let stops = |stalled: &[u8], manifest: &Manifest| {
            let mut head = head.clone();
            let header = |member: &Member| Header {
                stalled: stalled.iter().any(|n| peer(*n) == member.peer),
                speed: member.speed,
                ..Header::stand_in(member.peer)
            };
            let headers = head.members.iter().map(header).collect();
            let record = Record::signed_by_stand_ins(&head, headers);
            head.apply(&record, manifest);
            assert_eq!(head.stopped, head.finished(manifest));
            head.stopped
        };
        assert!(!stops(&[1], &manifest) && stops(&[1, 2], &manifest));
        let never = Manifest {
            early_stop: None,
            ..manifest
        };
        assert!(!stops(&[1, 2], &never));
    }

    #[test]
    fn what_one_member_alone_refuses_is_not_given_up() {
        let (mut head, manifest) = two();
        for _ in 0..200 {
            if head.finished(&manifest) {
                break;
            }
            commit(&mut head, &manifest, &[1]);
        }
        assert!(head.finished(&manifest));
        assert_eq!((head.samples, head.skipped), (100, 0));
    }

    #[test]
    fn what_two_members_refuse_is_given_up() {
        let (mut head, manifest) = two();
        commit(&mut head, &manifest, &[1]);
        let refused: Vec<SampleRange> = head.holes.clone();
        assert_eq!(refused.iter().map(SampleRange::len).sum::<u64>(), 4);
        assert!(refused.iter().all(|hole| hole.refused_by == Some(peer(1))));
        commit(&mut head, &manifest, &[2]);
        assert_eq!(head.skipped, 4);
        // The samples that the second was the first to refuse are still open.
        assert!(head.holes.iter().all(|hole| hole.refused_by == Some(peer(2))));
    }

    #[test]
    fn late_samples_are_neither_refused_nor_given_up() {
        let (mut head, manifest) = two();
        for _ in 0..4 {
            commit_without(&mut head, &manifest, &[1, 2], true);
            assert!(head.holes.iter().all(|hole| hole.refused_by.is_none()));
            // They are asked again soon, for a sample first.
            assert!(
                head.members
                    .iter()
                    .all(|member| member.trials.rests_until <= head.round + 3)
            );
        }
        assert_eq!((head.samples, head.skipped), (0, 0));
        for _ in 0..200 {
            if head.finished(&manifest) {
                break;
            }
            commit(&mut head, &manifest, &[]);
        }
        assert_eq!((head.samples, head.skipped), (100, 0));
    }

    #[test]
    fn who_gives_shares_back_rests_ever_longer_and_then_gets_one_sample() {
        let (mut head, manifest) = two();
        let manifest = Manifest {
            target: 100_000.try_into().unwrap(),
            ..manifest
        };
        let mut given = Vec::new();
        for _ in 0..60 {
            let share = head.allot(&manifest).len(0);
            if share > 0 {
                given.push((head.round, share));
            }
            commit(&mut head, &manifest, &[1]);
        }
        assert_eq!(given, [(0, 4), (3, 1), (8, 1), (17, 1), (34, 1)]);
    }
}
