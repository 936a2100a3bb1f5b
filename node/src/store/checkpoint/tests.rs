//! Run folders that are written, truncated, locked, full, and read again.

use super::*;
use crate::store::evals::Evaluated;
use crate::store::state_file::StateFileError;
use crate::testing::{Run, Scratch, founder};
use std::io::{BufRead, BufReader};
use std::num::NonZeroU64;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Held while processes are started. Until they run they have copies of all open files, which keep removed files on the
/// disk and a file system writable.
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
fn the_best_is_kept_beside_the_newest_and_what_waits_for_its_evaluation() {
    let (_scratch, path, mut run, mut writer) = begun();
    let dir = RunDir::open(&path).unwrap();
    let of = |which: &str| Ok::<_, CheckpointError>(dir.load_which(which.parse().unwrap())?.head.round);
    assert!(matches!(of("best"), Err(CheckpointError::NotKept(..))));
    let keep = Keep {
        newest: 1,
        best: true,
        ledger: None,
    };
    for (round, loss) in [(1, 3.0), (2, 1.0), (3, f32::NAN), (4, 1.0), (5, 2.0)] {
        go(&mut run, &mut writer, 1);
        let saver = writer.saver().keep(keep);
        saver.save(&run.head, &run.state, run.state.digest()).unwrap();
        evals::append(
            &path,
            &Evaluated {
                round,
                loss,
                metrics: Default::default(),
            },
        )
        .unwrap();
    }
    // What was evaluated last went when a newer one came.
    assert_eq!(rounds(&dir), [0, 2, 5]);
    assert_eq!(
        [of("newest").unwrap(), of("best").unwrap(), of("2").unwrap()],
        [5, 2, 2]
    );
    let why = of("4").unwrap_err().to_string();
    assert!(why.contains("those after 0, 2, 5"), "{why}");
    // Nobody evaluates for a while.
    for _ in 0..10 {
        go(&mut run, &mut writer, 1);
        let saver = writer.saver().keep(keep);
        saver.save(&run.head, &run.state, run.state.digest()).unwrap();
    }
    assert_eq!(rounds(&dir), [0, 2, 8, 9, 10, 11, 12, 13, 14, 15]);
}

#[test]
fn an_old_checkpoint_makes_room_before_a_new_one_has_its_name() {
    let (_scratch, path, mut run, mut writer) = begun();
    let dir = RunDir::open(&path).unwrap();
    let keep = Keep {
        newest: 2,
        ..Keep::default()
    };
    let mut save = |run: &mut Run| {
        go(run, &mut writer, 1);
        writer
            .saver()
            .keep(keep)
            .save(&run.head, &run.state, run.state.digest())
    };
    for _ in 0..3 {
        save(&mut run).unwrap();
    }
    assert_eq!(rounds(&dir), [0, 2, 3]);
    // Nothing can take the next one's name.
    fs::create_dir_all(path.join("checkpoints/round-00000004.safetensors/in-the-way")).unwrap();
    save(&mut run).unwrap_err();
    fs::remove_dir_all(path.join("checkpoints/round-00000004.safetensors")).unwrap();
    assert_eq!(rounds(&dir), [0, 3]);
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

    // The rounds of the lost state are done again, on a lineage of their own.
    let head = writer.resume(founder(1)).unwrap();
    assert_eq!(head, before.0.continued_by(founder(1)));
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
        writer.resume(founder(1)).unwrap();
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
    other.head = other.head.continued_by(founder(2));
    for _ in 0..8 {
        other.round();
    }
    writer.rebase(Keep::default(), &other.head, &other.state).unwrap();
    assert_eq!(rounds(writer.dir()), [5, 8]);

    // A crash before the newer checkpoint of the former lineage was removed.
    let left = Label {
        head: run.head.clone(),
        digest: run.state.digest(),
    };
    super::save(writer.dir(), &left, &run.state, || ()).unwrap();
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
fn a_run_whose_ledger_is_lost_goes_on_from_its_checkpoints_and_is_not_begun_anew() {
    let (_scratch, path, mut run, mut writer) = begun();
    go(&mut run, &mut writer, 4);
    save(&run, &writer);
    drop(writer);
    fs::remove_file(path.join("ledger")).unwrap();
    let again = RunWriter::create(&path, &run.manifest, &Run::new().head, &Run::new().state);
    assert!(matches!(again, Err(CheckpointError::Occupied(_))));
    let told = RunDir::open(&path).unwrap().entries().err().unwrap().to_string();
    assert!(
        told.contains("`ledger` is missing") && told.contains("annulus resume"),
        "{told}"
    );
    let (mut writer, loaded) = RunWriter::open(&path).unwrap();
    assert_eq!((&loaded.head, &loaded.state), (&run.head, &run.state));
    assert!(
        loaded.warnings[0].contains("`ledger` is missing"),
        "{:?}",
        loaded.warnings
    );
    go(&mut run, &mut writer, 1);
    drop(writer);

    fs::remove_file(path.join("manifest.bin")).unwrap();
    let error = RunDir::open(&path).err().unwrap();
    assert!(matches!(error, CheckpointError::NoManifest(_)), "{error}");
}

#[test]
fn a_damaged_manifest_is_told_from_one_of_another_version() {
    let (_scratch, path, _, _writer) = begun();
    let file = path.join("manifest.bin");
    let good = fs::read(&file).unwrap();
    let told = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        RunDir::open(&path).err().unwrap()
    };
    let is_damage = |error: CheckpointError| {
        let told = error.to_string();
        assert!(matches!(error, CheckpointError::Damaged(..)), "{told}");
        assert!(
            told.contains("is damaged") && told.contains("any other peer"),
            "{told}"
        );
    };
    is_damage(told(b""));
    for bit in (0..8 * good.len()).step_by(7) {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        is_damage(told(&bytes));
    }
    // Of a run of another version the ledger names just such a manifest.
    let mut other = good.clone();
    other[7] += 1;
    let ledger = path.join("ledger");
    let mut bytes = fs::read(&ledger).unwrap();
    bytes[8..40].copy_from_slice(blake3::hash(&other).as_bytes());
    fs::write(&ledger, &bytes).unwrap();
    let error = told(&other);
    assert!(matches!(error, CheckpointError::Manifest(..)), "{error}");
    // And a ledger that names another run is the one that is damaged, if the checkpoints name this one.
    fs::write(&file, &good).unwrap();
    assert!(RunDir::open(&path).is_ok());
}

