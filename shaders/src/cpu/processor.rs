//! The abilities of this processor, found out at run time.

use std::cell::Cell;
use std::thread;

/// Whether every processor of this kind has fused multiply-add.
pub(super) const FUSED_EVERYWHERE: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

/// Ends the function with a call of another one, always inlined, that is compiled for the widest vectors of this
/// processor: `fused` where it has fused multiply-add, `otherwise` elsewhere. Which vectors these are changes no bit of
/// what loops over independent numbers compute.
macro_rules! widest {
    (
        [$($generics:tt)*] ($($argument:ident: $type:ty),* $(,)?) $(-> $out:ty)?,
        fused $fused:expr, otherwise $otherwise:expr $(,)?
    ) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            fn avx512<$($generics)*>($($argument: $type),*) $(-> $out)? {
                $fused($($argument),*)
            }
            #[target_feature(enable = "avx2,fma")]
            fn avx2<$($generics)*>($($argument: $type),*) $(-> $out)? {
                $fused($($argument),*)
            }
            if $crate::cpu::processor::has_avx512() {
                // SAFETY: safe code that needs what this processor has.
                return unsafe { avx512($($argument),*) };
            }
            if $crate::cpu::processor::has_avx2() {
                // SAFETY: safe code that needs what this processor has.
                return unsafe { avx2($($argument),*) };
            }
        }
        $otherwise($($argument),*)
    }};
}
pub(super) use widest;

/// Whether there are AVX-512's basic parts, and what [`has_avx2`] asks for.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// Whether there are AVX2 and fused multiply-add.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

thread_local! {
    /// Cores that this thread may use, once they are known: to count them is to read files, which takes as long as a small
    /// product.
    static CORES: Cell<usize> = const { Cell::new(0) };
}

/// How many cores this thread may work on.
fn cores() -> usize {
    if CORES.get() == 0 {
        CORES.set(thread::available_parallelism().map_or(1, usize::from));
    }
    CORES.get()
}

/// Limits this thread's products to `cores` cores, at least one, from now on.
pub fn keep_to(cores: usize) {
    CORES.set(cores.max(1));
}

/// Threads that are worth starting (30 us each) for `work` that makes `parts`, where a thread should have
/// `each` of the work.
pub(super) fn threads(work: usize, each: usize, parts: usize) -> usize {
    let useful = (work / each).clamp(1, parts.max(1));
    if useful == 1 {
        return 1;
    }
    useful.min(cores())
}

/// Does `work` on each part, the last one in this thread.
pub(super) fn in_threads<P: Send>(parts: impl Iterator<Item = P>, work: impl Fn(P) + Sync) {
    thread::scope(|scope| {
        let mut parts = parts.peekable();
        while let Some(part) = parts.next() {
            let work = &work;
            if parts.peek().is_some() {
                scope.spawn(move || work(part));
            } else {
                work(part);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_shares_a_processor_starts_no_threads_of_its_own() {
        let counts = thread::spawn(|| {
            keep_to(4);
            let before = threads(100, 10, 100);
            keep_to(0);
            (before, threads(100, 10, 100))
        });
        assert_eq!(counts.join().expect("no panic"), (4, 1));
    }
}
