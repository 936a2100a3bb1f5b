//! Finds a member that is too slow even to sum: it receives or sends pieces so slowly that all wait for it, but
//! fast enough that nobody times out.
//!
//! The judgement uses the counts of both ends. A run on slow links is slow for all, and no member is to blame. A
//! member is behind only if it has less than a quarter of the pieces under way to or from it, while most others
//! have all of theirs. And it must be so for long, by the clock and in comparison with the round's past.
//!
//! Two members can judge a third if both exchange pieces with it in both directions, as under the direct plan. In a
//! ring, pieces flow one way between two members, and neither can tell which is slow. With two members nobody can.

use crate::base::id::PeerId;
use crate::base::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A shorter exchange hurts nobody much.
const LONG: Duration = Duration::from_secs(10);

/// A member with less than this fraction of its pieces is behind: the exchange would take it this many times as
/// long as others.
const PART: u32 = 4;

/// Pieces from one member to another: how many came, of how many that were sent or are due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub came: u32,
    pub of: u32,
}

impl Transfer {
    fn is_whole(self) -> bool {
        self.came >= self.of
    }

    fn lags(self) -> bool {
        u64::from(self.came) * u64::from(PART) < u64::from(self.of)
    }
}

/// The transfers of another member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ways {
    /// From here to it.
    pub to: Transfer,
    /// From it to here.
    pub from: Transfer,
    /// From all to it, of as many as if all had sent as much as this peer.
    pub to_all: Transfer,
}

impl Ways {
    /// Whether there were pieces in both directions.
    fn say(self) -> bool {
        self.to.of > 0 && self.from.of > 0
    }

    fn are_whole(self) -> bool {
        self.say() && self.to.is_whole() && self.from.is_whole()
    }

    /// Whether it is behind. If only this peer's pieces reach it too slowly, the link is to blame, and the other
    /// end sees the same.
    fn lag(self) -> bool {
        self.say() && (self.from.lags() || self.to.lags() && self.to_all.lags())
    }
}

/// How long an exchange may last before the slowest member is looked for, given the usual wait and the round's
/// compute time. Excluding a member pays if rounds then take less than half as long.
pub(crate) fn patience(usual: Duration, computing: Duration) -> Duration {
    LONG.max(4 * usual).max(computing)
}

/// Since when each member has been behind.
#[derive(Debug, Default)]
pub(crate) struct Laggards {
    since: BTreeMap<PeerId, Time>,
}

impl Laggards {
    /// Takes the transfers of all other members, none of which computes. Returns those that have been behind for
    /// this long.
    pub fn judge(&mut self, others: &BTreeMap<PeerId, Ways>, now: Time, long: Duration) -> BTreeSet<PeerId> {
        let whole = others.values().filter(|ways| ways.are_whole()).count();
        // Of the others except the one that is behind.
        let most = 2 * whole >= others.len() && whole > 0;
        let behind = |ways: &Ways| most && ways.lag();
        self.since.retain(|peer, _| others.get(peer).is_some_and(behind));
        for (peer, _) in others.iter().filter(|(_, ways)| behind(ways)) {
            self.since.entry(*peer).or_insert(now);
        }
        let over = self.since.iter().filter(|(_, since)| now - **since >= long);
        over.map(|(peer, _)| *peer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_S: u64 = 5;

    /// The second in which the last of these others is found too slow, given how many of a hundred pieces each has
    /// by then.
    fn judged(got: impl Fn(u64) -> Vec<u32>, seconds: u64) -> Option<u64> {
        let mut laggards = Laggards::default();
        (0..seconds).find(|second| {
            let way = |came| Transfer { came, of: 100 };
            let ways = |came| Ways {
                to: way(came),
                from: way(100),
                to_all: way(came),
            };
            let ways = got(*second).into_iter().map(ways).zip(0..);
            let ways = ways.map(|(ways, i)| (PeerId([i; 32]), ways));
            let now = Time(second * 1_000_000);
            let slow = laggards.judge(&ways.collect(), now, Duration::from_secs(LONG_S));
            !slow.is_empty()
        })
    }

    #[test]
    fn who_alone_is_far_behind_for_long_is_too_slow() {
        assert_eq!(judged(|s| vec![100, 100, s as u32], 60), Some(LONG_S));
        // With only one other member there is nobody to compare it with.
        assert_eq!(judged(|s| vec![s as u32], 60), None);
    }

    #[test]
    fn where_all_are_slow_nobody_is_to_blame() {
        assert_eq!(judged(|s| vec![s as u32, s as u32, s as u32 / 2], 60), None);
        assert_eq!(
            judged(|s| vec![100, s as u32, s as u32 / 2, s as u32 / 3], 60),
            None
        );
    }

    #[test]
    fn who_is_a_little_slower_than_the_others_is_waited_for() {
        let at = |s: u64, rate: u64| (s * rate).min(100) as u32;
        assert_eq!(judged(|s| vec![at(s, 20), at(s, 20), at(s, 10)], 60), None);
    }
}
