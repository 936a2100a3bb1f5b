//! One member's part in one attempt, piece by piece. It adds to a piece and passes it on as soon as all inputs of
//! the piece are there (cut-through); nobody waits for a whole chunk.

mod adding;
mod alone;
mod counts;
mod kept;
mod lanes;
mod repair;
mod said;
mod shorten;

use super::bound::Scale;
use super::headers::Headers;
use super::seals::Seals;
use super::step::{Sends, Violation};
use super::sum::Room;
use super::{Assembly, Cut, Plan};
use crate::access::signature::{Attempt, Key, Signed};
use crate::base::id::{Digest, PeerId};
use crate::base::planted::Bug;
use crate::ledger::Header;
use crate::ledger::seal::Seal;
use crate::numeric::codec::Codec;
use crate::numeric::vector::Vector;
use crate::wire::{Leg, Message};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// A piece's sum at this member.
#[derive(Clone, Debug)]
enum Sum {
    /// The inputs that have come, each with its place in the plan's order.
    Open(Vec<(usize, Bytes)>),
    /// The sum was made and passed on.
    Made,
}

/// The finished sums of a member's parts, kept until the round is committed in some attempt: encoded, by the first
/// element of their piece.
pub type Held = BTreeMap<usize, Bytes>;

/// One member's part in one attempt.
#[derive(Debug)]
pub struct Run {
    attempt: Attempt,
    key: Key,
    plan: Plan,
    codec: Codec,
    members: Vec<PeerId>,
    me: usize,
    started: bool,
    headers: Headers,
    /// The owners' seals, if they sign what they finish.
    seals: Option<Seals>,
    /// By member: its hash of all headers.
    others_have: BTreeMap<usize, Digest>,
    /// By chunk and piece.
    sums: Vec<Vec<Sum>>,
    /// Partial sums that wait for this member's values, or for others that are added before: at most one vector.
    waiting: usize,
    waiting_bytes: usize,
    room: Room,
    /// The length to which guests' values may go, and how many times as many local steps they may take.
    scale: Option<(Scale, u32)>,
    /// The rounding errors of this member's sums, if they were asked for.
    errors: Option<Vec<f32>>,
    /// Pieces sent to each member.
    sent: Vec<u32>,
    /// Pieces received from each member.
    came: Vec<u32>,
    /// The finished pieces.
    pub gathered: Assembly,
    held: Held,
    held_bytes: usize,
    /// Pieces whose sum all their keepers hold, this member as the last: it has to publish their updates.
    due: Vec<(usize, usize)>,
    /// Pieces whose last keeper has notified this member, another keeper, that their update is out.
    confirmed: BTreeSet<(usize, usize)>,
    /// By piece that this member has summed: its squared norm, if members exchange it.
    squares: BTreeMap<usize, f64>,
    /// In a split run: the number of sums that this member lacks, and the members that have said that they can
    /// commit.
    lacking_sums: usize,
    can_commit: BTreeSet<usize>,
    #[cfg(feature = "sim")]
    bug: Option<Bug>,
}

impl Run {
    /// A run before its first frame. `me` is this member's place among the members.
    pub fn new(
        attempt: Attempt,
        members: Vec<PeerId>,
        me: usize,
        plan: Plan,
        codec: Codec,
        key: Key,
    ) -> Self {
        debug_assert_eq!(members.len(), plan.cut.members);
        let chunks = 0..plan.cut.members;
        Self {
            lacking_sums: plan.cut.kept.as_ref().map_or(0, |kept| kept.to_hold(me)),
            can_commit: BTreeSet::new(),
            attempt,
            key,
            codec,
            members,
            me,
            started: false,
            headers: Headers::new(plan.clone(), me),
            seals: plan.is_sealed().then(|| Seals::new(&plan.cut)),
            others_have: BTreeMap::new(),
            sums: chunks
                .map(|c| vec![Sum::Open(Vec::new()); plan.cut.pieces(c)])
                .collect(),
            waiting: 0,
            waiting_bytes: 0,
            room: Room::default(),
            scale: None,
            errors: None,
            sent: vec![0; plan.cut.members],
            came: vec![0; plan.cut.members],
            gathered: Assembly::new(plan.cut.clone(), plan.finished_codec(codec)),
            held: Held::new(),
            held_bytes: 0,
            due: Vec::new(),
            confirmed: BTreeSet::new(),
            squares: BTreeMap::new(),
            plan,
            #[cfg(feature = "sim")]
            bug: None,
        }
    }

    /// Makes it record the rounding errors of this member's sums.
    pub fn with_errors(mut self) -> Self {
        self.errors = Some(vec![0.0; self.plan.cut.len]);
        self
    }

    /// The rounding errors of this member's sums, as long as the vector, if they were recorded.
    pub fn take_errors(&mut self) -> Option<Vec<f32>> {
        self.errors.take()
    }

