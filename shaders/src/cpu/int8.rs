//! Bytes with a scale per block: the twin of `int8_encode` and `int8_decode`.

/// Elements that share a scale.
pub const BLOCK: usize = 256;

/// The largest magnitude that counts as 0: its 127th part is subnormal, and 0 on some GPUs.
const SMALLEST: f32 = 127.0 * f32::MIN_POSITIVE;

/// Bytes of all elements, and scales of all blocks: the largest magnitude is 127, rounding is to
/// nearest, ties to even. A block with an element that is not finite has a NaN for a scale.
pub fn encode(values: &[f32]) -> (Vec<i8>, Vec<f32>) {
    let mut bytes = Vec::with_capacity(values.len());
    let mut scales = Vec::with_capacity(values.len().div_ceil(BLOCK));
    for block in values.chunks(BLOCK) {
        let largest = block.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let scale = match largest {
            _ if block.iter().any(|x| !x.is_finite()) => f32::NAN,
            largest if largest < SMALLEST => 0.0,
            largest => largest / 127.0,
        };
        let usable = scale > 0.0;
        bytes.extend(block.iter().map(|x| {
            // A cast to a byte saturates, and what is only just above 127 rounds to it.
            if usable {
                (x / scale).round_ties_even() as i8
            } else {
                0
            }
        }));
        scales.push(scale);
    }
    (bytes, scales)
}

/// The elements again, but for rounding.
pub fn decode(bytes: &[i8], scales: &[f32]) -> Vec<f32> {
    let blocks = bytes.chunks(BLOCK).zip(scales);
    blocks
        .flat_map(|(block, scale)| block.iter().map(move |q| f32::from(*q) * scale))
        .collect()
}