#[cfg(unix)]
#[test]
fn links_in_a_folder_lead_to_no_other() {
    use std::os::unix::fs::symlink;
    let (scratch, path, mut run, mut writer) = begun();
    go(&mut run, &mut writer, 3);
    save(&run, &writer);
    drop(writer);
    // Another run's checkpoints, which this one would take for its own, and old.
    let (own, others) = (path.join("checkpoints"), scratch.0.join("others"));
    fs::create_dir(&others).unwrap();
    let names = [1, 2, 4, 5, 6, 7].map(|round| format!("round-{round:08}.safetensors"));
    let names = names.iter().map(String::as_str).chain(["notes.partial"]);
    names
        .clone()
        .for_each(|name| fs::write(others.join(name), "precious").unwrap());
    fs::rename(&own, scratch.0.join("own")).unwrap();
    symlink(&others, &own).unwrap();
    for error in [
        RunWriter::open(&path).err().unwrap(),
        RunDir::open(&path).unwrap().load_latest().unwrap_err(),
        RunWriter::create(&path, &run.manifest, &run.head, &run.state)
            .err()
            .unwrap(),
    ] {
        let told = error.to_string();
        assert!(
            told.contains("checkpoints is a link") || matches!(error, CheckpointError::Occupied(_)),
            "{told}"
        );
    }
    assert!(
        names
            .clone()
            .all(|name| fs::read(others.join(name)).unwrap() == b"precious")
    );
    assert_eq!(fs::read_dir(&others).unwrap().count(), names.count());
    // A checkpoint that is a link is passed over.
    fs::remove_file(&own).unwrap();
    fs::rename(scratch.0.join("own"), &own).unwrap();
    symlink("/dev/zero", own.join("round-00000009.safetensors")).unwrap();
    let (_, loaded) = RunWriter::open(&path).unwrap();
    assert_eq!(loaded.head.round, 3);
    assert!(loaded.warnings[0].contains("is a link"), "{:?}", loaded.warnings);
    let run_ledger = path.join("ledger");
    fs::rename(&run_ledger, scratch.0.join("ledger")).unwrap();
    symlink(scratch.0.join("ledger"), &run_ledger).unwrap();
    let told = RunWriter::open(&path).err().unwrap().to_string();
    assert!(told.contains("ledger is a link"), "{told}");
}

#[test]
fn a_folder_that_is_gone_is_told() {
    let (_scratch, path, run, writer) = begun();
    fs::remove_dir_all(path.join("checkpoints")).unwrap();
    save(&run, &writer);
    fs::remove_dir_all(&path).unwrap();
    let saved = writer.saver().save(&run.head, &run.state, run.state.digest());
    let told = saved.unwrap_err().to_string();
    assert!(
        told.contains("run is gone") && !told.contains("partial"),
        "{told}"
    );
    for (name, help) in [
        ("file/run", "name another folder"),
        (&*"x".repeat(300), "shorter"),
    ] {
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("file"), "").unwrap();
        let told = RunLock::take(&path.join(name)).unwrap_err().to_string();
        assert!(told.contains(help) && !told.contains("make room"), "{told}");
    }
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

/// Runs this test as another process that saves without end, and kills it.
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
    run.manifest.target = NonZeroU64::MAX;
    let mut writer = if path.join("ledger").exists() {
        let (mut writer, loaded) = RunWriter::open(path).unwrap();
        run.state = loaded.state;
        run.head = writer.resume(founder(1)).unwrap();
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

/// A file system of the given size, unmounted in the end.
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

    // All but a few bytes are used.
    let ballast = path.join("ballast");
    let error = fs::write(&ballast, vec![1; 1 << 20]).unwrap_err();
    assert!(matches!(FileError::new(&ballast, error), FileError::Full(_)));
    let before = rounds(writer.dir());
    let mut appended = 0;
    let error = loop {
        let (record, digest) =
            run.round_with(|r| (r.headers[0].content.weight, r.headers[0].content.loss) = (0, 0.0));
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

    // With space again, everything saved is there, and the ledger continues where it stopped.
    fs::remove_file(&ballast).unwrap();
    let reader = writer.dir().entries().unwrap();
    assert_eq!(reader.count(), 1 + 2 + appended);
    drop(writer);
    let (mut writer, loaded) = RunWriter::open(&path).unwrap();
    assert_eq!((loaded.head, loaded.state), saved);
    writer.resume(founder(1)).unwrap();

    // Files that are open for writing would keep it writable.
    drop(writer);
    assert!(disk.run("mount", &["-o", "remount,ro"]));
    let dir = RunDir::open(&path).unwrap();
    let label = Label {
        head: saved.0,
        digest: saved.1.digest(),
    };
    let error = super::save(&dir, &label, &saved.1, || ()).unwrap_err();
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
