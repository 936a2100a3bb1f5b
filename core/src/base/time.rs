//! Time as the protocol sees it: microseconds since a start that the driver chooses.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A moment. Only differences between moments mean anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, duration: Duration) -> Time {
        Time(
            self.0
                .saturating_add(duration.as_micros().min(u128::from(u64::MAX)) as u64),
        )
    }
}

impl Sub for Time {
    type Output = Duration;
    fn sub(self, earlier: Time) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}
