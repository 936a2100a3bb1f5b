//! Running a program for a limited time. A program that is too slow is ended with all that it has started.

use std::io;
use std::process::{Child, Command};
use std::time::Duration;

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Passed,
    Failed,
    TooLate,
}

/// How often it is seen whether a program has ended.
const TICK: Duration = Duration::from_millis(20);

/// Runs a program, at most for this long. Time in which this process stands still does not count.
///
/// # Errors
///
/// If it cannot be started or waited for.
pub fn run_within(mut command: Command, limit: Duration) -> io::Result<End> {
    let mut child = command.spawn()?;
    let mut waited = Duration::ZERO;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() {
                End::Passed
            } else {
                End::Failed
            });
        }
        if waited > limit {
            end_all(&mut child);
            return Ok(End::TooLate);
        }
        std::thread::sleep(TICK);
        waited += TICK;
    }
}

/// Ends a program and all that it has started. They stay in our process group, so that Ctrl-C ends them, too.
fn end_all(child: &mut Child) {
    let listed = Command::new("ps").args(["-e", "-o", "pid=,ppid="]).output();
    let table = listed.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    );
    let below = descendants(&table, child.id());
    if !below.is_empty() {
        let ids = below.iter().map(u32::to_string);
        // If one has ended meanwhile, that is what was wanted.
        let _ = Command::new("kill").arg("-KILL").args(ids).output();
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// The processes that `parent` has started, and those that these have started, of lines with an id and its parent's.
fn descendants(table: &str, parent: u32) -> Vec<u32> {
    let pairs: Vec<(u32, u32)> = table
        .lines()
        .filter_map(|line| {
            let mut ids = line.split_whitespace().map(str::parse);
            Some((ids.next()?.ok()?, ids.next()?.ok()?))
        })
        .collect();
    let mut found = vec![parent];
    let mut at = 0;
    while at < found.len() {
        let children = pairs.iter().filter(|(_, parent)| *parent == found[at]);
        let children: Vec<u32> = children
            .map(|(id, _)| *id)
            .filter(|id| !found.contains(id))
            .collect();
        found.extend(children);
        at += 1;
    }
    found.split_off(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn all_that_a_process_has_started_is_found() {
        let table = "    1     0\n   10     1\n   11    10\n   12    11\n   13    11\n   20     1\n no 1\n";
        assert_eq!(descendants(table, 10), [11, 12, 13]);
        assert!(descendants(table, 20).is_empty());
        assert!(descendants("", 1).is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn a_program_that_takes_too_long_is_ended() {
        let run = |script: &str, limit_ms| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stderr(Stdio::null());
            run_within(command, Duration::from_millis(limit_ms)).unwrap()
        };
        assert_eq!(run("exit 0", 60_000), End::Passed);
        assert_eq!(run("exit 1", 60_000), End::Failed);
        assert_eq!(run("sleep 60; true", 100), End::TooLate);
    }
}
