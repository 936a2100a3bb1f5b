//! Committed rounds: who contributed what, the sample cursor and its holes. Everything here is a
//! function of the records alone, so that all members derive the same without asking.

mod next;

use crate::access::invitation::{Admission, Revocation, Role};
use crate::access::signature::{Attempt, Signed, Statement};
use crate::base::id::{Contact, Digest, PeerId, Round, RunId};
use crate::base::planted::Bug;
use crate::ledger::admission::Admissions;
use crate::ledger::aside::{Aside, Asides, Said, Told};
use crate::ledger::cut::{Given, SampleRange};
use crate::ledger::fork::{self, Fork};
use crate::ledger::keeps::{Keeper, Keeps};
use crate::ledger::pace::{Exchanged, Pace};
use crate::ledger::saved::{Offer, Point};
use crate::ledger::shifts::Shifts;
use crate::ledger::spans::first_spans;
use crate::ledger::tickets::Tickets;
pub use crate::ledger::trials::Trials;
use crate::run::config::{Manifest, Settings};
use crate::run::parts::{PartSet, Parts};
use crate::run::room::Room;
use serde::{Deserialize, Serialize};
use std::cell::LazyCell;
use std::num::NonZeroU16;

/// Version of how headers, records and heads are encoded, for whoever keeps them. Another field is another version.
pub const VERSION: u8 = 15;

/// What one member says of itself in one attempt. Rides along with the chunks, signed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Who says it.
    pub peer: PeerId,
    /// How many samples of its share, from the front, are in its contribution.
    pub weight: u32,
    /// Sum of the losses of those samples.
    pub loss: f32,
    /// Measured speed in samples per 1,000 seconds: where the model is split, of spans that cost alike (`Split::work`).
    pub speed: u64,
    /// How long the contribution took.
    pub compute_us: u64,
    /// How long its last exchange took, from its own contribution to the last piece; 0 if it had none, or it failed at first.
    pub exchange_us: u64,
    /// How long the last round took, from one commit to the next; 0 if it took no part in it.
    pub round_us: u64,
    /// The state before the round.
    pub digest: Digest,
    /// Whether the contribution was computed while the sums of the round before travelled: from the state before that one.
    pub ahead: bool,
    /// Whether what it carries on for itself, moments of local steps and rounding errors, begins at zero with this
    /// contribution. Only who recomputes contributions asks for it: who says it falsely cannot be followed.
    pub anew: bool,
    /// Newcomers that it sponsors and that have caught up, in the order of their names.
    pub ready: Vec<Newcomer>,
    /// Tickets that were taken back.
    pub revoked: Vec<Revocation>,
    /// It leaves after this round; or, where members keep parts of the moments, as soon as others keep what it does.
    pub leaving: bool,
    /// Which parts of the moments it has, where members keep parts.
    pub keeps: Keeps,
}

impl Header {
    /// Bytes that it holds in memory.
    pub(crate) fn bytes(&self) -> usize {
        let ready = self.ready.iter().map(Newcomer::bytes);
        let revoked = self
            .revoked
            .iter()
            .map(|r| size_of::<Revocation>() + r.chain.bytes());
        size_of::<Signed<Self>>() + self.keeps.bytes() + ready.sum::<usize>() + revoked.sum::<usize>()
    }
}

impl Statement for Header {
    const KIND: &'static str = "header";
    type Bound = Attempt;
}

/// What a newcomer signs that has caught up and may become a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    /// Its name.
    pub peer: PeerId,
    /// Its speed in samples per 1,000 seconds.
    pub speed: u64,
    /// The round that it holds.
    pub round: Round,
    /// What it has room for, where the model is split over the members.
    pub room: Room,
}

impl Statement for Ready {
    const KIND: &'static str = "ready";
    type Bound = RunId;
}

/// A newcomer as its sponsor names it: by what it has signed itself, so that nobody can invent one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Newcomer {
    /// What it has signed.
    pub ready: Signed<Ready>,
    /// What shows its right to come in.
    pub admission: Admission,
    /// Where it can be dialled: what it says itself, and what its sponsor has seen.
    pub contact: Contact,
}

