//! Times: as they are typed, and when a peer saves its state.

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

/// A time with its unit, at least a second, in seconds.
pub fn seconds(text: &str) -> Result<u64, String> {
    let unit = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3600,
        Some('d') => 24 * 3600,
        Some('w') => 7 * 24 * 3600,
        _ => 0,
    };
    let number = text.get(..text.len().saturating_sub(1));
    let number = number.and_then(|number| number.parse::<u64>().ok());
    let seconds = number.and_then(|number| number.checked_mul(unit));
    let seconds = seconds.filter(|seconds| *seconds > 0);
    seconds.ok_or_else(|| "write a time of at least a second, as 90s, 30m, 12h, 7d or 4w".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_units() {
        assert_eq!(seconds("90s"), Ok(90));
        assert_eq!(seconds("7d"), Ok(7 * 86_400));
        for wrong in ["", "d", "7", "7 d", "-1d", "0h", "7y", "99999999999999999w", "7ä"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
