//! A processor's vectors.

/// `N` numbers that are treated at once.
pub trait Lanes<const N: usize>: Copy {
    /// All 0.
    fn zero() -> Self;
    fn load(numbers: &[f32; N]) -> Self;
    fn store(self, numbers: &mut [f32; N]);
    fn plus(self, other: Self) -> Self;
    /// `self + factor * by`, rounded once where the processor can.
    fn plus_product(self, factor: f32, by: Self) -> Self;
}

/// Plain loops over `N` numbers, which compile best where `N` is a vector's length. `FUSED`: rounds once.
#[derive(Clone, Copy)]
pub struct Plain<const N: usize, const FUSED: bool>([f32; N]);

impl<const N: usize, const FUSED: bool> Lanes<N> for Plain<N, FUSED> {
    #[inline(always)]
    fn zero() -> Self {
        Self([0.0; N])
    }

    #[inline(always)]
    fn load(numbers: &[f32; N]) -> Self {
        Self(*numbers)
    }

    #[inline(always)]
    fn store(self, numbers: &mut [f32; N]) {
        *numbers = self.0;
    }

    #[inline(always)]
    fn plus(mut self, other: Self) -> Self {
        for (x, y) in self.0.iter_mut().zip(other.0) {
            *x += y;
        }
        self
    }

    #[inline(always)]
    fn plus_product(mut self, factor: f32, by: Self) -> Self {
        for (sum, x) in self.0.iter_mut().zip(by.0) {
            *sum = if FUSED {
                factor.mul_add(x, *sum)
            } else {
                *sum + factor * x
            };
        }
        self
    }
}

#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;

/// The compiler keeps loops over 16 numbers in memory, so this one says what it wants.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::Lanes;
    use std::arch::x86_64::{
        __m512, _mm512_add_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps,
        _mm512_storeu_ps,
    };

    /// AVX-512; its functions must not run where the processor has none.
    #[derive(Clone, Copy)]
    pub struct Avx512(__m512);

    impl Lanes<16> for Avx512 {
        #[inline(always)]
        fn zero() -> Self {
            // SAFETY: who names this type runs where there is AVX-512.
            Self(unsafe { _mm512_setzero_ps() })
        }

        #[inline(always)]
        fn load(numbers: &[f32; 16]) -> Self {
            // SAFETY: as above; the reference is to the 64 bytes that are read, and no alignment is asked for.
            Self(unsafe { _mm512_loadu_ps(numbers.as_ptr()) })
        }

        #[inline(always)]
        fn store(self, numbers: &mut [f32; 16]) {
            // SAFETY: as above; the reference is to the 64 bytes that are written.
            unsafe { _mm512_storeu_ps(numbers.as_mut_ptr(), self.0) }
        }

        #[inline(always)]
        fn plus(self, other: Self) -> Self {
            // SAFETY: who names this type runs where there is AVX-512.
            Self(unsafe { _mm512_add_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn plus_product(self, factor: f32, by: Self) -> Self {
            // SAFETY: as above.
            Self(unsafe { _mm512_fmadd_ps(_mm512_set1_ps(factor), by.0, self.0) })
        }
    }
}