impl Newcomer {
    /// Its name.
    pub fn peer(&self) -> PeerId {
        self.ready.peer
    }

    /// Bytes that it holds in memory.
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.contact.bytes() + self.admission.chain.bytes()
    }

    /// As the others will know it.
    fn member(&self) -> Member {
        Member {
            peer: self.ready.peer,
            admission: self.admission.clone(),
            speed: self.ready.speed,
            contact: self.contact.clone(),
            trials: Trials::default(),
            keeper: Keeper {
                room: self.ready.room,
                ..Keeper::default()
            },
        }
    }
}

/// A member as the others know it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Its name.
    pub peer: PeerId,
    /// What has shown its right to come in.
    pub admission: Admission,
    /// Last measured speed, as in its [`Header`].
    pub speed: u64,
    /// Where it can be dialled.
    pub contact: Contact,
    /// What its last shares say of it. A newcomer has none.
    pub trials: Trials,
    /// Which parts of the moments it has, where members keep parts.
    pub keeper: Keeper,
}

impl Member {
    /// The member that founds a run.
    pub fn founder(settings: &Settings, manifest: &Manifest) -> Self {
        let mut founder = Self::new(settings, None);
        founder.keeper.room = settings.room(manifest);
        founder
    }

    /// A peer as it knows itself.
    pub fn new(settings: &Settings, speed: Option<u64>) -> Self {
        Self {
            peer: settings.me,
            admission: settings.admission.clone(),
            speed: speed.unwrap_or(1),
            contact: settings.contact.clone(),
            trials: Trials::default(),
            keeper: Keeper::default(),
        }
    }

    /// Whether it counts where members are counted, and may sponsor and invite.
    pub fn is_full(&self) -> bool {
        self.admission.role() == Role::Member
    }
}

/// Who goes on alone from a head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Founder {
    /// As others will know it.
    pub member: Member,
    /// When, in microseconds since some fixed moment. Who goes on twice from one head does so in two lineages: what it
    /// signs in the one does not contradict what it has signed in the other.
    pub at: u64,
}

/// One committed round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Its number, from 1.
    pub round: Round,
    /// Which attempt succeeded, from 0.
    pub attempt: u32,
    /// The contributors in ring order.
    pub headers: Vec<Signed<Header>>,
}

impl Record {
    /// Samples in the round's sum: none if somebody refuses what all have computed together.
    pub fn weight(&self) -> u64 {
        if self.headers.iter().any(|h| h.keeps.refuses) {
            return 0;
        }
        self.headers.iter().map(|h| u64::from(h.weight)).sum()
    }

    /// Mean loss over the round's samples.
    pub fn loss(&self) -> f32 {
        let sum: f64 = self.headers.iter().map(|h| f64::from(h.loss)).sum();
        (sum / self.weight() as f64) as f32
    }

    /// What it tells of exchanges.
    fn exchanged(&self) -> Exchanged {
        let took = self.headers.iter().map(|h| h.exchange_us).filter(|us| *us > 0);
        let at_work = self.headers.iter().filter(|h| h.weight > 0);
        Exchanged {
            round: self.round,
            members: self.headers.len(),
            failed: self.attempt > 0,
            us: took.min(),
            speed: at_work.map(|h| u128::from(h.speed)).sum(),
        }
    }

    /// The hash over all records with this one, which this attempt has made: over what was said, not how it was signed. An
    /// author can sign the same more than once, each time in other bytes.
    pub(crate) fn trail_after(&self, attempt: &Attempt) -> Digest {
        let headers: Vec<&Header> = self.headers.iter().map(|h| &h.content).collect();
        let said = (attempt, headers);
        let bytes = Vec::with_capacity(PLENTY * self.headers.len());
        Digest::of(&postcard::to_extend(&said, bytes).expect("a record has only plain data"))
    }
}

