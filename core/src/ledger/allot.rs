//! Allots the positions of the sample stream to the members of the next round: a function of the ledger's head
//! alone.
//!
//! Shares are such that all members are done as early as possible, since a round waits for the last. A member that
//! cannot do one sample in that time gets none and stands by, still a member and still summing.

use crate::base::id::{PeerId, Round};
use crate::ledger::cut::Cut;
use crate::ledger::cut::SampleRange;
use crate::ledger::earned::shares;
use crate::ledger::{Head, Member};
use crate::run::config::Manifest;
use std::ops::Range;

/// The positions of each member in the next round.
#[derive(Clone, Debug, PartialEq)]
pub struct Allotment {
    /// One share per member, in ring order.
    pub shares: Vec<Vec<SampleRange>>,
    /// In a split run, the batch that all members compute together. Then no member has a share of its own.
    pub batch: Vec<SampleRange>,
}

impl Allotment {
    /// Samples of one member's share.
    pub fn len(&self, member: usize) -> u64 {
        self.shares[member].iter().map(SampleRange::len).sum()
    }

    /// Positions of one member's share.
    pub fn ranges(&self, member: usize) -> Vec<Range<u64>> {
        self.shares[member]
            .iter()
            .map(|hole| hole.start..hole.end)
            .collect()
    }

    /// Samples of each member's share.
    fn lens(&self) -> Vec<u64> {
        (0..self.shares.len()).map(|member| self.len(member)).collect()
    }

    /// Whether no samples are left to allot.
    pub fn is_empty(&self) -> bool {
        self.shares.iter().all(Vec::is_empty) && self.batch.is_empty()
    }

    /// An allotment of these shares.
    fn of(shares: Vec<Vec<SampleRange>>) -> Self {
        let batch = Vec::new();
        Self { shares, batch }
    }
}

impl Head {
    /// The samples of the next round. If exchange and compute overlap, they were allotted one round ago, if any
    /// were, and a member that came since has none.
    pub fn allot(&self, manifest: &Manifest) -> Allotment {
        if self.ahead.is_empty() {
            return self.hand_out(manifest, self.round + 1);
        }
        let given = |member: &Member| self.ahead.iter().find(|given| given.peer == member.peer);
        let share = |member| given(member).map(|given| given.share.clone()).unwrap_or_default();
        let shares = self.members.iter().map(share).collect();
        Allotment::of(shares)
    }

    /// The samples that members compute while the sums of the next round travel, for the round after. Empty without
    /// overlap.
    pub fn allot_ahead(&self, manifest: &Manifest) -> Allotment {
        if !manifest.overlap || !self.all_train(manifest) {
            let shares = vec![Vec::new(); self.members.len()];
            return Allotment::of(shares);
        }
        let round = self.round + 2;
        if !self.ahead.is_empty() {
            return self.hand_out(manifest, round);
        }
        let mut rest = self.clone();
        rest.take_out(&self.allot(manifest).shares);
        rest.hand_out(manifest, round)
    }

    /// The local steps of the share of the member at `place`, as they were when the share was allotted. `None` if
    /// members sum gradients.
    pub fn cut(&self, allotment: &Allotment, place: usize, manifest: &Manifest) -> Option<Cut> {
        manifest.local.as_ref()?;
        let peer = self.members[place].peer;
        let given = self.ahead.iter().find(|given| given.peer == peer);
        let new = || Cut::new(&allotment.lens(), place, self.pace.batches, self.samples);
        Some(given.and_then(|given| given.cut).unwrap_or_else(new))
    }

    /// The local steps of the shares allotted ahead, if all samples allotted now will be counted.
    pub(crate) fn cuts_ahead(
        &self,
        (now, ahead): (&Allotment, &Allotment),
        manifest: &Manifest,
    ) -> Vec<Option<Cut>> {
        let (counted, lens) = (now.lens().iter().sum::<u64>(), ahead.lens());
        let new = |place| Cut::new(&lens, place, self.pace.batches, self.samples + counted);
        let cut = |place| manifest.local.as_ref().map(|_| new(place));
        (0..lens.len()).map(cut).collect()
    }

