//! PyTorch, the program's own kernels and a browser tab train one model together. PyTorch's process is killed and comes back.

use crate::chromium::{CPU, assert_same, ready, weight};
use crate::common::*;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// Rounds of all three, before PyTorch is killed and again after it.
const ROUNDS: usize = 100;

/// An interpreter with what `annulus.member` needs, or the reason to skip.
fn python() -> Option<OsString> {
    let python = std::env::var_os("ANNULUS_PYTHON").unwrap_or("python3".into());
    let tried = Command::new(&python)
        .args(["-c", "import torch, safetensors"])
        .output();
    if tried.is_ok_and(|done| done.status.success()) {
        return Some(python);
    }
    eprintln!(
        "skipped: {} has no torch or no safetensors (ANNULUS_PYTHON names another interpreter)",
        python.display()
    );
    None
}

/// A process that computes with PyTorch: the script of the Python package's own tests.
struct Torch {
    child: Child,
    lines: Receiver<String>,
    /// Digest of each round that its peer committed.
    digests: BTreeMap<u64, String>,
}

impl Torch {
    /// Four processes read its samples. In a folder that has a run it goes on with that one.
    fn start(python: &OsString, folder: &Folder, settings: &[&str]) -> Self {
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
        let mut child = Command::new(python)
            .arg(package.join("tests/taking_part.py"))
            .args([&folder.join("torch"), "4", "batch=192", "stand_aside=off"])
            .args(settings)
            .env("PYTHONPATH", &package)
            .env("ANNULUS_PROGRAM", env!("CARGO_BIN_EXE_annulus"))
            .env("ANNULUS_CACHE", cache_of(&folder.join("torch")))
            .stdout(Stdio::piped())
            .spawn()
            .expect("the interpreter runs");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let (send, lines) = channel();
        std::thread::spawn(move || {
            let lines = out.lines().map_while(Result::ok);
            lines.map_while(|line| send.send(line).ok()).for_each(drop);
        });
        Self {
            child,
            lines,
            digests: BTreeMap::new(),
        }
    }

    /// Takes over a line that it has printed.
    fn line(&mut self) -> Vec<String> {
        let line = self.lines.recv_timeout(PATIENCE).expect("PyTorch goes on");
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        match words[0].as_str() {
            "round" => {
                let round = words[1].parse().expect("a round");
                self.digests.insert(round, words[2].clone());
            }
            // Its earlier rounds left the run's history.
            "lineage" => self.digests.clear(),
            _ => {}
        }
        words
    }

    fn ticket(&mut self) -> String {
        loop {
            let words = self.line();
            if words[0] == "ticket" {
                return words[1].clone();
            }
        }
    }

    /// Waits for more rounds of this many members.
    fn rounds(&mut self, count: usize, members: usize) {
        let mut seen = 0;
        while seen < count {
            let words = self.line();
            seen += usize::from(words[0] == "round" && words[3] == members.to_string());
        }
    }

    /// Ctrl-C, and what it prints until its end.
    fn leave(mut self) -> BTreeMap<u64, String> {
        let pid = self.child.id().to_string();
        let done = Command::new("kill").args(["-INT", &pid]).status().expect("kill");
        assert!(done.success(), "kill {pid}");
        let until = Instant::now() + PATIENCE;
        while self.line()[0] != "loss" {
            assert!(Instant::now() < until, "PyTorch does not leave");
        }
        std::mem::take(&mut self.digests)
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn pytorch_our_kernels_and_a_tab_train_one_model() {
    let (Some(browser), Some(python)) = (ready(), python()) else {
        return;
    };
    let _turn = beside();
    let folder = Folder::new("pytorch");
    // PyTorch draws other numbers for dropout than a replay.
    let plain = ["dropout=0", "checkpoint_every=50"];
    let mut torch = Torch::start(&python, &folder, &plain);
    let mut ours = join(&folder, "ours", &torch.ticket());
    ours.members(2);
    let mut tab = crate::chromium::join(&browser, "tab", &ours.url(), CPU);
    torch.rounds(ROUNDS, 3);

    // SIGKILL: its program leaves for it, and the others go on.
    torch.child.kill().expect("kill");
    ours.members(2);
    let mut digests = std::mem::take(&mut torch.digests);
    let mut torch = Torch::start(&python, &folder, &plain);
    torch.rounds(ROUNDS, 3);
    // It has the same name in the run as before, and all three had work.
    let log = ours.log();
    let members = log.iter().filter(|seen| seen.is("round")).flat_map(Seen::members);
    let mut samples: BTreeMap<String, u64> = members.map(|peer| (peer, 0)).collect();
    for (peer, samples) in &mut samples {
        *samples = weight(&ours, peer);
    }
    println!("samples by member: {samples:?}");
    assert_eq!(samples.len(), 3);
    assert!(samples.values().all(|count| *count > 0), "{samples:?}");

    tab.listen();
    tab.click("Leave");
    tab.wait("the way out", |message| message["state"] == "left");
    digests.extend(torch.leave());
    assert!(ours.leave(), "{}", ours.errors());

    let of_ours = crate::common::digests(&ours);
    let common: Vec<u64> = digests
        .keys()
        .copied()
        .filter(|round| of_ours.contains_key(round))
        .collect();
    for round in &common {
        assert_eq!(digests[round], of_ours[round], "PyTorch in round {round}");
    }
    let with_tab = assert_same(&mut tab, &ours);
    println!(
        "{} rounds in common with PyTorch, {with_tab} with the tab",
        common.len()
    );
    assert!(common.len() >= 2 * ROUNDS && with_tab >= 2 * ROUNDS);
    assert_gapless(&mut ours);
    assert_audited(&ours);
    let torch = inspect(&format!("{}/run", folder.join("torch")));
    assert_eq!(torch["audit"]["sound"], true, "{torch}");
    let replayed = run(&["replay", &ours.dir, "--tolerance", "1e-4"]);
    let text = String::from_utf8_lossy(&replayed.stdout);
    print!("{text}");
    assert!(replayed.status.success(), "{replayed:?}");
    assert!(text.contains("within the tolerance"), "{text}");
}

#[test]
fn a_replay_of_what_pytorch_dropped_at_random_says_why_it_differs() {
    let Some(python) = python() else { return };
    let _turn = beside();
    let folder = Folder::new("pytorch-dropout");
    let mut torch = Torch::start(&python, &folder, &["checkpoint_every=50"]);
    torch.ticket();
    torch.rounds(4 * ROUNDS, 1);
    torch.leave();
    // Rounding alone makes less than 1e-6.
    let run_of_torch = format!("{}/run", folder.join("torch"));
    let data = format!("{}/model", folder.join("torch"));
    let replayed = run(&["replay", &run_of_torch, "--data", &data, "--tolerance", "1e-4"]);
    let said = [replayed.stdout, replayed.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(!replayed.status.success(), "{said:?}");
    assert!(said.iter().all(|text| text.contains("dropout")), "{said:?}");
}
