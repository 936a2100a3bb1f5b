//! Split runs: contributions come lane by lane, and nobody commits before all members hold the sums of their parts,
//! and know it of each other.

use super::super::lanes::add_up;
use super::super::step::{Sends, Violation};
use super::{Run, Sum};
use crate::base::id::PeerId;
use crate::base::planted::Bug;
use crate::numeric::vector::Vector;
use crate::wire::Leg;
use bytes::Bytes;
use std::ops::Range;

impl Run {
    /// Whether contributions to a piece come lane by lane. In a split run that is so for all pieces but words.
    pub(super) fn is_of_lanes(&self, (chunk, piece): (usize, usize)) -> bool {
        let kept = self.plan.cut.kept.as_ref().filter(|kept| kept.lanes.is_some());
        kept.is_some_and(|kept| {
            self.plan.cut.range(chunk, piece).is_some() && kept.part(chunk, piece).is_some()
        })
    }

    /// The place, among the inputs of a piece, of the lane that a member sends under this number, if it may.
    fn lane_of(&self, place: (usize, usize), sender: usize, number: u16) -> Option<usize> {
        if place.0 >= self.plan.cut.members || !self.is_of_lanes(place) || self.plan.sums(place) != self.me {
            return None;
        }
        let lanes = self.plan.cut.lanes()?;
        let inputs = lanes.inputs(&self.plan.cut.range(place.0, place.1)?);
        let input = inputs.get(usize::from(number))?;
        (lanes.by(*input) == sender).then_some(usize::from(number))
    }

    /// The number of lane sums of a piece. One member may send several.
    pub(super) fn lanes_of(&self, piece: &Range<usize>) -> usize {
        self.plan.cut.lanes().map_or(0, |lanes| lanes.inputs(piece).len())
    }

    /// Stores a lane's sum of a piece. `None` if the sender may not send it, if it cannot be a sum, or if it is
    /// there already.
    pub(super) fn hold_lane(
        &mut self,
        place: (usize, usize),
        (sender, number): (usize, u16),
        data: Bytes,
    ) -> Option<()> {
        let at = self.lane_of(place, sender, number)?;
        let range = self.plan.cut.range(place.0, place.1)?;
        let sound = self.codec.is_summable(&data, range.len(), 1);
        sound.then_some(())?;
        self.hold(place.0, place.1, at, data)
    }

    /// Puts in this member's lane sums, one after the other, with its word.
    pub(super) fn start_lanes(&mut self, own: &[f32], out: &mut Sends) -> Result<(), Violation> {
        let Some(kept) = self.plan.cut.kept.clone() else {
            return Ok(());
        };
        // Words first, which carry the headers.
        for place in self.plan.begins(self.me) {
            if kept.part(place.0, place.1).is_none() {
                self.add_up(&Vector::default(), place.0, place.1, out)?;
            }
        }
        self.add_up(&Vector::default(), self.me, 0, out)?;
        let Some(lanes) = &kept.lanes else { return Ok(()) };
        debug_assert_eq!(own.len(), lanes.len_of(self.me));
        for (range, place) in kept.touching(&(0..self.plan.cut.len)) {
            for (number, input) in lanes.inputs(range).into_iter().enumerate() {
                let inside = lanes.place(self.me, input, range);
                let Some(inside) = inside.filter(|_| lanes.by(input) == self.me) else {
                    continue;
                };
                let mut data = Vec::with_capacity(self.codec.encoded_len(range.len()));
                self.codec.encode(&own[inside], &mut data);
                let (data, to) = (Bytes::from(data), self.plan.sums(*place));
                if to == self.me {
                    // No other member may send it.
                    let held = self.hold(place.0, place.1, number, data);
                    debug_assert!(held.is_some(), "it comes once");
                } else {
                    self.send(to, Leg::Lane(number as u16), *place, (data, None), out);
                }
            }
        }
        for (_, place) in kept.touching(&(0..self.plan.cut.len)) {
            if self.plan.sums(*place) == self.me {
                self.add_lanes(*place, out)?;
            }
        }
        Ok(())
    }

    /// Adds up a piece, once all its inputs and this member's values are in.
    pub(super) fn add_lanes(&mut self, place: (usize, usize), out: &mut Sends) -> Result<(), Violation> {
        let (Some(lanes), Some(range)) = (self.plan.cut.lanes(), self.plan.cut.range(place.0, place.1))
        else {
            return Ok(());
        };
        let (count, needed) = (lanes.count, lanes.inputs(&range).len());
        let in_any_order = self.planted(Bug::LanesAsTheyCome);
        let Sum::Open(inputs) = &mut self.sums[place.0][place.1] else {
            return Ok(());
        };
        if inputs.len() < needed || !self.started {
            return Ok(());
        }
        let mut inputs = std::mem::take(inputs);
        self.sums[place.0][place.1] = Sum::Made;
        if !in_any_order {
            inputs.sort_unstable_by_key(|(number, _)| *number);
        }
        self.waiting -= inputs.len();
        self.waiting_bytes -= inputs.iter().map(|(_, data)| data.len()).sum::<usize>();
        let decode = |(_, data): &(usize, Bytes)| {
            let mut values = vec![0.0; range.len()];
            self.codec
                .decode(data, &mut values)
                .expect("it was checked when it came");
            values
        };
        let inputs: Vec<Vec<f32>> = inputs.iter().map(decode).collect();
        let mut sum = Vec::with_capacity(self.codec.encoded_len(range.len()));
        self.codec.encode(&add_up(&inputs, count), &mut sum);
        self.hold_sum(place, sum.into(), out)
    }

    /// Whether this member holds all sums of its parts, and all that it needs to step by them.
    pub fn holds_sums(&self) -> bool {
        let clips = self
            .plan
            .cut
            .kept
            .as_ref()
            .is_some_and(|kept| kept.clips.is_some());
        self.lacking_sums == 0 && self.headers.are_complete() && (!clips || self.gathered.is_complete())
    }

    /// Whether members must tell each other that they can commit: in a split run, where members have parts that
    /// others lack.
    fn waits_for_all(&self) -> bool {
        self.plan.cut.lanes().is_some() && self.members.len() > 1
    }

    /// Whether this member has to say now that it can commit. True once.
    pub fn says_held(&mut self) -> bool {
        self.waits_for_all() && self.is_complete() && self.can_commit.insert(self.me)
    }

    /// Whether this member has said that it can commit.
    pub fn has_said_held(&self) -> bool {
        self.can_commit.contains(&self.me)
    }

    /// A member has said that it can commit.
    pub fn on_held(&mut self, from: PeerId) {
        self.can_commit
            .extend(self.members.iter().position(|member| *member == from));
    }

    /// Whether all have said that they can commit, if they must.
    pub fn all_hold(&self) -> bool {
        !self.waits_for_all()
            || self.can_commit.len() == self.members.len()
            || self.planted(Bug::SplitCommitBeforeHeld)
    }
}