/// Bytes that a member or a header mostly takes when it is encoded: so much is asked for beforehand.
const PLENTY: usize = 256;

/// A lineage: what its members sign for, and with it how many samples it counts.
pub(crate) fn lineage(trail: &Digest, samples: u64) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&trail.0).update(&samples.to_le_bytes());
    Digest(*hasher.finalize().as_bytes())
}

/// The end of the ledger: all that the next round depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Committed rounds.
    pub round: Round,
    /// Optimizer steps taken (rounds that had samples).
    pub steps: u64,
    /// Samples counted, also in rounds that were undone.
    pub samples: u64,
    /// Samples of rounds that were undone: see [`Head::counted`].
    pub undone: u64,
    /// Samples given up because the results of two members were not finite.
    pub skipped: u64,
    /// Next position of the stream that nobody has been given.
    pub cursor: u64,
    /// Positions before the cursor that are not counted, in order, but for those that are handed out.
    pub holes: Vec<SampleRange>,
    /// What was handed out for the next round before this one was committed: see [`Head::allot_ahead`].
    pub ahead: Vec<Given>,
    /// Members of the next round in ring order.
    pub members: Vec<Member>,
    /// Before the last round.
    pub before: Option<Fork>,
    /// Where members were lost, in order.
    pub forks: Vec<Fork>,
    /// What became of the newcomers that they named.
    pub admissions: Admissions,
    /// What became of tickets.
    pub tickets: Tickets,
    /// How the next round is done.
    pub pace: Pace,
    /// Peers that stand aside, and the trial of newcomers.
    pub asides: Asides,
    /// Where members keep parts of the moments: those whose moments are zero.
    pub untrained: PartSet,
    /// Likewise: the lineage after the last round that has stepped any, or since which some begin anew.
    pub stepped: Digest,
    /// Where the model is split: rounds that members have saved, in order, ...
    pub points: Vec<Point>,
    /// ... and what they have said of their disks, while what was trained of some parts is with nobody.
    pub offers: Vec<Offer>,
    /// Likewise: how many steps each span has, at first as the manifest says; ...
    pub spans: Vec<NonZeroU16>,
    /// ... and what of it is to be held otherwise, as rounds are shorter then.
    pub shifts: Shifts,
    /// Hash over all records.
    pub trail: Digest,
    /// The lineage: [`lineage`] of the trail and the samples.
    pub chain: Digest,
}

impl Head {
    /// Before the first round.
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

