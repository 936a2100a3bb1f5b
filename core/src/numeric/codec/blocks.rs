//! Runs as rows of blocks, each with a scale that its values share: a little-endian `u16` in front of the packed
//! values. The last block may be short.
//!
//! A scale is cut down to eight bits behind the leading one: the bits of an `f32` without its sign and its last
//! fifteen. So products and means of scales can be exact, and decoded values encode to the same bytes again. A
//! block with a value that is not finite has a scale of its own and decodes to NaNs.

use super::CodecError;
use crate::base::wide::wide;

/// How a block's values are packed behind their scale. A short block is the front of one that ends with zeros.
pub(super) trait Blocks<const BLOCK: usize> {
    /// Bytes behind the scale of a whole block.
    const PACKED: usize;

    /// Returns the scale and fills the bytes behind it, which were zeros. The first `there` values are valid.
    fn pack(values: &[f32; BLOCK], there: usize, packed: &mut [u8]) -> u16;

    /// The values of a block, with zeros where the packed bytes end.
    fn unpack(scale: u16, packed: &[u8]) -> [f32; BLOCK];

    /// The largest magnitude of a block of this many values, infinite if one is not finite. An error if no values
    /// have this encoding.
    fn check(scale: u16, packed: &[u8], there: usize) -> Result<f32, CodecError>;
}

const SCALE: usize = 2;

/// Low bits of an `f32` that a scale drops.
const CUT: u32 = 15;

/// The scale of a block with a value that is not finite: the bits of a NaN.
pub(super) const NOT_FINITE: u16 = 0xff80;

/// A number that is not negative, cut down to a scale.
pub(super) const fn scale(number: f32) -> u16 {
    (number.to_bits() >> CUT) as u16
}

/// The number that a scale stands for.
pub(super) fn value(scale: u16) -> f32 {
    f32::from_bits(u32::from(scale) << CUT)
}

/// The largest magnitude of a block.
#[inline(always)]
pub(super) fn largest(values: &[f32]) -> f32 {
    const SIGN: u32 = 0x8000_0000;
    // As integers, the bits of magnitudes are ordered like the magnitudes.
    f32::from_bits(values.iter().fold(0, |max, x| max.max(x.to_bits() & !SIGN)))
}

pub(super) fn encoded_len<const B: usize, K: Blocks<B>>(elements: usize) -> usize {
    SCALE * elements.div_ceil(B) + elements / B * K::PACKED + (elements % B * K::PACKED).div_ceil(B)
}

pub(super) fn encode<const B: usize, K: Blocks<B>>(values: &[f32], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + encoded_len::<B, K>(values.len()), 0);
    let out = &mut out[start..];
    wide!({
        let (whole, short) = values.as_chunks();
        let mut blocks = out.chunks_mut(SCALE + K::PACKED);
        for (values, bytes) in whole.iter().zip(blocks.by_ref()) {
            encode_block::<B, K>(values, B, bytes);
        }
        if let Some(bytes) = blocks.next() {
            let mut values = [0.0; B];
            values[..short.len()].copy_from_slice(short);
            encode_block::<B, K>(&values, short.len(), bytes);
        }
    });
}

#[inline(always)]
fn encode_block<const B: usize, K: Blocks<B>>(values: &[f32; B], there: usize, bytes: &mut [u8]) {
    let (scale, packed) = bytes.split_at_mut(SCALE);
    scale.copy_from_slice(&K::pack(values, there, packed).to_le_bytes());
}

pub(super) fn decode<const B: usize, K: Blocks<B>>(bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
    check::<B, K>(bytes, out.len())?;
    wide!({
        for (bytes, out) in bytes.chunks(SCALE + K::PACKED).zip(out.chunks_mut(B)) {
            let (scale, packed) = open(bytes);
            let values = K::unpack(scale, packed);
            out.copy_from_slice(&values[..out.len()]);
        }
    });
    Ok(())
}

pub(super) fn decode_add<const B: usize, K: Blocks<B>>(
    bytes: &[u8],
    addend: &[f32],
    out: &mut [f32],
) -> Result<(), CodecError> {
    decode::<B, K>(bytes, out)?;
    wide!(out.iter_mut().zip(addend).for_each(|(out, own)| *out += own));
    Ok(())
}

/// The largest magnitude of a run, infinite if a value is not finite. An error if no values have this encoding. The
/// caller has checked the length.
pub(super) fn check<const B: usize, K: Blocks<B>>(bytes: &[u8], elements: usize) -> Result<f32, CodecError> {
    wide!({
        let (mut left, mut largest) = (elements, 0.0f32);
        for bytes in bytes.chunks(SCALE + K::PACKED) {
            let (scale, packed) = open(bytes);
            largest = largest.max(K::check(scale, packed, left.min(B))?);
            left = left.saturating_sub(B);
        }
        Ok(largest)
    })
}

#[inline(always)]
fn open(bytes: &[u8]) -> (u16, &[u8]) {
    let (scale, packed) = bytes.split_at(SCALE);
    (u16::from_le_bytes([scale[0], scale[1]]), packed)
}
