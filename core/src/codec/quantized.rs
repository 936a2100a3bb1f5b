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
use crate::wide::wide;

/// How the codes of a block lie in bytes. A short block is the front of one that ends with zeros.
pub(super) trait Codes<const BLOCK: usize, const PACKED: usize> {
    /// The largest code; the smallest is its negative.
    const LARGEST: u8;

    fn pack(codes: &[i8; BLOCK]) -> [u8; PACKED];

    fn unpack(bytes: &[u8; PACKED]) -> [i8; BLOCK];
}

const SCALE: usize = 2;

/// Bits of an `f32` that a scale lacks at the end.
const CUT: u32 = 15;

/// 2^-126.
const SMALLEST: u16 = (f32::MIN_POSITIVE.to_bits() >> CUT) as u16;

/// The one scale of a block that holds what is not finite: the bits of a NaN.
const NOT_FINITE: u16 = 0xff80;

const SIGN: u32 = 0x8000_0000;

pub(super) fn encoded_len<const B: usize, const P: usize, C: Codes<B, P>>(elements: usize) -> usize {
    SCALE * elements.div_ceil(B) + elements / B * P + (elements % B * P).div_ceil(B)
}

pub(super) fn encode<const B: usize, const P: usize, C: Codes<B, P>>(values: &[f32], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + encoded_len::<B, P, C>(values.len()), 0);
    let out = &mut out[start..];
    wide!({
        let (whole, short) = values.as_chunks();
        let mut blocks = out.chunks_mut(SCALE + P);
        for (values, bytes) in whole.iter().zip(blocks.by_ref()) {
            encode_block::<B, P, C>(values, bytes);
        }
        if let Some(bytes) = blocks.next() {
            let mut values = [0.0; B];
            values[..short.len()].copy_from_slice(short);
            encode_block::<B, P, C>(&values, bytes);
        }
    });
}

pub(super) fn decode<const B: usize, const P: usize, C: Codes<B, P>>(
    bytes: &[u8],
    out: &mut [f32],
) -> Result<(), CodecError> {
    check::<B, P, C>(bytes, out.len())?;
    wide!({
        for (bytes, out) in bytes.chunks(SCALE + P).zip(out.chunks_mut(B)) {
            let values = decode_block::<B, P, C>(bytes);
            out.copy_from_slice(&values[..out.len()]);
        }
    });
    Ok(())
}

pub(super) fn decode_add<const B: usize, const P: usize, C: Codes<B, P>>(
    bytes: &[u8],
    addend: &[f32],
    out: &mut [f32],
) -> Result<(), CodecError> {
    decode::<B, P, C>(bytes, out)?;
    wide!(out.iter_mut().zip(addend).for_each(|(out, own)| *out += own));
    Ok(())
}

/// The largest magnitude of a run, infinite where it holds what is not finite. An error where no values have this encoding.
/// The caller has checked the length.
pub(super) fn check<const B: usize, const P: usize, C: Codes<B, P>>(
    bytes: &[u8],
    elements: usize,
) -> Result<f32, CodecError> {
    wide!({
        let (mut left, mut largest) = (elements, 0.0f32);
        for bytes in bytes.chunks(SCALE + P) {
            largest = largest.max(check_block::<B, P, C>(bytes, left)?);
            left = left.saturating_sub(B);
        }
        Ok(largest)
    })
}

#[inline(always)]
fn encode_block<const B: usize, const P: usize, C: Codes<B, P>>(values: &[f32; B], bytes: &mut [u8]) {
    let (scale, codes) = quantize(values, C::LARGEST);
    let (scale_bytes, packed) = bytes.split_at_mut(SCALE);
    scale_bytes.copy_from_slice(&scale.to_le_bytes());
    packed.copy_from_slice(&C::pack(&codes)[..packed.len()]);
}

/// The block's scale and codes.
#[inline(always)]
fn quantize<const B: usize>(values: &[f32; B], most: u8) -> (u16, [i8; B]) {
    // As integers the bits of magnitudes are ordered as they are.
    let largest = values.iter().fold(0, |max, x| max.max(x.to_bits() & !SIGN));
    let scale = scale_of(f32::from_bits(largest), most);
    let mut codes = [0; B];
    if scale == 0 || scale == NOT_FINITE {
        return (scale, codes);
    }
    // An f32 of this size ends at the ones: adding it rounds to an integer, which is then its last bits. The quotient of a
    // value that is not half-way between two products of a code and the scale is not half-way either, since those have so
    // few bits; so it is the value that is rounded to nearest even.
    const MAGIC: f32 = (3 << 22) as f32;
    let divisor = value(scale);
    for (code, x) in codes.iter_mut().zip(values) {
        *code = (x / divisor + MAGIC).to_bits() as i8;
    }
    (scale, codes)
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

/// The bits of a block's scale, and its codes.
#[inline(always)]
fn open<const B: usize, const P: usize, C: Codes<B, P>>(bytes: &[u8]) -> (u16, [i8; B]) {
    let (scale, front) = bytes.split_at(SCALE);
    let mut packed = [0; P];
    packed[..front.len()].copy_from_slice(front);
    (u16::from_le_bytes([scale[0], scale[1]]), C::unpack(&packed))
}

#[inline(always)]
fn decode_block<const B: usize, const P: usize, C: Codes<B, P>>(bytes: &[u8]) -> [f32; B] {
    let (scale, codes) = open::<B, P, C>(bytes);
    let factor = value(scale);
    let mut values = [0.0; B];
    for (value, code) in values.iter_mut().zip(&codes) {
        *value = f32::from(*code) * factor;
    }
    values
}

/// The block's largest magnitude, if its bytes are what values are encoded to. Behind the elements that are left there is
/// nothing but zeros.
#[inline(always)]
fn check_block<const B: usize, const P: usize, C: Codes<B, P>>(
    bytes: &[u8],
    left: usize,
) -> Result<f32, CodecError> {
    let (scale, codes) = open::<B, P, C>(bytes);
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
    match fits && codes.iter().skip(left).all(|code| *code == 0) {
        true => Ok(largest),
        false => Err(CodecError::Codes),
    }
}
