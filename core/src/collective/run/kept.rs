//! Sums of parts that members keep: a run holds them, passes them from keeper to keeper, and publishes their
//! updates.

use super::super::plan::Passes;
use super::super::step::{Sends, Violation};
use super::{Held, Run, Sum};
use crate::base::planted::Bug;
use crate::ledger::seal::Seal;
use crate::wire::Leg;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::ops::Range;

impl Run {
    /// Holds the finished sum of a piece whose part this member keeps, and passes it on.
    pub(super) fn hold_sum(
        &mut self,
        (chunk, piece): (usize, usize),
        data: Bytes,
        out: &mut Sends,
    ) -> Result<(), Violation> {
        let range = self.plan.cut.range(chunk, piece).expect("own piece");
        let passes = self.plan.passes((chunk, piece), self.me).expect("own piece");
        let kept = self.plan.cut.kept.as_ref();
        if let Some(kept) = kept.filter(|kept| passes.from.is_none() && kept.clips.is_some()) {
            let mut values = vec![0.0; range.len()];
            self.codec.decode(&data, &mut values).expect("just encoded");
            self.squares
                .insert(range.start, kept.squared(range.start, &values));
        }
        self.held_bytes += data.len();
        self.held.insert(range.start, data.clone());
        self.lacking_sums = self.lacking_sums.saturating_sub(1);
        if self.plan.cut.lanes().is_some() {
            if let Some(to) = passes.to {
                self.send(to, Leg::Sum, (chunk, piece), (data, None), out);
            }
            return Ok(());
        }
        if self.planted(Bug::UpdateBeforeKeepers) {
            return self.hand_on_beside((chunk, piece), passes, data, out);
        }
        match passes.to {
            Some(to) => self.send(to, Leg::Sum, (chunk, piece), (data, None), out),
            None => self.due.push((chunk, piece)),
        }
        if passes.to.is_some() && self.planted(Bug::CommitBeforeHeld) {
            self.due.push((chunk, piece));
        }
        Ok(())
    }

    /// A planted bug: the last keeper gets the sum before the others.
    pub(super) fn hand_on_beside(
        &mut self,
        (chunk, piece): (usize, usize),
        passes: Passes,
        data: Bytes,
        out: &mut Sends,
    ) -> Result<(), Violation> {
        let Some(kept) = self.plan.cut.kept.clone() else {
            return Ok(());
        };
        if passes.to.is_none() {
            self.due.push((chunk, piece));
        }
        for to in kept.chain(chunk, piece)[1..]
            .iter()
            .rev()
            .filter(|_| passes.from.is_none())
        {
            self.send(*to, Leg::Sum, (chunk, piece), (data.clone(), None), out);
        }
        Ok(())
    }

    /// Sends this member's word once its content is complete: the headers of all others, and the squares of all its
    /// sums.
    pub(super) fn say_word(&mut self, out: &mut Sends) -> Result<(), Violation> {
        let Some(kept) = self.plan.cut.kept.clone() else {
            return Ok(());
        };
        let me = self.me;
        // In a split run, the word also says that this member holds all its sums.
        let holds = self.lacking_sums == 0 || self.planted(Bug::WordBeforeSums);
        let there = holds && kept.part(me, 0).is_none() && self.gathered.get(me as u16, 0).is_none();
        if !there || !matches!(self.sums[me][0], Sum::Made) || !self.headers.are_complete() {
            return Ok(());
        }
        let mut word = Vec::with_capacity(kept.word_len(me));
        if kept.clips.is_some() {
            for part in kept.firsts(me) {
                let mut squared = 0.0f64;
                for (range, _) in kept.of_part(*part) {
                    let Some(of_piece) = self.squares.get(&range.start) else {
                        return Ok(());
                    };
                    squared += of_piece;
                }
                word.extend_from_slice(&squared.to_le_bytes());
            }
        }
        self.finish(me, (me, 0), (word.into(), None), out)
    }

    /// Whether a member computes the update of a piece itself. That is so only in the first attempt: a keeper that
    /// seals another update than the others compute could block the commit, and nobody could tell who is at fault.
    /// From the next attempt on, the last keeper sends its update to all.
    pub fn makes(&self, place: (usize, usize), member: usize) -> bool {
        self.attempt.view.attempt == 0 && self.plan.makes(place, member)
    }

