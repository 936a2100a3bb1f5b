//! Who is too slow even to sum: takes what it is sent, or delivers what it owes, so much more slowly than the others that
//! all wait for it, while pieces trickle and so nobody finds anything amiss.
//!
//! Judged by what both ends have counted. A run on slow links is slow for all, and nobody is to blame: behind is only who
//! has got less than a quarter of what is under way between two while most others have got all of theirs. And it has to be
//! so for long, by the clock and by what the round has taken before.
//!
//! Two can see that of a third with which both exchange pieces to and fro, as under the direct plan. In a ring pieces go one
//! way between two, and neither can tell which of them is slow; of two members nobody can.

use crate::base::id::PeerId;
use crate::base::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// An exchange that has lasted less than this hurts nobody much.
const LONG: Duration = Duration::from_secs(10);

/// Who has got less than this part of a way is behind, so that the exchange would take it so many times as long as others.
const PART: u32 = 4;

/// Pieces from one member to another: as many as have come, of as many as were sent or are due.
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

/// What is known of another member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ways {
    /// From here to it.
    pub to: Transfer,
    /// From it to here.
    pub from: Transfer,
    /// From all to it, of as many as if all had sent it so much as this one.
    pub to_all: Transfer,
}

impl Ways {
    /// Whether there is any of both.
    fn say(self) -> bool {
        self.to.of > 0 && self.from.of > 0
    }

    fn are_whole(self) -> bool {
        self.say() && self.to.is_whole() && self.from.is_whole()
    }

    /// What comes to it from here alone too slowly is the fault of the way, of which the other end sees as much.
    fn lag(self) -> bool {
        self.say() && (self.from.lags() || self.to.lags() && self.to_all.lags())
    }
}

/// How long an exchange may last before the slowest is looked for, given the usual wait and what the round's computing took:
/// who makes rounds last less than twice as long is worth it.
pub(crate) fn patience(usual: Duration, computing: Duration) -> Duration {
    LONG.max(4 * usual).max(computing)
}

/// Since when each member has been behind.
#[derive(Debug, Default)]
pub(crate) struct Laggards {
    since: BTreeMap<PeerId, Time>,
}

impl Laggards {
    /// Takes what is known of each other member, none of which computes. Those that have been behind for as long as given.
    pub fn judge(&mut self, others: &BTreeMap<PeerId, Ways>, now: Time, long: Duration) -> BTreeSet<PeerId> {
        let whole = others.values().filter(|ways| ways.are_whole()).count();
        // Of the others but the one that is behind.
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

    /// Whether the last of these others is too slow if each has got so many of a hundred pieces, second by second.
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
        // The only other one: whoever goes on alone has nobody to be faster with.
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