    /// Before the first round of a run that several peers may found, each by itself: nobody is a member yet. This is where
    /// their lineages part, and they remember it.
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
            trail: Digest(manifest.run_id().0),
            chain: lineage(&Digest(manifest.run_id().0), 0),
        };
        head.forks.push(head.place());
        head
    }

    /// The same head continued by one peer alone: after a restart, or when no member is left.
    /// A lineage of its own from here on.
    pub fn continued_by(mut self, founder: Founder) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(&self.chain.0)
            .update(b"continued")
            .update(&founder.member.peer.0)
            .update(&founder.at.to_le_bytes());
        self.part(vec![founder.member], |_| false);
        // Nobody computes it now.
        let given = std::mem::take(&mut self.ahead);
        self.give_back(given.into_iter().flat_map(|given| given.share));
        self.trail = Digest(*hasher.finalize().as_bytes());
        self.chain = lineage(&self.trail, self.samples);
        self.admissions = Admissions::default();
        self.asides = Asides::default();
        self.shifts.under_way = None;
        self
    }

    /// Hash of all of it. The lineage alone is what records lead to; who is handed a head cannot tell from that whether it is
    /// what they lead to.
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

    /// Takes a record: counts its samples, returns what was not counted to the holes, and derives the next view.
    ///
    /// A round of too few contributors to train hands out nothing; it only changes the view. The record must follow
    /// ([`Head::check`]).
    pub fn apply(&mut self, record: &Record, manifest: &Manifest) {
        let made_by = self.attempt_of(record);
        self.apply_of(&made_by, record, manifest, None);
    }

    /// The same, of a record of which it is known which attempt has made it: to find that out takes a hash of the whole head.
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
        // What was computed while this round's sums travelled was handed out before.
        let ahead = self.allot_ahead(manifest);
        let cuts = self.cuts_ahead((&now, &ahead), manifest);
        let (shares, batch, ahead) = (now.shares, now.batch, ahead.shares);
        let trains = self.trains_record(manifest, record);
        // To hash the manifest takes a while, and in most rounds nobody comes and no ticket matters.
        let run = LazyCell::new(|| manifest.run_id());
        let revoked = record.headers.iter().flat_map(|h| &h.revoked);
        revoked.for_each(|revocation| self.tickets.revoke(revocation, *run));
        let mut members = self.next_members(record, trains.then_some(&shares[..]), || *run);
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
        let revokes = self.tickets.has_revoked();
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
        // What others may have kept of parts that begin anew is of no use here.
        let begins_anew = self.untrained != untrained;
        self.hand_over(ahead.into_iter().zip(cuts), &members);
        self.part(members, |peer| {
            stand_aside.contains(&peer)
                || out.contains(&peer)
                || record.headers.iter().any(|h| h.leaving && h.peer == peer)
        });
        self.admit(record, manifest);
        self.pace.apply(&record.exchanged(), manifest);
        (self.round, self.trail) = (record.round, trail);
        self.chain = lineage(&self.trail, self.samples);
        if (trains && record.weight() > 0 || begins_anew) && manifest.copies.is_some() {
            self.stepped = self.chain;
        }
        self.take_offers(record, manifest);
        self.take_shift(manifest, bug == Some(Bug::CutAtOnce));
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
            is_full: self.is_full(header.peer),
            leaving: header.leaving,
            speed: header.speed,
            compute_us: header.compute_us,
            round_us: header.round_us,
        };
        let said: Vec<Said> = record.headers.iter().map(said).collect();
        let before: Vec<PeerId> = self.members.iter().map(|m| m.peer).collect();
        let next: Vec<(PeerId, bool)> = next.iter().map(|m| (m.peer, m.is_full())).collect();
        let told = Told {
            round: record.round,
            said: &said,
            weight: record.weight(),
            trains: self.trains_record(manifest, record),
            at_once: record.attempt == 0,
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

    /// These are the members now, and some that were are not. If any was lost that had not said that it leaves, another
    /// lineage may have begun here, or a round before: whoever commits a round that the others give up finds that out in
    /// the next.
    fn part(&mut self, members: Vec<Member>, has_left: impl Fn(PeerId) -> bool) {
        let here = self.place();
        let is_lost = |peer: &PeerId| !has_left(*peer) && members.iter().all(|m| m.peer != *peer);
        let lost: Vec<PeerId> = here.members.iter().copied().filter(is_lost).collect();
        if !lost.is_empty() {
            let places = self.before.take().into_iter().chain([here.clone()]);
            fork::lose(&mut self.forks, places, &lost);
        }
        self.before = Some(here);
        self.members = members;
    }

    /// Where it stands, as a place that lineages may part at.
    pub(crate) fn place(&self) -> Fork {
        Fork {
            chain: self.chain,
            samples: self.samples,
            members: self.full_members().collect(),
            lost: Vec::new(),
        }
    }

    /// The places at which others may have left it, the last first.
    pub(crate) fn places(&self) -> impl Iterator<Item = Fork> {
        let here = [Some(self.place()), self.before.clone()];
        here.into_iter().flatten().chain(self.forks.iter().rev().cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::signature::Scheme;
    use crate::run::config::Layout;

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

    /// The next round, in which these give nothing and the others all.
    fn commit(head: &mut Head, manifest: &Manifest, refuse: &[u8]) {
        let allotment = head.allot(manifest);
        let header = |(place, member): (usize, &Member)| Header {
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
        // What the second was the first to refuse is still open.
        assert!(head.holes.iter().all(|hole| hole.refused_by == Some(peer(2))));
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