    /// The last keeper has published the update of a piece whose sum this member holds too.
    pub(super) fn confirm(
        &mut self,
        sender: usize,
        (chunk, piece): (usize, usize),
        (data, seal): (Bytes, Option<Box<Seal>>),
    ) -> Result<(), Violation> {
        let is_held = self.held_sum((chunk, piece)).is_some();
        let sound = is_held && data.is_empty();
        sound
            .then_some(())
            .ok_or(Violation::of_plan(self.members[sender]))?;
        if let (Some(seals), Some(seal)) = (&mut self.seals, seal) {
            seals.tell(chunk, *seal);
        }
        if self.gathered.get(chunk as u16, piece as u32).is_none() {
            self.confirmed.insert((chunk, piece));
        }
        Ok(())
    }

    /// The pieces whose updates this member computes next, once it knows the round's weight and, if it clips, the
    /// norm: first those that it publishes. It returns whole parts, since their moments are verified as a whole
    /// before.
    pub fn take_due(&mut self) -> Vec<(usize, usize)> {
        let Some(kept) = self.plan.cut.kept.clone() else {
            return Vec::new();
        };
        let known =
            self.headers.are_complete() && (kept.clips.is_none() || self.gathered.squared().is_some());
        if !known || self.due.is_empty() && self.confirmed.is_empty() {
            return Vec::new();
        }
        let of_part =
            |(c, p): (usize, usize)| kept.part(c, p).into_iter().flat_map(|part| kept.of_part(part));
        let is_held =
            |place: &(usize, usize)| of_part(*place).all(|(range, _)| self.held.contains_key(&range.start));
        let is_there = |(c, p): (usize, usize)| self.gathered.get(c as u16, p as u32).is_some();
        let is_out = |place: &(usize, usize)| {
            of_part(*place).all(|(_, place)| self.confirmed.contains(place) || is_there(*place))
        };
        let (mut due, waiting): (Vec<_>, Vec<_>) = self.due.iter().copied().partition(is_held);
        let (out, inner): (BTreeSet<_>, _) = self.confirmed.iter().copied().partition(is_out);
        due.extend(out);
        (self.due, self.confirmed) = (waiting, inner);
        due
    }

    /// Whether this member publishes the update of a piece.
    pub fn lets_out(&self, (chunk, _): (usize, usize)) -> bool {
        chunk == self.me
    }

    /// Elements of a piece whose sum this member holds, and the sum.
    pub fn held_sum(&self, (chunk, piece): (usize, usize)) -> Option<(Range<usize>, &Bytes)> {
        let range = self.plan.cut.range(chunk, piece)?;
        Some((range.clone(), self.held.get(&range.start)?))
    }

    /// The pieces whose sum this member has passed to the last keeper without computing the update itself, so that
    /// it can check it: their places, part and update.
    pub fn given(&self) -> Vec<((usize, usize), u16, Bytes)> {
        let Some(kept) = &self.plan.cut.kept else {
            return Vec::new();
        };
        let all = kept.touching(&(0..self.plan.cut.len));
        let given = all.iter().filter_map(|(_, (c, p))| {
            let made = self.seals.as_ref().is_some_and(|seals| seals.has_made(*c));
            let gave = kept.chain(*c, *p).ends_with(&[self.me, *c]) && !made;
            let data = self.gathered.get(*c as u16, *p as u32).filter(|_| gave)?;
            Some(((*c, *p), kept.part(*c, *p)?, data.clone()))
        });
        given.collect()
    }

    /// Stores the update of a piece that this member has computed, and publishes it if it is the last keeper.
    pub fn take_update(
        &mut self,
        place: (usize, usize),
        update: Bytes,
        out: &mut Sends,
    ) -> Result<(), Violation> {
        if self.lets_out(place) || !self.planted(Bug::CommitBeforeHeld) {
            return self.finish(self.me, place, (update, None), out);
        }
        let (c, p) = (place.0 as u16, place.1 as u32);
        let new = self.gathered.put(c, p, update.clone()) == Some(true);
        if let Some(seals) = self.seals.as_mut().filter(|_| new) {
            seals.trust(place, &update);
        }
        Ok(())
    }

    /// Takes the held sums out of a run that does not need them any more.
    pub fn take_held(&mut self) -> Held {
        self.held_bytes = 0;
        std::mem::take(&mut self.held)
    }
}
