//! Asks the operating system for a process's memory and processor time. Only on Linux; elsewhere these are unknown.

use serde::{Deserialize, Serialize};
use std::fs;

/// Resident memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Now.
    pub resident: u64,
    /// The most so far.
    pub peak: u64,
}

/// This process's memory.
pub fn memory() -> Option<Memory> {
    memory_of(std::process::id())
}

/// Another process's memory.
pub fn memory_of(process: u32) -> Option<Memory> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kib << 10)
    };
    Some(Memory {
        resident: field("VmRSS:")?,
        peak: field("VmHWM:")?,
    })
}

/// Seconds that this process's living threads have run.
pub fn cpu_seconds() -> Option<f64> {
    let mut nanoseconds = 0u64;
    for thread in fs::read_dir("/proc/self/task").ok()? {
        // The thread may have ended meanwhile.
        let Ok(text) = fs::read_to_string(thread.ok()?.path().join("schedstat")) else {
            continue;
        };
        nanoseconds += text.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(nanoseconds as f64 / 1e9)
}

/// Seconds that all threads of another process have run, ended ones included, to a hundredth.
pub fn cpu_seconds_of(process: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The fields after the program's name, which may contain anything: user and system time in hundredths of a second.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    let ticks = times.next()?.ok()? + times.next()?.ok()?;
    Some(ticks as f64 / 100.0)
}

/// The system's load average over the last minute.
pub fn load() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Processors that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn memory_and_time_go_up_with_use() {
        let time_before = cpu_seconds().unwrap();
        let block = vec![1u8; 64 << 20];
        while cpu_seconds().unwrap() - time_before < 0.01 {
            std::hint::black_box(block.iter().map(|b| u64::from(*b)).sum::<u64>());
        }
        std::hint::black_box(&block);
        let of_all = cpu_seconds_of(std::process::id()).unwrap();
        assert!(of_all + 0.1 >= cpu_seconds().unwrap(), "{of_all}");
        let after = memory().unwrap();
        // Other tests in this process come and go, but the block was there.
        assert!(after.peak >= 64 << 20, "{after:?}");
        assert!(after.peak >= after.resident);
    }
}
