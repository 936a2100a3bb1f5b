//! Independent jobs, which a driver may run at the same time on its threads. No result may depend on that.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Elements of a long vector for one job: some hundred microseconds at the speed of memory. A guess.
pub(crate) const PART: usize = 1 << 18;

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

/// Copies a vector to another of the same length.
pub(crate) fn copy(jobs: &dyn Jobs, from: &[f32], to: &mut [f32]) {
    let parts = to.chunks_mut(PART).zip(from.chunks(PART));
    let job = |(to, from): (&'_ mut [f32], &'_ [f32])| to.copy_from_slice(from);
    jobs.run(parts.map(|part| Box::new(move || job(part)) as Job<'_>).collect());
}

/// Whether a property of single elements holds somewhere in a vector, of which `holds` sees parts.
pub(crate) fn any(jobs: &dyn Jobs, values: &[f32], holds: impl Fn(&[f32]) -> bool + Sync) -> bool {
    let found = AtomicBool::new(false);
    let look = |part| {
        if holds(part) {
            found.store(true, Ordering::Relaxed);
        }
    };
    let look = &look;
    jobs.run(
        values
            .chunks(PART)
            .map(|part| Box::new(move || look(part)) as Job<'_>)
            .collect(),
    );
    found.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_vectors_are_worked_on_as_a_whole() {
        for len in [0, 1, PART, PART + 1, 3 * PART - 1] {
            let from: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let mut to = vec![-1.0; len];
            copy(&InTurn, &from, &mut to);
            assert_eq!(to, from);
            for at in [0, len / 2, len.saturating_sub(1)] {
                let is_there = |part: &[f32]| part.contains(&(at as f32));
                assert_eq!(any(&InTurn, &from, is_there), len > 0);
            }
            assert!(!any(&InTurn, &from, |part| part.contains(&-1.0)));
        }
    }
}
