//! Small integers times a scale that a block of values shares: block-wise quantization, as in Dettmers et al., "8-bit
//! Optimizers via Block-wise Quantization" (arXiv 2110.02861), section 2.1, here with equal steps.
//!
//! A run is a row of blocks, the last of which may be short. A block is its scale, a little-endian `u16`, and then its
//! codes as [`Codes`] packs them. A code is the value over the scale, rounded to nearest even; what is decoded is their
//! product. The scale is the block's largest magnitude over the largest code, cut down to eight bits behind the leading
//! one: the bits of an `f32` without its sign and its last fifteen. That is enough for the largest magnitude to get the
//! largest code (127.498 at most is rounded to 127), and so little that the product with a code is exact. Hence:
//!
//! - the error of a value is at most half of its block's scale;
//! - nothing that is decoded is larger than the largest that was encoded (unless that is below 2^-119);
//! - a run has one encoding. [`check`] refuses all others, so what was decoded encodes to the same bytes again.
//!
//! Scales are normal numbers, so that processors are never slow with them: from 2^-126 on, with smaller codes for a block
//! that would need less, and 0 for one that is nothing but zeros then. A block that holds what is not finite has a scale of
//! its own and decodes to NaNs.

use super::CodecError;
use super::wide::wide;

/// How codes lie in a block.
pub(super) trait Codes {
    /// Values of a block.
    const BLOCK: usize;

    /// The largest code; the smallest is its negative.
    const LARGEST: u8;

    /// Bytes that so many codes take.
    fn packed_len(codes: usize) -> usize;

    /// Fills the bytes with codes. What is left of the last byte is 0.
    fn pack(codes: &[i8], bytes: &mut [u8]);

    /// Fills the front of `codes`, which has room for a whole block, with all that the bytes have room for. How many that are.
    fn unpack(bytes: &[u8], codes: &mut [i8]) -> usize;
}

/// Most values of a block.
const MOST: usize = 256;

const SCALE: usize = 2;

/// Bits of an `f32` that a scale lacks at the end.
const CUT: u32 = 15;

/// 2^-126.
const SMALLEST: u16 = (f32::MIN_POSITIVE.to_bits() >> CUT) as u16;

/// The one scale of a block that holds what is not finite: the bits of a NaN.
const NOT_FINITE: u16 = 0xff80;

const SIGN: u32 = 0x8000_0000;

pub(super) fn encoded_len<C: Codes>(elements: usize) -> usize {
    let (blocks, rest) = (elements / C::BLOCK, elements % C::BLOCK);
    let short = match rest {
        0 => 0,
        rest => SCALE + C::packed_len(rest),
    };
    blocks * (SCALE + C::packed_len(C::BLOCK)) + short
}

pub(super) fn encode<C: Codes>(values: &[f32], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + encoded_len::<C>(values.len()), 0);
    let out = &mut out[start..];
    wide(|| {
        let mut codes = [0; MOST];
        let blocks = out.chunks_mut(SCALE + C::packed_len(C::BLOCK));
        for (bytes, values) in blocks.zip(values.chunks(C::BLOCK)) {
            let codes = &mut codes[..values.len()];
            let scale = quantize::<C>(values, codes);
            bytes[..SCALE].copy_from_slice(&scale.to_le_bytes());
            C::pack(codes, &mut bytes[SCALE..]);
        }
    });
}

pub(super) fn decode<C: Codes>(bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
    check::<C>(bytes, out.len())?;
    wide(|| {
        let mut codes = [0; MOST];
        for (bytes, out) in blocks::<C>(bytes).zip(out.chunks_mut(C::BLOCK)) {
            let scale = unpack::<C>(bytes, &mut codes);
            for (out, code) in out.iter_mut().zip(&codes) {
                *out = f32::from(*code) * scale;
            }
        }
    });
    Ok(())
}

