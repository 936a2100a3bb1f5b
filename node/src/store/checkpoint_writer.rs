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
    /// Checkpoints of an earlier time may have been removed.
    Pruned,
    /// The run's folder has another path by now.
    Moved {
        /// Where it is.
        to: PathBuf,
        /// Whether it was removed, so that this one is new and holds the run from its last state on.
        anew: bool,
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
    Look,
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
                    // The ledger is open, wherever its folder is.
                    if !matches!(job, Job::Append { .. }) {
                        disk.follow(&written);
                    }
                    let mut result = disk.write(&job, &written);
                    // It may have been renamed meanwhile.
                    if result.is_err() && disk.follow(&written) {
                        result = disk.write(&job, &written);
                    }
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

    /// Looks where the folder is: somebody may rename or remove it.
    pub fn look(&self) {
        self.push(Job::Look);
    }

    /// Waits until everything is written.
    pub fn finish(&mut self) {
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
    /// Whether somebody has removed the folder.
    is_gone: bool,
}

/// Most folders that are tried to find a free name.
const NAMES: usize = 1000;

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
            is_gone: false,
        }
    }

    /// Follows the folder if somebody has renamed it, and tells of that, or that it is gone. Returns whether either is so.
    fn follow(&mut self, written: &UnboundedSender<Written>) -> bool {
        let lock = self.writer.as_ref().map(RunWriter::lock).or(self.lock.as_deref());
        let Some(lock) = lock.filter(|_| !self.is_gone) else {
            return false;
        };
        let told = match lock.place() {
            Some(place) if place == self.dir => return false,
            Some(to) => {
                if let Some(writer) = &mut self.writer {
                    writer.moved(&to);
                }
                self.dir.clone_from(&to);
                Written::Moved { to, anew: false }
            }
            None => {
                self.is_gone = true;
                Written::Warning(format!(
                    "the folder {} is gone, with all that was saved in it. The state is still in memory: the next checkpoint, at the \
                     end at the latest, goes into a new folder",
                    self.dir.display()
                ))
            }
        };
        let _ = written.send(told);
        true
    }

    /// Begins the run's record in a new folder, from this state on: of the old name, or beside it.
    fn begin_anew(&mut self, head: &Head, state: &State) -> Result<(), CheckpointError> {
        let named = |number: usize| match number {
            1 => self.dir.clone(),
            _ => {
                let mut name = self.dir.clone().into_os_string();
                name.push(format!("-{number}"));
                name.into()
            }
        };
        let is_free = |path: &PathBuf| path.symlink_metadata().is_err();
        let free = (1..NAMES).map(named).find(is_free);
        let lock = Arc::new(RunLock::take(&free.unwrap_or_else(|| self.dir.clone()))?);
        self.dir = lock.path().to_path_buf();
        self.writer = Some(RunWriter::create_in(lock, &self.manifest, head, state)?);
        self.is_gone = false;
        Ok(())
    }

    fn write(&mut self, job: &Job, written: &UnboundedSender<Written>) -> Result<(), CheckpointError> {
        match job {
            Job::Look => {}
            Job::Save { head, state, .. } | Job::Begin { head, state } if self.is_gone => {
                self.begin_anew(head, state)?;
                let to = self.dir.clone();
                let _ = written.send(Written::Moved { to, anew: true });
            }
            // It goes on in the new folder's ledger, or there is no folder to note it in.
            Job::Continue { .. } | Job::Evaluated(_) | Job::Known(_) if self.is_gone => {}
            Job::Begin { head, state } => {
                if let Some(writer) = &mut self.writer {
                    let warning = writer.rebase(self.keep, head, state)?;
                    let _ = written.send(warning.map_or(Written::Pruned, Written::Warning));
                } else if let Some(lock) = self.lock.clone() {
                    self.writer = Some(RunWriter::create_in(lock, &self.manifest, head, state)?);
                    self.lock = None;
                }
            }
            Job::Continue { founder } => {
                if let Some(writer) = &mut self.writer {
                    writer.resume(founder.clone())?;
                }
            }
            Job::Append { record, digest } => {
                if let Some(writer) = &mut self.writer {
                    writer.append(record, *digest)?;
                }
            }
            Job::Save { head, state, digest } => {
                let Some(writer) = &mut self.writer else {
                    return Ok(());
                };
                let saved = writer.saver().keep(self.keep).save(head, state, *digest)?;
                if (head.round, head.chain) == (writer.head().round, writer.head().chain) {
                    writer.bound_ledger(self.keep, state)?;
                }
                let _ = written.send(Written::Saved { round: head.round });
                if let Some(warning) = saved.warning {
                    let _ = written.send(Written::Warning(warning));
                }
            }
            Job::Evaluated(evaluated) => evals::append(&self.dir, evaluated)?,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::run_dir::RunDir;
    use crate::testing::{Run, Scratch, founder};
    use std::fs;
    use std::path::Path;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    fn started(path: &Path, run: &Run) -> (CheckpointWriter, UnboundedReceiver<Written>) {
        let (to, written) = unbounded_channel();
        let lock = Arc::new(RunLock::take(path).unwrap());
        let manifest = Arc::new(run.manifest.clone());
        let writer = CheckpointWriter::start(manifest, Keep::default(), Destination::New(lock), to);
        writer.begin(run.head.clone(), run.state.clone());
        (writer, written)
    }

    fn rounds(path: &Path) -> Vec<Round> {
        let files = RunDir::open(path).unwrap().checkpoints().unwrap();
        files.iter().map(|file| file.round).collect()
    }

    #[test]
    fn returns_to_a_run_pile_up_no_checkpoints() {
        let scratch = Scratch::new();
        let path = scratch.0.join("run");
        let mut run = Run::new();
        let (mut writer, _written) = started(&path, &run);
        for _ in 0..7 {
            // Others went on meanwhile.
            run.round();
            run.head = run.head.continued_by(founder(2));
            writer.begin(run.head.clone(), run.state.clone());
        }
        writer.finish();
        assert_eq!(rounds(&path), [4, 5, 6, 7]);
        assert_eq!(RunDir::open(&path).unwrap().load_latest().unwrap().head, run.head);
    }

    #[test]
    fn a_ledger_that_is_too_long_begins_anew_at_a_checkpoint() {
        let scratch = Scratch::new();
        let path = scratch.0.join("run");
        let mut run = Run::new();
        let (to, mut written) = unbounded_channel();
        let lock = Arc::new(RunLock::take(&path).unwrap());
        let keep = Keep {
            ledger: Some(5_000),
            ..Keep::default()
        };
        let manifest = Arc::new(run.manifest.clone());
        let mut writer = CheckpointWriter::start(manifest, keep, Destination::New(lock), to);
        writer.begin(run.head.clone(), run.state.clone());
        let size = || fs::metadata(path.join("ledger")).unwrap().len();
        let (mut longest, mut last) = (0, 0);
        for _ in 0..20 {
            for _ in 0..3 {
                let (record, digest) = run.round();
                writer.append(record, digest);
            }
            while !writer.save(&run.head, &run.state, run.state.digest()) {
                thread::yield_now();
            }
            assert!(matches!(written.blocking_recv().unwrap(), Written::Saved { .. }));
            last = size();
            longest = longest.max(last);
        }
        writer.finish();
        assert!(longest < 10_000 && longest > last, "{longest} {last}");
        let dir = RunDir::open(&path).unwrap();
        let base = dir.base().unwrap().0.round;
        assert!(
            base > 0 && rounds(&path).contains(&base),
            "{base} {:?}",
            rounds(&path)
        );
        assert!(rounds(&path).len() <= 4);
        assert!(crate::offline::audit::audit(&dir).is_ok());
        // It goes on from there.
        let (mut writer, loaded) = RunWriter::open(&path).unwrap();
        assert_eq!((&loaded.head, loaded.warnings.len()), (&run.head, 0));
        let (record, digest) = run.round();
        writer.append(&record, digest).unwrap();
    }

    #[test]
    fn a_folder_that_is_renamed_is_followed_and_one_that_is_removed_is_replaced() {
        let scratch = Scratch::new();
        let (path, moved) = (scratch.0.join("run"), scratch.0.join("moved"));
        let mut run = Run::new();
        let (mut writer, mut written) = started(&path, &run);
        let mut go = |writer: &CheckpointWriter| {
            let (record, digest) = run.round();
            writer.append(record, digest);
            // The one before is saved, but this may not have been noted yet.
            while !writer.save(&run.head, &run.state, digest) {
                thread::yield_now();
            }
        };
        let mut next = || written.blocking_recv().unwrap();
        go(&writer);
        assert!(matches!(next(), Written::Saved { round: 1 }));
        let mut at = path.clone();
        if cfg!(target_os = "linux") {
            fs::rename(&path, &moved).unwrap();
            // Another folder of the old name is somebody else's.
            fs::create_dir(&path).unwrap();
            writer.look();
            assert!(matches!(next(), Written::Moved { to, anew: false } if to == moved));
            go(&writer);
            assert!(matches!(next(), Written::Saved { .. }));
            assert_eq!(rounds(&moved), [0, 1, 2]);
            assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
            at = moved;
        }
        if cfg!(unix) {
            fs::remove_dir_all(&at).unwrap();
            writer.look();
            assert!(matches!(next(), Written::Warning(told) if told.contains("is gone")));
            fs::create_dir(&at).unwrap();
            go(&writer);
            let beside = PathBuf::from(format!("{}-2", at.display()));
            assert!(matches!(next(), Written::Moved { to, anew: true } if to == beside));
            go(&writer);
            assert!(matches!(next(), Written::Saved { .. }));
            assert_eq!(fs::read_dir(&at).unwrap().count(), 0);
            at = beside;
        }
        writer.finish();
        assert_eq!(RunDir::open(&at).unwrap().load_latest().unwrap().head, run.head);
        assert!(written.try_recv().is_err());
    }
}
