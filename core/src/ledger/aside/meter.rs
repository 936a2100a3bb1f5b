//! How many samples a second some members count, and what part of that is left when some are gone. It knows no
//! trials.

use serde::{Deserialize, Serialize};

/// Rates that are compared, at least. Their median counts.
const RATES: usize = 5;

/// A rate is measured over at least this long, since a single short round says little. A guess.
const SPAN_US: u64 = 100_000;

/// When there are twice as many rates, each two become one of twice the span, up to this. So the median is of up to
/// eight minutes, or of all the time since the members were others. A newcomer that shares a machine with a member
/// slows it down before it joins: while it builds kernels, tries its device out and fetches the state.
const LONGEST_SPAN_US: u64 = 512 * SPAN_US;

/// A measurement of this length is enough, however few its rounds.
const LONG_US: u64 = 5_000_000;

/// Measures how many samples a second the present members count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Meter {
    /// Measured, but not part of a rate yet.
    samples: u64,
    us: u64,
    /// The time that a rate is measured over, and the last rates, in samples per 1,000 seconds.
    span_us: u64,
    rates: Vec<u64>,
    /// Total time of the measurement.
    total_us: u64,
    /// The rate of those members that were measured before and are still there, until their own is known.
    before: Option<u64>,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            samples: 0,
            us: 0,
            span_us: SPAN_US,
            rates: Vec::new(),
            total_us: 0,
            before: None,
        }
    }
}

impl Meter {
    pub(super) fn add(&mut self, samples: u64, us: u64) {
        self.samples = self.samples.saturating_add(samples);
        self.us = self.us.saturating_add(us);
        self.total_us = self.total_us.saturating_add(us);
        if self.us < self.span_us {
            return;
        }
        self.rates.push(rate(self.samples, self.us));
        (self.samples, self.us) = (0, 0);
        if self.rates.len() < 2 * RATES {
            return;
        }
        if self.span_us == LONGEST_SPAN_US {
            self.rates.remove(0);
        } else {
            let pairs = self.rates.chunks(2).map(|pair| pair[0].midpoint(pair[1]));
            self.rates = pairs.collect();
            self.span_us *= 2;
        }
    }

    pub(super) fn best(&self) -> u64 {
        self.rates.iter().max().copied().unwrap_or(0)
    }

    /// The rate, if at least `least` were measured: the median of enough rates, and otherwise the best, since the
    /// first ones may be slow.
    pub(super) fn rate(&self, least: usize) -> Option<u64> {
        let mut sorted = self.rates.clone();
        sorted.sort_unstable();
        match sorted.len() {
            enough if enough >= RATES => Some(sorted[enough / 2]),
            some if some >= least && self.total_us >= LONG_US => Some(self.best()),
            _ => None,
        }
    }

    /// The rate that newcomers are compared with.
    pub(super) fn usual(&self) -> Option<u64> {
        self.rate(1).or(self.before)
    }

    /// Begins again with the members that stay.
    pub(super) fn renew(&mut self, stay: Part) {
        *self = Self {
            before: self.usual().map(|rate| stay.of(rate)),
            ..Self::default()
        };
    }

    /// Goes on with the members that stay, as if the others had not been there.
    pub(super) fn scale(&mut self, stay: Part) {
        self.samples = stay.of(self.samples);
        self.rates.iter_mut().for_each(|rate| *rate = stay.of(*rate));
    }

    /// Number of rates.
    pub(super) fn count(&self) -> usize {
        self.rates.len()
    }

    /// Whether records can lead to it.
    pub(super) fn is_sound(&self) -> bool {
        self.rates.len() < 2 * RATES && (SPAN_US..=LONGEST_SPAN_US).contains(&self.span_us)
    }
}

/// A part of all work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    pub part: u64,
    pub all: u64,
}

impl Part {
    pub(super) fn of(self, value: u64) -> u64 {
        let part = u128::from(value) * u128::from(self.part) / u128::from(self.all.max(1));
        part as u64
    }
}

/// Samples in 1,000 seconds.
pub(super) fn rate(samples: u64, us: u64) -> u64 {
    let rate = u128::from(samples) * 1_000_000_000 / u128::from(us.max(1));
    rate.min(u64::MAX.into()) as u64
}