pub(super) fn decode_add<C: Codes>(bytes: &[u8], addend: &[f32], out: &mut [f32]) -> Result<(), CodecError> {
    check::<C>(bytes, out.len())?;
    wide(|| {
        let mut codes = [0; MOST];
        let pairs = out.chunks_mut(C::BLOCK).zip(addend.chunks(C::BLOCK));
        for (bytes, (out, own)) in blocks::<C>(bytes).zip(pairs) {
            let scale = unpack::<C>(bytes, &mut codes);
            for ((out, code), own) in out.iter_mut().zip(&codes).zip(own) {
                *out = f32::from(*code) * scale + own;
            }
        }
    });
    Ok(())
}

/// The largest magnitude of a run, infinite where it holds what is not finite. An error where no values have this encoding.
/// The caller has checked the length.
pub(super) fn check<C: Codes>(bytes: &[u8], elements: usize) -> Result<f32, CodecError> {
    wide(|| {
        let (mut codes, mut left, mut largest) = ([0; MOST], elements, 0.0f32);
        for bytes in blocks::<C>(bytes) {
            let there = left.min(C::BLOCK);
            left -= there;
            largest = largest.max(check_block::<C>(bytes, there, &mut codes)?);
        }
        Ok(largest)
    })
}

#[inline(always)]
fn blocks<C: Codes>(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.chunks(SCALE + C::packed_len(C::BLOCK))
}

/// Gives the block's scale and fills in its codes.
#[inline(always)]
fn quantize<C: Codes>(values: &[f32], codes: &mut [i8]) -> u16 {
    // As integers the bits of magnitudes are ordered as they are.
    let largest = values.iter().fold(0, |max, x| max.max(x.to_bits() & !SIGN));
    let scale = scale_of(f32::from_bits(largest), C::LARGEST);
    if scale == 0 || scale == NOT_FINITE {
        codes.fill(0);
        return scale;
    }
    // An f32 of this size ends at the ones: adding it rounds to an integer, which is then its last bits. The quotient of a
    // value that is not half-way between two products of a code and the scale is not half-way either, since those have so
    // few bits; so it is the value that is rounded to nearest even.
    const MAGIC: f32 = (3 << 22) as f32;
    let divisor = value(scale);
    for (code, x) in codes.iter_mut().zip(values) {
        *code = (x / divisor + MAGIC).to_bits() as i8;
    }
    scale
}

/// The scale for a block's largest magnitude.
fn scale_of(largest: f32, code: u8) -> u16 {
    if !largest.is_finite() {
        NOT_FINITE
    } else if largest <= value(SMALLEST) / 2.0 {
        0
    } else {
        ((largest / f32::from(code)).to_bits() >> CUT).max(SMALLEST.into()) as u16
    }
}

/// What the bits of a scale stand for.
fn value(scale: u16) -> f32 {
    f32::from_bits(u32::from(scale) << CUT)
}

fn scale_bits(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[0], bytes[1]])
}

/// Gives the block's scale and fills in its codes.
#[inline(always)]
fn unpack<C: Codes>(bytes: &[u8], codes: &mut [i8; MOST]) -> f32 {
    C::unpack(&bytes[SCALE..], codes);
    value(scale_bits(bytes))
}

/// The block's largest magnitude, if its bytes are what values are encoded to.
#[inline(always)]
fn check_block<C: Codes>(bytes: &[u8], elements: usize, codes: &mut [i8; MOST]) -> Result<f32, CodecError> {
    let scale = scale_bits(bytes);
    let room = C::unpack(&bytes[SCALE..], codes);
    let (codes, padding) = codes[..room].split_at(elements);
    let most = codes.iter().fold(0, |most, code| most.max(code.unsigned_abs()));
    let fits = match scale {
        0 | NOT_FINITE => most == 0,
        SMALLEST => (1..=C::LARGEST).contains(&most),
        _ => most == C::LARGEST,
    };
    let largest = match scale {
        0 => 0.0,
        NOT_FINITE => f32::INFINITY,
        SMALLEST.. if (value(scale) * f32::from(C::LARGEST)).is_finite() => value(scale) * f32::from(most),
        _ => return Err(CodecError::Scale(scale)),
    };
    match fits && padding.iter().all(|code| *code == 0) {
        true => Ok(largest),
        false => Err(CodecError::Codes),
    }
}
