//! How much memory this process may take, and how much a run takes of it.

use super::heap;
use super::room::BASE;
use crate::trainer::span::Space;
use annulus_core::optim::{Moments, Optimizer};
use std::fs;

/// Bytes of memory that this process may take: as many as it is `given`, or as its user's limits (`ulimit -d`, `ulimit -v`)
/// allow. None if nothing limits it.
pub fn limit(given: Option<u64>) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    given.into_iter().chain(of_limits(&text)).min()
}

/// The smaller of the two limits that stand against memory, as Linux tells them.
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

/// Bytes of memory that are free on this machine, if the system tells.
pub fn free() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

/// Bytes that this process had better keep to: those that it may take, or else three quarters of what is free, so that some is
/// left to others.
pub fn likes(given: Option<u64>) -> u64 {
    let of_free = || free().map(|free| free / 4 * 3);
    limit(given).or_else(of_free).unwrap_or(u64::MAX)
}

/// Has the process keep no more memory than it needs, where it is limited. To be called before it takes any, or has threads.
pub fn keep_within(given: Option<u64>) {
    if limit(given).is_some() {
        heap::keep_small();
    }
}

/// Memory for a model that is evaluated or writes.
pub fn space(given: Option<u64>) -> Space {
    Space {
        limit: limit(given),
        likes: likes(given),
        base: BASE,
    }
}

/// Bytes that a process takes which trains a whole model of so many parameters: weights, moments, gradients on the device and
/// on their way, what is finished of the round and of the last one. Measured: 26 bytes a parameter with Adam.
pub fn of_whole(parameters: u64, optimizer: &Optimizer, moments: Moments) -> u64 {
    let rest = 18 * parameters;
    BASE + rest + optimizer.slots() as u64 * moments.bytes(parameters)
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
}
