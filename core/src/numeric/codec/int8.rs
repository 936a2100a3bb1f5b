//! Codes of a byte each.

use super::quantized::Codes;

/// Blocks of 256: the scale adds less than a hundredth.
pub(super) struct Int8;

impl Codes<256, 256> for Int8 {
    const LARGEST: u8 = 127;

    #[inline(always)]
    fn pack(codes: &[i8; 256]) -> [u8; 256] {
        bytemuck::cast(*codes)
    }

    #[inline(always)]
    fn unpack(bytes: &[u8; 256]) -> [i8; 256] {
        bytemuck::cast(*bytes)
    }
}
