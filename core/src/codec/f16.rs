//! Half precision around a shared exponent (block floating point).
//!
//! A run is a little-endian `i16`, the exponent `k`, and then each value times 2^-k as an IEEE 754 half, rounded to
//! nearest even. `k` is such that the largest finite magnitude lands in `[2^14, 2^15)`, just below the half's largest
//! (65504), so the whole range of halves lies beneath it: 29 binades of full precision and 10 more that lose a bit
//! each. A run of zeros has `k` 0. Scaling by a power of two is exact, so the half's rounding is the only error; the
//! one exception is a magnitude that would round up to 2^128, which is rounded down to stay finite. Infinities are
//! halves too, and every NaN is 0x7e00; they have no say in `k`.
//!
//! The conversions are integer operations and one `f32` addition that does the rounding: the same bits everywhere, and
//! loops without branches that the compiler turns into vectors, also where the target knows no half precision.

use super::CodecError;

const HEADER: usize = 2;

/// The exponents of f32, from the smallest subnormal to the largest finite, less 14.
const EXPONENTS: std::ops::RangeInclusive<i16> = -163..=113;

const SIGN: u32 = 0x8000_0000;
const INFINITY: u32 = 0x7f80_0000;

pub(super) fn encoded_len(elements: usize) -> usize {
    HEADER + 2 * elements
}

pub(super) fn encode(values: &[f32], out: &mut Vec<u8>) {
    let all = wide(|| values.iter().fold(0, |max, x| max.max(magnitude(*x))));
    let largest = if all < INFINITY {
        all
    } else {
        largest_finite(values)
    };
    let k = match largest {
        0 => 0,
        largest => exponent(largest) - 14,
    };
    out.extend_from_slice(&k.to_le_bytes());

    let start = out.len();
    out.resize(start + 2 * values.len(), 0);
    let halves = out[start..].as_chunks_mut::<2>().0;
    let scale = Scale::power_of_two(-i32::from(k));
    if all < INFINITY && k < *EXPONENTS.end() {
        wide(|| {
            for (half, x) in halves.iter_mut().zip(values) {
                *half = finite_to_half(scale.apply(*x)).to_le_bytes();
            }
        });
    } else {
        for (half, x) in halves.iter_mut().zip(values) {
            *half = any_to_half(scale.apply(*x)).to_le_bytes();
        }
    }
}

pub(super) fn decode(bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
    let (scale, halves) = open(bytes)?;
    wide(|| {
        for (out, half) in out.iter_mut().zip(halves) {
            *out = scale.apply(from_half(u16::from_le_bytes(*half)));
        }
    });
    Ok(())
}

pub(super) fn decode_add(bytes: &[u8], addend: &[f32], out: &mut [f32]) -> Result<(), CodecError> {
    let (scale, halves) = open(bytes)?;
    wide(|| {
        for ((out, half), own) in out.iter_mut().zip(halves).zip(addend) {
            *out = scale.apply(from_half(u16::from_le_bytes(*half))) + own;
        }
    });
    Ok(())
}

/// Runs a loop, compiled a second time for processors with AVX2: the same operations on twice as many elements at once.
#[inline(always)]
fn wide<R>(work: impl FnOnce() -> R) -> R {
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

/// Reads the header. The caller has checked the length.
fn open(bytes: &[u8]) -> Result<(Scale, &[[u8; 2]]), CodecError> {
    let (halves, _) = bytes.as_chunks::<2>();
    let (header, halves) = halves.split_first().ok_or(CodecError::Length {
        expected: HEADER,
        got: bytes.len(),
    })?;
    let k = i16::from_le_bytes(*header);
    if EXPONENTS.contains(&k) {
        Ok((Scale::power_of_two(i32::from(k)), halves))
    } else {
        Err(CodecError::Exponent(k))
    }
}

/// A power of two as two factors, since the exponents of subnormal runs are beyond those of `f32`.
#[derive(Clone, Copy)]
struct Scale(f32, f32);

impl Scale {
    fn power_of_two(exponent: i32) -> Self {
        let power = |exponent: i32| f32::from_bits(((exponent + 127) as u32) << 23);
        let first = exponent.clamp(-126, 127);
        Self(power(first), power(exponent - first))
    }

    #[inline(always)]
    fn apply(self, x: f32) -> f32 {
        x * self.0 * self.1
    }
}

/// The bits of `|x|`: as integers they are ordered as the magnitudes are.
#[inline(always)]
fn magnitude(x: f32) -> u32 {
    x.to_bits() & !SIGN
}

fn largest_finite(values: &[f32]) -> u32 {
    let finite = values.iter().map(|x| magnitude(*x)).filter(|m| *m < INFINITY);
    finite.max().unwrap_or(0)
}

/// The exponent of the leading bit of a magnitude that is neither zero nor infinite.
fn exponent(magnitude: u32) -> i16 {
    match magnitude >> 23 {
        0 => (31 - magnitude.leading_zeros() as i16) - 149,
        biased => biased as i16 - 127,
    }
}

/// Rounds an `f32` below 2^15 in magnitude to the nearest half, ties to even.
///
/// A half's last bit is worth 2^(e-10), where e is the exponent of the value but at least -14 (subnormals). Adding
/// 2^(e+13), whose own last bit is worth that, makes the addition round there; the bits above it then count the last
/// bits of the half.
#[inline(always)]
fn finite_to_half(x: f32) -> u16 {
    const SMALLEST_NORMAL: u32 = (127 - 14) << 23;
    let bits = x.to_bits();
    let exponent = (bits & INFINITY).max(SMALLEST_NORMAL);
    let magic = exponent + (13 << 23);
    let rounded = f32::from_bits(bits & !SIGN) + f32::from_bits(magic);
    let count = rounded.to_bits() - magic;
    let magnitude = ((exponent - SMALLEST_NORMAL) >> 13) + count;
    (magnitude | ((bits & SIGN) >> 16)) as u16
}

/// As [`finite_to_half`], for what is not finite or as large as `f32` goes.
fn any_to_half(x: f32) -> u16 {
    /// The largest half below 2^15.
    const LARGEST: u16 = 0x77ff;
    let sign = (x.to_bits() >> 16) as u16 & 0x8000;
    if x.is_nan() {
        0x7e00
    } else if x.is_infinite() {
        sign | 0x7c00
    } else {
        sign | (finite_to_half(x) & 0x7fff).min(LARGEST)
    }
}

/// The value of a half, exactly.
///
/// Bits and bias move to their places in an `f32`. A subnormal gets the exponent of the smallest normal half, and with
/// it a leading one that is subtracted again; this keeps subnormal `f32`, slow on many processors, out of it.
#[inline(always)]
fn from_half(half: u16) -> f32 {
    const REBIAS: u32 = (127 - 15) << 23;
    const ONE_EXPONENT: u32 = 1 << 23;
    let half = u32::from(half);
    let magnitude = (half & 0x7fff) << 13;
    let if_subnormal = mask(magnitude < ONE_EXPONENT);
    let if_not_finite = mask(magnitude >= 31 << 23);
    let bits = magnitude + REBIAS + (if_subnormal & ONE_EXPONENT) + (if_not_finite & REBIAS);
    let leading_one = if_subnormal & (REBIAS + ONE_EXPONENT);
    let value = f32::from_bits(bits) - f32::from_bits(leading_one);
    f32::from_bits(value.to_bits() | ((half & 0x8000) << 16))
}

#[inline(always)]
fn mask(condition: bool) -> u32 {
    u32::from(condition).wrapping_neg()
}
