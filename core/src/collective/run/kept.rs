//! What a run does with the sums of parts that members keep: they are held, passed from keeper to keeper, and let out as
//! updates.

use super::super::plan::Passes;
use super::super::step::{Sends, Violation};
use super::{Held, Run, Sum};
use crate::optim::norm_squared;
use crate::planted::Bug;
use crate::wire::Leg;
use bytes::Bytes;
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
        if passes.from.is_none() && self.plan.cut.kept.as_ref().is_some_and(|kept| kept.clips) {
            let mut values = vec![0.0; range.len()];
            self.codec.decode(&data, &mut values).expect("just encoded");
            self.squares.insert(range.start, norm_squared(&values));
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

    /// The planted bug of who gives the last keeper the sum first.
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

    /// Says this member's word, once it has all that is in it: the headers of all others, and the squares of all that it sums.
    pub(super) fn say_word(&mut self, out: &mut Sends) -> Result<(), Violation> {
        let Some(kept) = self.plan.cut.kept.clone() else {
            return Ok(());
        };
        let me = self.me;
        // Where a model is split the word says too that this member holds all its sums.
        let holds = self.lacking_sums == 0 || self.planted(Bug::WordBeforeSums);
        let there = holds && kept.part(me, 0).is_none() && self.gathered.get(me as u16, 0).is_none();
        if !there || !matches!(self.sums[me][0], Sum::Made) || !self.headers.are_complete() {
            return Ok(());
        }
        let mut word = Vec::with_capacity(kept.word_len(me));
        if kept.clips {
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

    /// The pieces whose updates this member is to let out, once it knows the round's weight and, where it matters, the norm.
    pub fn take_due(&mut self) -> Vec<(usize, usize)> {
        let clips = self.plan.cut.kept.as_ref().is_some_and(|kept| kept.clips);
        let known = self.headers.are_complete() && (!clips || self.gathered.squared().is_some());
        match known {
            true => std::mem::take(&mut self.due),
            false => Vec::new(),
        }
    }

    /// Elements of a piece whose sum this member holds, and the sum.
    pub fn held_sum(&self, (chunk, piece): (usize, usize)) -> Option<(Range<usize>, &Bytes)> {
        let range = self.plan.cut.range(chunk, piece)?;
        Some((range.clone(), self.held.get(&range.start)?))
    }

    /// The pieces of which this member has given the last keeper the sum, so that it knows what the update should be: their
    /// places, the part, and the update.
    pub fn given(&self) -> Vec<((usize, usize), u16, Bytes)> {
        let Some(kept) = &self.plan.cut.kept else {
            return Vec::new();
        };
        let all = kept.touching(&(0..self.plan.cut.len));
        let given = all.iter().filter_map(|(_, (c, p))| {
            let gave = kept.chain(*c, *p).ends_with(&[self.me, *c]);
            let data = self.gathered.get(*c as u16, *p as u32).filter(|_| gave)?;
            Some(((*c, *p), kept.part(*c, *p)?, data.clone()))
        });
        given.collect()
    }

    /// Lets the update of a piece out to all.
    pub fn let_out(
        &mut self,
        place: (usize, usize),
        update: Bytes,
        out: &mut Sends,
    ) -> Result<(), Violation> {
        if place.0 != self.me {
            // Only the planted bug of who takes its own word for all keepers' comes here.
            let (c, p) = (place.0 as u16, place.1 as u32);
            let new = self.gathered.put(c, p, update.clone()) == Some(true);
            if let Some(seals) = self.seals.as_mut().filter(|_| new) {
                seals.trust(place, &update);
            }
            return Ok(());
        }
        self.finish(self.me, place, (update, None), out)
    }

    /// The sums that this member holds, once they are no longer needed here.
    pub fn take_held(&mut self) -> Held {
        self.held_bytes = 0;
        std::mem::take(&mut self.held)
    }
}
