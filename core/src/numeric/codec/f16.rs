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
//! loops without branches that the compiler turns into vectors, also where the target knows no half precision. Processors
//! with instructions for it use those, to the same bits.

use super::CodecError;
use crate::base::wide::wide;

const HEADER: usize = 2;

/// The exponents of f32, from the smallest subnormal to the largest finite, less 14.
const EXPONENTS: std::ops::RangeInclusive<i16> = -163..=113;

const SIGN: u32 = 0x8000_0000;
const INFINITY: u32 = 0x7f80_0000;

pub(super) fn encoded_len(elements: usize) -> usize {
    HEADER + 2 * elements
}

pub(super) fn encode(values: &[f32], out: &mut Vec<u8>) {
    let all = wide!(values.iter().fold(0, |max, x| max.max(magnitude(*x))));
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
        #[cfg(target_arch = "x86_64")]
        if hardware::is_there() {
            // SAFETY: the check above found that the processor has the instructions.
            return unsafe { hardware::encode_finite(scale, values, halves) };
        }
        encode_finite(scale, values, halves);
    } else {
        for (half, x) in halves.iter_mut().zip(values) {
            *half = any_to_half(scale.apply(*x)).to_le_bytes();
        }
    }
}

pub(super) fn decode(bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
    let (scale, halves) = open(bytes)?;
    #[cfg(target_arch = "x86_64")]
    if hardware::is_there() {
        // SAFETY: the check above found that the processor has the instructions.
        unsafe { hardware::decode(scale, halves, out) };
        return Ok(());
    }
    decode_halves(scale, halves, out);
    Ok(())
}

pub(super) fn decode_add(bytes: &[u8], addend: &[f32], out: &mut [f32]) -> Result<(), CodecError> {
    let (scale, halves) = open(bytes)?;
    #[cfg(target_arch = "x86_64")]
    if hardware::is_there() {
        // SAFETY: the check above found that the processor has the instructions.
        unsafe { hardware::decode_add(scale, halves, addend, out) };
        return Ok(());
    }
    decode_add_halves(scale, halves, addend, out);
    Ok(())
}

/// Whether all magnitudes are at most this. Without a branch per element.
pub(super) fn is_summable(bytes: &[u8], largest: f32) -> bool {
    let Some((k, halves)) = bytes.split_first_chunk() else {
        return false;
    };
    let k = i16::from_le_bytes(*k);
    let magnitudes = halves
        .as_chunks()
        .0
        .iter()
        .map(|x| u16::from_le_bytes(*x) & 0x7fff);
    let most = magnitudes.fold(0, u16::max);
    EXPONENTS.contains(&k) && Scale::power_of_two(k.into()).apply(from_half(most)) <= largest
}

/// Encodes values that are below 2^15 in magnitude once scaled.
fn encode_finite(scale: Scale, values: &[f32], halves: &mut [[u8; 2]]) {
    wide!({
        for (half, x) in halves.iter_mut().zip(values) {
            *half = finite_to_half(scale.apply(*x)).to_le_bytes();
        }
    });
}

fn decode_halves(scale: Scale, halves: &[[u8; 2]], out: &mut [f32]) {
    wide!({
        for (out, half) in out.iter_mut().zip(halves) {
            *out = scale.apply(from_half(u16::from_le_bytes(*half)));
        }
    });
}

fn decode_add_halves(scale: Scale, halves: &[[u8; 2]], addend: &[f32], out: &mut [f32]) {
    wide!({
        for ((out, half), own) in out.iter_mut().zip(halves).zip(addend) {
            *out = scale.apply(from_half(u16::from_le_bytes(*half))) + own;
        }
    });
}

/// The same conversions by the instructions (F16C) that most x86 processors have had since 2012. They round to
/// nearest even and handle subnormal halves, so the bits are the same.
#[cfg(target_arch = "x86_64")]
mod hardware {
    use super::{Scale, finite_to_half, from_half};
    use std::arch::x86_64::{
        _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_cvtph_ps, _mm256_cvtps_ph,
        _mm256_loadu_ps, _mm256_storeu_ps,
    };

