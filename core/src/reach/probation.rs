//! How long a peer that was excluded repeatedly waits until it may be a member again. Each return may cost the
//! others as much as its last failure, so a peer that fails again and again comes back ever more rarely.

use crate::base::id::PeerId;
use crate::base::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The wait after a second exclusion. It doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_secs(4);
/// Most doublings: nine minutes.
const DOUBLINGS: u32 = 7;
/// Most doublings if the others cannot train without it: a minute. Then its return costs them only the time in
/// which another peer could take its place.
const WAITING_DOUBLINGS: u32 = 4;
/// A peer that was not excluded for this long starts afresh.
const FORGIVEN: Duration = Duration::from_secs(1200);
/// Peers remembered, the last excluded first.
const REMEMBERED: usize = 256;

#[derive(Clone, Copy, Debug)]
struct Exclusions {
    count: u32,
    last: Time,
}

/// Recent exclusions by peer.
#[derive(Debug, Default)]
pub(crate) struct Probation(BTreeMap<PeerId, Exclusions>);

impl Probation {
    /// Notes an exclusion, or another failure.
    pub fn failed(&mut self, peer: PeerId, now: Time) {
        self.0.retain(|_, e| now - e.last < FORGIVEN);
        if self.0.len() >= REMEMBERED && !self.0.contains_key(&peer) {
            let oldest = self.0.iter().min_by_key(|(_, e)| e.last).map(|(peer, _)| *peer);
            oldest.and_then(|oldest| self.0.remove(&oldest));
        }
        let before = self.0.get(&peer).map_or(0, |e| e.count);
        let (count, last) = (before + 1, now);
        self.0.insert(peer, Exclusions { count, last });
    }

    /// Whether a peer may be a member now, of a run that `trains` without it or does not.
    pub fn is_over(&self, peer: PeerId, trains: bool, now: Time) -> bool {
        self.until(peer, trains).is_none_or(|until| now >= until)
    }

    /// When a peer may be a member again, if it has to wait.
    pub fn until(&self, peer: PeerId, trains: bool) -> Option<Time> {
        let exclusions = self.0.get(&peer).filter(|e| e.count >= 2)?;
        let most = if trains { DOUBLINGS } else { WAITING_DOUBLINGS };
        Some(exclusions.last + FIRST_WAIT * (1 << (exclusions.count - 2).min(most)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fails_again_and_again_comes_back_ever_more_seldom() {
        let (peer, second) = (PeerId([1; 32]), |s: u64| Time(s * 1_000_000));
        let mut probation = Probation::default();
        assert!(probation.is_over(peer, true, second(0)));
        for (at, wait) in [(1, 0), (10, 4), (20, 8), (40, 16)] {
            probation.failed(peer, second(at));
            assert!(probation.is_over(peer, true, second(at + wait)));
            assert_eq!(
                probation.is_over(peer, true, Time(second(at + wait).0 - 1)),
                wait == 0
            );
        }
        (0..20).for_each(|_| probation.failed(peer, second(100)));
        assert!(!probation.is_over(peer, true, second(600)));
        assert!(probation.is_over(peer, true, second(612)));
        assert!(
            !probation.is_over(peer, false, second(163)),
            "where it is waited for"
        );
        assert!(probation.is_over(peer, false, second(164)));
        probation.failed(peer, second(3000));
        assert!(probation.is_over(peer, true, second(3000)), "that was long ago");
        (0..=255).for_each(|name| probation.failed(PeerId([name; 32]), second(3001)));
        probation.failed(PeerId([1; 32]), second(3002));
        assert!(probation.0.len() <= REMEMBERED);
    }
}
