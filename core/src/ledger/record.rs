//! Committed rounds: what each member says in its header, and the records that consist of headers.

use crate::access::invitation::{Admission, Revocation, Role};
use crate::access::signature::{Attempt, Signed, Statement};
use crate::base::id::{Contact, Digest, PeerId, Round, RunId};
use crate::ledger::keeps::{Keeper, Keeps};
use crate::ledger::pace::Exchanged;
use crate::ledger::trials::Trials;
use crate::run::config::{Manifest, Settings};
use crate::run::room::Room;
use serde::{Deserialize, Serialize};

/// Version of the encoding of headers, records and heads in files. Every change of the fields needs a new version.
pub const VERSION: u8 = 23;

/// A member's signed statement about itself in one attempt. It travels with the chunks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Its author.
    pub peer: PeerId,
    /// Samples in its contribution: the first ones of its share.
    pub weight: u32,
    /// Sum of the losses of those samples.
    pub loss: f32,
    /// Measured speed in samples per 1,000 seconds. In a split run, in samples of an average span (`Split::work`).
    pub speed: u64,
    /// Duration of its contribution, in microseconds.
    pub compute_us: u64,
    /// Duration of its last exchange, from its own contribution to the last piece, in microseconds. 0 if it had
    /// none, or if the first attempt failed.
    pub exchange_us: u64,
    /// How long the last round took, from one commit to the next; 0 if it took no part in it.
    pub round_us: u64,
    /// Digest of the state before the round.
    pub digest: Digest,
    /// Whether the contribution was computed while the sums of the previous round travelled, from the state before
    /// that round.
    pub ahead: bool,
    /// Whether the values that it carries on for itself, moments of local steps and rounding errors, start from
    /// zero with this contribution. Only a replay needs this: it cannot follow an author whose statement is false.
    pub anew: bool,
    /// Newcomers that it sponsors and that have caught up, ordered by name.
    pub ready: Vec<Newcomer>,
    /// Tickets that were revoked.
    pub revoked: Vec<Revocation>,
    /// Whether it leaves after this round. If members keep parts of the moments, it leaves once other members keep
    /// its parts.
    pub leaving: bool,
    /// Whether it has seen that the model gains nothing any more, in a run that [stops early](crate::config::EarlyStop).
    pub stalled: bool,
    /// Whether none of its share counts because the data for it did not come in time.
    pub late: bool,
    /// The parts of the moments that it has, if members keep parts.
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

/// A newcomer's signed statement that it has caught up and may become a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    /// Its author.
    pub peer: PeerId,
    /// Its speed in samples per 1,000 seconds.
    pub speed: u64,
    /// The round that it has reached.
    pub round: Round,
    /// How much of a split model it has room for.
    pub room: Room,
}

impl Statement for Ready {
    const KIND: &'static str = "ready";
    type Bound = RunId;
}

/// A newcomer as its sponsor names it: with its own signed statement, so that a sponsor cannot invent newcomers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Newcomer {
    /// Its signed statement.
    pub ready: Signed<Ready>,
    /// The proof of its right to take part.
    pub admission: Admission,
    /// Where it can be dialled: its own addresses, and those where its sponsor sees it.
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

    /// The member that it becomes.
    pub(super) fn member(&self) -> Member {
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
    /// The proof of its right to take part.
    pub admission: Admission,
    /// Last measured speed, as in its [`Header`].
    pub speed: u64,
    /// Where it can be dialled.
    pub contact: Contact,
    /// The record of its last shares. A newcomer has none.
    pub trials: Trials,
    /// The parts of the moments that it has, if members keep parts.
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

/// A peer that continues alone from a head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Founder {
    /// The peer as others will know it.
    pub member: Member,
    /// When it continues, in microseconds since a fixed moment. A peer that continues twice from one head so founds
    /// two lineages, and its statements in one do not contradict those in the other.
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
    /// Samples in the round's sum. 0 if a member refuses the batch that all have computed together.
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

    /// How long the round before it took: the median of what full members say.
    pub(super) fn round_before_us(&self, is_full: impl Fn(PeerId) -> bool) -> Option<u64> {
        let full = self.headers.iter().filter(|h| is_full(h.peer));
        let mut told: Vec<u64> = full.map(|h| h.round_us).filter(|us| *us > 0).collect();
        told.sort_unstable();
        told.get(told.len() / 2).copied()
    }

    /// Its measurements of the exchange. `guests` are members of the next round, or not.
    pub(super) fn exchanged(&self, guests: bool) -> Exchanged {
        let took = self.headers.iter().map(|h| h.exchange_us).filter(|us| *us > 0);
        let at_work = self.headers.iter().filter(|h| h.weight > 0);
        Exchanged {
            round: self.round,
            members: self.headers.len(),
            failed: self.attempt > 0,
            us: took.min(),
            speed: at_work.map(|h| u128::from(h.speed)).sum(),
            guests,
        }
    }

    /// The hash over all records including this one, which was made in the given attempt. It covers the statements
    /// but not the signatures: an author can sign the same statement several times, with different bytes.
    pub(crate) fn trail_after(&self, attempt: &Attempt) -> Digest {
        let headers: Vec<&Header> = self.headers.iter().map(|h| &h.content).collect();
        let said = (attempt, headers);
        let bytes = Vec::with_capacity(PLENTY * self.headers.len());
        Digest::of(&postcard::to_extend(&said, bytes).expect("a record has only plain data"))
    }
}

/// Usual bytes of an encoded member or header, allocated in advance.
pub(super) const PLENTY: usize = 256;
