//! How often and for how long a ring may pause, so that a newcomer behind a slow line gets the state at rest. Each member
//! judges by its own clock: one that claims to pause for longer counts as too slow.

use crate::base::time::Time;
use crate::run::config::Manifest;
use std::time::Duration;

/// Longest pause of the ring. A guess: a few megabytes of state over a home line, and about the cost of a trial.
const PAUSE: Duration = Duration::from_secs(6);

/// [`PAUSE`] in a run in which a newcomer may slow the others down.
const LONG_PAUSE: Duration = Duration::from_secs(20);

/// The ring pauses for at most this fraction of the time, whoever asks for it.
const REST: u32 = 20;

/// When this ring last paused for a newcomer, as far as this peer knows.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    since: Option<Time>,
}

impl Pauses {
    /// Until when the ring may pause now, if it may. `late` is how much later than others this peer may hear of it.
    pub fn until(&mut self, manifest: &Manifest, late: Duration, now: Time) -> Option<Time> {
        let longest = match manifest.tries_newcomers() {
            true => PAUSE,
            false => LONG_PAUSE,
        };
        let is_past = |since: &mut Time| now - *since > REST * longest;
        self.since.take_if(is_past);
        let until = *self.since.get_or_insert(now) + longest + late;
        (now < until).then_some(until)
    }
}
