//! The speed of this peer's device, as announced to others.
//!
//! A device takes some time for any share (kernels are launched, data is copied), and more for each sample. By its
//! plain rate, a member with a small share would look slow, get an even smaller one, and end with none although its
//! device is as good as the others'. So a peer announces the speed that its device would have with an equal share.
//! Shares of different sizes show how much of the time is constant.

use crate::ledger::check::MAX_SPEED;
use std::time::Duration;

/// A round that takes this much longer than announced is a nuisance to all.
const NOTICEABLE: Duration = Duration::from_millis(250);

/// Number of size classes: each is up to twice the one before.
const SIZES: usize = u32::BITS as usize;

/// If the device has become faster or slower, the measurements of other sizes move by this fraction of the change.
/// A guess.
const OTHERS: f64 = 0.125;

/// A share, and its time in seconds.
#[derive(Clone, Copy, Debug)]
struct Point {
    samples: f64,
    seconds: f64,
}

/// The measurements of a device.
#[derive(Debug, Default)]
pub(crate) struct Speed {
    /// Samples per 1,000 seconds, with an equal share.
    told: Option<u64>,
    /// The last share of each size.
    points: [Option<Point>; SIZES],
}

impl Speed {
    /// Samples per 1,000 seconds, at least 1, if there is a measurement.
    pub fn told(&self) -> Option<u64> {
        self.told
    }

    /// Takes the result of a first trial, before any share.
    pub fn warm(&mut self, speed: u64) {
        self.told.get_or_insert(speed.clamp(1, MAX_SPEED));
    }

    /// Takes the result of a trial with an equal share, from a device without a share of its own.
    pub fn tried(&mut self, samples: f64, took: Duration) {
        self.told = Some(per_1000_s(samples, took.as_secs_f64()) as u64);
    }

    /// Takes the time of a share, where an equal share would have `equal` samples.
    pub fn saw(&mut self, samples: f64, took: Duration, equal: f64) {
        let seconds = took.as_secs_f64().max(1e-6);
        self.note(samples, seconds);
        let (now, is_small) = match self.line() {
            Some(line) => {
                let part = line(equal) / line(samples);
                (per_1000_s(equal, seconds * part), false)
            }
            None => (per_1000_s(samples, seconds), samples < equal / 2.0),
        };
        // Each new measurement counts for a quarter: shares follow a change within a few rounds, but not each
        // hiccup.
        let smooth = self.told.map_or(now, |old| 0.75 * old as f64 + 0.25 * now);
        // But others wait for a member that promises far more than it does.
        let overstated = now < smooth / 2.0 && took > NOTICEABLE;
        // One small share says nothing about a larger one.
        let least = self.told.filter(|_| is_small).unwrap_or(1);
        self.told = Some(if overstated {
            now as u64
        } else {
            (smooth as u64).max(least)
        });
    }

    /// Notes a measurement. A change of the device's speed applies to shares of other sizes too.
    fn note(&mut self, samples: f64, seconds: f64) {
        let place = (samples.max(1.0) as u32).ilog2() as usize;
        if let Some(line) = self.line() {
            let change = (seconds / line(samples)).clamp(0.5, 2.0);
            let others = self.points.iter_mut().enumerate().filter(|(at, _)| *at != place);
            let change = 1.0 + OTHERS * (change - 1.0);
            others.for_each(|(_, point)| *point = point.map(|p| p.times(change)));
        }
        let here = &mut self.points[place];
        let seconds = here.map_or(seconds, |here| 0.75 * here.seconds + 0.25 * seconds);
        *here = Some(Point { samples, seconds });
    }

    /// The time of a share by its samples, if two sizes were measured.
    fn line(&self) -> Option<impl Fn(f64) -> f64 + use<>> {
        let mut known = self.points.iter().flatten().copied();
        let (small, large) = (known.next()?, known.next_back()?);
        let sample = (large.seconds - small.seconds).max(0.0) / (large.samples - small.samples);
        let any = (small.seconds - sample * small.samples).max(0.0);
        Some(move |samples| any + sample * samples)
    }
}

impl Point {
    fn times(self, factor: f64) -> Self {
        let seconds = self.seconds * factor;
        Self { seconds, ..self }
    }
}

/// Samples per 1,000 seconds, at least 1.
fn per_1000_s(samples: f64, seconds: f64) -> f64 {
    (samples * 1000.0 / seconds.max(1e-6)).clamp(1.0, MAX_SPEED as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The speed that a device announces after shares of these sizes, if it takes `any` microseconds for any share
    /// and `sample` for each sample.
    fn told(any: u64, sample: u64, shares: &[u64], equal: f64) -> u64 {
        let mut speed = Speed::default();
        for samples in shares {
            let took = Duration::from_micros(any + sample * samples);
            speed.saw(*samples as f64, took, equal);
        }
        speed.told().unwrap()
    }

    #[test]
    fn a_small_share_does_not_make_a_device_look_slow() {
        let few: Vec<u64> = [1, 4].into_iter().chain([4; 40]).collect();
        let many = [32; 40];
        let [small, equal] = [&few[..], &many].map(|shares| told(1000, 1, shares, 32.0));
        assert!(small.abs_diff(equal) * 50 < equal, "{small} {equal}");
    }

    #[test]
    fn a_slow_device_does_not_look_fast() {
        let shares: Vec<u64> = [1, 8].into_iter().chain([8; 40]).collect();
        let told = told(0, 1000, &shares, 32.0);
        assert!(told.abs_diff(1_000_000) < 20_000, "{told}");
    }

    #[test]
    fn a_first_share_of_one_sample_does_not_undo_the_trial() {
        let mut speed = Speed::default();
        speed.warm(30_000_000);
        speed.saw(1.0, Duration::from_millis(1), 32.0);
        assert_eq!(speed.told(), Some(30_000_000));
        speed.saw(1.0, Duration::from_secs(1), 32.0);
        assert_eq!(speed.told(), Some(1000), "others would wait for it");
    }

    #[test]
    fn speeds_follow_a_device_that_becomes_slower() {
        let mut speed = Speed::default();
        let at = |ms: u64| Duration::from_millis(ms);
        for samples in [1.0, 32.0] {
            speed.saw(samples, at(1 + samples as u64), 16.0);
        }
        (0..40).for_each(|_| speed.saw(8.0, at(90), 16.0));
        let told = speed.told().unwrap();
        assert!((80_000..120_000).contains(&told), "170 ms for 16: {told}");
    }
}
