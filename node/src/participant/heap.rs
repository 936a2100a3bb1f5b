//! Memory that is free and that the process has still.

/// Has the allocator give the system all that is free, in the middle of what it holds too. GNU's keeps what lies between blocks
/// in use, and blocks that are as long as those that come and go with every round it does not ask the system for one by one: so
/// who has once held much would hold it for good. It takes some milliseconds, so it is for when much was given up at once.
pub(crate) fn give_back() {
    #[cfg(all(feature = "native", target_os = "linux", target_env = "gnu"))]
    // SAFETY: the allocator itself does it, under its own locks; no block in use is touched.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// From here on has the allocator ask the system for each block of a megabyte or more by itself, and give it back as soon as it is
/// free, and keep no more than two heaps. That costs time, so it is for processes whose memory is limited. To be called before
/// there are other threads.
#[cfg(feature = "native")]
pub(crate) fn keep_small() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it sets two numbers of the allocator, while no other thread is there to use it.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

#[cfg(all(test, feature = "native", target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;
    use crate::bench::process::memory;

    /// Bytes that go back of seven eighths of 240 MB, given up all over the heap; less what other tests take meanwhile.
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
