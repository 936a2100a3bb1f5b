//! Independent jobs, which a driver may run at the same time on its threads. No result may depend on that.

use std::fmt;

/// One of them.
pub type Job<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Runs jobs.
pub trait Jobs: fmt::Debug + Send + Sync {
    /// How many it runs at the same time.
    fn width(&self) -> usize;

    /// Runs these jobs, and returns when all are done.
    fn run(&self, jobs: Vec<Job<'_>>);
}

/// Runs one job after the other.
#[derive(Debug)]
pub struct InTurn;

impl Jobs for InTurn {
    fn width(&self) -> usize {
        1
    }

    fn run(&self, jobs: Vec<Job<'_>>) {
        jobs.into_iter().for_each(|job| job());
    }
}
