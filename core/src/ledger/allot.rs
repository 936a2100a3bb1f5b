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
        // A hole goes to another member each round. Fresh samples in chunks go by the members' places, so that each
        // stays with its stripes.
        let turned = ((round - 1) % self.members.len().max(1) as u64) as usize;
        let stays = |range: &SampleRange| manifest.chunk.get() > 1 && range.start >= self.cursor;
        let first = |range: &SampleRange| if stays(range) { 0 } else { turned };
        let shares = hand_out(taken, quotas, first, |member| self.members[member].peer);
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

/// Gives each member ranges up to its quota, in ring order from the one that is `first` for a range. A member does not
/// get samples back that it has refused while others have room; if nobody has, they wait for another round. Fresh
/// samples always find a member.
fn hand_out(
    taken: Vec<SampleRange>,
    mut quotas: Vec<u64>,
    first: impl Fn(&SampleRange) -> usize,
    name: impl Fn(usize) -> PeerId,
) -> Vec<Vec<SampleRange>> {
    let mut shares = vec![Vec::new(); quotas.len()];
    let lone = quotas.iter().filter(|quota| **quota > 0).count() == 1;
    for mut range in taken {
        let first = first(&range);
        for member in (first..shares.len()).chain(0..first) {
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
    use crate::base::id::Contact;
    use crate::base::quotas::{Limit, quotas};
    use crate::base::random::SplitMix;
    use crate::run::config::{Layout, Settings};
    use crate::run::shuffle::{Shuffle, Stripes};
    use std::collections::VecDeque;

    /// A head after this many rounds, with members that deliver equally and a hole.
    fn head(manifest: &Manifest, members: u8, round: Round) -> Head {
        let member = |name: u8| {
            let settings = Settings::stand_in(PeerId([name; 32]), Contact::default(), manifest);
            let mut member = Member::new(&settings, None);
            member.speed = 1000;
            member.trials.delivered = true;
            member
        };
        let mut head = Head::genesis(manifest, member(0));
        head.members = (0..members).map(member).collect();
        (head.round, head.cursor) = (round, 1000);
        head.holes = vec![SampleRange {
            start: 10,
            end: 11,
            refused_by: None,
        }];
        head
    }

    #[test]
    fn fresh_samples_in_chunks_go_by_place_and_holes_in_turn() {
        let manifest = |chunk: u32| Manifest {
            samples: 5000.try_into().unwrap(),
            target: 5000.try_into().unwrap(),
            batch: 13.try_into().unwrap(),
            chunk: chunk.try_into().unwrap(),
            ..Manifest::new(Layout::flat(3))
        };
        // The member that gets the hole, and that with the first of the fresh samples, round by round.
        let firsts = |chunk| {
            let manifest = manifest(chunk);
            [0, 1, 2, 3, 4].map(|round| {
                let allotted = head(&manifest, 4, round).allot(&manifest);
                let holder = |position| {
                    let has = |share: &Vec<SampleRange>| share.iter().any(|range| range.start == position);
                    allotted.shares.iter().position(has).unwrap()
                };
                (holder(10), holder(1000))
            })
        };
        assert_eq!(firsts(1).map(|(hole, _)| hole), [0, 1, 2, 3, 0]);
        assert_eq!(firsts(1).map(|(_, fresh)| fresh), [0, 1, 2, 3, 0]);
        assert_eq!(firsts(64).map(|(hole, _)| hole), [0, 1, 2, 3, 0]);
        assert_eq!(firsts(64).map(|(_, fresh)| fresh), [0; 5]);
    }

    /// What the peer that fetches most and all together fetch in an epoch of 131,072 samples, as multiples of the data:
    /// caches of 64 chunks of 256, speeds that drift by 2 % a round.
    fn fetched(batch: u64, peers: usize, stripes: Stripes, is_turned: bool) -> (f64, f64) {
        const SAMPLES: u64 = 131_072;
        const CHUNK: u64 = 256;
        const CACHE: usize = 64;
        let samples = SAMPLES.try_into().unwrap();
        let shuffle = Shuffle {
            seed: 1,
            samples,
            stripes,
        };
        let mut random = SplitMix(7);
        let mut speeds = vec![1.0; peers];
        let mut caches = vec![VecDeque::new(); peers];
        let mut fetched = vec![0; peers];
        for (round, start) in (0..SAMPLES).step_by(batch as usize).enumerate() {
            for speed in &mut speeds {
                *speed *= 1.0 + 0.02 * (2.0 * random.unit() - 1.0);
            }
            let mean = speeds.iter().sum::<f64>() / peers as f64;
            speeds
                .iter_mut()
                .for_each(|speed| *speed = 0.9 * *speed / mean + 0.1);
            let end = SAMPLES.min(start + batch);
            let limits = speeds.iter().map(|speed| Limit::none((speed * 1e6) as u64));
            let quotas = quotas(end - start, &limits.collect::<Vec<_>>());
            let refused_by = None;
            let fresh = vec![SampleRange {
                start,
                end,
                refused_by,
            }];
            let first = if is_turned { round % peers } else { 0 };
            let shares = hand_out(fresh, quotas, |_| first, |name| PeerId([name as u8; 32]));
            for (peer, share) in shares.iter().enumerate() {
                let cache: &mut VecDeque<u64> = &mut caches[peer];
                for position in share.iter().flat_map(|range| range.start..range.end) {
                    let chunk = shuffle.index(position) / CHUNK;
                    match cache.iter().position(|held| *held == chunk) {
                        Some(at) => drop(cache.remove(at)),
                        None => fetched[peer] += CHUNK,
                    }
                    cache.push_front(chunk);
                    cache.truncate(CACHE);
                }
            }
        }
        let part = |samples: u64| samples as f64 / SAMPLES as f64;
        let most = fetched.iter().max().copied().unwrap_or(0);
        (part(most), part(fetched.iter().sum()))
    }

    #[test]
    fn with_stripes_each_peer_fetches_its_share() {
        let stripes = |chunk: u32, batch: u32| Stripes {
            chunk: chunk.try_into().unwrap(),
            open: (batch.min(64) as u16).try_into().unwrap(),
            batch: batch.try_into().unwrap(),
        };
        for (batch, peers, most, all) in [
            (12, 4, 0.26, 1.0),
            (48, 4, 0.33, 1.3),
            (48, 16, 0.08, 1.2),
            (512, 4, 0.28, 1.1),
            (512, 16, 0.09, 1.4),
            (4096, 16, 0.09, 1.3),
        ] {
            let got = fetched(batch.into(), peers, stripes(256, batch), false);
            let near = |got: f64, told: f64, rounded: f64| (got - told).abs() < 0.1 * told + rounded;
            assert!(
                near(got.0, most, 0.005) && near(got.1, all, 0.05),
                "{batch} {peers}: {got:?}"
            );
        }
        // Neither stripes alone nor places alone do it.
        assert!(fetched(48, 4, stripes(256, 48), true).0 > 0.9);
        assert!(fetched(512, 16, stripes(1, 512), false).0 > 10.0);
    }

    #[test]
    fn what_one_has_given_back_goes_to_another() {
        let name = |member: usize| PeerId([member as u8; 32]);
        let hole = |start, end, refused_by: Option<usize>| SampleRange {
            start,
            end,
            refused_by: refused_by.map(name),
        };
        let taken = vec![hole(0, 4, Some(0)), hole(4, 8, None)];
        let shares = hand_out(taken.clone(), vec![5, 3], |_| 0, name);
        // The fourth of the first four has to wait: only the member that refused it has room.
        assert_eq!(shares, [vec![hole(4, 8, None)], vec![hole(0, 3, Some(0))]]);
        let alone = hand_out(taken.clone(), vec![8, 0], |_| 0, name);
        assert_eq!(alone, [taken, vec![]]);
    }
}
