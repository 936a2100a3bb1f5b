//! Writes the ledger and checkpoints on a separate thread, so that training never waits for a disk.

use crate::store::checkpoint::{Keep, RunWriter};
use crate::store::evals::{self, Evaluated};
use crate::store::known::Known;
use crate::store::lock::RunLock;
use crate::store::run_dir::CheckpointError;
use annulus_core::ledger::{Founder, Head, Record};
use annulus_core::{Digest, Manifest, Round, State};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use tokio::sync::mpsc::UnboundedSender;

/// What the writer reports to the driver.
#[derive(Debug)]
pub enum Written {
    /// A checkpoint is safe on disk.
    Saved {
        /// After this round.
        round: Round,
    },
    /// Writing continues, but the user should know this.
    Warning(String),
    /// Writing has failed for good. Everything saved before still exists.
    Failed(CheckpointError),
}

enum Job {
    Begin {
        head: Head,
        state: State,
    },
    Continue {
        founder: Founder,
    },
    Append {
        record: Record,
        digest: Digest,
    },
    Save {
        head: Head,
        state: State,
        digest: Digest,
    },
    Evaluated(Evaluated),
    Known(Known),
}

/// The folder to write to.
pub enum Destination {
    /// It has no run yet.
    New(Arc<RunLock>),
    /// Its run continues.
    Open(Box<RunWriter>),
}

/// A handle to the thread that writes.
pub struct CheckpointWriter {
    jobs: Option<mpsc::Sender<Job>>,
    saving: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl CheckpointWriter {
    /// Starts to write.
    pub fn start(
        manifest: Arc<Manifest>,
        keep: Keep,
        destination: Destination,
        written: UnboundedSender<Written>,
    ) -> Self {
        let (jobs, queue) = mpsc::channel();
        let saving = Arc::new(AtomicBool::new(false));
        let done = saving.clone();
        let thread = thread::Builder::new()
            .name("annulus-disk".into())
            .spawn(move || {
                let mut disk = Disk::new(manifest, keep, destination);
                for job in queue {
                    let saves = matches!(job, Job::Save { .. });
                    let result = disk.write(job, &written);
                    if saves {
                        done.store(false, Ordering::Release);
                    }
                    if let Err(error) = result {
                        let _ = written.send(Written::Failed(error));
                        return;
                    }
                }
            })
            .expect("the system has no thread left");
        Self {
            jobs: Some(jobs),
            saving,
            thread: Some(thread),
        }
    }

    /// This peer's history begins here: at round 0, or where it joined.
    pub fn begin(&self, head: Head, state: State) {
        self.push(Job::Begin { head, state });
    }

    /// This peer goes on alone.
    pub fn go_on(&self, founder: Founder) {
        self.push(Job::Continue { founder });
    }

    /// A round was committed.
    pub fn append(&self, record: Record, digest: Digest) {
        self.push(Job::Append { record, digest });
    }

    /// Saves a checkpoint. Returns false if another one is still being written, so that a slow disk does not pile up
    /// copies of the state.
    pub fn save(&self, head: &Head, state: &State, digest: Digest) -> bool {
        if self.saving.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.push(Job::Save {
            head: head.clone(),
            state: state.clone(),
            digest,
        });
        true
    }

    /// A state was evaluated.
    pub fn evaluated(&self, evaluated: Evaluated) {
        self.push(Job::Evaluated(evaluated));
    }

    /// The peers that this one knows have changed.
    pub fn know(&self, known: Known) {
        self.push(Job::Known(known));
    }

    /// Waits until everything is written.
    pub fn finish(mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    fn push(&self, job: Job) {
        // A writer that failed has reported it, and the driver is about to end.
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job);
        }
    }
}

struct Disk {
    dir: PathBuf,
    manifest: Arc<Manifest>,
    keep: Keep,
    writer: Option<RunWriter>,
    /// Set until there is a writer.
    lock: Option<Arc<RunLock>>,
}

impl Disk {
    fn new(manifest: Arc<Manifest>, keep: Keep, destination: Destination) -> Self {
        let (dir, writer, lock) = match destination {
            Destination::New(lock) => (lock.path().to_owned(), None, Some(lock)),
            Destination::Open(writer) => (writer.dir().path().to_owned(), Some(*writer), None),
        };
        Self {
            dir,
            manifest,
            keep,
            writer,
            lock,
        }
    }

    fn write(&mut self, job: Job, written: &UnboundedSender<Written>) -> Result<(), CheckpointError> {
        match job {
            Job::Begin { head, state } => {
                if let Some(writer) = &mut self.writer {
                    writer.rebase(&head, &state)?;
                } else if let Some(lock) = self.lock.take() {
                    let writer = RunWriter::create_in(lock, &self.manifest, &head, &state)?;
                    self.writer = Some(writer);
                }
            }
            Job::Continue { founder } => {
                if let Some(writer) = &mut self.writer {
                    writer.resume(founder)?;
                }
            }
            Job::Append { record, digest } => {
                if let Some(writer) = &mut self.writer {
                    writer.append(&record, digest)?;
                }
            }
            Job::Save { head, state, digest } => {
                let Some(writer) = &self.writer else { return Ok(()) };
                let saved = writer.saver().keep(self.keep).save(&head, &state, digest)?;
                let _ = written.send(Written::Saved { round: head.round });
                if let Some(warning) = saved.warning {
                    let _ = written.send(Written::Warning(warning));
                }
            }
            Job::Evaluated(evaluated) => evals::append(&self.dir, &evaluated)?,
            Job::Known(known) => {
                // The run continues without it.
                if let Err(error) = known.save(&self.dir) {
                    let _ = written.send(Written::Warning(format!(
                        "whom this peer knows is not kept: {error}"
                    )));
                }
            }
        }
        Ok(())
    }
}
