//! Signs, and one magnitude that a block of values shares: their mean one. Karimireddy et al., "Error Feedback Fixes SignSGD
//! and other Gradient Compression Schemes" (arXiv 1901.09847), section 4, where a layer is a block.
//!
//! A run is a row of blocks, the last of which may be short. A block is its scale, a little-endian `u16`, and then the signs of
//! its values, eight in a byte, the first in the lowest bit: 1 for what has the sign bit, 0 is one of those that have not. The
//! scale is the mean magnitude, cut down to eight bits behind the leading one: the bits of an `f32` without its sign and its last
//! fifteen. Hence:
//!
//! - nothing that is decoded is larger than the largest that was encoded;
//! - a run has one encoding. [`check`] refuses all others, so what was decoded encodes to the same bytes again: the sum of as
//!   many equal magnitudes as a block has, each of so few bits, is exact.
//!
//! Scales are normal numbers, from 2^-118 on, so that their parts in a mean are too; a block whose mean is smaller decodes to
//! zeros. A block that holds what is not finite has a scale of its own and decodes to NaNs.

use super::CodecError;
use crate::wide::wide;

/// Values of a block: the scale adds a sixteenth of a bit to each.
const BLOCK: usize = 256;

const SCALE: usize = 2;
const WIDTH: usize = SCALE + BLOCK / 8;

/// Bits of an `f32` that a scale lacks at the end.
const CUT: u32 = 15;

/// 2^-118.
const SMALLEST: u16 = (((127 - 118) << 23) >> CUT) as u16;

/// The one scale of a block that holds what is not finite: the bits of a NaN.
const NOT_FINITE: u16 = 0xff80;

/// The bits of infinity.
const INFINITE: u16 = (f32::INFINITY.to_bits() >> CUT) as u16;

const SIGN: u32 = 0x8000_0000;

pub(super) fn encoded_len(elements: usize) -> usize {
    SCALE * elements.div_ceil(BLOCK) + elements / BLOCK * (BLOCK / 8) + (elements % BLOCK).div_ceil(8)
}

pub(super) fn encode(values: &[f32], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + encoded_len(values.len()), 0);
    let out = &mut out[start..];
    wide!({
        let (whole, short) = values.as_chunks();
        let mut blocks = out.chunks_mut(WIDTH);
        for (values, bytes) in whole.iter().zip(blocks.by_ref()) {
            encode_block(values, BLOCK, bytes);
        }
        if let Some(bytes) = blocks.next() {
            let mut values = [0.0; BLOCK];
            values[..short.len()].copy_from_slice(short);
            encode_block(&values, short.len(), bytes);
        }
    });
}

pub(super) fn decode(bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
    check(bytes, out.len())?;
    wide!({
        for (bytes, out) in bytes.chunks(WIDTH).zip(out.chunks_mut(BLOCK)) {
            let values = decode_block(bytes);
            out.copy_from_slice(&values[..out.len()]);
        }
    });
    Ok(())
}

pub(super) fn decode_add(bytes: &[u8], addend: &[f32], out: &mut [f32]) -> Result<(), CodecError> {
    decode(bytes, out)?;
    wide!(out.iter_mut().zip(addend).for_each(|(out, own)| *out += own));
    Ok(())
}

/// The largest magnitude of a run, infinite where it holds what is not finite. An error where no values have this encoding.
/// The caller has checked the length.
pub(super) fn check(bytes: &[u8], elements: usize) -> Result<f32, CodecError> {
    let (mut left, mut largest) = (elements, 0.0f32);
    for bytes in bytes.chunks(WIDTH) {
        largest = largest.max(check_block(bytes, left.min(BLOCK))?);
        left = left.saturating_sub(BLOCK);
    }
    Ok(largest)
}

/// A block of which so many values, from the front, are there; the others are zeros.
#[inline(always)]
fn encode_block(values: &[f32; BLOCK], there: usize, bytes: &mut [u8]) {
    let scale = scale_of(values, there);
    let (scale_bytes, signs) = bytes.split_at_mut(SCALE);
    scale_bytes.copy_from_slice(&scale.to_le_bytes());
    if scale == 0 || scale == NOT_FINITE {
        return;
    }
    for (byte, values) in signs.iter_mut().zip(values.as_chunks::<8>().0) {
        let sign = |(at, x): (usize, &f32)| ((x.to_bits() >> 31) as u8) << at;
        *byte = values.iter().enumerate().map(sign).fold(0, |all, bit| all | bit);
    }
    if !there.is_multiple_of(8) {
        // What is not there has no sign.
        signs[there / 8] &= (1 << (there % 8)) - 1;
    }
}

/// The bits of a block's scale. Means are of eight sums, which are added one after the other.
#[inline(always)]
fn scale_of(values: &[f32; BLOCK], there: usize) -> u16 {
    // As integers the bits of magnitudes are ordered as they are.
    let largest = values.iter().fold(0, |max, x| max.max(x.to_bits() & !SIGN));
    let largest = f32::from_bits(largest);
    if !largest.is_finite() {
        return NOT_FINITE;
    }
    // So that sums of what is finite are.
    const PART: f32 = 1.0 / BLOCK as f32;
    let mut sums = [0.0f32; 8];
    for values in values.as_chunks::<8>().0 {
        for (sum, x) in sums.iter_mut().zip(values) {
            *sum += x.abs() * PART;
        }
    }
    let sum = sums.iter().fold(0.0, |all, sum| all + sum);
    // Rounding may have made more of it than the largest.
    let mean = (sum / (there as f32 * PART)).min(largest);
    let scale = (mean.to_bits() >> CUT) as u16;
    if scale < SMALLEST { 0 } else { scale }
}

/// What the bits of a scale stand for.
fn value(scale: u16) -> f32 {
    f32::from_bits(u32::from(scale) << CUT)
}

#[inline(always)]
fn decode_block(bytes: &[u8]) -> [f32; BLOCK] {
    let (scale, signs) = bytes.split_at(SCALE);
    let magnitude = value(u16::from_le_bytes([scale[0], scale[1]])).to_bits();
    let mut values = [0.0; BLOCK];
    for (values, byte) in values.as_chunks_mut::<8>().0.iter_mut().zip(signs) {
        for (at, value) in values.iter_mut().enumerate() {
            *value = f32::from_bits(magnitude ^ (u32::from(*byte) >> at & 1) << 31);
        }
    }
    values
}

/// The magnitude of a block of so many values, if its bytes are what such values are encoded to.
fn check_block(bytes: &[u8], there: usize) -> Result<f32, CodecError> {
    let (scale, signs) = bytes.split_at(SCALE);
    let scale = u16::from_le_bytes([scale[0], scale[1]]);
    let largest = match scale {
        0 => 0.0,
        NOT_FINITE => f32::INFINITY,
        SMALLEST..INFINITE => value(scale),
        _ => return Err(CodecError::Scale(scale)),
    };
    let fits = match scale {
        0 | NOT_FINITE => signs.iter().all(|byte| *byte == 0),
        // Behind the last value there is nothing.
        _ => there.is_multiple_of(8) || signs[there / 8] >> (there % 8) == 0,
    };
    if fits { Ok(largest) } else { Err(CodecError::Codes) }
}