    /// Samples of a member's share, were all members given as many.
    pub(crate) fn equal_share(&self, manifest: &Manifest) -> f64 {
        self.pace.round_samples(manifest) as f64 / self.members.len().max(1) as f64
    }

    /// Samples for a round: holes first, then fresh ones, split by speed.
    fn hand_out(&self, manifest: &Manifest, round: Round) -> Allotment {
        let taken = self.take(self.pace.round_samples(manifest), manifest.target.get());
        if manifest.split.is_some() {
            return Allotment {
                shares: vec![Vec::new(); self.members.len()],
                batch: taken,
            };
        }
        let total: u64 = taken.iter().map(SampleRange::len).sum();
        let quotas = shares(total, &self.members, round, total == self.left(manifest));
        // The first range goes to another member each round.
        let n = self.members.len();
        let first = ((round - 1) % n.max(1) as u64) as usize;
        let order: Vec<usize> = (0..n).map(|i| (first + i) % n).collect();
        let shares = hand_out(taken, quotas, &order, |member| self.members[member].peer);
        Allotment::of(shares)
    }

    /// Samples that are open and not handed out.
    pub(crate) fn left(&self, manifest: &Manifest) -> u64 {
        let holes: u64 = self.holes.iter().map(SampleRange::len).sum();
        holes + manifest.target.get().saturating_sub(self.cursor)
    }

    fn take(&self, batch: u64, target: u64) -> Vec<SampleRange> {
        let mut left = batch;
        let mut taken = Vec::new();
        for hole in &self.holes {
            let n = left.min(hole.len());
            if n == 0 {
                break;
            }
            taken.push(SampleRange {
                end: hole.start + n,
                ..hole.clone()
            });
            left -= n;
        }
        let fresh = left.min(target.saturating_sub(self.cursor));
        if fresh > 0 {
            taken.push(SampleRange {
                start: self.cursor,
                end: self.cursor + fresh,
                refused_by: None,
            });
        }
        taken
    }
}

/// Gives each member ranges up to its quota, in this order. A member does not get samples back that it has refused
/// while others have room; if nobody has, they wait for another round. Fresh samples always find a member.
fn hand_out(
    taken: Vec<SampleRange>,
    mut quotas: Vec<u64>,
    order: &[usize],
    name: impl Fn(usize) -> PeerId,
) -> Vec<Vec<SampleRange>> {
    let mut shares = vec![Vec::new(); quotas.len()];
    let lone = quotas.iter().filter(|quota| **quota > 0).count() == 1;
    for mut range in taken {
        for member in order.iter().copied() {
            let n = quotas[member].min(range.len());
            let again = range.refused_by == Some(name(member)) && !lone;
            if n == 0 || again {
                continue;
            }
            shares[member].push(SampleRange {
                end: range.start + n,
                ..range.clone()
            });
            range.start += n;
            quotas[member] -= n;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_has_given_back_goes_to_another() {
        let name = |member: usize| PeerId([member as u8; 32]);
        let hole = |start, end, refused_by: Option<usize>| SampleRange {
            start,
            end,
            refused_by: refused_by.map(name),
        };
        let taken = vec![hole(0, 4, Some(0)), hole(4, 8, None)];
        let shares = hand_out(taken.clone(), vec![5, 3], &[0, 1], name);
        // The fourth of the first four has to wait: only the member that refused it has room.
        assert_eq!(shares, [vec![hole(4, 8, None)], vec![hole(0, 3, Some(0))]]);
        let alone = hand_out(taken.clone(), vec![8, 0], &[0, 1], name);
        assert_eq!(alone, [taken, vec![]]);
    }
}
