//! Real processes of the real binary, driven through the command line and watched through their JSON log.
#![allow(dead_code, missing_docs, reason = "each test file uses its own part")]

use annulus_core::OutcastReason;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// Longest wait for anything. On a busy machine the tabs of two tests take more than two minutes to compile their kernels.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Longer than a silent link stays open (`QuicConfig::idle`).
pub const SILENT: Duration = Duration::from_secs(12);

/// Exit code of who has left before the run's end.
pub const LEFT: i32 = 75;

/// The machine, which tests share.
static MACHINE: RwLock<()> = RwLock::new(());

/// Each process has one generator of Burn's random numbers on the processor, and one count of launched kernels.
static PROCESS: RwLock<()> = RwLock::new(());

/// A turn beside another test: what most tests take.
pub fn beside() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// A turn with nothing else beside, for a test that measures.
pub fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// A turn for a test that computes in this process, beside others that do.
pub fn computing() -> (RwLockReadGuard<'static, ()>, RwLockReadGuard<'static, ()>) {
    (beside(), PROCESS.read().unwrap_or_else(PoisonError::into_inner))
}

/// A turn for a test that is the only one to compute in this process.
pub fn computing_alone() -> (RwLockReadGuard<'static, ()>, RwLockWriteGuard<'static, ()>) {
    (beside(), PROCESS.write().unwrap_or_else(PoisonError::into_inner))
}

/// Looks again and again until something is so. The bound catches what hangs; it says nothing about speed.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "never {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn annulus() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
    // Waits for peers that do not come are shorter than a user's.
    command.env("ANNULUS_WAITS_TENTHS", "2");
    // Not the user's.
    command.env("ANNULUS_CACHE", std::env::temp_dir().join("annulus-test-cache"));
    command.env("XDG_DATA_HOME", std::env::temp_dir().join("annulus-test-data"));
    // Mesa warns on standard error where it is not set.
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        command.env("XDG_RUNTIME_DIR", std::env::temp_dir());
    }
    command
}

/// Runs a command to its end; one about a peer's folder as if on that peer's machine.
pub fn run(args: &[&str]) -> Output {
    let mut command = annulus();
    let caches = args.iter().map(|arg| cache_of(arg));
    for cache in caches.filter(|cache| Path::new(cache).exists()) {
        command.env("ANNULUS_CACHE", cache);
    }
    command
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs")
}

/// Trains on a file or folder, alone, with these options and settings.
pub fn train_on(data: &str, out: &str, more: &[&str]) -> Output {
    let args = ["train", "--device", "cpu", "--data", data, "--out", out];
    run(&[&args[..], &["--listen", "127.0.0.1:0", "--no-announce"], more].concat())
}

