//! Reads hostile files: whatever they contain, reading ends, with or without an error.

use crate::offline::{audit, inspect};
use crate::store::checkpoint::RunWriter;
use crate::store::known::Known;
use crate::store::ledger_file::{Entry, LedgerWriter};
use crate::store::run_dir::RunDir;
use crate::testing::{Run, Scratch, Twister, founder};
use annulus_core::config::Manifest;
use std::fs;
use std::path::Path;

/// How often each kind of file is corrupted.
const TIMES: u64 = 300;

/// A run folder with all its files, and what was appended to its ledger.
fn written() -> (Scratch, Vec<Entry>) {
    let scratch = Scratch::new();
    let mut run = Run::new();
    let mut writer = RunWriter::create(&scratch.0.join("run"), &run.manifest, &run.head, &run.state).unwrap();
    let mut entries = Vec::new();
    for round in 1..=12 {
        if round == 7 {
            run.head = writer.resume(founder(3)).unwrap();
            entries.push(Entry::Continued {
                founder: founder(3).into(),
            });
        }
        let (record, digest) = run.round();
        writer.append(&record, digest).unwrap();
        entries.push(Entry::Round { record, digest });
        if round % 4 == 0 {
            let saver = writer.saver();
            saver.save(&run.head, &run.state, run.state.digest()).unwrap();
        }
    }
    (scratch, entries)
}

/// Calls everything that reads a run folder.
fn read_all(path: &Path) {
    if let Ok(dir) = RunDir::open(path) {
        let _ = audit::audit(&dir);
        let _ = inspect::inspect(&dir);
        let _ = inspect::losses(&dir);
        let _ = dir.load_latest();
    }
    if let Ok((_, loaded)) = RunWriter::open(path) {
        assert_eq!(loaded.state.digest(), loaded.digest);
    }
}

/// Corrupts a file of a run folder repeatedly, and reads the whole folder each time.
fn spoil(file: impl Fn(&Path) -> std::path::PathBuf) {
    let (scratch, _) = written();
    let whole = scratch.0.join("run");
    let good = fs::read(file(&whole)).unwrap();
    let mut twister = Twister::new(7);
    for _ in 0..TIMES {
        fs::write(file(&whole), twister.twist(&good)).unwrap();
        read_all(&whole);
    }
}

#[test]
fn a_spoilt_ledger_is_no_more_than_an_error() {
    spoil(|run| run.join("ledger"));
}

#[test]
fn a_spoilt_checkpoint_is_no_more_than_an_error() {
    spoil(|run| run.join("checkpoints").join("round-00000012.safetensors"));
}

#[test]
fn a_spoilt_manifest_is_no_more_than_an_error() {
    spoil(|run| run.join("manifest.bin"));
    let mut twister = Twister::new(8);
    let good = Run::new().manifest.encode();
    for _ in 0..100 * TIMES {
        let _ = Manifest::decode(&twister.twist(&good));
    }
}

/// Corrupted bytes fail their frame's hash. A frame with a new valid hash is read to its end.
#[test]
fn a_ledger_of_invented_entries_is_no_more_than_an_error() {
    let (scratch, entries) = written();
    let path = scratch.0.join("run");
    let good = fs::read(path.join("ledger")).unwrap();
    let mut twister = Twister::new(9);
    let mut invented = 0;
    for _ in 0..TIMES {
        fs::write(path.join("ledger"), &good).unwrap();
        let mut ledger = LedgerWriter::open(&path.join("ledger"), good.len() as u64).unwrap();
        for _ in 0..8 {
            let bytes = postcard::to_allocvec(&entries[twister.below(entries.len())]).unwrap();
            if let Ok(entry) = postcard::from_bytes::<Entry>(&twister.twist(&bytes)) {
                invented += u32::from(ledger.append(&entry).is_ok());
            }
        }
        read_all(&path);
    }
    assert!(invented > 100, "{invented}");
}

#[test]
fn a_spoilt_list_of_acquaintances_is_no_more_than_lost() {
    let scratch = Scratch::new();
    let run = Run::new();
    let id = run.manifest.run_id();
    let mut known = Known::new(id);
    known.meet(crate::testing::peer(9), run.head.members.iter());
    known.save(&scratch.0).unwrap();
    let path = fs::read_dir(&scratch.0).unwrap().next().unwrap().unwrap().path();
    let good = fs::read(&path).unwrap();
    let mut twister = Twister::new(10);
    for _ in 0..10 * TIMES {
        fs::write(&path, twister.twist(&good)).unwrap();
        let _ = Known::load(&scratch.0, id).contacts().count();
    }
}
