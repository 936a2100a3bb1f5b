//! Loops that the compiler turns into vectors, wider ones where the processor has them.

/// Runs a loop, compiled a second time for processors with AVX2: the same operations on twice as many elements at once.
#[inline(always)]
pub(super) fn wide<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn with_avx2<R>(work: impl FnOnce() -> R) -> R {
            work()
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, as was just found out.
            return unsafe { with_avx2(work) };
        }
    }
    work()
}
