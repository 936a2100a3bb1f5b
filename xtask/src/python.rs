//! The tests of the Python package, by the interpreter that `ANNULUS_PYTHON` names, or `python3`.
//!
//! Tests that lack a library skip themselves. Those that need the program take the one that was built last.

use crate::browser::target_dir;
use crate::command::title;
use crate::tally::{Tally, Times};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Runs them and counts them.
pub fn test(root: &Path) -> Tally {
    title("Python package");
    let interpreter = std::env::var_os("ANNULUS_PYTHON").unwrap_or("python3".into());
    let mut command = Command::new(&interpreter);
    command
        .current_dir(root.join("python/tests"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONPATH", root.join("python"))
        .args(["-m", "unittest", "discover", "--verbose"]);
    let program = target_dir(root).map(|target| target.join("release/annulus"));
    if let Some(program) = program.ok().filter(|program| program.is_file()) {
        command.env("ANNULUS_PROGRAM", program);
    }
    let Some((success, report, times)) = watch(command) else {
        println!(
            "skipped: the tests of the Python package: {} is not here",
            interpreter.display()
        );
        return Tally {
            skipped: 1,
            ..Tally::default()
        };
    };
    let (mut tally, shown) = read(&report);
    tally.times = times;
    shown.iter().for_each(|line| println!("{line}"));
    if !success && tally.failed == 0 {
        // It ended before it could count.
        println!("{report}");
        return Tally { failed: 1, ..tally };
    }
    tally
}

/// Runs the tests: whether they succeed, their report, and how long each took. They run one after the other.
fn watch(mut command: Command) -> Option<(bool, String, Times)> {
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let (mut report, mut times, mut before) = (String::new(), Vec::new(), Instant::now());
    for line in BufReader::new(child.stderr.take()?).lines().map_while(Result::ok) {
        if let Some((test, _)) = line.split_once(" ... ") {
            let name = test.split(' ').next().unwrap_or(test);
            times.push((before.elapsed().as_secs_f64(), format!("python {name}")));
            before = Instant::now();
        }
        report += &(line + "\n");
    }
    Some((child.wait().ok()?.success(), report, times))
}

/// What `python -m unittest --verbose` reports: the counts, and the lines to show.
fn read(report: &str) -> (Tally, Vec<String>) {
    let (mut tally, mut shown, mut ran) = (Tally::default(), Vec::new(), 0);
    let mut is_failure = false;
    for line in report.lines() {
        // After this line the report has the details of failures, and then the counts.
        is_failure |= line.starts_with("======");
        if let Some((test, why)) = line.split_once(" ... skipped ") {
            let test = test.split(' ').next().unwrap_or(test);
            shown.push(format!("skipped: {test}: {}", why.trim_matches(['\'', '"'])));
        } else if let Some(count) = line.strip_prefix("Ran ") {
            ran = count.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
            is_failure = false;
        } else if line.starts_with("OK") || line.starts_with("FAILED (") {
            let counts = line
                .split_once('(')
                .map_or("", |(_, counts)| counts.trim_end_matches(')'));
            for (what, number) in counts.split(", ").filter_map(|count| count.split_once('=')) {
                let number: u64 = number.parse().unwrap_or(0);
                match what {
                    "failures" | "errors" | "unexpected successes" => tally.failed += number,
                    "skipped" => tally.skipped += number,
                    _ => {}
                }
            }
            tally.passed = u64::saturating_sub(ran, tally.failed + tally.skipped);
        } else if is_failure {
            shown.push(line.to_owned());
        }
    }
    (tally, shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_counted_and_shows_failures_and_skips() {
        let report = "\
test_a (test_x.X.test_a) ... ok
test_b (test_x.X.test_b) ... FAIL
test_c (test_x.X.test_c) ... skipped 'c needs timm'
test_y (unittest.loader.ModuleSkipped.test_y) ... skipped \"exports need torch\"

======================================================================
FAIL: test_b (test_x.X.test_b)
----------------------------------------------------------------------
AssertionError: 1 != 2

----------------------------------------------------------------------
Ran 4 tests in 0.010s

FAILED (failures=1, skipped=2)
";
        let (tally, shown) = read(report);
        assert_eq!(tally.to_string(), "1 passed, 1 failed, 2 skipped");
        assert_eq!(
            shown[..2],
            [
                "skipped: test_c: c needs timm",
                "skipped: test_y: exports need torch"
            ]
        );
        assert!(shown.iter().any(|line| line == "AssertionError: 1 != 2"));
        let (tally, shown) = read("test_a (x) ... ok\n\nRan 1 test in 0.0s\n\nOK\n");
        assert_eq!(tally.to_string(), "1 passed, 0 failed, 0 skipped");
        assert!(shown.is_empty());
    }
}
