//! Codes of four bits, as two's complements. A block's first half lies in the low halves of its bytes and its second in the
//! high ones, so that both are rows of neighbours; after an odd number the last high half is 0.

use super::quantized::Codes;

/// Blocks of 64: with so few steps a scale for more would leave too little of small values. It adds a sixteenth.
pub(super) struct Int4;

impl Codes for Int4 {
    const BLOCK: usize = 64;
    const LARGEST: u8 = 7;

    fn packed_len(codes: usize) -> usize {
        codes.div_ceil(2)
    }

    #[inline(always)]
    fn pack(codes: &[i8], bytes: &mut [u8]) {
        let (low, high) = codes.split_at(bytes.len());
        for (byte, code) in bytes.iter_mut().zip(low) {
            *byte = *code as u8 & 0x0f;
        }
        for (byte, code) in bytes.iter_mut().zip(high) {
            *byte |= (*code as u8) << 4;
        }
    }

    #[inline(always)]
    fn unpack(bytes: &[u8], codes: &mut [i8]) -> usize {
        let (low, high) = codes.split_at_mut(bytes.len());
        for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
            *low = (*byte << 4) as i8 >> 4;
            *high = *byte as i8 >> 4;
        }
        2 * bytes.len()
    }
}
