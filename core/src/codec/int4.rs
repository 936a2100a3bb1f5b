//! Codes of four bits, as two's complements: of two neighbours the first is in the byte's low half.

use super::quantized::Codes;

/// Blocks of 64: with so few steps a scale for more would leave too little of small values. It adds a sixteenth.
pub(super) struct Int4;

impl Codes<64, 32> for Int4 {
    const LARGEST: u8 = 7;

    #[inline(always)]
    fn pack(codes: &[i8; 64]) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (bytes, codes) in bytes.as_chunks_mut().0.iter_mut().zip(codes.as_chunks().0) {
            *bytes = pack_eight(*codes);
        }
        bytes
    }

    #[inline(always)]
    fn unpack(bytes: &[u8; 32]) -> [i8; 64] {
        let mut codes = [0; 64];
        for (codes, bytes) in codes.as_chunks_mut().0.iter_mut().zip(bytes.as_chunks().0) {
            *codes = unpack_eight(*bytes);
        }
        codes
    }
}

/// Eight at a time within one integer: halves of bytes move together until they are neighbours.
#[inline(always)]
fn pack_eight(codes: [i8; 8]) -> [u8; 4] {
    let mut x = u64::from_le_bytes(bytemuck::cast(codes)) & 0x0f0f_0f0f_0f0f_0f0f;
    x = (x | x >> 4) & 0x00ff_00ff_00ff_00ff;
    x = (x | x >> 8) & 0x0000_ffff_0000_ffff;
    x |= x >> 16;
    (x as u32).to_le_bytes()
}

/// The way back. A half with 8 added and taken off again has its sign in all upper bits of the byte.
#[inline(always)]
fn unpack_eight(bytes: [u8; 4]) -> [i8; 8] {
    const EIGHTS: u64 = 0x0808_0808_0808_0808;
    const SIGNS: u64 = 0x8080_8080_8080_8080;
    let mut x = u64::from(u32::from_le_bytes(bytes));
    x = (x | x << 16) & 0x0000_ffff_0000_ffff;
    x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
    x = (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    // With the sign bit set no byte borrows from the next.
    x = (((x ^ EIGHTS) | SIGNS) - EIGHTS) ^ SIGNS;
    bytemuck::cast(x.to_le_bytes())
}
