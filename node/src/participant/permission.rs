//! Decides whether a peer may compute on this machine now, and if not, why: the owner's rules against the state of the
//! machine.
//!
//! To pause a peer by hand its owner leaves a file in its folder. It holds until it is removed, even for a peer started
//! later.

use crate::options::{Hours, When};
use crate::participant::error::Error;
use crate::participant::senses::{Machine, Senses};
use crate::store::save_now;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often it is checked.
pub const LOOK: Duration = Duration::from_secs(1);

/// A machine is busy from this share of its capacity that others use: BOINC's default.
const BUSY: f64 = 0.25;

/// A busy machine stays busy down to this share, which is lower so that a load near the limit does not make the peer
/// come and go. A guess.
const STILL_BUSY: f64 = 0.15;

/// Why the peer may not compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// Its owner paused it.
    Hand,
    /// The time of the day.
    Hours(Hours),
    /// It is not plugged in.
    Battery,
    /// Others use it.
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

/// The owner's rules, and the sensors to check them.
pub struct Permission {
    when: When,
    file: PathBuf,
    senses: Senses,
    last: Option<Against>,
}

impl Permission {
    /// For a peer in a folder, whose computing has this niceness.
    ///
    /// # Errors
    ///
    /// If this system does not report what the rules need.
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

    /// The peer's folder has another path by now.
    pub fn follow(&mut self, folder: &Path) {
        self.file = file(folder);
    }

    /// Why the peer may not compute now.
    pub fn against(&mut self) -> Option<Against> {
        let machine = self.senses.look(&self.when);
        self.last = against(&self.when, self.file.exists(), &machine, self.last);
        self.last
    }

    /// While the peer waits all is saved, as anybody who asks for that is told.
    pub fn has_saved(&self) {
        if let Some(folder) = self.file.parent() {
            let _ = std::fs::remove_file(save_now::file(folder));
        }
    }

    /// Waits until it may not.
    pub async fn withdrawn(&mut self) {
        while self.against().is_none() {
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Why the peer may not compute on a machine in this state. `last` is the previous reason.
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

/// The file that pauses a peer.
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
            // It must become quieter than before.
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
            // Unknown means not allowed.
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
