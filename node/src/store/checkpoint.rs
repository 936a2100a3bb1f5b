//! Writing to a run's directory: the ledger, and states in such a way that there is always a good one.
//!
//! [`RunWriter`] is the only one that writes; its [`Saver`] saves states from another thread. A checkpoint appears whole or
//! not at all, and never before the ledger that leads to it. It must not know of peers, tasks or devices.

use crate::store::files::{At, FileError, PARTIAL, remove_if_there, write_atomic};
use crate::store::ledger_file::{Entry, LedgerWriter, advance};
use crate::store::run_dir::state_error;
use crate::store::state_file::{self, Label};
use annulus_core::config::Manifest;
use annulus_core::id::{Digest, Round};
use annulus_core::ledger::{Head, Member, Record};
use annulus_core::state::State;
use serde_json::Value;
use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use crate::store::run_dir::{CheckpointError, LoadedRun, RunDir};

/// How many checkpoints are kept besides the base. A guess: one may be damaged, and a third costs little.
pub const KEEP: usize = 3;

/// The one that writes to a run's directory.
pub struct RunWriter {
    dir: RunDir,
    ledger: LedgerWriter,
    head: Head,
    saver: Saver,
    _lock: Lock,
}

/// Held until this is dropped.
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing alone would not do where a child process was just being started and holds a copy.
        let _ = self.0.unlock();
    }
}

