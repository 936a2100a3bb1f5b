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
    /// The exponential function of what is not positive, to a few units in the last place, so that
    /// loops become vector instructions; what is below 1e-37 may be off by as much.
    fn exp_of_negative(self) -> Self;
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
    ($type:ty, $erf:path, $exp_of_negative:path) => {
        impl Real for $type {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;

            fn from_f64(value: f64) -> Self {
                value as Self
            }

            fn to_f64(self) -> f64 {
                f64::from(self)
            }

            fn exp(self) -> Self {
                self.exp()
            }

            fn exp_of_negative(self) -> Self {
                $exp_of_negative(self)
            }

            fn mul_add(self, factor: Self, term: Self) -> Self {
                self.mul_add(factor, term)
            }

            fn ln(self) -> Self {
                self.ln()
            }

            fn sqrt(self) -> Self {
                self.sqrt()
            }

            fn tanh(self) -> Self {
                self.tanh()
            }

            fn erf(self) -> Self {
                $erf(self)
            }

            fn max(self, other: Self) -> Self {
                self.max(other)
            }

            fn abs(self) -> Self {
                self.abs()
            }
        }
    };
}

real!(f32, libm::erff, exp_of_negative);
real!(f64, libm::erf, f64::exp);

/// Powers of two times a polynomial on [-ln 2 / 2, ln 2 / 2] (Moshier's Cephes library, `expf`).
#[inline(always)]
fn exp_of_negative(x: f32) -> f32 {
    /// Added to a small number, it leaves the nearest whole number in the lowest bits.
    const ROUNDING: f32 = 12_582_912.0;
    // Two parts of ln 2: the first one times a whole number is exact.
    const LN_2: [f32; 2] = [0.693_359_375, -2.121_944_4e-4];
    // Not `max`, which would make a number of what is none.
    let x = if x < -87.0 { -87.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUNDING;
    let whole = shifted - ROUNDING;
    let r = (x - whole * LN_2[0]) - whole * LN_2[1];
    let mut poly = 1.987_569_1e-4;
    for coefficient in [
        1.398_2e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        5.000_000_1e-1,
    ] {
        poly = poly * r + coefficient;
    }
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    (poly * (r * r) + r + 1.0) * power
}
