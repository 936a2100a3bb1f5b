//! Counts what this user's peers have given to runs on this machine, over all runs and folders.
//!
//! It is one small file, which processes change one after the other. Losing it loses only a number to be proud of, so
//! nothing waits for it and nothing fails with it.

use annulus_net::files::{FileError, read_limited, write_atomic};
use annulus_net::open;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// The file.
const NAME: &str = "given.json";

/// Time between two updates.
const ADD_EVERY: Duration = Duration::from_secs(60);

/// Runs whose names are remembered, so that none counts twice. An older run counts again.
const REMEMBERED: usize = 64;

/// A longer file is not one of ours.
const LIMIT: usize = 64 << 10;

/// What was given so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Given {
    /// Samples in counted contributions.
    pub samples: u64,
    /// Seconds of computing them.
    pub seconds: f64,
    /// How many runs.
    pub runs: u64,
    /// The names of the most recent runs.
    recent: Vec<String>,
}

impl Given {
    /// The totals in a folder; zero if there is no file.
    pub fn load(folder: &Path) -> Self {
        let bytes = read_limited(&folder.join(NAME), LIMIT).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    fn add(&mut self, more: &Tally) {
        if !self.recent.contains(&more.run) {
            self.runs += 1;
            self.recent.push(more.run.clone());
            let old = self.recent.len().saturating_sub(REMEMBERED);
            self.recent.drain(..old);
        }
        self.samples += more.samples;
        self.seconds += more.seconds;
    }
}

/// The samples and time that one peer has given to one run since the last update.
#[derive(Clone, Debug)]
pub struct Tally {
    run: String,
    samples: u64,
    seconds: f64,
    since: Instant,
}

impl Tally {
    /// For a run of this name.
    pub fn new(run: String) -> Self {
        Self {
            run,
            samples: 0,
            seconds: 0.0,
            since: Instant::now(),
        }
    }

    /// Adds a round in which this many samples of this peer counted, and the seconds that it computed.
    pub fn count(&mut self, samples: u64, seconds: f64) {
        self.samples += samples;
        if samples > 0 && seconds.is_finite() {
            self.seconds += seconds;
        }
    }

    /// The amount to add to the file, if an update is due.
    pub fn due(&mut self) -> Option<Self> {
        (self.since.elapsed() >= ADD_EVERY).then(|| self.take()).flatten()
    }

    /// The amount to add to the file, if any.
    pub fn take(&mut self) -> Option<Self> {
        let next = Self::new(self.run.clone());
        Some(std::mem::replace(self, next)).filter(|tally| tally.samples > 0)
    }

    /// Adds it to the file in a folder, once no other process uses it.
    ///
    /// # Errors
    ///
    /// If the disk fails.
    pub fn keep(&self, folder: &Path) -> Result<(), FileError> {
        let failed = |error| FileError::new(folder, error);
        std::fs::create_dir_all(folder).map_err(failed)?;
        let lock = open::lock_file(&folder.join("lock")).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let mut given = Given::load(folder);
        given.add(self);
        let text = serde_json::to_vec(&given)
            .map_err(io::Error::from)
            .map_err(failed)?;
        write_atomic(&folder.join(NAME), |file| file.write_all(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn all_that_is_given_adds_up_over_runs_and_processes() {
        let scratch = Scratch::new();
        let folder = scratch.0.join("annulus");
        assert_eq!(Given::load(&folder), Given::default());
        let give = |run: usize| {
            let mut tally = Tally::new(run.to_string());
            assert!(tally.take().is_none() && tally.due().is_none());
            tally.count(3, 0.5);
            tally.count(1, f64::NAN);
            tally.count(0, 7.0);
            tally.take().unwrap().keep(&folder).unwrap();
            assert!(tally.take().is_none(), "it counts once");
        };
        let processes: Vec<_> = (0..4)
            .map(|n| {
                let folder = folder.clone();
                std::thread::spawn(move || {
                    let mut tally = Tally::new("shared".into());
                    tally.count(n, 1.0);
                    tally.take().iter().for_each(|tally| tally.keep(&folder).unwrap());
                })
            })
            .collect();
        processes.into_iter().for_each(|process| process.join().unwrap());
        (0..2 * REMEMBERED).for_each(give);
        (REMEMBERED..2 * REMEMBERED).for_each(give);
        let given = Given::load(&folder);
        let times = 3 * REMEMBERED as u64;
        assert_eq!(given.samples, 6 + 4 * times);
        assert_eq!(given.seconds, 3.0 + 0.5 * times as f64);
        assert_eq!(given.runs, 1 + 2 * REMEMBERED as u64);
        assert_eq!(given.recent.len(), REMEMBERED);
    }
}
