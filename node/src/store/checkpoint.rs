//! Writes to a run's folder: the ledger, and states, in such a way that a good one always exists.
//!
//! [`RunWriter`] is the only writer; its [`Saver`] saves states from another thread. A checkpoint appears completely or
//! not at all, and never before the ledger that leads to it. It knows nothing of peers, tasks or devices.

use crate::store::evals;
use crate::store::ledger_file::{Entry, LedgerWriter, advance};
use crate::store::lock::RunLock;
use crate::store::run_dir::state_error;
use crate::store::state_file::{self, Label};
use annulus_core::config::Manifest;
use annulus_core::id::{Digest, Round};
use annulus_core::ledger::{Founder, Head, Record};
use annulus_core::state::State;
use annulus_net::files::{At, FileError, PARTIAL, own_folder, remove_if_there, write_atomic};
use annulus_net::open;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use crate::store::run_dir::{CheckpointError, LoadedRun, RunDir};

/// Which checkpoints are kept besides the base.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// This many of the newest, at least one.
    pub newest: usize,
    /// Also the best, by the evaluations in the folder.
    pub best: bool,
    /// Bytes at which the ledger restarts at a checkpoint; none: it keeps every round.
    pub ledger: Option<u64>,
}

impl Default for Keep {
    /// A guess: one may be damaged, and a third costs little.
    fn default() -> Self {
        Self {
            newest: 3,
            best: false,
            ledger: None,
        }
    }
}

/// Checkpoints that wait for their evaluation are kept too, but no more than this many of the newest. Evaluations wait in a
/// queue of two, behind the one that is being made.
const WAIT: usize = 8;

/// The writer of a run's folder.
pub struct RunWriter {
    dir: RunDir,
    ledger: LedgerWriter,
    head: Head,
    saver: Saver,
    lock: Arc<RunLock>,
}

impl RunWriter {
    /// Creates the folder of a run that begins for this peer at `head`: round 0, or where it joined.
    pub fn create(
        path: &Path,
        manifest: &Manifest,
        head: &Head,
        state: &State,
    ) -> Result<Self, CheckpointError> {
        Self::create_in(Arc::new(RunLock::take(path)?), manifest, head, state)
    }

    /// Creates a run in a folder that is already locked.
    pub fn create_in(
        lock: Arc<RunLock>,
        manifest: &Manifest,
        head: &Head,
        state: &State,
    ) -> Result<Self, CheckpointError> {
        // Somebody may have renamed it.
        let path = &lock.place().unwrap_or_else(|| lock.path().to_path_buf());
        if RunDir::is_begun(path)? {
            return Err(CheckpointError::Occupied(path.to_path_buf()));
        }
        let checkpoints = path.join("checkpoints");
        open::make_folder(&checkpoints).at(&checkpoints)?;
        let dir = RunDir {
            path: path.to_path_buf(),
            manifest: manifest.clone(),
        };
        let digest = state.digest();
        write_atomic(&path.join("manifest.bin"), |out| {
            out.write_all(&manifest.encode())
        })?;
        let json = format!("{:#}\n", readable(manifest));
        write_atomic(&path.join("manifest.json"), |out| out.write_all(json.as_bytes()))?;
        save(
            &dir,
            &Label {
                head: head.clone(),
                digest,
            },
            state,
            || (),
        )?;
        let ledger = LedgerWriter::create(&dir.ledger_path(), manifest.run_id(), head, digest)?;
        Self::new(dir, ledger, head.clone(), head.round, lock)
    }

    /// Opens a run's folder to continue from its newest good checkpoint. Then call [`resume`](Self::resume) to go on
    /// alone, or [`rebase`](Self::rebase) after joining others.
    pub fn open(path: &Path) -> Result<(Self, LoadedRun), CheckpointError> {
        RunDir::open(path)?;
        Self::open_in(Arc::new(RunLock::take(path)?))
    }

