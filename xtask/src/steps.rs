//! The steps of `cargo xtask test`, each a program to run or a check of files, and their sum.

use crate::browser;
use crate::command::{cargo, succeeds, title};
use crate::packages;
use crate::python;
use crate::tally::{Reader, Show, Tally};
use crate::tidy;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Everything. Ends with one line that sums it all up.
pub fn test(root: &Path, seeds: &str) -> bool {
    let began = Instant::now();
    packages::install();
    let page = Page::start(root);
    let mut tally = Tally::default();
    tally.add(tool(root, "fmt", "format", &["fmt", "--all", "--check"]));
    title("tidiness");
    tally.count(tidy(root));
    let lints = [
        "clippy",
        "--release",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    tally.add(tool(root, "clippy", "lints", &lints));
    title("tests");
    // The run of the tests below counts those that do not compile.
    succeeds(compile_tests(root));
    tally.add(page.finish());
    tally.add(cargo_test(root, &[], &[]));
    title("tables in Parquet");
    let with_parquet = ["--package", "annulus-table", "--features", "parquet"];
    tally.add(cargo_test(root, &with_parquet, &["parquet"]));
    tally.add(python::test(root));
    title("simulation");
    tally.count(sim(root, &["--seeds", seeds]));
    println!("\ntook {:.0} s", began.elapsed().as_secs_f64());
    println!("{tally}");
    tally.failed == 0
}

/// The page, and the tests that open it in a real browser.
pub fn browser_test(root: &Path) -> bool {
    packages::install();
    let mut tally = Page::start(root).finish();
    title("tests in a browser");
    let tests = [
        "tabs",
        "tabs_asleep",
        "data_in_tabs",
        "table_in_tabs",
        "split_in_tabs",
        "graph_in_tabs",
        "kernels_in_browser",
        "pytorch",
    ]
    .map(|name| ["--test", name]);
    tally.add(cargo_test(root, &tests.concat(), &[]));
    println!("{tally}");
    tally.failed == 0
}

/// The tests that are left out elsewhere since they do the same again and again, for long, and the planted bugs.
pub fn prove(root: &Path) -> bool {
    let began = Instant::now();
    title("long tests");
    let tests = [
        "elsewhere",
        "meeting",
        "comfort",
        "split",
        "models",
        "rehearsal",
        "tabs",
    ]
    .map(|name| ["--test", name]);
    let mut tally = cargo_test(root, &tests.concat(), &["--ignored"]);
    title("planted bugs");
    tally.count(sim(root, &["--bug", "all", "--seeds", "1000"]));
    tally.add(offline_tests(root));
    println!("\ntook {:.0} s", began.elapsed().as_secs_f64());
    println!("{tally}");
    tally.failed == 0
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
    let mut command = cargo(root);
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

/// A part of cargo that may not be installed.
fn tool(root: &Path, name: &str, what: &str, args: &[&str]) -> Tally {
    title(what);
    let mut probe = cargo(root);
    probe
        .args([name, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut tally = Tally::default();
    if succeeds(probe) {
        let mut command = cargo(root);
        command.args(args);
        tally.count(succeeds(command));
    } else {
        println!("skipped: {what}: cargo {name} is not installed");
        tally.skipped += 1;
    }
    tally
}

/// At most this many failed tests get a second try; more failures are no accident.
const SECOND_TRIES: usize = 4;

/// The tests, and once more, alone, those that failed: real processes on a machine that others use too miss a
/// deadline now and then, and what is broken fails again. Which ones needed it is said.
fn cargo_test(root: &Path, which: &[&str], how: &[&str]) -> Tally {
    let (mut tally, failures) = run_tests(root, which, how);
    if failures.is_empty() || failures.len() > SECOND_TRIES || tally.failed != failures.len() as u64 {
        return tally;
    }
    title("a second try of what failed");
    let names: Vec<&str> = failures.iter().map(String::as_str).collect();
    let (again, _) = run_tests(
        root,
        which,
        &[how, &["--exact", "--test-threads", "1"], &names].concat(),
    );
    if again.failed == 0 && again.passed >= tally.failed {
        println!("\nat the second try alone: {}", failures.join(", "));
        tally.passed += std::mem::take(&mut tally.failed);
    }
    tally
}

fn compile_tests(root: &Path) -> Command {
    let mut command = cargo(root);
    command.args(["test", "--release", "--workspace", "--no-run"]);
    command
}

/// Runs tests of all packages, unless `which` names one, and names those that failed.
fn run_tests(root: &Path, which: &[&str], how: &[&str]) -> (Tally, Vec<String>) {
    let packages: &[&str] = match which.contains(&"--package") {
        true => &[],
        false => &["--workspace"],
    };
    let mut command = cargo(root);
    command
        .args(["test", "--release", "--no-fail-fast"])
        .args(packages)
        .args(which)
        .args(["--", "--show-output"])
        .args(how);
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
    (tally, reader.failures)
}
