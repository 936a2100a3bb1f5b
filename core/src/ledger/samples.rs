//! Counts positions of the sample stream: allotted, counted, given up, or open again. `allot.rs` decides who gets
//! which.

use crate::base::id::PeerId;
use crate::base::planted::{self, Bug};
use crate::ledger::cut::{Cut, Given, SampleRange};
use crate::ledger::{Head, Member, Record};
use crate::run::config::Manifest;

impl Head {
    /// All uncounted positions before the cursor, in order, allotted or not.
    pub fn open(&self) -> Vec<&SampleRange> {
        let given = self.ahead.iter().flat_map(|given| &given.share);
        let mut open: Vec<&SampleRange> = self.holes.iter().chain(given).collect();
        open.sort_by_key(|hole| hole.start);
        open
    }

    /// Whether the run is over: every sample has been counted or given up, or it has stopped early.
    pub fn finished(&self, manifest: &Manifest) -> bool {
        self.stopped || self.cursor >= manifest.target.get() && self.holes.is_empty() && self.ahead.is_empty()
    }

    /// Whether most full members in a record see no gain any more. The word of guests does not count.
    pub(crate) fn has_stalled(&self, record: &Record) -> bool {
        if planted::here(Bug::AnyoneStops) {
            return record.headers.iter().any(|h| h.stalled);
        }
        let of_full = record.headers.iter().filter(|h| self.is_full(h.peer));
        let (all, stalled) = of_full.fold((0, 0), |(all, stalled), h| {
            (all + 1, stalled + usize::from(h.stalled))
        });
        2 * stalled > all
    }

    /// Counts the samples of each share that the record has. The rest is open again, or given up.
    pub(crate) fn count(&mut self, record: &Record, shares: &[Vec<SampleRange>]) {
        let mut uncounted = Vec::new();
        for (member, share) in self.members.iter().zip(shares) {
            let header = record.headers.iter().find(|h| h.peer == member.peer);
            let refuses = header.is_some_and(|h| h.weight == 0 && !h.late);
            let mut counted = header.map_or(0, |h| u64::from(h.weight));
            for range in share {
                let n = counted.min(range.len());
                counted -= n;
                self.samples += n;
                let rest = SampleRange {
                    start: range.start + n,
                    end: range.end,
                    refused_by: range.refused_by.or(refuses.then_some(member.peer)),
                };
                if refuses && rest.refused_by != Some(member.peer) {
                    self.skipped += rest.len();
                } else if rest.len() > 0 {
                    uncounted.push(rest);
                }
            }
        }
        self.give_back(uncounted);
        self.count_step(record);
    }

    /// Counts the batch of a split run: all of it, or nothing if a member refuses. A range that two members refuse
    /// in a row is given up.
    pub(crate) fn count_batch(&mut self, record: &Record, batch: &[SampleRange]) {
        let refused = record.headers.iter().find(|h| h.keeps.refuses).map(|h| h.peer);
        let mut uncounted = Vec::new();
        for range in batch {
            match (refused, range.refused_by) {
                (None, _) => self.samples += range.len(),
                (Some(_), Some(_)) => self.skipped += range.len(),
                (Some(_), None) => uncounted.push(SampleRange {
                    refused_by: refused,
                    ..range.clone()
                }),
            }
        }
        self.give_back(uncounted);
        self.count_step(record);
    }

    fn count_step(&mut self, record: &Record) {
        self.steps += u64::from(record.weight() > 0);
    }

    /// Keeps the shares allotted for the next round whose owners are still members; the others are open again.
    pub(crate) fn hand_over(
        &mut self,
        ahead: impl Iterator<Item = (Vec<SampleRange>, Option<Cut>)>,
        members: &[Member],
    ) {
        let stays = |peer: PeerId| members.iter().any(|m| m.peer == peer);
        let names = self.members.iter().map(|m| m.peer);
        let given = names
            .zip(ahead)
            .map(|(peer, (share, cut))| Given { peer, share, cut });
        let given = given.filter(|given| !given.share.is_empty());
        let (kept, lost): (Vec<Given>, Vec<Given>) = given.partition(|given| stays(given.peer));
        self.ahead = kept;
        self.give_back(lost.into_iter().flat_map(|given| given.share));
    }

    /// Opens these ranges again.
    pub(crate) fn give_back(&mut self, open: impl IntoIterator<Item = SampleRange>) {
        self.holes.extend(open);
        self.holes.sort_by_key(|hole| hole.start);
        self.holes.dedup_by(|next, hole| {
            let adjacent = hole.end == next.start && hole.refused_by == next.refused_by;
            if adjacent {
                hole.end = next.end;
            }
            adjacent
        });
    }

    /// Removes allotted ranges from the holes.
    pub(crate) fn take_out(&mut self, shares: &[Vec<SampleRange>]) {
        let mut given: Vec<&SampleRange> = shares.iter().flatten().collect();
        given.sort_by_key(|range| range.start);
        let fresh = given.iter().filter(|range| range.start >= self.cursor);
        let fresh: u64 = fresh.map(|range| range.len()).sum();
        let mut given = given.into_iter().peekable();
        let mut left = Vec::new();
        for mut hole in std::mem::take(&mut self.holes) {
            while let Some(range) = given.next_if(|range| range.start < hole.end) {
                if hole.start < range.start {
                    left.push(SampleRange {
                        end: range.start,
                        ..hole.clone()
                    });
                }
                hole.start = range.end;
            }
            if hole.start < hole.end {
                left.push(hole);
            }
        }
        self.holes = left;
        self.cursor += fresh;
    }
}
