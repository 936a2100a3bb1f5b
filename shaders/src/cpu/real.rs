//! Floating-point numbers as the twins need them.

use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Sub, SubAssign};

/// `f32` for what kernels compute, `f64` for finite differences.
pub trait Real:
    Copy
    + Debug
    + Default
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
    + DivAssign
    + Sum
    + Send
    + Sync
    + 'static
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// The nearest number of this type.
    fn from_f64(value: f64) -> Self;
    /// As `f64`, exactly.
    fn to_f64(self) -> f64;
    /// The exponential function.
    fn exp(self) -> Self;
    /// `self * factor + term`, rounded once. Slow where the processor has no such instruction.
    fn mul_add(self, factor: Self, term: Self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
    /// The hyperbolic tangent.
    fn tanh(self) -> Self;
    /// The error function.
    fn erf(self) -> Self;
    /// The larger of two numbers.
    fn max(self, other: Self) -> Self;
    /// The magnitude.
    fn abs(self) -> Self;
}

macro_rules! real {
    ($type:ty, $exp:path, $erf:path) => {
        impl Real for $type {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;

            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as Self
            }

            fn to_f64(self) -> f64 {
                f64::from(self)
            }

            #[inline(always)]
            fn exp(self) -> Self {
                $exp(self)
            }

            #[inline(always)]
            fn mul_add(self, factor: Self, term: Self) -> Self {
                self.mul_add(factor, term)
            }

            fn ln(self) -> Self {
                self.ln()
            }

            #[inline(always)]
            fn sqrt(self) -> Self {
                self.sqrt()
            }

            fn tanh(self) -> Self {
                self.tanh()
            }

            #[inline(always)]
            fn erf(self) -> Self {
                $erf(self)
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                self.max(other)
            }

            #[inline(always)]
            fn abs(self) -> Self {
                self.abs()
            }
        }
    };
}

real!(f32, exp, erf);
real!(f64, f64::exp, libm::erf);

/// The exponential function to about 2 units in the last place, without branches or calls, so that loops
/// over it become vector instructions. Results below 1.7e-38 are 0.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// Adding it rounds to a whole number, which then stands in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts, the first with so few bits that its multiples are exact.
    const LN_2: [f32; 2] = [355.0 / 512.0, -2.121_944_4e-4];
    // Not `clamp` or `max`: what is not a number must stay so.
    let x = if x < -87.3 { -87.3 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = x - n * LN_2[0] - n * LN_2[1];
    // Taylor's series to r^7: the rest is below 2^-27 for |r| <= ln 2 / 2.
    let series = 1.0 / 5040.0;
    let series = series * r + 1.0 / 720.0;
    let series = series * r + 1.0 / 120.0;
    let series = series * r + 1.0 / 24.0;
    let series = series * r + 1.0 / 6.0;
    let series = series * r + 0.5;
    let series = series * r * r + r + 1.0;
    // 2^(n - 1), since 2^128 is no number of this type.
    let power = f32::from_bits(rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(126) << 23);
    series * power * 2.0
}

/// The error function to 6e-7 (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26), as the
/// kernels have it.
#[inline(always)]
fn erf(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let poly = t * 1.061_405_4 - 1.453_152;
    let poly = t * poly + 1.421_413_8;
    let poly = t * poly - 0.284_496_72;
    let poly = t * poly + 0.254_829_6;
    (1.0 - t * poly * exp(-x * x)).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_as_exact_as_they_say() {
        for step in -900_000..=890_000 {
            let x = step as f32 * 1e-4;
            let exact = f64::from(x).exp();
            let error = (f64::from(Real::exp(x)) - exact).abs();
            assert!(
                error <= exact * 2.4e-7 || !(1.7e-38..=3.4e38).contains(&exact),
                "exp({x}): {error}"
            );
            let x = x / 10.0;
            let error = (f64::from(Real::erf(x)) - libm::erf(f64::from(x))).abs();
            assert!(error < 6e-7, "erf({x}): {error}");
        }
    }

    #[test]
    fn infinities_and_what_is_not_a_number() {
        assert_eq!(Real::exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(Real::exp(-1e4f32), 0.0);
        assert_eq!(Real::exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(Real::exp(0.0f32), 1.0);
        assert!(Real::exp(f32::NAN).is_nan() && Real::erf(f32::NAN).is_nan());
        assert_eq!(
            [Real::erf(f32::INFINITY), Real::erf(f32::NEG_INFINITY)],
            [1.0, -1.0]
        );
    }
}
