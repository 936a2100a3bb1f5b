//! Signs, and the mean magnitude that a block of values shares. Karimireddy et al., "Error Feedback Fixes SignSGD
//! and other Gradient Compression Schemes" (arXiv 1901.09847), section 4, where a layer is a block.
//!
//! A block's scale is the mean magnitude, [cut down](super::blocks). Behind it are the signs of its values, eight
//! in a byte, the first in the lowest bit: 1 if the sign bit is set. Hence:
//!
//! - no decoded value is larger than the largest that was encoded;
//! - a run has one encoding. `check` refuses all others, so decoded values encode to the same bytes again: the sum
//!   of a block of equal magnitudes, each of so few bits, is exact.
//!
//! Scales are normal numbers of at least 2^-118, so that a value's share of the mean is a normal number too. A
//! block with a smaller mean decodes to zeros.

use super::CodecError;
use super::blocks::{Blocks, NOT_FINITE, largest, scale, value};

/// Blocks of 256: the scale adds a sixteenth of a bit to each value.
pub(super) struct Sign;

const BLOCK: usize = 256;

/// 2^-118.
const SMALLEST: u16 = scale(f32::from_bits((127 - 118) << 23));

const INFINITE: u16 = scale(f32::INFINITY);

impl Blocks<BLOCK> for Sign {
    const PACKED: usize = BLOCK / 8;

    #[inline(always)]
    fn pack(values: &[f32; BLOCK], there: usize, packed: &mut [u8]) -> u16 {
        let scale = scale_of(values, there);
        if scale == 0 || scale == NOT_FINITE {
            return scale;
        }
        for (byte, values) in packed.iter_mut().zip(values.as_chunks::<8>().0) {
            let sign = |(at, x): (usize, &f32)| ((x.to_bits() >> 31) as u8) << at;
            *byte = values.iter().enumerate().map(sign).fold(0, |all, bit| all | bit);
        }
        if !there.is_multiple_of(8) {
            // Missing values have no sign.
            packed[there / 8] &= (1 << (there % 8)) - 1;
        }
        scale
    }

    #[inline(always)]
    fn unpack(scale: u16, packed: &[u8]) -> [f32; BLOCK] {
        let magnitude = value(scale).to_bits();
        let mut values = [0.0; BLOCK];
        for (values, byte) in values.as_chunks_mut::<8>().0.iter_mut().zip(packed) {
            for (at, value) in values.iter_mut().enumerate() {
                *value = f32::from_bits(magnitude ^ (u32::from(*byte) >> at & 1) << 31);
            }
        }
        values
    }

    #[inline(always)]
    fn check(scale: u16, packed: &[u8], there: usize) -> Result<f32, CodecError> {
        let largest = match scale {
            0 => 0.0,
            NOT_FINITE => f32::INFINITY,
            SMALLEST..INFINITE => value(scale),
            _ => return Err(CodecError::Scale(scale)),
        };
        let fits = match scale {
            0 | NOT_FINITE => packed.iter().all(|byte| *byte == 0),
            // Behind the last value there are only zeros.
            _ => there.is_multiple_of(8) || packed[there / 8] >> (there % 8) == 0,
        };
        if fits { Ok(largest) } else { Err(CodecError::Codes) }
    }
}

/// A block's scale. The mean is of eight running sums, added one after the other.
#[inline(always)]
fn scale_of(values: &[f32; BLOCK], there: usize) -> u16 {
    let largest = largest(values);
    if !largest.is_finite() {
        return NOT_FINITE;
    }
    // Scaled first, so that sums of finite values are finite.
    const PART: f32 = 1.0 / BLOCK as f32;
    let mut sums = [0.0f32; 8];
    for values in values.as_chunks::<8>().0 {
        for (sum, x) in sums.iter_mut().zip(values) {
            *sum += x.abs() * PART;
        }
    }
    let sum = sums.iter().fold(0.0, |all, sum| all + sum);
    // Rounding may have made it more than the largest.
    let mean = (sum / (there as f32 * PART)).min(largest);
    match scale(mean) {
        scale if scale < SMALLEST => 0,
        scale => scale,
    }
}
