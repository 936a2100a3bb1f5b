//! Threads that apply rounds to long states, beside the thread that drives the peer.

use annulus_core::Manifest;
use annulus_core::jobs::{InTurn, Job, Jobs};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// States of fewer bytes are applied by the driver's thread: starting others would take as long. A guess, of two turns.
const LONG: u64 = 4 << 20;

/// More threads than this would wait for memory, not for processors. A guess.
const MOST: usize = 8;

/// Threads that are started for the jobs of a turn, which take a hundred times as long as a start.
#[derive(Debug)]
struct Threads(usize);

/// Threads for a run's state, as many as this machine has a use for.
pub(crate) fn jobs(manifest: &Manifest) -> Arc<dyn Jobs> {
    let width = thread::available_parallelism().map_or(1, usize::from).min(MOST);
    // Where members keep parts of the state, parts are applied one after the other.
    let is_whole = manifest.copies.is_none() && manifest.split.is_none();
    match width > 1 && is_whole && manifest.state_bytes() >= LONG {
        true => Arc::new(Threads(width)),
        false => Arc::new(InTurn),
    }
}

impl Jobs for Threads {
    fn width(&self) -> usize {
        self.0
    }

    fn run(&self, jobs: Vec<Job<'_>>) {
        let others = self.0.min(jobs.len()).saturating_sub(1);
        let queue = Mutex::new(jobs.into_iter());
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || {
            while let Some(job) = next() {
                job();
            }
        };
        thread::scope(|scope| {
            for _ in 0..others {
                // If the system starts no more threads, this one does it all.
                let _ = thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use annulus_core::Layout;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn all_jobs_are_done_when_it_returns_and_a_short_state_has_no_threads() {
        assert_eq!(jobs(&Manifest::new(Layout::flat(1000))).width(), 1);
        for width in [1, 3, 200] {
            let done = AtomicUsize::new(0);
            let one = |_| {
                Box::new(|| {
                    done.fetch_add(1, Ordering::Relaxed);
                }) as Job<'_>
            };
            Threads(width).run((0..100).map(one).collect());
            assert_eq!(done.load(Ordering::Relaxed), 100);
        }
    }
}