/// A folder of its own, which goes away with the test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("annulus-test-{name}-{}-{next}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }

    pub fn join(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An event of a peer and when its line was read.
#[derive(Clone, Debug)]
pub struct Seen {
    pub at: Instant,
    pub event: Value,
}

impl Seen {
    pub fn is(&self, name: &str) -> bool {
        self.event["event"] == name
    }

    pub fn round(&self) -> u64 {
        self.event["round"].as_u64().expect("a round")
    }

    pub fn members(&self) -> Vec<String> {
        let members = self.event["members"].as_array().expect("members");
        members
            .iter()
            .map(|m| m["peer"].as_str().expect("a name").to_owned())
            .collect()
    }
}

/// Where the peer with this run directory keeps data that it has fetched.
pub fn cache_of(dir: &str) -> String {
    format!("{dir}-cache")
}

/// A running peer.
pub struct Node {
    pub name: &'static str,
    pub dir: String,
    folder: PathBuf,
    child: Child,
    log: Arc<(Mutex<Vec<Seen>>, Condvar)>,
    errors: Arc<Mutex<String>>,
}

impl Node {
    pub fn start(name: &'static str, dir: String, args: &[&str]) -> Self {
        Self::start_in(name, dir, Path::new("."), args)
    }

    /// One that is started in a folder.
    pub fn start_in(name: &'static str, dir: String, folder: &Path, args: &[&str]) -> Self {
        let args = [args, &["--out", &dir]].concat();
        Self::start_as(name, dir.clone(), folder, &args)
    }

    /// One whose arguments name its run directory themselves, if at all.
    pub fn start_as(name: &'static str, dir: String, folder: &Path, args: &[&str]) -> Self {
        let mut command = annulus();
        command.current_dir(folder).args(args);
        // On one machine small models are no faster with more peers, and those of these stories take part all the same.
        let is_run = args.first() == Some(&"train");
        if is_run && !args.iter().any(|arg| arg.starts_with("stand_aside")) {
            command.arg("stand_aside=off");
        }
        Self::spawn(name, dir, command)
    }

    /// One of any program that takes the binary's arguments.
    pub fn spawn(name: &'static str, dir: String, mut command: Command) -> Self {
        command.args(["--log-format", "json"]);
        // Each as if on a machine of its own.
        command.env("ANNULUS_CACHE", cache_of(&dir));
        command.env("XDG_DATA_HOME", cache_of(&dir));
        if !command.get_args().any(|arg| arg == "--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let folder = command.get_current_dir().unwrap_or(Path::new(".")).to_owned();
        let mut child = command.spawn().expect("the binary runs");
        let log: Arc<(Mutex<Vec<Seen>>, Condvar)> = Arc::default();
        let errors: Arc<Mutex<String>> = Arc::default();
        let (to, out) = (log.clone(), child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let event = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{name}: {e}: {line}"));
                to.0.lock().expect("log").push(Seen {
                    at: Instant::now(),
                    event,
                });
                to.1.notify_all();
            }
        });
        let (to, err) = (errors.clone(), child.stderr.take().expect("piped"));
        std::thread::spawn(move || {
            for line in BufReader::new(err).lines().map_while(Result::ok) {
                to.lock().expect("errors").push_str(&(line + "\n"));
            }
        });
        Self {
            name,
            dir,
            folder,
            child,
            log,
            errors,
        }
    }

    /// The first event, at or after a place in the log, that fits.
    pub fn wait(&mut self, what: &str, fits: impl Fn(&Seen) -> bool) -> Seen {
        self.wait_from(0, what, fits)
    }

    pub fn wait_from(&mut self, from: usize, what: &str, fits: impl Fn(&Seen) -> bool) -> Seen {
        let deadline = Instant::now() + PATIENCE;
        let mut looked = from;
        let (lock, more) = &*self.log.clone();
        let mut log = lock.lock().expect("log");
        loop {
            if let Some(seen) = log[looked.min(log.len())..].iter().find(|s| fits(s)) {
                return seen.clone();
            }
            looked = log.len().max(from);
            if Instant::now() > deadline
                || self
                    .child
                    .try_wait()
                    .is_ok_and(|s| s.is_some() && log.len() == looked)
            {
                let tail: Vec<String> = log.iter().rev().take(8).map(|s| s.event.to_string()).collect();
                let errors = self.errors.lock().expect("errors").clone();
                panic!(
                    "{}: never saw {what}. Last events, newest first:\n{}\n{errors}",
                    self.name,
                    tail.join("\n")
                );
            }
            log = more.wait_timeout(log, Duration::from_millis(200)).expect("log").0;
        }
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_none())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn seen(&self) -> usize {
        self.log.0.lock().expect("log").len()
    }

    pub fn log(&self) -> Vec<Seen> {
        self.log.0.lock().expect("log").clone()
    }

    pub fn errors(&self) -> String {
        self.errors.lock().expect("errors").clone()
    }

    pub fn ready(&mut self) -> Seen {
        self.wait("ready", |s| s.is("ready"))
    }

    /// The ticket, from its file; the log does not tell it.
    pub fn ticket(&mut self) -> String {
        let ready = self.ready().event;
        let file = ready["ticket_file"].as_str().expect("a file");
        let text = std::fs::read_to_string(self.folder.join(file)).expect("readable");
        text.trim_end().to_owned()
    }

    /// The address of its page, with what it takes to take part.
    pub fn url(&mut self) -> String {
        let ready = self.ready().event;
        let url = ready["url"].as_str().expect("a page");
        format!("{url}#{}", self.ticket())
    }

    pub fn peer(&mut self) -> String {
        self.ready().event["peer"].as_str().expect("a peer").to_owned()
    }

    /// Waits for the next round with `count` members.
    pub fn members(&mut self, count: usize) -> Seen {
        let from = self.seen();
        self.wait_from(from, &format!("a round of {count}"), |s| {
            s.is("round") && s.members().len() == count
        })
    }

    /// Waits for `more` rounds.
    pub fn rounds(&mut self, more: u64) -> Seen {
        let now = self
            .log()
            .iter()
            .rev()
            .find(|s| s.is("round"))
            .map_or(0, Seen::round);
        self.wait(&format!("round {}", now + more), |s| {
            s.is("round") && s.round() >= now + more
        })
    }

    /// Waits for the first round without a peer that fell silent at some time, and tells how long that took.
    ///
    /// The peer was a member of the round before at the latest: whoever failed costs the others a wait, and no round.
    pub fn goes_on_without(&mut self, peer: &str, since: Instant) {
        let is_without =
            |seen: &Seen| seen.is("round") && !seen.members().iter().any(|member| member == peer);
        let next = self.wait("a round without who fell silent", |seen| {
            seen.at >= since && is_without(seen)
        });
        let log = self.log();
        let with = log.iter().rfind(|seen| seen.is("round") && !is_without(seen));
        assert_eq!(with.map(Seen::round), Some(next.round() - 1), "{}", self.name);
        println!("{}: goes on {:.2?} after the failure", self.name, next.at - since);
    }

    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let done = Command::new("kill").args([signal, &pid]).status().expect("kill");
        assert!(done.success(), "kill {signal} {pid}");
    }

    /// SIGKILL: it cannot say a word.
    pub fn kill(&mut self) -> Instant {
        self.child.kill().expect("kill");
        let at = Instant::now();
        let _ = self.child.wait();
        at
    }

    /// Asks it to leave and waits for its end. Whether it has left in good order, or just finished.
    pub fn leave(&mut self) -> bool {
        self.signal("-TERM");
        matches!(self.end().code(), Some(0 | LEFT))
    }

    /// Prints what is needed to understand a failure: all events but rounds, and for each the round before it.
    pub fn tell(&self) {
        eprintln!("--- {}:", self.name);
        let log = self.log.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for (i, seen) in log.iter().enumerate().filter(|(_, seen)| !seen.is("round")) {
            let before = log[..i].iter().rev().find(|seen| seen.is("round"));
            let (round, time) = before.map_or((0, &Value::Null), |seen| (seen.round(), &seen.event["time"]));
            eprintln!("after round {round} of {time}: {}", seen.event);
        }
        eprint!("{}", self.errors());
    }

    pub fn end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().expect("wait") {
                // The readers may be a line behind.
                std::thread::sleep(Duration::from_millis(100));
                return status;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{} does not end", self.name);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            self.tell();
        }
    }
}

