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
pub use x86::{Avx2, Avx512};

/// The compiler keeps a tile of arrays in memory, or a part of it, which halves the speed. So these say what they want.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Lanes;
    use std::arch::x86_64::*;

    macro_rules! lanes {
        ($(#[$doc:meta])* $name:ident($vector:ident) of $n:literal, $zero:ident, $load:ident, $store:ident, $add:ident, $fma:ident, $set:ident) => {
            $(#[$doc])*
            #[derive(Clone, Copy)]
            pub struct $name($vector);

            impl Lanes<$n> for $name {
                #[inline(always)]
                fn zero() -> Self {
                    // SAFETY: who names this type runs where the processor has its instructions.
                    Self(unsafe { $zero() })
                }

                #[inline(always)]
                fn load(numbers: &[f32; $n]) -> Self {
                    // SAFETY: as above; the reference is to all that is read, and no alignment is asked for.
                    Self(unsafe { $load(numbers.as_ptr()) })
                }

                #[inline(always)]
                fn store(self, numbers: &mut [f32; $n]) {
                    // SAFETY: as above; the reference is to all that is written.
                    unsafe { $store(numbers.as_mut_ptr(), self.0) }
                }

                #[inline(always)]
                fn plus(self, other: Self) -> Self {
                    // SAFETY: who names this type runs where the processor has its instructions.
                    Self(unsafe { $add(self.0, other.0) })
                }

                #[inline(always)]
                fn plus_product(self, factor: f32, by: Self) -> Self {
                    // SAFETY: as above.
                    Self(unsafe { $fma($set(factor), by.0, self.0) })
                }
            }
        };
    }

    lanes!(
        /// AVX2 with fused multiply-add; its functions must not run where the processor has none.
        Avx2(__m256) of 8, _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_add_ps, _mm256_fmadd_ps,
        _mm256_set1_ps
    );
    lanes!(
        /// AVX-512; its functions must not run where the processor has none.
        Avx512(__m512) of 16, _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps, _mm512_fmadd_ps,
        _mm512_set1_ps
    );
}
