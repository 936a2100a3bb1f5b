//! Makes batches ahead of time on a separate thread while the device computes. Where there are no threads, batches are
//! made when they are needed. Knows neither models nor devices.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use super::worker::WorkerError;
use crate::task::{Batch, Dataset, Draw, Task, TaskError, drawn};

/// How long the batches of an order wait for streamed data in all. The other members wait as long, and take a member that needs
/// much longer than usual for dead.
const LATE: Duration = Duration::from_millis(500);

/// A batch, and its number of samples.
pub(super) struct Part<T: Task> {
    pub(super) samples: usize,
    pub(super) batch: Batch<T>,
}

/// A batch, unless its data is not what it was.
type Made<T> = Result<Part<T>, WorkerError>;

/// Makes a task's batches.
pub(super) struct Prefetcher<T: Task> {
    task: Arc<T>,
    /// The run's.
    seed: u64,
    /// Samples that were made ready.
    pub(super) made: Arc<AtomicU64>,
    /// Microseconds for which batches waited for streamed data.
    pub(super) waited: Arc<AtomicU64>,
    /// To the thread, if there is one. It ends when this is dropped.
    orders: Option<Sender<Order<T>>>,
}

/// Batches to make, until when their data may come, and the channel for them.
struct Order<T: Task> {
    parts: VecDeque<Vec<u64>>,
    until: Instant,
    made: SyncSender<Made<T>>,
}

/// Batches, in the order in which they were ordered.
pub(super) enum Batches<T: Task> {
    /// By the thread.
    Ahead(Receiver<Made<T>>),
    /// By who takes them.
    Inline(Arc<T>, u64, VecDeque<Vec<u64>>),
}

impl<T: Task> Prefetcher<T> {
    pub(super) fn new(task: Arc<T>, seed: u64) -> Self {
        let (orders, queue) = mpsc::channel::<Order<T>>();
        let by = task.clone();
        let (made, waited) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (counted, waits) = (made.clone(), waited.clone());
        let thread = thread::Builder::new().name("annulus-batches".into());
        // A browser cannot start a thread.
        let started = thread.spawn(move || {
            for Order { parts, until, made } in queue {
                for part in parts {
                    let begun = Instant::now();
                    let drawn = drawn(by.dataset(), seed, &part);
                    let there = by.dataset().have(&drawn, until.saturating_duration_since(begun));
                    waits.fetch_add(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
                    let batch = if there {
                        make(&*by, &drawn)
                    } else {
                        Err(WorkerError::Late)
                    };
                    let failed = batch.is_err();
                    // The other end is dropped once no more are wanted.
                    if made.send(batch).is_err() || failed {
                        break;
                    }
                    counted.fetch_add(part.len() as u64, Ordering::Relaxed);
                }
            }
        });
        Self {
            task,
            seed,
            made,
            waited,
            orders: started.is_ok().then_some(orders),
        }
    }

    /// Starts to make these batches. At most `waiting` of them wait to be taken while one more is made.
    pub(super) fn order(&self, parts: VecDeque<Vec<u64>>, waiting: usize) -> Batches<T> {
        let Some(orders) = &self.orders else {
            return Batches::Inline(self.task.clone(), self.seed, parts);
        };
        let (made, batches) = mpsc::sync_channel(waiting);
        // If the thread has panicked, the caller notices when the batch is missing.
        let until = Instant::now() + LATE;
        let _ = orders.send(Order { parts, until, made });
        Batches::Ahead(batches)
    }
}

impl<T: Task> Batches<T> {
    /// Takes the next batch.
    ///
    /// # Errors
    ///
    /// If the data is not what it was.
    ///
    /// # Panics
    ///
    /// If the data set has panicked, or there are no more.
    pub(super) fn next(&mut self) -> Result<Part<T>, WorkerError> {
        match self {
            Self::Ahead(made) => made.recv().expect("the data set has made the batch"),
            Self::Inline(task, seed, parts) => {
                let part = parts.pop_front().expect("a batch that was ordered");
                make(&**task, &drawn(task.dataset(), *seed, &part))
            }
        }
    }
}

fn make<T: Task>(task: &T, draws: &[Draw]) -> Made<T> {
    let batch = task.dataset().drawn(draws);
    intact(task)?;
    // A piece may be missing or spoilt.
    match task.dataset().have(draws, Duration::ZERO) {
        true => Ok(Part {
            samples: draws.len(),
            batch,
        }),
        false => Err(WorkerError::Late),
    }
}

/// Fails if the task's data has changed since it was loaded.
pub(super) fn intact<T: Task>(task: &T) -> Result<(), WorkerError> {
    let lost = |why: TaskError| WorkerError::Data {
        reason: why.to_string(),
    };
    task.dataset().intact().map_err(lost)
}