/// A long run's command: digits under the direct plan, on the processor.
pub const LONG_DIRECT: [&str; 9] = [
    "train",
    "--task",
    "digits",
    "--device",
    "cpu",
    "train=2000",
    "test=500",
    "rounds=1000000",
    "topology=direct",
];

/// A small run's command: digits on the processor, without an end.
pub const SMALL: [&str; 6] = [
    "train",
    "--device",
    "cpu",
    "rounds=1000000",
    "train=500",
    "test=100",
];

/// A peer that joins, on the processor.
pub fn join(folder: &Folder, name: &'static str, ticket: &str) -> Node {
    Node::start(name, folder.join(name), &["join", ticket, "--device", "cpu"])
}

/// Whether a peer's folder can be replayed, and what is said of it.
pub fn replay(node: &Node) -> (bool, String) {
    let output = run(&["replay", &node.dir, "--json"]);
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// One process alone makes the bits that a peer has recorded.
pub fn assert_replays_exactly(node: &Node) {
    let (good, text) = replay(node);
    assert!(
        good && text.contains("\"verdict\":\"exact\""),
        "{}: {text}",
        node.name
    );
}

/// The error of a command that fails, as one line.
pub fn refusal(args: &[&str]) -> String {
    told(&run(args))
}

/// The one error that a command tells, as one line.
pub fn told(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "it succeeded: {text}");
    let paragraph: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.starts_with("error:"))
        .collect();
    assert!(!paragraph.is_empty(), "no error told: {text}");
    assert!(
        paragraph.iter().all(|line| !line.is_empty()),
        "more than one paragraph: {text}"
    );
    assert!(!text.contains("panicked"), "{text}");
    let told = paragraph.join(" ");
    println!("{told}");
    told
}

