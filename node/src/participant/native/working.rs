//! This peer's part of a round: how far it is with it, told while that takes long, and what comes of it.

use super::NativeHost;
use crate::events::Event;
use crate::net::quic::QuicLink;
use crate::participant::compute::ComputeResult;
use crate::participant::driver::Driver;
use crate::participant::host::Host;
use crate::trainer::WorkerError;
use annulus_core::Round;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Parts that take less are not told of.
const LONG: Duration = Duration::from_secs(4);

/// Between two times of telling.
const AGAIN: Duration = Duration::from_secs(10);

/// The part of a round that is in work, if any is.
pub(super) struct Working {
    /// Samples that the device was given, of all rounds.
    given: Arc<AtomicU64>,
    part: Option<Part>,
}

/// A part of a round.
struct Part {
    round: Round,
    /// How many samples it has; 0 where a device works on some steps of a model and is given one microbatch after the other.
    samples: u64,
    /// How many the device had been given before.
    before: u64,
    since: Instant,
    told: Option<Instant>,
}

impl Working {
    /// Nothing yet, for a device that counts its samples in `given`.
    pub fn new(given: Arc<AtomicU64>) -> Self {
        Self { given, part: None }
    }

    /// A part of `samples` samples begins, unless the round is in work already.
    pub fn begin(&mut self, round: Round, samples: u64, now: Instant) {
        if self.part.as_ref().is_none_or(|part| part.round != round) {
            self.part = Some(Part {
                round,
                samples,
                before: self.given.load(Ordering::Relaxed),
                since: now,
                told: None,
            });
        }
    }

    /// The device has made something: its part, unless that comes in microbatches.
    pub fn made(&mut self) {
        self.part.take_if(|part| part.samples > 0);
    }

    /// The round is over.
    pub fn end(&mut self) {
        self.part = None;
    }

    /// The event to tell now, if it takes long.
    pub fn told(&mut self, now: Instant) -> Option<Event> {
        let given = self.given.load(Ordering::Relaxed);
        let part = self.part.as_mut()?;
        let due = part.told.map_or(part.since + LONG, |told| told + AGAIN);
        if now < due {
            return None;
        }
        part.told = Some(now);
        Some(Event::Computing {
            round: part.round,
            samples: part.samples,
            done: part.done(given),
            seconds: (now - part.since).as_secs_f64(),
        })
    }

    /// The time that it will still take, if that can be told.
    pub fn left(&self, now: Instant) -> Option<Duration> {
        let part = self.part.as_ref()?;
        let done = part.done(self.given.load(Ordering::Relaxed))?;
        let left = part.samples.saturating_sub(done) as f64 / done.max(1) as f64;
        Some((now - part.since).mul_f64(left))
    }
}

impl Part {
    /// Samples that are done; none where a device was given all at once and does not say.
    fn done(&self, given: u64) -> Option<u64> {
        let done = given.saturating_sub(self.before);
        (done > 0 && done < self.samples).then_some(done)
    }
}

impl NativeHost<'_> {
    /// Takes the device's result.
    pub(super) fn on_computed(&mut self, result: ComputeResult, driver: &mut Driver<QuicLink>) {
        self.working.made();
        match result {
            ComputeResult::Made(input) => {
                self.refused.take_if(|why| *why == WorkerError::Late);
                self.feed(input, driver);
            }
            ComputeResult::Refused(input, why) => {
                // It may be late for many rounds.
                if why != WorkerError::Late || self.refused.as_ref() != Some(&why) {
                    let more = self.demand.as_ref().filter(|_| why == WorkerError::Late);
                    let more = more
                        .and_then(|demand| demand.why())
                        .map(|why| format!(" ({why})"));
                    let more = more.unwrap_or_default();
                    self.warn(format!("this peer's contribution does not count: {why}{more}"));
                }
                self.refused = Some(why);
                self.feed(input, driver);
            }
            ComputeResult::Failed(input, why) => {
                self.fail(why.into(), driver);
                // The others wait for this peer's part of the round, which is its last.
                if let Some(input) = input {
                    self.feed(input, driver);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_part_is_told_of_and_a_short_one_is_not() {
        let given = Arc::new(AtomicU64::new(70));
        let mut working = Working::new(given.clone());
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        assert_eq!(working.told(at(100)), None);
        working.begin(3, 1000, start);
        assert_eq!((working.told(at(3)), working.left(at(3))), (None, None));
        given.fetch_add(200, Ordering::Relaxed);
        // The same round once more changes nothing.
        working.begin(3, 1000, at(5));
        let told = |done, seconds| Event::Computing {
            round: 3,
            samples: 1000,
            done,
            seconds,
        };
        assert_eq!(working.told(at(5)), Some(told(Some(200), 5.0)));
        assert_eq!(working.told(at(9)), None);
        assert_eq!(working.left(at(5)), Some(Duration::from_secs(20)));
        given.fetch_add(800, Ordering::Relaxed);
        assert_eq!(working.told(at(15)), Some(told(None, 15.0)));
        assert_eq!(working.left(at(15)), None);
        working.end();
        assert_eq!(working.told(at(60)), None);
    }
}