impl RunWriter {
    /// Makes the directory of a run that begins, for this peer, at `head`: round 0, or where it came in.
    pub fn create(
        path: &Path,
        manifest: &Manifest,
        head: &Head,
        state: &State,
    ) -> Result<Self, CheckpointError> {
        let checkpoints = path.join("checkpoints");
        fs::create_dir_all(&checkpoints).at(&checkpoints)?;
        let lock = lock(path)?;
        let dir = RunDir {
            path: path.to_path_buf(),
            manifest: manifest.clone(),
        };
        // The ledger is written last: without it there was a crash here before, and nothing to lose.
        if dir.ledger_path().exists() {
            return Err(CheckpointError::Occupied(path.to_path_buf()));
        }
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
        )?;
        let ledger = LedgerWriter::create(&dir.ledger_path(), manifest.run_id(), head, digest)?;
        Self::new(dir, ledger, head.clone(), head.round, lock)
    }

    /// Opens a run's directory to go on from its newest good checkpoint.
    /// Follow with [`resume`](Self::resume) to go on alone, or [`rebase`](Self::rebase) having joined others.
    pub fn open(path: &Path) -> Result<(Self, LoadedRun), CheckpointError> {
        let dir = RunDir::open(path)?;
        let lock = lock(path)?;
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
                // Nothing in the ledger leads here. Keep it for whoever can make sense of it.
                let aside = path.join("ledger.cut");
                if dir.ledger_path().exists() {
                    fs::rename(dir.ledger_path(), &aside).at(&aside)?;
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
        lock: Lock,
    ) -> Result<Self, CheckpointError> {
        let saver = Saver {
            dir: dir.clone(),
            ledger: Arc::new(ledger.sync_handle()?),
            base: Arc::new(AtomicU64::new(base)),
            keep: KEEP,
        };
        Ok(Self {
            dir,
            ledger,
            head,
            saver,
            _lock: lock,
        })
    }

    /// The directory, for reading.
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

    /// Notes that `founder` goes on alone, and returns the head that it goes on from.
    pub fn resume(&mut self, founder: Member) -> Result<Head, CheckpointError> {
        // What is newer was found damaged, and is of the lineage that ends here.
        for file in self
            .dir
            .checkpoints()?
            .into_iter()
            .filter(|file| file.round > self.head.round)
        {
            let aside = file.path.with_extension("damaged");
            fs::rename(&file.path, &aside).at(&file.path)?;
        }
        self.add(Entry::Continued { founder })?;
        Ok(self.head.clone())
    }

    /// Begins another lineage: this peer has joined the run at `head` and knows nothing of how it came there.
    pub fn rebase(&mut self, head: &Head, state: &State) -> Result<(), CheckpointError> {
        let digest = state.digest();
        save(
            &self.dir,
            &Label {
                head: head.clone(),
                digest,
            },
            state,
        )?;
        self.add(Entry::Base {
            head: head.clone(),
            digest,
        })?;
        self.saver.base.store(head.round, Ordering::Relaxed);
        // What is newer belongs to the lineage that was left, and would be taken for the newest.
        for file in self
            .dir
            .checkpoints()?
            .into_iter()
            .filter(|file| file.round > head.round)
        {
            remove_if_there(&file.path)?;
        }
        Ok(())
    }

    /// What saves states; cheap to clone, for another thread.
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

/// Saves states. May be used by one thread at a time while the [`RunWriter`] goes on.
#[derive(Clone)]
pub struct Saver {
    dir: RunDir,
    ledger: Arc<File>,
    base: Arc<AtomicU64>,
    keep: usize,
}

/// A state that was saved.
#[derive(Debug)]
pub struct Saved {
    /// Where it is.
    pub path: PathBuf,
    /// Why old checkpoints could not be removed, if so.
    pub warning: Option<String>,
}

impl Saver {
    /// Keeps this many checkpoints besides the base, at least one.
    pub fn keep(self, keep: usize) -> Self {
        Self {
            keep: keep.max(1),
            ..self
        }
    }

    /// Saves a state whose rounds have been appended, then removes what is old. On an error all that was saved before
    /// is still there. Takes as long as the disk: call it where that blocks nobody.
    pub fn save(&self, head: &Head, state: &State, digest: Digest) -> Result<Saved, CheckpointError> {
        let ledger = self.dir.ledger_path();
        self.ledger.sync_data().at(&ledger)?;
        let path = save(
            &self.dir,
            &Label {
                head: head.clone(),
                digest,
            },
            state,
        )?;
        let warning = self
            .prune(head.round)
            .err()
            .map(|e| format!("old checkpoints stay: {e}"));
        Ok(Saved { path, warning })
    }

    fn prune(&self, newest: Round) -> Result<(), CheckpointError> {
        let base = self.base.load(Ordering::Relaxed);
        let files = self.dir.checkpoints()?;
        let old: Vec<_> = files
            .iter()
            .filter(|f| f.round != base && f.round <= newest)
            .collect();
        let spare = old.len().saturating_sub(self.keep);
        for file in &old[..spare] {
            remove_if_there(&file.path)?;
        }
        Ok(())
    }
}

fn save(dir: &RunDir, label: &Label, state: &State) -> Result<PathBuf, CheckpointError> {
    let path = dir.checkpoint_path(label.head.round);
    let header = state_file::checkpoint_header(&dir.manifest, label, state);
    let header = header.map_err(|error| state_error(path.clone(), error))?;
    write_atomic(&path, |out| {
        out.write_all(&header)?;
        state_file::write_vectors(out, state)
    })?;
    Ok(path)
}

fn lock(path: &Path) -> Result<Lock, CheckpointError> {
    let name = path.join("lock");
    let file = File::create(&name).at(&name)?;
    match file.try_lock() {
        Ok(()) => Ok(Lock(file)),
        Err(TryLockError::WouldBlock) => Err(CheckpointError::Locked(path.to_path_buf())),
        Err(TryLockError::Error(error)) => Err(FileError::new(&name, error).into()),
    }
}

fn remove_partials(path: &Path) -> Result<(), CheckpointError> {
    for dir in [path.to_path_buf(), path.join("checkpoints")] {
        for file in fs::read_dir(&dir).at(&dir)? {
            let file = file.at(&dir)?.path();
            if file.to_string_lossy().ends_with(PARTIAL) {
                remove_if_there(&file)?;
            }
        }
    }
    Ok(())
}

/// The manifest as a person wants to read it. Never read back.
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
mod tests {
    use super::*;
    use crate::store::state_file::StateFileError;
    use crate::testing::{Run, Scratch, member};
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::sync::{Mutex, PoisonError};
    use std::thread;
    use std::time::Duration;

    /// Held while processes are started: until they run, they have copies of all files that are open, which keeps
    /// removed ones on the disk and a file system writable.
    static STARTING: Mutex<()> = Mutex::new(());

    fn begun() -> (Scratch, PathBuf, Run, RunWriter) {
        let scratch = Scratch::new();
        let path = scratch.0.join("run");
        let run = Run::new();
        let writer = RunWriter::create(&path, &run.manifest, &run.head, &run.state).unwrap();
        (scratch, path, run, writer)
    }

    fn go(run: &mut Run, writer: &mut RunWriter, rounds: u64) {
        for _ in 0..rounds {
            let (record, digest) = run.round();
            writer.append(&record, digest).unwrap();
        }
    }

    fn save(run: &Run, writer: &RunWriter) {
        let saved = writer
            .saver()
            .save(&run.head, &run.state, run.state.digest())
            .unwrap();
        assert_eq!(saved.warning, None);
    }

    fn rounds(dir: &RunDir) -> Vec<Round> {
        dir.checkpoints().unwrap().iter().map(|file| file.round).collect()
    }

    #[test]
    fn the_base_and_the_last_three_are_kept_and_the_newest_is_loaded() {
        let (_scratch, path, mut run, mut writer) = begun();
        for _ in 0..5 {
            go(&mut run, &mut writer, 2);
            save(&run, &writer);
        }
        let dir = RunDir::open(&path).unwrap();
        assert_eq!(rounds(&dir), [0, 6, 8, 10]);
        let loaded = dir.load_latest().unwrap();
        assert_eq!((&loaded.head, &loaded.state), (&run.head, &run.state));
        assert_eq!(
            (loaded.manifest, loaded.digest),
            (run.manifest.clone(), run.state.digest())
        );
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
        assert_eq!(dir.base().unwrap().0.round, 0);
        assert_eq!(dir.load(0).unwrap().state, Run::new().state);
        let json: Value = serde_json::from_slice(&fs::read(path.join("manifest.json")).unwrap()).unwrap();
        assert_eq!(json["run"], run.manifest.run_id().to_hex());
        assert_eq!(json["task_config"]["hidden"], 4);
    }

    #[test]
    fn a_damaged_checkpoint_is_passed_over_for_the_one_before() {
        let (_scratch, path, mut run, mut writer) = begun();
        go(&mut run, &mut writer, 3);
        save(&run, &writer);
        let before = (run.head.clone(), run.state.clone());
        go(&mut run, &mut writer, 3);
        save(&run, &writer);
        let newest = path.join("checkpoints/round-00000006.safetensors");
        let mut bytes = fs::read(&newest).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&newest, &bytes).unwrap();
        drop(writer);
        let (mut writer, loaded) = RunWriter::open(&path).unwrap();
        assert_eq!((loaded.head, loaded.state), before);
        assert_eq!(loaded.warnings.len(), 2, "{:?}", loaded.warnings);
        assert!(
            loaded.warnings[0].contains("round-00000006"),
            "{:?}",
            loaded.warnings
        );
        assert!(loaded.warnings[1].contains("3 rounds"), "{:?}", loaded.warnings);

        // The rounds that the lost state stood for are done again, on a lineage of their own.
        let head = writer.resume(member(1)).unwrap();
        assert_eq!(head, before.0.continued_by(member(1)));
        (run.head, run.state) = (head, before.1);
        go(&mut run, &mut writer, 3);
        save(&run, &writer);
        drop(writer);
        let (_, loaded) = RunWriter::open(&path).unwrap();
        assert_eq!((loaded.head, loaded.state), (run.head, run.state));
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    }

    #[test]
    fn without_a_good_checkpoint_it_says_why() {
        let (_scratch, path, _, writer) = begun();
        fs::write(path.join("checkpoints/round-00000000.safetensors"), b"torn").unwrap();
        drop(writer);
        let error = RunWriter::open(&path).err().unwrap();
        assert!(matches!(error, CheckpointError::NoneGood(..)));
        assert!(
            error.to_string().contains("ends within its first eight bytes"),
            "{error}"
        );
    }

    #[test]
    fn a_torn_ledger_and_leftovers_of_a_crash_do_not_matter() {
        let (_scratch, path, mut run, mut writer) = begun();
        go(&mut run, &mut writer, 4);
        save(&run, &writer);
        drop(writer);
        let whole = fs::read(path.join("ledger")).unwrap();
        let leftover = path.join("checkpoints/round-00000009.safetensors.partial");
        for len in (0..=whole.len()).rev().step_by(37) {
            fs::write(path.join("ledger"), &whole[..len]).unwrap();
            fs::write(&leftover, b"half").unwrap();
            let (mut writer, loaded) = RunWriter::open(&path).unwrap();
            assert_eq!(
                (&loaded.head, &loaded.state),
                (&run.head, &run.state),
                "cut to {len}"
            );
            assert_eq!(
                loaded.warnings.is_empty(),
                len == whole.len(),
                "{:?}",
                loaded.warnings
            );
            assert!(!leftover.exists());
            writer.resume(member(1)).unwrap();
            drop(writer);
            let (_, loaded) = RunWriter::open(&path).unwrap();
            assert_eq!(loaded.head, run.head);
        }
    }

    #[test]
    fn a_newcomer_starts_where_it_came_in_and_may_be_moved_to_another_lineage() {
        let scratch = Scratch::new();
        let path = scratch.0.join("run");
        let mut run = Run::new();
        for _ in 0..5 {
            run.round();
        }
        let mut writer = RunWriter::create(&path, &run.manifest, &run.head, &run.state).unwrap();
        go(&mut run, &mut writer, 6);
        save(&run, &writer);
        assert_eq!(rounds(writer.dir()), [5, 11]);

        let mut other = Run::new();
        other.head = other.head.continued_by(member(2));
        for _ in 0..8 {
            other.round();
        }
        writer.rebase(&other.head, &other.state).unwrap();
        assert_eq!(rounds(writer.dir()), [5, 8]);

        // A crash before the left lineage's newer checkpoint was removed.
        let left = Label {
            head: run.head.clone(),
            digest: run.state.digest(),
        };
        super::save(writer.dir(), &left, &run.state).unwrap();
        assert_eq!(rounds(writer.dir()), [5, 8, 11]);
        go(&mut other, &mut writer, 1);
        drop(writer);
        let (writer, loaded) = RunWriter::open(&path).unwrap();
        assert_eq!(loaded.head.round, 8);
        assert_eq!(loaded.head.chain, writer.dir().base().unwrap().0.chain);
    }

    #[test]
    fn a_round_that_does_not_follow_is_refused_and_leaves_the_ledger_as_it_was() {
        let (_scratch, path, mut run, mut writer) = begun();
        go(&mut run, &mut writer, 1);
        run.round();
        let (third, digest) = run.round();
        let error = writer.append(&third, digest).unwrap_err();
        assert!(error.to_string().contains("does not follow"), "{error}");
        assert_eq!(RunDir::open(&path).unwrap().entries().unwrap().count(), 2);
    }

    #[test]
    fn one_process_trains_in_a_directory() {
        let (_scratch, path, run, writer) = begun();
        assert!(matches!(RunWriter::open(&path), Err(CheckpointError::Locked(_))));
        RunDir::open(&path).unwrap().load_latest().unwrap();
        drop(writer);
        let again = RunWriter::create(&path, &run.manifest, &run.head, &run.state);
        assert!(matches!(again, Err(CheckpointError::Occupied(_))));
        assert!(RunWriter::open(&path).is_ok());
        assert!(matches!(
            RunDir::open(Path::new("/nonexistent")),
            Err(CheckpointError::NoRun(_))
        ));
    }

    #[test]
    fn a_state_of_another_shape_is_refused() {
        let (_scratch, _, mut run, writer) = begun();
        run.state.slots.pop();
        let error = writer
            .saver()
            .save(&run.head, &run.state, run.state.digest())
            .unwrap_err();
        assert!(
            matches!(error, CheckpointError::State(_, StateFileError::Shape(_))),
            "{error}"
        );
    }

    /// Runs this very test as another process, which saves without end, and kills it.
    #[test]
    fn a_process_killed_at_any_moment_loses_nothing_that_it_had_saved() {
        const DIRECTORY: &str = "ANNULUS_TEST_SAVE_IN";
        if let Some(path) = std::env::var_os(DIRECTORY) {
            save_for_ever(Path::new(&path));
        }
        let _guard = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let scratch = Scratch::new();
        let path = scratch.0.join("run");
        let (_, module) = module_path!().split_once("::").unwrap();
        let name = format!("{module}::a_process_killed_at_any_moment_loses_nothing_that_it_had_saved");
        let mut saved = 0;
        for attempt in 0..12 {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", &name, "--nocapture"])
                .env(DIRECTORY, &path)
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap())
                .lines()
                .map(Result::unwrap);
            lines.find(|line| line.starts_with("saved ")).unwrap();
            thread::sleep(Duration::from_micros(137 * attempt * attempt));
            child.kill().unwrap();
            child.wait().unwrap();
            if let Some(line) = lines.filter(|line| line.starts_with("saved ")).last() {
                saved = line["saved ".len()..].parse().unwrap();
            }
            let loaded = RunDir::open(&path).unwrap().load_latest().unwrap();
            assert!(
                loaded.head.round >= saved,
                "{} was saved, {saved} found",
                loaded.head.round
            );
            assert!(
                loaded.warnings.iter().all(|w| w.contains("ledger's last")),
                "{:?}",
                loaded.warnings
            );
            let mut run = Run::new();
            (0..loaded.head.round).for_each(|_| drop(run.round()));
            assert_eq!(loaded.state, run.state);
        }
        assert!(saved > 12, "only {saved} rounds were saved");
    }

    fn save_for_ever(path: &Path) -> ! {
        let mut run = Run::new();
        run.manifest.target = u64::MAX;
        let mut writer = if path.join("ledger").exists() {
            let (mut writer, loaded) = RunWriter::open(path).unwrap();
            run.state = loaded.state;
            run.head = writer.resume(member(1)).unwrap();
            writer
        } else {
            RunWriter::create(path, &run.manifest, &run.head, &run.state).unwrap()
        };
        loop {
            go(&mut run, &mut writer, 1);
            save(&run, &writer);
            println!("saved {}", run.head.round);
        }
    }

    /// A file system of the given size; gone in the end.
    struct SmallDisk(Scratch);

    impl SmallDisk {
        fn mount(options: &str) -> Option<Self> {
            let disk = Self(Scratch::new());
            disk.run("mount", &["-t", "tmpfs", "-o", options, "annulus-test"])
                .then_some(disk)
        }

        fn run(&self, program: &str, options: &[&str]) -> bool {
            let output = Command::new(program).args(options).arg(&self.0.0).output();
            output.is_ok_and(|output| output.status.success())
        }
    }

    impl Drop for SmallDisk {
        fn drop(&mut self) {
            self.run("umount", &[]);
        }
    }

    #[test]
    fn a_full_or_read_only_disk_loses_nothing() {
        let _guard = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(disk) = SmallDisk::mount("size=256k") else {
            println!("skipped: a full disk: this user cannot mount a small file system");
            return;
        };
        let path = disk.0.0.join("run");
        let mut run = Run::new();
        let mut writer = RunWriter::create(&path, &run.manifest, &run.head, &run.state).unwrap();
        go(&mut run, &mut writer, 2);
        save(&run, &writer);
        let saved = (run.head.clone(), run.state.clone());

        // All but a few bytes are taken.
        let ballast = path.join("ballast");
        let error = fs::write(&ballast, vec![1; 1 << 20]).unwrap_err();
        assert!(matches!(FileError::new(&ballast, error), FileError::Full(_)));
        let before = rounds(writer.dir());
        let mut appended = 0;
        let error = loop {
            let (record, digest) = run.round_with(|r| (r.headers[0].weight, r.headers[0].loss) = (0, 0.0));
            match writer.append(&record, digest) {
                Ok(()) => appended += 1,
                Err(error) => break error,
            }
        };
        assert!(
            matches!(error, CheckpointError::File(FileError::Full(_))),
            "{error}"
        );
        assert!(error.to_string().contains("no space left"), "{error}");
        let error = writer
            .saver()
            .save(&run.head, &run.state, run.state.digest())
            .unwrap_err();
        assert!(
            matches!(error, CheckpointError::File(FileError::Full(_))),
            "{error}"
        );
        assert_eq!(rounds(writer.dir()), before);
        let names: Vec<_> = fs::read_dir(path.join("checkpoints"))
            .unwrap()
            .map(|f| f.unwrap().path())
            .collect();
        assert!(
            names
                .iter()
                .all(|name| name.extension().unwrap() == "safetensors"),
            "{names:?}"
        );

        // Space again: all that was saved is there, and the ledger goes on where it stopped.
        fs::remove_file(&ballast).unwrap();
        let reader = writer.dir().entries().unwrap();
        assert_eq!(reader.count(), 1 + 2 + appended);
        drop(writer);
        let (mut writer, loaded) = RunWriter::open(&path).unwrap();
        assert_eq!((loaded.head, loaded.state), saved);
        writer.resume(member(1)).unwrap();

        // Files that are open for writing would keep it writable.
        drop(writer);
        assert!(disk.run("mount", &["-o", "remount,ro"]));
        let dir = RunDir::open(&path).unwrap();
        let label = Label {
            head: saved.0,
            digest: saved.1.digest(),
        };
        let error = super::save(&dir, &label, &saved.1).unwrap_err();
        assert!(
            matches!(error, CheckpointError::File(FileError::Denied(_))),
            "{error}"
        );
        assert_eq!(dir.load_latest().unwrap().state, saved.1);
        let error = RunWriter::open(&path).err().unwrap();
        assert!(
            matches!(error, CheckpointError::File(FileError::Denied(_))),
            "{error}"
        );
    }
}
