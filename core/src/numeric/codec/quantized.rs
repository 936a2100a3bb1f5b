//! Small integers times a block's scale: block-wise quantization, as in Dettmers et al., "8-bit Optimizers via
//! Block-wise Quantization" (arXiv 2110.02861), section 2.1, here with equal steps.
//!
//! A code is the value over the scale, rounded to nearest even; it decodes to their product. The scale is the
//! block's largest magnitude over the largest code, [cut down](super::blocks). After the cut the largest magnitude
//! still gets the largest code (127.498 at most is rounded to 127), and the product with a code is exact. Hence:
//!
//! - the error of a value is at most half of its block's scale;
//! - no decoded value is larger than the largest that was encoded (unless that is below 2^-119);
//! - a run has one encoding. `check` refuses all others, so decoded values encode to the same bytes again.
//!
//! Scales are normal numbers, so that they never slow a processor down: at least 2^-126, with smaller codes for a
//! block that would need less. A block that is then all zeros has the scale 0.

use super::CodecError;
use super::blocks::{Blocks, NOT_FINITE, largest, scale, value};
use std::marker::PhantomData;

/// How the codes of a block lie in bytes.
pub(super) trait Codes<const BLOCK: usize, const PACKED: usize> {
    /// The largest code; the smallest is its negative.
    const LARGEST: u8;

    fn pack(codes: &[i8; BLOCK]) -> [u8; PACKED];

    fn unpack(bytes: &[u8; PACKED]) -> [i8; BLOCK];
}

/// Blocks of such codes.
pub(super) struct Quantized<const PACKED: usize, C>(PhantomData<C>);

/// 2^-126.
const SMALLEST: u16 = scale(f32::MIN_POSITIVE);

impl<const B: usize, const P: usize, C: Codes<B, P>> Blocks<B> for Quantized<P, C> {
    const PACKED: usize = P;

    #[inline(always)]
    fn pack(values: &[f32; B], _: usize, packed: &mut [u8]) -> u16 {
        let (scale, codes) = quantize(values, C::LARGEST);
        packed.copy_from_slice(&C::pack(&codes)[..packed.len()]);
        scale
    }

    #[inline(always)]
    fn unpack(scale: u16, packed: &[u8]) -> [f32; B] {
        let factor = value(scale);
        let mut values = [0.0; B];
        for (value, code) in values.iter_mut().zip(&codes::<B, P, C>(packed)) {
            *value = f32::from(*code) * factor;
        }
        values
    }

    #[inline(always)]
    fn check(scale: u16, packed: &[u8], there: usize) -> Result<f32, CodecError> {
        let codes = codes::<B, P, C>(packed);
        let most = codes.iter().fold(0, |most, code| most.max(code.unsigned_abs()));
        let fits = match scale {
            0 | NOT_FINITE => most == 0,
            SMALLEST => (1..=C::LARGEST).contains(&most),
            _ => most == C::LARGEST,
        };
        let largest = match scale {
            0 => 0.0,
            NOT_FINITE => f32::INFINITY,
            SMALLEST.. if (value(scale) * f32::from(C::LARGEST)).is_finite() => {
                value(scale) * f32::from(most)
            }
            _ => return Err(CodecError::Scale(scale)),
        };
        // Behind the last value there are only zeros.
        match fits && codes.iter().skip(there).all(|code| *code == 0) {
            true => Ok(largest),
            false => Err(CodecError::Codes),
        }
    }
}

/// The block's scale and codes.
#[inline(always)]
fn quantize<const B: usize>(values: &[f32; B], most: u8) -> (u16, [i8; B]) {
    let scale = scale_of(largest(values), most);
    let mut codes = [0; B];
    if scale == 0 || scale == NOT_FINITE {
        return (scale, codes);
    }
    // An f32 of this size ends at the ones: adding it rounds to an integer, which is then in its last bits.
    // Products of a code and the scale have few bits, so a value that is not half-way between two of them has a
    // quotient that is not half-way either. So this rounds the value itself to nearest even.
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
        scale(largest / f32::from(code)).max(SMALLEST)
    }
}

/// A block's codes.
#[inline(always)]
fn codes<const B: usize, const P: usize, C: Codes<B, P>>(packed: &[u8]) -> [i8; B] {
    let mut whole = [0; P];
    whole[..packed.len()].copy_from_slice(packed);
    C::unpack(&whole)
}