    /// Opens the run in a folder that is already locked.
    pub fn open_in(lock: Arc<RunLock>) -> Result<(Self, LoadedRun), CheckpointError> {
        let path = &lock.path().to_path_buf();
        let dir = RunDir::open(path)?;
        // A damaged ledger is passed over, but a link or a pipe in its place was put there by somebody.
        if let Err(error @ CheckpointError::File(FileError::Odd(..))) = dir.entries() {
            return Err(error);
        }
        remove_partials(path)?;
        let mut warnings = Vec::new();
        let points = dir.points(&mut warnings);
        let mut loaded = dir.latest(&points, warnings)?;
        let present = points.last().map(|p| p.base);
        let at = points
            .iter()
            .rfind(|p| Some(p.base) == present && p.is_at(&loaded.head));
        let (ledger, base) = match at {
            Some(point) => (LedgerWriter::open(&dir.ledger_path(), point.end)?, point.base.1),
            None => {
                // The ledger does not lead to this checkpoint. Keep the ledger for somebody who can make sense of it.
                let aside = path.join("ledger.cut");
                match fs::rename(dir.ledger_path(), &aside) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).at(&aside)?,
                    _ => {}
                }
                let run = dir.manifest.run_id();
                let ledger = LedgerWriter::create(&dir.ledger_path(), run, &loaded.head, loaded.digest)?;
                (ledger, loaded.head.round)
            }
        };
        let behind = points
            .last()
            .map_or(0, |p| p.round)
            .saturating_sub(loaded.head.round);
        if at.is_some() && behind > 0 {
            loaded.warnings.push(format!(
                "{behind} rounds after the checkpoint are not kept and will be done again"
            ));
        }
        Ok((Self::new(dir, ledger, loaded.head.clone(), base, lock)?, loaded))
    }

    fn new(
        dir: RunDir,
        ledger: LedgerWriter,
        head: Head,
        base: Round,
        lock: Arc<RunLock>,
    ) -> Result<Self, CheckpointError> {
        let saver = Saver {
            dir: dir.clone(),
            ledger: Arc::new(ledger.sync_handle()?),
            base: Arc::new(AtomicU64::new(base)),
            keep: Keep::default(),
        };
        Ok(Self {
            dir,
            ledger,
            head,
            saver,
            lock,
        })
    }

    /// The folder's lock, which tells where the folder is by now.
    pub(crate) fn lock(&self) -> &RunLock {
        &self.lock
    }

    /// The folder has another path by now.
    pub(crate) fn moved(&mut self, path: &Path) {
        self.dir.path = path.to_path_buf();
        self.saver.dir.path = path.to_path_buf();
        self.ledger.moved(self.dir.ledger_path());
    }

    /// The folder, for reading.
    pub fn dir(&self) -> &RunDir {
        &self.dir
    }

    /// The ledger's end.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Appends a committed round and the digest of the state after it.
    pub fn append(&mut self, record: &Record, digest: Digest) -> Result<(), CheckpointError> {
        self.add(Entry::Round {
            record: record.clone(),
            digest,
        })
    }

    /// Notes that `founder` goes on alone, and returns the head from which it does.
    pub fn resume(&mut self, founder: Founder) -> Result<Head, CheckpointError> {
        // Newer checkpoints were found damaged, and belong to the lineage that ends here.
        for file in self
            .dir
            .checkpoints()?
            .into_iter()
            .filter(|file| file.round > self.head.round)
        {
            let aside = file.path.with_extension("damaged");
            fs::rename(&file.path, &aside).at(&file.path)?;
        }
        self.add(Entry::Continued {
            founder: founder.into(),
        })?;
        Ok(self.head.clone())
    }

    /// Begins another lineage: this peer has joined the run at `head` and does not know the rounds before it. Returns why old
    /// checkpoints stay, if they do.
    pub fn rebase(
        &mut self,
        keep: Keep,
        head: &Head,
        state: &State,
    ) -> Result<Option<String>, CheckpointError> {
        let (digest, saver) = (state.digest(), self.saver().keep(keep));
        saver.write(head, state, digest)?;
        self.add(Entry::Base {
            head: Box::new(head.clone()),
            digest,
        })?;
        self.saver.base.store(head.round, Ordering::Relaxed);
        // Newer checkpoints belong to the former lineage, and would be mistaken for the newest.
        for file in self
            .dir
            .checkpoints()?
            .into_iter()
            .filter(|file| file.round > head.round)
        {
            remove_if_there(&file.path)?;
        }
        // The base of the former lineage is one more.
        Ok(saver.prune(head.round))
    }

    /// Restarts the ledger at its end, whose state is saved, if it has too many bytes. Earlier rounds are no longer known, as to a
    /// peer that joins there.
    pub fn bound_ledger(&mut self, keep: Keep, state: &State) -> Result<(), CheckpointError> {
        if keep.ledger.is_none_or(|most| self.ledger.bytes() <= most) {
            return Ok(());
        }
        let (path, run) = (self.dir.ledger_path(), self.dir.manifest.run_id());
        self.ledger = LedgerWriter::create(&path, run, &self.head, state.digest())?;
        self.saver.ledger = Arc::new(self.ledger.sync_handle()?);
        self.saver.base.store(self.head.round, Ordering::Relaxed);
        Ok(())
    }

    /// A handle that saves states; cheap to clone, for another thread.
    pub fn saver(&self) -> Saver {
        self.saver.clone()
    }

    fn add(&mut self, entry: Entry) -> Result<(), CheckpointError> {
        let head = advance(Some(self.head.clone()), &entry, &self.dir.manifest)?;
        self.ledger.append(&entry)?;
        self.head = head;
        Ok(())
    }
}

