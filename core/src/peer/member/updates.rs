//! The updates that a keeper of moments makes, the last of a part's for all, and what it makes of others'.

use super::Member;
use crate::base::id::PeerId;
use crate::base::planted::Bug;
use crate::collective::Sends;
use crate::numeric::optim::Step;
use crate::peer::shared::Shared;
use crate::run::parts::{PartSet, Parts};
use crate::state::{encode_update, plan};
use std::collections::BTreeSet;

/// What of the state was found to be what it should be.
#[derive(Debug, Default)]
struct Proven {
    blocks: BTreeSet<u32>,
    parts: PartSet,
}

/// Why a member cannot let an update out.
pub(super) enum NotKept {
    /// What it would make it of has changed.
    Damaged,
    /// It does not have the moments.
    Behind,
}

impl Member {
    /// Makes the updates of what all keepers hold the sum of, and lets out those that this member is the last keeper of.
    pub(super) fn let_out(&mut self, sends: &mut Sends, shared: &Shared) -> Result<(), NotKept> {
        loop {
            let due = self.reduce.take_due();
            if due.is_empty() {
                return Ok(());
            }
            let Some(headers) = self.reduce.headers() else {
                return Ok(());
            };
            let record = self.record(headers);
            let step = plan(&shared.manifest, shared.head(), &record, &self.reduce.gathered);
            if due.iter().any(|place| self.reduce.lets_out(*place)) {
                self.out_by = step;
            }
            // Anew each time: a bit may have flipped since the last.
            let mut proven = Proven::default();
            for place in due {
                let update = self.update(place, step.as_ref(), &mut proven, shared)?;
                let out = self.reduce.take_update(place, update.into(), sends);
                debug_assert!(out.is_ok(), "what this member makes itself is good");
            }
        }
    }

    /// What becomes of a piece of the parameters by its sum, as it travels. What is let out is made of what is as it was after the
    /// last round: what a damaged memory gives would be the same for all, and nobody could tell. What this member makes for itself
    /// has to be what the last keeper has sealed.
    fn update(
        &self,
        place: (usize, usize),
        step: Option<&Step>,
        proven: &mut Proven,
        shared: &Shared,
    ) -> Result<Vec<u8>, NotKept> {
        let (range, _) = self.reduce.held_sum(place).ok_or(NotKept::Behind)?;
        if self.view.members.len() > 1 && self.reduce.lets_out(place) {
            proven.prove(&range, shared)?;
        }
        let mut new = self.stepped(place, step, shared)?;
        if self.reduce.lets_out(place) && shared.settings.planted(Bug::FalseUpdates) {
            new[0] += 1.0;
        }
        let old = &shared.lineage.state.params[range];
        Ok(encode_update(self.reduce.gathered.codec(), old, &new))
    }

    /// Who has let out an update that the sum does not give which this member has given it, and of which part. What it cannot
    /// work out, or only from what a damaged memory holds, it does not doubt.
    pub(super) fn doubt(&self, step: &Step, shared: &Shared) -> BTreeSet<(PeerId, u16)> {
        let mut doubted = BTreeSet::new();
        for (place, part, update) in self.reduce.given() {
            let (Ok(new), Some((range, _))) = (
                self.stepped(place, Some(step), shared),
                self.reduce.held_sum(place),
            ) else {
                continue;
            };
            let old = &shared.lineage.state.params[range.clone()];
            let is_true = encode_update(self.reduce.gathered.codec(), old, &new) == *update;
            if !is_true && Proven::default().prove(&range, shared).is_ok() {
                doubted.insert((self.view.members[place.0], part));
            }
        }
        doubted
    }

    /// What becomes of a piece of the parameters by its sum.
    fn stepped(
        &self,
        place: (usize, usize),
        step: Option<&Step>,
        shared: &Shared,
    ) -> Result<Vec<f32>, NotKept> {
        let state = &shared.lineage.state;
        let (range, data) = self.reduce.held_sum(place).ok_or(NotKept::Behind)?;
        let mut sums = vec![0.0; range.len()];
        let decoded = shared.manifest.codec.decode(data, &mut sums);
        debug_assert!(decoded.is_ok(), "it was checked when it came");
        match step {
            None => Ok(state.params[range].to_vec()),
            Some(step) => {
                let made = state
                    .kept
                    .try_step(&shared.manifest, step, range, &state.params, &sums);
                made.ok_or(NotKept::Behind)
            }
        }
    }
}

impl Proven {
    /// Compares what an update is made of with what it was.
    fn prove(&mut self, range: &std::ops::Range<usize>, shared: &Shared) -> Result<(), NotKept> {
        let lineage = &shared.lineage;
        let state = &lineage.state;
        let len = shared.manifest.block();
        for block in (range.start / len) as u32..range.end.div_ceil(len) as u32 {
            if !self.blocks.insert(block) {
                continue;
            }
            let now = state
                .block_range(block)
                .map(|elements| state.block_digest(elements));
            if now.as_ref() != lineage.blocks.get(block as usize) {
                return Err(NotKept::Damaged);
            }
        }
        let part = Parts::of_len(shared.manifest.layout.len).part_of(range.start);
        if !self.parts.contains(part) {
            self.parts.insert(part);
            state.kept.prove(part).map_err(|_| NotKept::Damaged)?;
        }
        Ok(())
    }
}
