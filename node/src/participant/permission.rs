//! Whether a peer may compute on this machine now, and if not, why: what its owner allows against what the machine is like.
//!
//! Whoever pauses a peer by hand leaves a file in its folder, which holds until it is taken away, also for a peer that is
//! started later.

use crate::options::{Hours, When};
use crate::participant::error::Error;
use crate::participant::senses::{Machine, Senses};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Between two looks.
pub const LOOK: Duration = Duration::from_secs(1);

/// Others' work from which on a machine is not idle, as a part of what it can do: BOINC's default.
const BUSY: f64 = 0.25;

/// Others' work down to which a machine that was not idle still is not: lower, so that a load near the limit does not send the peer to and fro. A guess.
const STILL_BUSY: f64 = 0.15;

/// What stands against computing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// Its owner paused it.
    Hand,
    /// The time of the day.
    Hours(Hours),
    /// It is not plugged in.
    Battery,
    /// It has other work.
    Busy,
}

impl fmt::Display for Against {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hand => f.write_str("paused by hand (`annulus unpause` goes on)"),
            Self::Hours(hours) => write!(f, "only within the hours {hours}"),
            Self::Battery => f.write_str("this machine is not plugged in"),
            Self::Busy => f.write_str("this machine has other work"),
        }
    }
}

/// The owner's will and the means to see whether it is met.
pub struct Permission {
    when: When,
    file: PathBuf,
    senses: Senses,
    last: Option<Against>,
}

impl Permission {
    /// For a peer in a folder, whose computing has so much niceness.
    ///
    /// # Errors
    ///
    /// If this system does not tell what there is to know.
    pub fn new(when: When, folder: &Path) -> Result<Self, Error> {
        let senses = Senses::of_here();
        match senses.missing(&when) {
            Some(what) => Err(Error::Senseless(what)),
            None => Ok(Self {
                when,
                file: file(folder),
                senses,
                last: None,
            }),
        }
    }

    /// What stands against computing now.
    pub fn against(&mut self) -> Option<Against> {
        let machine = self.senses.look(&self.when);
        self.last = against(&self.when, self.file.exists(), &machine, self.last);
        self.last
    }

    /// Waits until something does.
    pub async fn withdrawn(&mut self) {
        while self.against().is_none() {
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// What stands against computing on a machine that is like this, where something may have before.
fn against(when: &When, paused: bool, machine: &Machine, last: Option<Against>) -> Option<Against> {
    let limit = match last {
        Some(Against::Busy) => STILL_BUSY,
        _ => BUSY,
    };
    let hours = when
        .hours
        .filter(|hours| !machine.minute.is_some_and(|now| hours.contains(now)));
    if paused {
        Some(Against::Hand)
    } else if let Some(hours) = hours {
        Some(Against::Hours(hours))
    } else if when.plugged_in && machine.on_battery != Some(false) {
        Some(Against::Battery)
    } else if when.idle && machine.others.is_none_or(|others| others > limit) {
        Some(Against::Busy)
    } else {
        None
    }
}

/// Where a peer looks whether it is paused.
pub fn file(folder: &Path) -> PathBuf {
    folder.join("paused")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_computes_when_all_that_is_asked_for_holds() {
        let hours = "22-7".parse().unwrap();
        let all = When {
            hours: Some(hours),
            plugged_in: true,
            idle: true,
        };
        let night = Machine {
            minute: Some(23 * 60),
            on_battery: Some(false),
            others: Some(0.2),
        };
        let (noon, away) = (Some(12 * 60), Some(true));
        for (paused, machine, last, expected) in [
            (false, night, None, None),
            (true, night, None, Some(Against::Hand)),
            (
                false,
                Machine {
                    minute: noon,
                    ..night
                },
                None,
                Some(Against::Hours(hours)),
            ),
            (
                false,
                Machine {
                    on_battery: away,
                    ..night
                },
                None,
                Some(Against::Battery),
            ),
            (
                false,
                Machine {
                    others: Some(0.3),
                    ..night
                },
                None,
                Some(Against::Busy),
            ),
            // It has to become quieter than it was before.
            (false, night, Some(Against::Busy), Some(Against::Busy)),
            (
                false,
                Machine {
                    others: Some(0.1),
                    ..night
                },
                Some(Against::Busy),
                None,
            ),
            (false, night, Some(Against::Battery), None),
            // What is not known is not allowed.
            (
                false,
                Machine {
                    others: None,
                    ..night
                },
                None,
                Some(Against::Busy),
            ),
            (false, Machine::default(), None, Some(Against::Hours(hours))),
        ] {
            assert_eq!(against(&all, paused, &machine, last), expected, "{machine:?}");
        }
        assert_eq!(against(&When::default(), false, &Machine::default(), None), None);
    }
}
