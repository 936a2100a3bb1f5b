//! How often and for how long a ring may pause, so that a newcomer behind a slow line gets the state at rest. Each member
//! judges by its own clock: a member that claims to pause for longer counts as too slow.

use crate::base::id::PeerId;
use crate::base::time::Time;
use crate::run::config::Manifest;
use std::collections::BTreeMap;
use std::time::Duration;

/// When each member last began to pause for a newcomer, as far as this peer knows.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    since: BTreeMap<PeerId, Time>,
}

/// Longest pause, and the time from the beginning of one to that of the next. Guesses: a few megabytes of state over a
/// home line, which costs about as much as a trial. A run without trials waits longer for its newcomers, as its founder
/// chose.
fn bounds(manifest: &Manifest) -> (Duration, Duration) {
    let seconds = Duration::from_secs;
    match manifest.tries_newcomers() {
        true => (seconds(6), seconds(120)),
        false => (seconds(20), seconds(80)),
    }
}

impl Pauses {
    /// Until when this peer may pause now, if it may. Members pause together or one after the other, not each for itself.
    pub fn mine(&mut self, me: PeerId, manifest: &Manifest, now: Time) -> Option<Time> {
        let (longest, apart) = bounds(manifest);
        self.since.retain(|_, since| now - *since <= apart);
        let first = self.since.values().copied().min().unwrap_or(now);
        let until = first + longest;
        if now >= until {
            return None;
        }
        self.since.entry(me).or_insert(first);
        Some(until)
    }

    /// Whether a member that says that it pauses may. This peer may have heard of the pause `late`.
    pub fn allows(&mut self, peer: PeerId, manifest: &Manifest, late: Duration, now: Time) -> bool {
        let (longest, apart) = bounds(manifest);
        // That member's clock began earlier, so its next pause may seem to come too soon.
        let apart_of = |of: &PeerId| if *of == peer { apart / 2 } else { apart };
        self.since.retain(|of, since| now - *since <= apart_of(of));
        let since = *self.since.entry(peer).or_insert(now);
        now - since < longest + late
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::config::Layout;

    const ANN: PeerId = PeerId([1; 32]);
    const BEN: PeerId = PeerId([2; 32]);

    fn manifest(stand_aside: bool) -> Manifest {
        let mut manifest = Manifest::new(Layout::flat(12));
        manifest.stand_aside = stand_aside;
        manifest
    }

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000)
    }

    #[test]
    fn members_share_one_pause() {
        let (mut pauses, manifest) = (Pauses::default(), manifest(true));
        assert!(pauses.allows(BEN, &manifest, Duration::ZERO, at(0)));
        assert_eq!(pauses.mine(ANN, &manifest, at(4)), Some(at(6)));
        assert_eq!(pauses.mine(ANN, &manifest, at(6)), None);
        assert_eq!(pauses.mine(ANN, &manifest, at(120)), None);
        assert_eq!(pauses.mine(ANN, &manifest, at(121)), Some(at(127)));
    }

    /// One after the other pauses for the whole of what it may, and the clock of who watches begins late.
    #[test]
    fn a_member_that_keeps_to_its_pauses_is_never_too_slow() {
        for stand_aside in [true, false] {
            let manifest = manifest(stand_aside);
            let (mut own, mut seen) = (Pauses::default(), Pauses::default());
            let late = Duration::from_secs(1);
            for second in 0..1000 {
                if own.mine(ANN, &manifest, at(second)).is_some() {
                    assert!(seen.allows(ANN, &manifest, late, at(second + 3)), "{second}");
                }
            }
        }
    }

    #[test]
    fn a_member_that_pauses_for_ever_is_too_slow() {
        for stand_aside in [true, false] {
            let (mut seen, manifest) = (Pauses::default(), manifest(stand_aside));
            let allowed = |second| seen.allows(BEN, &manifest, Duration::from_secs(1), at(second));
            assert!((0..30).map(allowed).any(|allowed| !allowed));
        }
    }
}
