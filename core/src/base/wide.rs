//! Loops that the compiler turns into vectors, wider ones where the processor has them.

/// Runs a loop, compiled a second time for processors with AVX2: the same operations on twice as many elements at once.
///
/// A macro, so that each of the two has a copy of its own to be made part of: a closure that both called would be compiled
/// once, for neither.
macro_rules! wide {
    ($work:expr) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2")]
            fn with_avx2<R>(work: impl FnOnce() -> R) -> R {
                work()
            }
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has AVX2, as was just found out.
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
