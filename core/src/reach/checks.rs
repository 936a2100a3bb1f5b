//! Limits the signature checks that peers outside of the run can cause. A check costs as much as many other frames,
//! and anybody may send signatures. So all these peers share a budget, and those that have used little go first. Newcomers
//! that are followed up have places of their own, so a flood by others cannot silence one that uses little.

use crate::base::id::PeerId;
use crate::base::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// Checks for all peers together within a second: about a fifteenth of a core.
const PER_SECOND: f64 = 1024.0;

/// Checks that may be saved up. A guess: two partitions of sixteen members each meet with 256.
const BURST: f64 = 2048.0;

/// Checks of the burst that are kept for peers that have used little.
const KEPT: f64 = 512.0;

/// A peer that has used at most this many goes first. A guess: enough for ten requests to follow.
const LITTLE: f64 = 64.0;

/// Most checks of a peer that are remembered, so that one that floods no more is soon heard again.
const MOST: f64 = 4.0 * LITTLE;

/// Checks of each peer that are forgotten per second. With the links that a node accepts, peers that stay below this
/// do not use up what is kept for them.
const FORGOTTEN_PER_SECOND: f64 = 16.0;

/// How long a peer may send more than is checked before its link is cut.
const PATIENCE: Duration = Duration::from_secs(10);

/// Most peers whose use is remembered: several times the links of a node. Others wait behind them.
const REMEMBERED: usize = 256;

/// The answer to a peer that wants signatures checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Budget {
    /// Check them.
    Granted,
    /// Drop the message.
    Spent,
    /// Drop the message and cut the link: it has been so for long.
    Overdrawn,
}

/// Checks so far.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    /// Checks in use of all that may be saved up.
    used: f64,
    at: Time,
    by: BTreeMap<PeerId, Use>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Use {
    checks: f64,
    /// Since when checks are scarce and it wants too many.
    over_since: Option<Time>,
}

impl Checks {
    /// Asks for this many checks for a peer. `has_place`: it has one of the limited places of newcomers.
    pub fn take(&mut self, peer: PeerId, has_place: bool, checks: usize, now: Time) -> Budget {
        let passed = (now - self.at).as_secs_f64();
        self.at = now;
        self.used = (self.used - PER_SECOND * passed).max(0.0);
        self.by.retain(|_, used| {
            used.checks -= FORGOTTEN_PER_SECOND * passed;
            used.checks > 0.0
        });
        let is_known = has_place || self.by.contains_key(&peer) || self.by.len() < REMEMBERED;
        let mut own = self.by.get(&peer).copied().unwrap_or_default();
        let checks = checks as f64;
        own.checks = (own.checks + checks).min(MOST);
        let is_little = is_known && own.checks <= LITTLE;
        let limit = match is_little {
            true if has_place => f64::INFINITY,
            true => BURST,
            false => BURST - KEPT,
        };
        let budget = if self.used + checks <= limit {
            self.used += checks;
            let is_scarce = self.used > BURST / 2.0;
            own.over_since = own.over_since.filter(|_| is_scarce && !is_little);
            Budget::Granted
        } else if now - *own.over_since.get_or_insert(now) < PATIENCE {
            Budget::Spent
        } else {
            Budget::Overdrawn
        };
        if is_known {
            self.by.insert(peer, own);
        }
        budget
    }

    /// The number of peers that it remembers.
    pub fn len(&self) -> usize {
        self.by.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn named(number: u8) -> PeerId {
        PeerId([number; 32])
    }

    #[test]
    fn a_flood_is_checked_within_a_budget_and_cut_off_after_ten_seconds() {
        let mut checks = Checks::default();
        let (mut granted, mut cut_at) = (0, None);
        for at in (0..20 * SECOND).step_by(100) {
            match checks.take(named(1), false, 5, Time(at)) {
                Budget::Granted => granted += 5,
                Budget::Spent => assert_eq!(cut_at, None),
                Budget::Overdrawn => cut_at = cut_at.or(Some(at)),
            }
        }
        let seconds = cut_at.expect("it is cut off") / SECOND;
        assert!((10..13).contains(&seconds), "{seconds}");
        assert!(granted < 20 * PER_SECOND as u64 + BURST as u64, "{granted}");
    }

    #[test]
    fn those_who_need_little_are_heard_through_a_flood_of_many() {
        let mut checks = Checks::default();
        let newcomer = named(200);
        for at in (0..30 * SECOND).step_by(1000) {
            // Sixty links together ask for fifty times as much as there is.
            let _ = checks.take(named((at / 1000 % 60) as u8), false, 50, Time(at));
            if at % SECOND == 0 {
                assert_eq!(checks.take(newcomer, false, 5, Time(at)), Budget::Granted, "{at}");
            }
        }
    }

    #[test]
    fn a_newcomer_with_a_place_is_heard_through_a_flood_of_new_names() {
        let mut checks = Checks::default();
        for number in 0..30_000u32 {
            let mut name = [0; 32];
            name[..4].copy_from_slice(&number.to_le_bytes());
            let at = Time(u64::from(number) * 1000);
            let _ = checks.take(PeerId(name), false, 50, at);
            if number % 1000 == 999 {
                assert_eq!(checks.take(named(200), true, 1, at), Budget::Granted, "{number}");
            }
        }
        // One that floods itself is not.
        while checks.take(named(201), true, 50, Time(30 * SECOND)) == Budget::Granted {}
        assert!(checks.len() <= REMEMBERED + 2);
    }

    #[test]
    fn who_was_over_for_a_moment_is_not_cut_off_later() {
        let mut checks = Checks::default();
        while checks.take(named(1), false, 50, Time(0)) == Budget::Granted {}
        let later = Time(200 * SECOND);
        assert_eq!(checks.take(named(1), false, 50, later), Budget::Granted);
        while checks.take(named(1), false, 50, later) == Budget::Granted {}
        assert_eq!(checks.take(named(1), false, 50, later), Budget::Spent);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut checks = Checks::default();
        for number in 0..1000u32 {
            let mut name = [0; 32];
            name[..4].copy_from_slice(&number.to_le_bytes());
            let _ = checks.take(PeerId(name), false, 1, Time(0));
        }
        assert_eq!(checks.len(), REMEMBERED);
    }
}
