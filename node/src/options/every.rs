//! When a peer saves its state.

use std::time::Duration;

/// How often a peer saves its state: by rounds or by time, whichever comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Every {
    /// At rounds that are multiples of this number. 0: not by rounds.
    pub rounds: u64,
    /// After this much time. None: not by time.
    pub time: Option<Duration>,
}

impl Default for Every {
    fn default() -> Self {
        Self::rounds(1000)
    }
}

impl Every {
    /// Every N rounds, and after ten minutes at the latest. The ten minutes are a guess at how much work a user is
    /// willing to lose.
    pub fn rounds(rounds: u64) -> Self {
        let time = (rounds > 0).then_some(Duration::from_secs(600));
        Self { rounds, time }
    }

    /// After this many seconds, and not by rounds.
    pub fn seconds(seconds: u64) -> Self {
        Self {
            rounds: 0,
            time: Some(Duration::from_secs(seconds)),
        }
    }

    /// Whether a save is due after `round`, when the last one was `since` ago.
    pub fn is_due(&self, round: u64, since: Duration) -> bool {
        (self.rounds > 0 && round.is_multiple_of(self.rounds)) || self.time.is_some_and(|time| since >= time)
    }
}
