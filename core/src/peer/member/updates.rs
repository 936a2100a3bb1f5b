//! The updates that keepers compute: those that this member publishes as the last keeper, and those of other
//! publishers.

use super::Member;
use crate::base::id::PeerId;
use crate::base::planted::Bug;
use crate::collective::Sends;
use crate::numeric::optim::Step;
use crate::peer::shared::Shared;
use crate::run::parts::{PartSet, Parts};
use crate::state::encode_update;
use std::collections::BTreeSet;

/// Blocks and parts that were verified.
#[derive(Debug, Default)]
struct Proven {
    blocks: BTreeSet<u32>,
    parts: PartSet,
}

/// Why a member cannot publish an update.
pub(super) enum NotKept {
    /// The parameters or moments have changed by themselves.
    Damaged,
    /// It lacks the moments.
    Behind,
}

impl Member {
    /// Computes the updates of pieces whose sum all keepers hold, and publishes those that this member is the last
    /// keeper of.
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
            let step = shared.plan(&record, &self.reduce.gathered);
            if due.iter().any(|place| self.reduce.lets_out(*place)) {
                self.out_by = step;
            }
            // Verified each time: a bit may have flipped since.
            let mut proven = Proven::default();
            for place in due {
                let update = self.update(place, step.as_ref(), &mut proven, shared)?;
                let out = self.reduce.take_update(place, update.into(), sends);
                debug_assert!(out.is_ok(), "what this member makes itself is good");
            }
        }
    }

    /// The update of a piece, from its sum, encoded. A published update must come from verified parameters and
    /// moments: one from damaged memory would be the same for all, and nobody could tell. An update that this
    /// member computes for itself must match the last keeper's seal.
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

    /// The publishers of updates that do not follow from the sums which this member has passed to them, with the
    /// parts. It does not doubt what it cannot compute itself, or only from damaged memory.
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

    /// The new parameters of a piece, from its sum.
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
    /// Verifies the inputs of an update.
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
