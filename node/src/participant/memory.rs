//! The memory that this process may use, and the memory that a run needs.

use super::room::BASE;
use super::{cgroup, heap};
use crate::trainer::span::Space;
use annulus_core::optim::{Moments, Optimizer};
use std::fs;

/// A limit below this many bytes is worth more system calls to keep within (a guess).
const TIGHT: u64 = 4 << 30;

/// Bytes of memory that this process may take: the least of what it is `given`, what its user's limits (`ulimit -d`,
/// `ulimit -v`) allow, and what its control group does. None if nothing limits it.
pub fn limit(given: Option<u64>) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let group = cgroup::allowed().map(|group| group.limit);
    given.into_iter().chain(of_limits(&text)).chain(group).min()
}

/// Whether the process should rather be slower than take memory that it does not need.
pub fn is_tight(given: Option<u64>) -> bool {
    limit(given).is_some_and(|limit| limit < TIGHT)
}

/// The smaller of the two memory limits that Linux reports.
fn of_limits(text: &str) -> Option<u64> {
    let soft = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    ["Max data size", "Max address space"]
        .into_iter()
        .filter_map(soft)
        .min()
}

/// Bytes of memory that are free for this process, on this machine and in its control group, if the system tells.
pub fn free() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.and_then(|text| of_meminfo(&text, &["MemAvailable:"]));
    machine
        .into_iter()
        .chain(cgroup::allowed().map(|group| group.free))
        .min()
}

/// The sum of these lines of `/proc/meminfo`, in bytes.
fn of_meminfo(text: &str, names: &[&str]) -> Option<u64> {
    let of = |name: &&str| {
        let line = text.lines().find_map(|line| line.strip_prefix(*name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    names.iter().map(of).sum::<Option<u64>>().map(|kib| kib << 10)
}

/// The most bytes that this process can get: no more than it may take, and no more than the machine has, swapped out too.
pub fn most(given: Option<u64>) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok();
    let machine = text.and_then(|text| of_meminfo(&text, &["MemAvailable:", "SwapFree:"]));
    limit(given).into_iter().chain(machine).min()
}

/// The most bytes that a task may take to read its data and to try its model out, if anything limits it.
pub fn spare(given: Option<u64>) -> Option<u64> {
    most(given).map(|most| most.saturating_sub(BASE))
}

/// Bytes of memory for this process to keep to: those that it may take, but no more than three quarters of what is free, so
/// that some is left to others.
pub fn likes(given: Option<u64>) -> u64 {
    let of_free = free().map(|free| free / 4 * 3);
    limit(given).into_iter().chain(of_free).min().unwrap_or(u64::MAX)
}

/// Has the process keep no more memory than it needs, where it has little. To be called before it takes any, or has threads.
pub fn keep_within(given: Option<u64>) {
    if is_tight(given) {
        heap::keep_small();
    }
}

/// Memory for evaluating a model or generating text with it.
pub fn space(given: Option<u64>) -> Space {
    Space {
        limit: limit(given),
        likes: likes(given),
        base: BASE,
    }
}

/// Bytes of a process that trains a whole model of this many parameters. Measured: 26 bytes per parameter with Adam.
pub fn of_whole(parameters: u64, optimizer: &Optimizer, moments: Moments) -> u64 {
    beside_state(parameters) + 4 * parameters + optimizer.slots() as u64 * moments.bytes(parameters)
}

/// Bytes of such a process beside weights and moments: gradients on the device and in flight, finished pieces of this
/// round and of the last one, and the program itself.
pub fn beside_state(parameters: u64) -> u64 {
    BASE + 14 * parameters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_limit_counts_and_unlimited_is_none() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max data size             400000000            unlimited            bytes     \n\
                    Max address space         unlimited            unlimited            bytes     \n";
        assert_eq!(of_limits(text), Some(400_000_000));
        let less = text.replace("space         unlimited ", "space         300000000 ");
        assert_eq!(of_limits(&less), Some(300_000_000));
        assert_eq!(of_limits(&text.replace("400000000", "unlimited")), None);
        assert_eq!(of_limits(""), None);
    }

    #[test]
    fn what_is_free_is_read_in_kibibytes() {
        let text = "MemTotal:  9 kB\nMemAvailable:    8000 kB\nSwapFree:  500 kB\n";
        assert_eq!(of_meminfo(text, &["MemAvailable:"]), Some(8000 << 10));
        assert_eq!(
            of_meminfo(text, &["MemAvailable:", "SwapFree:"]),
            Some(8500 << 10)
        );
        assert_eq!(of_meminfo("", &["MemAvailable:"]), None);
    }
}
