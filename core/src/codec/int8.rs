//! Codes of a byte each.

use super::quantized::Codes;

/// Blocks of 256: the scale adds less than a hundredth.
pub(super) struct Int8;

impl Codes for Int8 {
    const BLOCK: usize = 256;
    const LARGEST: u8 = 127;

    fn packed_len(codes: usize) -> usize {
        codes
    }

    #[inline(always)]
    fn pack(codes: &[i8], bytes: &mut [u8]) {
        bytes.copy_from_slice(bytemuck::cast_slice(codes));
    }

    #[inline(always)]
    fn unpack(bytes: &[u8], codes: &mut [i8]) -> usize {
        codes[..bytes.len()].copy_from_slice(bytemuck::cast_slice(bytes));
        bytes.len()
    }
}
