//! Writes the ledger and checkpoints on a thread of its own: the ring never waits for a disk.

use crate::store::checkpoint::RunWriter;
use crate::store::evals::{self, Evaluated};
use crate::store::run_dir::CheckpointError;
use annulus_core::ledger::{Head, Member, Record};
use annulus_core::{Digest, Manifest, Round, State};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use tokio::sync::mpsc::UnboundedSender;

/// What the writer tells the loop.
#[derive(Debug)]
pub enum Written {
    /// A checkpoint is safe on disk.
    Saved {
        /// After this round.
        round: Round,
    },
    /// All is well, but something should be known.
    Warning(String),
    /// Nothing more can be written. What was saved before is still there.
    Failed(CheckpointError),
}

enum Job {
    Begin {
        head: Head,
        state: State,
    },
    Continue {
        founder: Member,
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
}

/// A handle to the thread that writes.
pub struct CheckpointWriter {
    jobs: Option<mpsc::Sender<Job>>,
    saving: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl CheckpointWriter {
    /// Starts to write into `dir`: with the writer of an opened directory, or, with none, into a new one.
    pub fn start(
        dir: PathBuf,
        manifest: Arc<Manifest>,
        keep: usize,
        writer: Option<RunWriter>,
        written: UnboundedSender<Written>,
    ) -> Self {
        let (jobs, queue) = mpsc::channel();
        let saving = Arc::new(AtomicBool::new(false));
        let done = saving.clone();
        let thread = thread::Builder::new()
            .name("annulus-disk".into())
            .spawn(move || {
                let mut disk = Disk {
                    dir,
                    manifest,
                    keep,
                    writer,
                };
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
    pub fn go_on(&self, founder: Member) {
        self.push(Job::Continue { founder });
    }

    /// A round was committed.
    pub fn append(&self, record: Record, digest: Digest) {
        self.push(Job::Append { record, digest });
    }

    /// Saves a checkpoint, unless one is still being written: then says no, so that a slow disk does not
    /// pile up copies of the state.
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

    /// Waits until all is written.
    pub fn finish(mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    fn push(&self, job: Job) {
        // A writer that failed has said so; the loop is on its way out.
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job);
        }
    }
}

struct Disk {
    dir: PathBuf,
    manifest: Arc<Manifest>,
    keep: usize,
    writer: Option<RunWriter>,
}

impl Disk {
    fn write(&mut self, job: Job, written: &UnboundedSender<Written>) -> Result<(), CheckpointError> {
        match job {
            Job::Begin { head, state } => match &mut self.writer {
                Some(writer) => writer.rebase(&head, &state)?,
                None => self.writer = Some(RunWriter::create(&self.dir, &self.manifest, &head, &state)?),
            },
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
        }
        Ok(())
    }
}
