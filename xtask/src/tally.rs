//! Counting: what the test programs of one `cargo test` say comes to one line.

use std::fmt;

/// Seconds, and what took them.
pub type Times = Vec<(f64, String)>;

/// Checks that passed, failed and were skipped.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Checks that hold.
    pub passed: u64,
    /// Checks that do not.
    pub failed: u64,
    /// Checks that could not be made here; each has printed why.
    pub skipped: u64,
    /// Tests that told it: for how many seconds they ran.
    pub times: Times,
}

/// What to do with a line of a test program's output.
#[derive(Debug, PartialEq, Eq)]
pub enum Show {
    /// Print it.
    Yes,
    /// It is about a test that passed.
    No,
}

/// How a test says that it could not do its work here: a line that begins so, on its standard output.
const SKIPPED: &str = "skipped: ";

/// Reads `cargo test -- --show-output` line by line.
#[derive(Default)]
pub struct Reader {
    /// The sum so far.
    pub tally: Tally,
    /// Within the output of tests that passed.
    in_successes: bool,
    /// Tests of the present program that passed because they could not do their work here.
    idle: u64,
    /// The test whose output this is has been counted among them.
    counted: bool,
    /// Names of the tests that failed.
    pub failures: Vec<String>,
}

impl Reader {
    /// Takes one line.
    pub fn line(&mut self, line: &str) -> Show {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.in_successes = false;
            self.result(result);
            return Show::Yes;
        }
        match line {
            "successes:" => self.in_successes = true,
            "failures:" => self.in_successes = false,
            _ if line.starts_with("---- ") => self.counted = false,
            _ => {}
        }
        if line.starts_with(SKIPPED) {
            if self.in_successes && !self.counted {
                self.counted = true;
                self.idle += 1;
            }
            return Show::Yes;
        }
        let test = line
            .strip_prefix("test ")
            .and_then(|test| test.split_once(" ... "));
        if let Some((name, seconds)) = test.and_then(|(name, end)| Some((name, seconds(end)?))) {
            self.tally.times.push((seconds, name.to_owned()));
        }
        if let Some((name, _)) = test.filter(|(_, end)| end.starts_with("FAILED")) {
            self.failures.push(name.to_owned());
        }
        let passed = test.is_some_and(|(_, end)| end.starts_with("ok"));
        if self.in_successes || passed || line.is_empty() {
            Show::No
        } else {
            Show::Yes
        }
    }

    /// Of a program: `ok. 3 passed; 0 failed; 1 ignored; ...`
    fn result(&mut self, text: &str) {
        let counts = text.split_once(". ").map_or("", |(_, counts)| counts);
        for part in counts.split("; ") {
            let Some((number, what)) = part.split_once(' ') else {
                continue;
            };
            let number: u64 = number.parse().unwrap_or(0);
            match what {
                "passed" => {
                    let idle = std::mem::take(&mut self.idle);
                    self.tally.passed += number.saturating_sub(idle);
                    self.tally.skipped += idle;
                }
                "failed" => self.tally.failed += number,
                "ignored" => self.tally.skipped += number,
                _ => {}
            }
        }
    }
}

/// The time in `ok <0.123s>`.
fn seconds(end: &str) -> Option<f64> {
    end.split_once('<')?.1.strip_suffix("s>")?.parse().ok()
}

impl Tally {
    /// Counts one check.
    pub fn count(&mut self, holds: bool) {
        if holds {
            self.passed += 1;
        } else {
            self.failed += 1;
        }
    }

    /// Adds another tally.
    pub fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.times.extend(other.times);
    }

    /// At most `at_most` tests, the slowest first.
    pub fn slowest(&self, at_most: usize) -> Times {
        let mut times = self.times.clone();
        times.sort_by(|a, b| f64::total_cmp(&b.0, &a.0));
        times.truncate(at_most);
        times
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_programs_are_summed_and_skips_are_told_apart() {
        let output = "\
running 4 tests
test a ... ok <0.012s>
test b ... ok
test c ... FAILED <61.500s>
test d ... ignored

successes:

---- a stdout ----
some chatter
skipped: no such device
skipped: nor such a file


successes:
    a
    b

failures:

---- c stdout ----
assertion failed

failures:
    c

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s

running 1 test
test e ... ok

successes:

successes:
    e

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";
        let mut reader = Reader::default();
        let shown: Vec<&str> = output
            .lines()
            .filter(|line| reader.line(line) == Show::Yes)
            .collect();
        assert_eq!(reader.tally.to_string(), "2 passed, 1 failed, 2 skipped");
        assert_eq!(
            reader.tally.slowest(5),
            [(61.5, "c".to_owned()), (0.012, "a".to_owned())]
        );
        assert_eq!(reader.tally.slowest(1).len(), 1);
        assert_eq!(reader.failures, ["c"]);
        for line in [
            "test c ... FAILED <61.500s>",
            "test d ... ignored",
            "skipped: no such device",
            "assertion failed",
        ] {
            assert!(shown.contains(&line), "{line}");
        }
        for line in ["test a ... ok <0.012s>", "test b ... ok", "some chatter", "    b"] {
            assert!(!shown.contains(&line), "{line}");
        }
    }
}