/// The error of a peer that joins and is refused.
pub fn refused(folder: &Folder, name: &str, ticket: &str) -> String {
    let out = folder.join(name);
    let listen = ["--listen", "127.0.0.1:0", "--out", &out];
    refusal(&[&["join", ticket, "--device", "cpu"], &listen[..]].concat())
}

pub fn digests(node: &Node) -> BTreeMap<u64, String> {
    digests_of(node.log().iter().map(|seen| &seen.event))
}

/// Digest of each round that a peer committed on the lineage that it is on, by its events. A peer that rejoined may have
/// committed a round twice: the last counts.
pub fn digests_of<'a>(events: impl Iterator<Item = &'a Value>) -> BTreeMap<u64, String> {
    let mut digests = BTreeMap::new();
    for event in events {
        if event["event"] == "round" {
            let digest = event["digest"].as_str().expect("a digest").to_owned();
            digests.insert(event["round"].as_u64().expect("a round"), digest);
        } else if event["event"] == "member" && event["reason"] == OutcastReason::OtherLineage.to_string() {
            // Its earlier rounds left the run's history; its log does not say from which round on.
            digests.clear();
        }
    }
    digests
}

/// Asserts that all rounds that two peers committed have equal digests; returns how many there are.
pub fn assert_equal(nodes: &[&Node]) -> usize {
    let mut all: BTreeMap<u64, (String, &str)> = BTreeMap::new();
    let mut shared = 0;
    for node in nodes {
        for (round, digest) in digests(node) {
            match all.get(&round) {
                Some((other, name)) => {
                    assert_eq!(*other, digest, "round {round}: {} and {name} differ", node.name);
                    shared += 1;
                }
                None => {
                    all.insert(round, (digest, node.name));
                }
            }
        }
    }
    shared
}

/// Asserts that no committed round is missing in a peer's log, except where the log says that the peer was out and came
/// back. On a busy machine a process may get no processor for longer than an answer may take. The others then take it for
/// dead.
pub fn assert_gapless(node: &mut Node) {
    let me = node.peer();
    let mut last: Option<u64> = None;
    let mut out = false;
    for seen in node.log() {
        if seen.is("member") && seen.event["peer"] == *me && seen.event["change"] == "evicted" {
            println!(
                "{}: out after round {last:?}: {}",
                node.name, seen.event["reason"]
            );
            out = true;
        } else if seen.is("round") {
            let round = seen.round();
            let follows = out || last.is_none_or(|last| round == last + 1);
            assert!(follows, "{}: after round {last:?} comes {round}", node.name);
            (last, out) = (Some(round), false);
        }
    }
}

/// `inspect` with `--json`: among others it audits that each sample is counted once.
pub fn inspect(dir: &str) -> Value {
    let output = run(&["inspect", dir, "--json"]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("text");
    serde_json::from_str(text.lines().last().expect("a line")).expect("JSON")
}

/// Asserts that a peer's record of the run passes the audit.
pub fn assert_audited(node: &Node) {
    let report = inspect(&node.dir);
    assert_eq!(report["audit"]["sound"], true, "{}: {report}", node.name);
}

/// The folder with real data sets, if it is there. Says so if not.
pub fn data(name: &str) -> Option<PathBuf> {
    let base = std::env::var_os("ANNULUS_DATA").map(PathBuf::from);
    let base = base.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"));
    let path = base.join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!(
        "skipped: {} is not there (set ANNULUS_DATA to the folder that holds {name})",
        path.display()
    );
    None
}
