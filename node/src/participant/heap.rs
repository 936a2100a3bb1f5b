//! Returns free memory to the system.

/// Makes the allocator return all free memory, also from the middle of the heap. GNU's allocator keeps free memory
/// between used blocks, and takes blocks of the size that come and go each round from the heap, so a process that once
/// needed much memory would keep it. This takes some milliseconds, so use it when much memory was freed at once.
pub(crate) fn give_back() {
    #[cfg(all(feature = "native", target_os = "linux", target_env = "gnu"))]
    // SAFETY: the allocator does this itself under its own locks, and touches no block in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes the allocator request each block of a megabyte or more from the system and return it as soon as it is free,
/// and use at most two heaps. That costs time, so it is for processes with limited memory. Call it before there are
/// other threads.
#[cfg(feature = "native")]
pub(crate) fn keep_small() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it sets two numbers of the allocator while no other thread uses it.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

#[cfg(all(test, feature = "native", target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;
    use crate::bench::process::memory;

    /// Bytes that are returned of seven eighths of 240 MB that were freed all over the heap, less what other tests use
    /// meanwhile.
    fn given_back() -> u64 {
        let block = |_| vec![1u8; 60_000];
        let mut blocks: Vec<Vec<u8>> = (0..4000).map(block).collect();
        let before = memory().expect("Linux says it").resident;
        let mut number = 0;
        blocks.retain(|_| {
            number += 1;
            number % 8 == 0
        });
        give_back();
        let after = memory().expect("Linux says it").resident;
        assert!(blocks.iter().all(|block| block[0] == 1));
        before.saturating_sub(after)
    }

    #[test]
    fn what_lies_between_blocks_in_use_goes_back() {
        let most = (0..5).map(|_| given_back()).find(|bytes| *bytes > 150_000_000);
        assert!(most.is_some());
    }
}
