//! Codes of four bits in two's complement. The first of two neighbours is in the low half of the byte.

use super::quantized::Codes;

/// Blocks of 64: with so few codes, a scale for more values would leave too little of small ones. The scale adds a
/// sixteenth.
pub(super) struct Int4;

impl Codes<64, 32> for Int4 {
    const LARGEST: u8 = 7;

    #[inline(always)]
    fn pack(codes: &[i8; 64]) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (byte, [low, high]) in bytes.iter_mut().zip(codes.as_chunks().0) {
            *byte = *low as u8 & 0x0f | (*high as u8) << 4;
        }
        bytes
    }

    #[inline(always)]
    fn unpack(bytes: &[u8; 32]) -> [i8; 64] {
        let mut codes = [0; 64];
        for ([low, high], byte) in codes.as_chunks_mut().0.iter_mut().zip(bytes) {
            *low = (*byte << 4) as i8 >> 4;
            *high = *byte as i8 >> 4;
        }
        codes
    }
}
