//! The steps of `cargo xtask test`, each a program to run or a check of files, and their sum.

use crate::browser;
use crate::command::{self, cargo, succeeds, title};
use crate::packages;
use crate::python;
use crate::tally::{Reader, Show, Tally};
use crate::tidy;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::thread::{self, JoinHandle};

/// How many of the slowest tests a run names.
const SLOWEST: usize = 20;

/// Everything. Ends with one line that sums it all up.
pub fn test(root: &Path, seeds: &str) -> bool {
    packages::install();
    let page = Page::start(root);
    let mut tally = Tally::default();
    tally.add(format(root));
    title("tidiness");
    tally.count(tidy(root));
    title("lints, and building the tests");
    tally.add(build_tests(root));
    tally.add(page.finish());
    title("tests");
    tally.add(cargo_test(root, &["--lib", "--bins", "--tests"], &[]));
    title("examples in the documentation");
    tally.add(documentation_tests(root));
    title("tables in Parquet");
    let with_parquet = ["--package", "annulus-table", "--features", "parquet", "--lib"];
    tally.add(cargo_test(root, &with_parquet, &["parquet"]));
    tally.add(python::test(root));
    title("simulation");
    tally.count(sim(root, &["--seeds", seeds]));
    end(&tally)
}

/// Prints what took how long, and last the sum of all checks. Whether they all hold.
fn end(tally: &Tally) -> bool {
    println!("\nthe slowest of all tests:");
    for (seconds, name) in tally.slowest(SLOWEST) {
        println!("{seconds:>6.1} s  {name}");
    }
    println!("\nthe steps:");
    for (seconds, name) in command::steps() {
        println!("{seconds:>6.1} s  {name}");
    }
    println!("\n{tally}");
    tally.failed == 0
}

/// The page, and the tests that open it in a real browser.
pub fn browser_test(root: &Path) -> bool {
    packages::install();
    let mut tally = Page::start(root).finish();
    title("tests in a browser");
    let in_a_browser = ["tabs::", "tabs_asleep::", "kernels_in_browser::", "pytorch::"];
    tally.add(cargo_test(root, &PEERS, &in_a_browser));
    end(&tally)
}

/// The tests of real peers.
const PEERS: [&str; 2] = ["--test", "peers"];

/// The tests that are left out elsewhere since they do the same again and again, for long, and the planted bugs.
pub fn prove(root: &Path) -> bool {
    title("long tests");
    let tests = [&PEERS[..], &["--test", "models"]].concat();
    // A link to a tab has a measurement of its own.
    let mut tally = cargo_test(root, &tests, &["--ignored", "--skip", "tab_link::"]);
    title("planted bugs");
    tally.count(sim(root, &["--bug", "all", "--seeds", "1000"]));
    tally.add(offline_tests(root));
    end(&tally)
}

/// What compilers for hardware make of the kernels.
pub fn kernels(root: &Path) -> bool {
    let tally = offline_tests(root);
    println!("{tally}");
    tally.failed == 0
}

fn offline_tests(root: &Path) -> Tally {
    packages::install();
    title("kernels for hardware");
    cargo_test(root, &["--test", "kernels"], &["offline::"])
}

/// The page that nodes serve, and the one that tries the kernels out. They are built beside other steps: no compiler keeps
/// all cores busy for long.
enum Page {
    /// Why there is none.
    Absent(String),
    /// What the builds print, in their order.
    Building(JoinHandle<Vec<io::Result<Output>>>),
}

impl Page {
    fn start(root: &Path) -> Self {
        if let Err(why) = browser::can_build(root) {
            return Self::Absent(why);
        }
        let build = |example: &[&str]| {
            let program = std::env::current_exe()?;
            Command::new(program).arg("browser").args(example).output()
        };
        Self::Building(thread::spawn(move || vec![build(&[]), build(&["kernels"])]))
    }

    fn finish(self) -> Tally {
        let mut tally = Tally::default();
        match self {
            Self::Absent(why) => {
                title("page");
                println!("skipped: the page, and with it all tests in a browser: {why}");
                tally.skipped += 1;
            }
            Self::Building(builds) => {
                for built in builds.join().expect("no build panics") {
                    let printed = built
                        .as_ref()
                        .map(|output| [&output.stdout[..], &output.stderr].concat());
                    match printed {
                        Ok(printed) => println!("{}", String::from_utf8_lossy(&printed)),
                        Err(error) => println!("the page cannot be built: {error}"),
                    }
                    tally.count(built.is_ok_and(|output| output.status.success()));
                }
            }
        }
        tally
    }
}

