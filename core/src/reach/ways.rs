//! Chooses the relay to a peer without a link, from what others have said of their links to it. It knows nothing of
//! frames.

use crate::base::id::PeerId;
use crate::base::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// After this time a relay that had no link may have found one.
const RELAY_PAUSE: Duration = Duration::from_secs(5);

/// Possible relays to one peer.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    /// Peers with a link to it, and the round-trip time of that link.
    open: BTreeMap<PeerId, Duration>,
    /// Peers that said they have none, and when.
    closed: BTreeMap<PeerId, Time>,
}

/// A peer with a link to this one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub peer: PeerId,
    /// Round-trip time of that link.
    pub rtt: Duration,
    /// Which members accept frames that it relays.
    pub bearing: Bearing,
}

/// Which members accept frames that a peer relays, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Bearing {
    /// All members: it was one before the last round too.
    Old,
    /// Members that have committed the last round, which admitted it. Others that came in with it know it only from
    /// then on.
    New,
    /// Nobody.
    Stranger,
}

impl Ways {
    /// A peer has a link with this round-trip time.
    pub fn open(&mut self, by: PeerId, rtt: Duration) {
        self.closed.remove(&by);
        self.open.insert(by, rtt);
    }

    /// A peer has no link.
    pub fn close(&mut self, by: PeerId, now: Time) {
        self.open.remove(&by);
        self.closed.insert(by, now);
    }

    /// A peer's statements may not hold any more.
    pub fn forget(&mut self, by: PeerId) {
        self.closed.remove(&by);
        self.open.remove(&by);
    }

    /// The best relay: first by which members accept its frames, then one that has said that it has a link, then by
    /// round-trip time; of equal ones the first.
    pub fn best(&self, candidates: impl Iterator<Item = Candidate>, now: Time) -> Option<PeerId> {
        let usable = |by: PeerId| self.closed.get(&by).is_none_or(|at| now - *at >= RELAY_PAUSE);
        let length = |by: &Candidate| {
            let beyond = self.open.get(&by.peer);
            let whole = by.rtt + beyond.copied().unwrap_or_default();
            (by.bearing, beyond.is_none(), whole)
        };
        let usable = candidates.filter(|by| usable(by.peer));
        usable.min_by_key(length).map(|by| by.peer)
    }

    /// Bytes that it holds on behalf of others.
    pub fn bytes(&self) -> usize {
        self.open.len() * size_of::<(PeerId, Duration)>() + self.closed.len() * size_of::<(PeerId, Time)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_way_is_taken_of_those_that_may_be_open() {
        let name = |i: u8| PeerId([i; 32]);
        let ms = Duration::from_millis;
        let near = |i, rtt, bearing| Candidate {
            peer: name(i),
            rtt: ms(rtt),
            bearing,
        };
        let mut ways = Ways::default();
        let best = |ways: &Ways, s: u64| {
            let all = [
                near(1, 90, Bearing::Old),
                near(2, 40, Bearing::Old),
                near(3, 20, Bearing::Old),
                near(4, 1, Bearing::New),
                near(5, 1, Bearing::Stranger),
            ];
            ways.best(all.into_iter(), Time(s * 1_000_000_u64))
                .map(|by| by.0[0])
        };
        assert_eq!(
            best(&ways, 0),
            Some(3),
            "the nearest, and not whom others may not know yet"
        );
        ways.open(name(1), ms(5));
        assert_eq!(best(&ways, 0), Some(1), "who has a link");
        ways.open(name(2), ms(60));
        assert_eq!(best(&ways, 0), Some(1), "95 ms in all, not 100");
        ways.open(name(2), ms(50));
        assert_eq!(best(&ways, 0), Some(2), "90 ms");
        ways.close(name(2), Time(0));
        ways.close(name(1), Time(0));
        ways.close(name(3), Time(0));
        assert_eq!(best(&ways, 4), Some(4));
        assert_eq!(best(&ways, 5), Some(3), "it may have found one");
        ways.close(name(4), Time(0));
        assert_eq!(best(&ways, 1), Some(5));
        ways.close(name(5), Time(0));
        assert_eq!(best(&ways, 1), None);
        ways.forget(name(1));
        assert_eq!(best(&ways, 1), Some(1));
    }
}