    pub(super) fn is_there() -> bool {
        std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("f16c")
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn decode(scale: Scale, halves: &[[u8; 2]], out: &mut [f32]) {
        let (blocks, rest) = halves.as_chunks::<8>();
        let (outs, out_rest) = out.as_chunks_mut::<8>();
        for (out, block) in outs.iter_mut().zip(blocks) {
            *out = widen(block).map(|x| scale.apply(x));
        }
        for (out, half) in out_rest.iter_mut().zip(rest) {
            *out = scale.apply(from_half(u16::from_le_bytes(*half)));
        }
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn decode_add(scale: Scale, halves: &[[u8; 2]], addend: &[f32], out: &mut [f32]) {
        let (blocks, rest) = halves.as_chunks::<8>();
        let (outs, out_rest) = out.as_chunks_mut::<8>();
        let (owns, own_rest) = addend.as_chunks::<8>();
        for ((out, block), own) in outs.iter_mut().zip(blocks).zip(owns) {
            let values = widen(block);
            for ((out, x), own) in out.iter_mut().zip(values).zip(own) {
                *out = scale.apply(x) + own;
            }
        }
        for ((out, half), own) in out_rest.iter_mut().zip(rest).zip(own_rest) {
            *out = scale.apply(from_half(u16::from_le_bytes(*half))) + own;
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn widen(block: &[[u8; 2]; 8]) -> [f32; 8] {
        // SAFETY: 8 halves are 16 bytes that may be read, at any alignment.
        let halves = unsafe { _mm_loadu_si128(block.as_ptr().cast()) };
        let mut values = [0.0f32; 8];
        // SAFETY: the array has room for 8 values.
        unsafe { _mm256_storeu_ps(values.as_mut_ptr(), _mm256_cvtph_ps(halves)) };
        values
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn encode_finite(scale: Scale, values: &[f32], halves: &mut [[u8; 2]]) {
        let (blocks, rest) = values.as_chunks::<8>();
        let (outs, out_rest) = halves.as_chunks_mut::<8>();
        for (out, block) in outs.iter_mut().zip(blocks) {
            let scaled = block.map(|x| scale.apply(x));
            // SAFETY: the array holds 8 values.
            let rounded =
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(unsafe { _mm256_loadu_ps(scaled.as_ptr()) });
            // SAFETY: 8 halves are 16 bytes that may be written, at any alignment.
            unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), rounded) };
        }
        for (half, x) in out_rest.iter_mut().zip(rest) {
            *half = finite_to_half(scale.apply(*x)).to_le_bytes();
        }
    }
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

/// As [`finite_to_half`], for values that are not finite or as large as `f32` goes.
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

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// On a processor with the instructions, the other tests see only one of the two ways.
    #[test]
    fn instructions_and_plain_loops_give_the_same_bits() {
        if !hardware::is_there() {
            println!("skipped: this processor has no instructions for half precision");
            return;
        }
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let halves: Vec<[u8; 2]> = (0..=u16::MAX).map(u16::to_le_bytes).collect();
        let own: Vec<f32> = (0..halves.len()).map(|i| i as f32 * 0.7 - 9e3).collect();
        for (k, n) in [(0, 65536), (-14, 65535), (-163, 65529), (113, 9), (7, 3)] {
            let (scale, halves, own) = (Scale::power_of_two(k), &halves[65536 - n..], &own[..n]);
            let (mut plain, mut quick) = (vec![0.0; n], vec![0.0; n]);
            decode_halves(scale, halves, &mut plain);
            // SAFETY: the check above found the instructions; likewise below.
            unsafe { hardware::decode(scale, halves, &mut quick) };
            assert_eq!(bits(&plain), bits(&quick));
            decode_add_halves(scale, halves, own, &mut plain);
            unsafe { hardware::decode_add(scale, halves, own, &mut quick) };
            assert_eq!(bits(&plain), bits(&quick));
        }
        // All exponents and signs below 2^15, and many mantissas, with a rest that fills no block.
        let value = |i: u32| {
            let bits = i.wrapping_mul(0x9e37_79b9);
            f32::from_bits((bits % 0x4700_0000) | (bits & SIGN))
        };
        let values: Vec<f32> = (0..(1 << 20) + 5).map(value).collect();
        for k in [0, 3] {
            let scale = Scale::power_of_two(-k);
            let (mut plain, mut quick) = (vec![[0; 2]; values.len()], vec![[0; 2]; values.len()]);
            encode_finite(scale, &values, &mut plain);
            unsafe { hardware::encode_finite(scale, &values, &mut quick) };
            assert_eq!(plain, quick);
        }
    }
}