/// Simulated worlds. The example is built with the tests' choice of features, so that nothing is compiled for it alone.
pub fn sim(root: &Path, options: &[&str]) -> bool {
    let mut command = checked_cargo(root);
    command
        .args(["run", "--release", "--quiet", "--example", "sim", "--"])
        .args(options);
    succeeds(command)
}

/// What the project believes of its own files.
pub fn tidy(root: &Path) -> bool {
    let found = tidy::check(root);
    found.problems.iter().for_each(|problem| println!("{problem}"));
    println!(
        "{} files, {} lines of code without tests, {} problems",
        found.files,
        found.lines,
        found.problems.len()
    );
    found.problems.is_empty()
}

fn format(root: &Path) -> Tally {
    title("format");
    let mut tally = Tally::default();
    if is_there(cargo(root).args(["fmt", "--version"])) {
        let mut command = cargo(root);
        command.args(["fmt", "--all", "--check"]);
        tally.count(succeeds(command));
    } else {
        println!("skipped: format: cargo fmt is not installed");
        tally.skipped += 1;
    }
    tally
}

/// Compiles all tests and examples, and lints them by the way: `cargo clippy` would compile what they depend on once more.
fn build_tests(root: &Path) -> Tally {
    let mut tally = Tally::default();
    if !can_lint() {
        println!("skipped: lints: clippy is not installed");
        tally.skipped += 1;
    }
    let mut command = checked_cargo(root);
    command.args(["test", "--release", "--no-run", "--workspace"]);
    tally.count(succeeds(command));
    tally
}

/// Cargo with Clippy's compiler, which generates code like Rust's own and ends with an error where a lint fires. Every step
/// that runs tests uses it, so that they all share one build.
fn checked_cargo(root: &Path) -> Command {
    let mut command = cargo(root);
    if can_lint() {
        command
            .env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver")
            .env("CLIPPY_ARGS", "-Dwarnings");
    }
    command
}

fn can_lint() -> bool {
    static CAN: LazyLock<bool> = LazyLock::new(|| is_there(Command::new("clippy-driver").arg("--version")));
    *CAN
}

fn is_there(probe: &mut Command) -> bool {
    let silent = probe.stdout(Stdio::null()).stderr(Stdio::null());
    silent.status().is_ok_and(|status| status.success())
}

/// The examples of the crates' documentation, which the compiler of documents runs.
fn documentation_tests(root: &Path) -> Tally {
    let mut command = checked_cargo(root);
    command.args(["test", "--release", "--doc", "--no-fail-fast"]);
    count(command)
}

/// Runs test programs, each test of which tells how long it took.
fn cargo_test(root: &Path, which: &[&str], how: &[&str]) -> Tally {
    let mut command = checked_cargo(root);
    command.args(["test", "--release", "--no-fail-fast"]).args(which);
    let mut timed: &[&str] = &[];
    if cfg!(unix) {
        // Rust's test programs tell times only when they are asked so; nothing is compiled otherwise.
        let runner = "target.'cfg(unix)'.runner = ['env', 'RUSTC_BOOTSTRAP=1']";
        command.args(["--config", runner]);
        timed = &["-Z", "unstable-options", "--report-time"];
    }
    command.args(["--", "--show-output"]).args(timed).args(how);
    count(command)
}

/// Runs tests, prints what fails or is skipped, and counts.
fn count(mut command: Command) -> Tally {
    command.stdout(Stdio::piped());
    let mut reader = Reader::default();
    let whole = command.spawn().and_then(|mut child| {
        let output = child.stdout.take().expect("it was asked for");
        for line in BufReader::new(output).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            if reader.line(&line) == Show::Yes {
                println!("{line}");
            }
        }
        child.wait()
    });
    let mut tally = reader.tally;
    // It may have failed before any test could: while compiling, or by a crash.
    let unexplained = !whole.is_ok_and(|status| status.success()) && tally.failed == 0;
    tally.failed += u64::from(unexplained);
    tally
}