    /// Switches on a planted bug, if it is one of this module's.
    #[cfg(feature = "sim")]
    pub(crate) fn with_bug(mut self, bug: Option<Bug>) -> Self {
        self.bug = bug;
        self
    }

    fn planted(&self, _bug: Bug) -> bool {
        #[cfg(feature = "sim")]
        return self.bug == Some(_bug);
        #[cfg(not(feature = "sim"))]
        false
    }

    /// Whether this member's values are in.
    pub fn is_started(&self) -> bool {
        self.started
    }

    /// Whether another member has begun, and waits.
    pub fn waits(&self) -> bool {
        self.waiting > 0
    }

    /// Bytes of partial sums that wait.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Bytes of waiting sums, of finished pieces and of headers.
    pub fn bytes(&self) -> usize {
        self.waiting_bytes + self.gathered.bytes() + self.held_bytes + self.headers.bytes()
    }

    /// Takes the finished pieces out of a run that does not need them any more.
    pub fn take_gathered(&mut self) -> Assembly {
        let nothing = Cut {
            members: 1,
            guests: Vec::new(),
            len: 0,
            piece: 1,
            grain: 1,
            kept: None,
        };
        std::mem::replace(&mut self.gathered, Assembly::new(nothing, self.codec))
    }

    /// The headers of all members, once this member has them all.
    pub fn headers(&self) -> Option<Vec<Signed<Header>>> {
        self.headers.all()
    }

    /// Known authors that name newcomers whose tickets have expired.
    pub fn names_expired(&self, now_s: u64) -> impl Iterator<Item = PeerId> {
        let late = self.headers.known().filter(move |h| h.names_expired(now_s));
        late.map(|h| h.peer)
    }

    /// A member's header, if it is known.
    pub fn header_of(&self, member: PeerId) -> Option<&Signed<Header>> {
        self.headers.known().find(|h| h.peer == member)
    }

    /// All known headers.
    pub fn known_headers(&self) -> Vec<Signed<Header>> {
        self.headers.known().cloned().collect()
    }

    /// Whether this member can commit: its values are in, all pieces are finished, all headers are known, and no
    /// member has reported others.
    pub fn is_complete(&self) -> bool {
        let same = || {
            self.others_have
                .values()
                .all(|other| Some(*other) == self.headers.digest())
        };
        self.started && self.is_whole() && self.headers.are_complete() && same()
    }

    /// Whether all sums are there, and match their owners' seals.
    pub fn is_whole(&self) -> bool {
        (self.lacking_sums == 0 || self.planted(Bug::WordBeforeSums))
            && self.gathered.is_complete()
            && self.seals.as_ref().is_none_or(Seals::are_complete)
    }

    /// The owners' seals in ring order, once they match what this member holds. Empty if owners do not sign.
    pub fn seals(&self) -> Option<Vec<Seal>> {
        self.seals.as_ref()?.all()
    }

    /// Puts in this member's values: sends the sums that begin here, and adds to all that waited.
    pub fn start(&mut self, own: &Vector, header: Signed<Header>, out: &mut Sends) -> Result<(), Violation> {
        self.started = true;
        self.take_header(self.me, header, out);
        if self.plan.cut.lanes().is_some() {
            self.start_lanes(own, out)?;
            return self.say_word(out);
        }
        debug_assert_eq!(own.len(), self.plan.cut.len);
        for (chunk, piece) in self.plan.begins(self.me) {
            match self.plan.partial_to((chunk, piece), self.me) {
                Some(to) if self.errors.is_none() => self.begin(own, (chunk, piece), to, out),
                _ => self.add_up(own, chunk, piece, out)?,
            }
        }
        if self.waiting > 0 {
            for chunk in 0..self.plan.cut.members {
                for piece in 0..self.plan.cut.pieces(chunk) {
                    self.add_up(own, chunk, piece, out)?;
                }
            }
        }
        self.say_word(out)
    }

