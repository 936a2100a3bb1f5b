//! Elements as they are, little-endian. On most machines this is a copy.

pub(super) fn encoded_len(elements: usize) -> usize {
    4 * elements
}

pub(super) fn encode(values: &[f32], out: &mut Vec<u8>) {
    if cfg!(target_endian = "little") {
        out.extend_from_slice(bytemuck::cast_slice(values));
    } else {
        out.extend(values.iter().flat_map(|x| x.to_le_bytes()));
    }
}

pub(super) fn decode(bytes: &[u8], out: &mut [f32]) {
    if cfg!(target_endian = "little") {
        bytemuck::cast_slice_mut(out).copy_from_slice(bytes);
    } else {
        for (out, x) in out.iter_mut().zip(bytes.as_chunks().0) {
            *out = f32::from_le_bytes(*x);
        }
    }
}

pub(super) fn decode_add(bytes: &[u8], addend: &[f32], out: &mut [f32]) {
    for ((out, x), own) in out.iter_mut().zip(bytes.as_chunks().0).zip(addend) {
        *out = f32::from_le_bytes(*x) + own;
    }
}

/// Whether all magnitudes are at most this. Without a branch per element.
pub(super) fn is_summable(bytes: &[u8], largest: f32) -> bool {
    let largest = largest.to_bits();
    let block = |bytes: &[u8]| {
        let words = bytes.as_chunks().0.iter().map(|x| u32::from_le_bytes(*x));
        words.fold(false, |bad, x| bad | (x & 0x7fff_ffff > largest))
    };
    !bytes.chunks(1 << 14).any(block)
}
