//! By whom frames get to a peer to which there is no link: what others have said of their links to it, and which of them is
//! the nearest way. Knows nothing of frames.

use crate::base::id::PeerId;
use crate::base::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// After so long a relay that had no link may have found one.
const RELAY_PAUSE: Duration = Duration::from_secs(5);

/// Peers that may pass frames on, as what is known of one that they are for is concerned.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    /// Who has a link to it, and that link's round-trip time.
    open: BTreeMap<PeerId, Duration>,
    /// Who said that it has none, and when.
    closed: BTreeMap<PeerId, Time>,
}

/// Somebody that there is a link to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub peer: PeerId,
    /// Of the link to it.
    pub rtt: Duration,
    /// Who takes its word for what it passes on.
    pub bearing: Bearing,
}

/// Who takes a peer's word for what it passes on, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Bearing {
    /// All members: it was one before the last round too.
    Old,
    /// Who has committed the last round, which let it in. Others that it let in know it only then.
    New,
    /// Nobody.
    Stranger,
}

impl Ways {
    /// This peer has a link of such a round-trip time.
    pub fn open(&mut self, by: PeerId, rtt: Duration) {
        self.closed.remove(&by);
        self.open.insert(by, rtt);
    }

    /// This peer has none.
    pub fn close(&mut self, by: PeerId, now: Time) {
        self.open.remove(&by);
        self.closed.insert(by, now);
    }

    /// Whatever this peer has said may hold no more.
    pub fn forget(&mut self, by: PeerId) {
        self.closed.remove(&by);
        self.open.remove(&by);
    }

    /// The nearest of those that may have a link: first by who takes their word, then who has said so, then by the time there
    /// and back; of equal ones the first.
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

    /// Bytes that others have had it hold.
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