    /// Handles a piece from a member. `own` are this member's values, if they are there.
    pub fn accept(
        &mut self,
        from: PeerId,
        own: Option<&Vector>,
        message: Message,
        out: &mut Sends,
    ) -> Result<(), Violation> {
        let violation = || Violation::of_plan(from);
        let sender = self
            .members
            .iter()
            .position(|m| *m == from)
            .ok_or_else(violation)?;
        self.came[sender] += 1;
        let Message::Piece {
            leg,
            chunk,
            piece,
            headers,
            all: all_headers,
            seal,
            data,
            ..
        } = message
        else {
            return Err(violation());
        };
        let (c, p) = (usize::from(chunk), piece as usize);
        match leg {
            Leg::Finished if self.plan.finished_from(c, self.me) != Some(sender) => {
                return Err(violation());
            }
            Leg::Finished => {
                self.take_headers(sender, headers, out)?;
                self.compare(sender, all_headers, out);
                match self.makes((c, p), self.me) {
                    true => self.confirm(sender, (c, p), (data, seal))?,
                    false => self.finish(sender, (c, p), (data, seal), out)?,
                }
            }
            Leg::Partial if self.is_of_lanes((c, p)) => return Err(violation()),
            Leg::Partial => {
                if !self.fits(c, p, sender, &data) {
                    return Err(violation());
                }
                let place = self
                    .plan
                    .inputs((c, p), self.me)
                    .position(|input| input == sender);
                let place = place.ok_or_else(violation)?;
                self.hold(c, p, place, data).ok_or_else(violation)?;
                self.take_headers(sender, headers, out)?;
                self.compare(sender, all_headers, out);
                if let Some(own) = own.filter(|_| self.started) {
                    self.add_up(own, c, p, out)?;
                }
            }
            Leg::Lane(number) => {
                let held = self.hold_lane((c, p), (sender, number), data);
                held.ok_or_else(violation)?;
                self.take_headers(sender, headers, out)?;
                self.compare(sender, all_headers, out);
                self.add_lanes((c, p), out)?;
            }
            Leg::Sum => {
                let all = self.plan.cut.members;
                let range = self
                    .plan
                    .cut
                    .range(c, p)
                    .filter(|_| c < all)
                    .ok_or_else(violation)?;
                let passes = self.plan.passes((c, p), self.me).ok_or_else(violation)?;
                let sound = self
                    .codec
                    .is_summable(&data, range.len(), all.max(self.lanes_of(&range)));
                let before = passes.from == Some(sender) || self.planted(Bug::UpdateBeforeKeepers);
                let new = sound && before && !self.held.contains_key(&range.start);
                new.then_some(()).ok_or_else(violation)?;
                self.take_headers(sender, headers, out)?;
                self.compare(sender, all_headers, out);
                self.hold_sum((c, p), data, out)?;
            }
        }
        self.say_word(out)
    }

    /// Whether a piece exists, has the right length, and can be a sum of the values that reach its sender.
    fn fits(&self, chunk: usize, piece: usize, sender: usize, data: &Bytes) -> bool {
        let range = self
            .plan
            .cut
            .range(chunk, piece)
            .filter(|_| chunk < self.plan.cut.members);
        range.is_some_and(|range| {
            let contributions = self.plan.contributions((chunk, piece), sender);
            self.codec.is_summable(data, range.len(), contributions)
        })
    }

    /// Stores an input of a sum. `None` if it is there already.
    fn hold(&mut self, chunk: usize, piece: usize, place: usize, data: Bytes) -> Option<()> {
        let Sum::Open(inputs) = &mut self.sums[chunk][piece] else {
            return None;
        };
        if inputs.iter().any(|(held, _)| *held == place) {
            return None;
        }
        self.waiting += 1;
        self.waiting_bytes += data.len();
        inputs.push((place, data));
        Some(())
    }

    /// Sends this member's values of a piece, with which its sum begins, to the member that adds next.
    fn begin(&mut self, own: &Vector, (chunk, piece): (usize, usize), to: usize, out: &mut Sends) {
        self.sums[chunk][piece] = Sum::Made;
        let range = self.plan.cut.range(chunk, piece).expect("own piece");
        let sum = own.encoded(self.codec, range);
        self.send(to, Leg::Partial, (chunk, piece), (sum, None), out);
    }

    /// Stores a finished piece and forwards it verbatim. The last piece that this member finishes carries its seal
    /// of the chunk.
    fn finish(
        &mut self,
        sender: usize,
        (chunk, piece): (usize, usize),
        (data, seal): (Bytes, Option<Box<Seal>>),
        out: &mut Sends,
    ) -> Result<(), Violation> {
        let (c, p) = (chunk as u16, piece as u32);
        let new = match sender == self.me {
            true => Some(self.gathered.add(c, p, data.clone())),
            false => self.gathered.put(c, p, data.clone()),
        };
        if !new.ok_or(Violation::of_plan(self.members[sender]))? {
            return Ok(());
        }
        let seal = self.seal(sender, (chunk, piece), &data, seal)?;
        for to in self.plan.finished_to(chunk, self.me) {
            let data = match self.makes((chunk, piece), to) {
                true => Bytes::new(),
                false => data.clone(),
            };
            self.send(to, Leg::Finished, (chunk, piece), (data, seal.clone()), out);
        }
        let kept = self.gathered.message(self.attempt.view, c, p);
        out.finished.extend(kept);
        Ok(())
    }

    fn send(
        &mut self,
        to: usize,
        leg: Leg,
        (chunk, piece): (usize, usize),
        (data, seal): (Bytes, Option<Box<Seal>>),
        out: &mut Sends,
    ) {
        let (headers, all) = self.headers.for_frame(to);
        let message = Message::Piece {
            view: self.attempt.view,
            leg,
            chunk: chunk as u16,
            piece: piece as u32,
            headers,
            all,
            seal,
            data,
        };
        self.sent[to] += 1;
        out.to.push((self.members[to], message));
    }
}