/// Saves states. One thread at a time may use it while the [`RunWriter`] continues.
#[derive(Clone)]
pub struct Saver {
    dir: RunDir,
    ledger: Arc<File>,
    base: Arc<AtomicU64>,
    keep: Keep,
}

/// A saved state.
#[derive(Debug)]
pub struct Saved {
    /// Its path.
    pub path: PathBuf,
    /// Why old checkpoints could not be removed, if they could not.
    pub warning: Option<String>,
}

impl Saver {
    /// Keeps these checkpoints besides the base.
    pub fn keep(self, keep: Keep) -> Self {
        Self { keep, ..self }
    }

    /// Saves a state whose rounds were appended, then removes old ones. On an error everything saved before still
    /// exists. It takes as long as the disk, so call it where that blocks nobody.
    pub fn save(&self, head: &Head, state: &State, digest: Digest) -> Result<Saved, CheckpointError> {
        let ledger = self.dir.ledger_path();
        self.ledger.sync_data().at(&ledger)?;
        let path = self.write(head, state, digest)?;
        let warning = self.prune(head.round);
        Ok(Saved { path, warning })
    }

    /// Writes a checkpoint. Before it gets its name, an old one goes, so that there are never more than this keeps.
    fn write(&self, head: &Head, state: &State, digest: Digest) -> Result<PathBuf, CheckpointError> {
        let before = head.round.saturating_sub(1);
        let label = Label {
            head: head.clone(),
            digest,
        };
        let room = || drop(self.try_prune(before, self.keep.newest.saturating_sub(1)));
        save(&self.dir, &label, state, room)
    }

    /// Removes old checkpoints, of those up to a round. Returns why some stay, if they do.
    pub fn prune(&self, newest: Round) -> Option<String> {
        let failed = self.try_prune(newest, self.keep.newest).err();
        failed.map(|error| format!("old checkpoints stay: {error}"))
    }

    fn try_prune(&self, newest: Round, count: usize) -> Result<(), CheckpointError> {
        let base = self.base.load(Ordering::Relaxed);
        let files = self.dir.checkpoints()?;
        let (mut best, mut waits) = (None, Round::MAX);
        if self.keep.best {
            best = self.dir.best(&files)?.map(|best| best.round);
            waits = evals::read(self.dir.path())?
                .last()
                .map_or(0, |eval| eval.round + 1);
        }
        let old = files
            .iter()
            .rev()
            .filter(|f| f.round != base && f.round <= newest);
        for (newer, file) in old.enumerate() {
            let is_new = newer < count.max(1) || (file.round >= waits && newer < WAIT);
            if !is_new && best != Some(file.round) {
                remove_if_there(&file.path)?;
            }
        }
        Ok(())
    }
}

/// Writes a state, and calls `room` once it is on the disk as a whole and before it has its name.
fn save(dir: &RunDir, label: &Label, state: &State, room: impl FnOnce()) -> Result<PathBuf, CheckpointError> {
    let path = dir.checkpoint_path(label.head.round);
    let header = state_file::checkpoint_header(&dir.manifest, label, state);
    let header = header.map_err(|error| state_error(path.clone(), error))?;
    // Somebody may have removed it.
    let folder = dir.path().join("checkpoints");
    open::make_folder(&folder).map_err(|error| FileError::of_new(&folder, error))?;
    write_atomic(&path, |out| {
        out.write_all(&header)?;
        state_file::write_vectors(out, state)?;
        out.flush()?;
        out.get_ref().sync_all()?;
        room();
        Ok(())
    })?;
    Ok(path)
}

fn remove_partials(path: &Path) -> Result<(), CheckpointError> {
    let checkpoints = path.join("checkpoints");
    own_folder(&checkpoints)?;
    for dir in [path.to_path_buf(), checkpoints] {
        for file in fs::read_dir(&dir).at(&dir)? {
            let file = file.at(&dir)?.path();
            if file.to_string_lossy().ends_with(PARTIAL) {
                remove_if_there(&file)?;
            }
        }
    }
    Ok(())
}

/// The manifest in a form for people. It is never read back.
fn readable(manifest: &Manifest) -> Value {
    let mut value = serde_json::to_value(manifest).expect("a manifest has only plain data");
    value["run"] = manifest.run_id().to_hex().into();
    value["data"] = manifest.data.to_hex().into();
    if let Ok(config) = serde_json::from_str::<Value>(&manifest.task_config) {
        value["task_config"] = config;
    }
    value
}

#[cfg(test)]
mod tests;
