//! Loops compiled to vector code, twice as wide on processors with AVX2.

/// Runs a loop in a second version compiled for processors with AVX2: the same operations on twice the elements at
/// once.
///
/// This is a macro so that each version inlines its own copy. A closure that both called would be compiled once,
/// for neither.
macro_rules! wide {
    ($work:expr) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2")]
            fn with_avx2<R>(work: impl FnOnce() -> R) -> R {
                work()
            }
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: the check above found that the processor has AVX2.
                unsafe { with_avx2(|| $work) }
            } else {
                $work
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        $work
    }};
}

pub(crate) use wide;
