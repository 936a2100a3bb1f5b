//! Sums a piece at one member: decodes the inputs, adds them in the given order, adds the member's own values, and
//! encodes.

use crate::numeric::codec::Codec;

/// Working memory, reused from piece to piece.
#[derive(Debug, Default)]
pub(super) struct Room {
    sum: Vec<f32>,
    next: Vec<f32>,
}

/// Appends the encoded sum `((first + second) + ...) + own` to `out`. On an error, `out` is unchanged and the input
/// with that number cannot be decoded. `errors`, as long as `own`, receive the rounding errors of the sum.
pub(super) fn sum_encode(
    codec: Codec,
    inputs: &[impl AsRef<[u8]>],
    own: &[f32],
    room: &mut Room,
    errors: Option<&mut [f32]>,
    out: &mut Vec<u8>,
) -> Result<(), usize> {
    match (inputs, &errors) {
        ([], None) => {
            codec.encode(own, out);
            return Ok(());
        }
        ([only], None) => {
            let added = codec.add_encode(only.as_ref(), own, &mut room.sum, out);
            return added.map_err(|_| 0usize);
        }
        _ => {}
    }
    let whole = codec.encoded_len(own.len());
    if let Some(number) = inputs.iter().position(|input| input.as_ref().len() != whole) {
        return Err(number);
    }
    let (start, mut errors) = (out.len(), errors);
    let mut parts: Vec<&[u8]> = Vec::with_capacity(inputs.len());
    for (elements, encoded) in codec.parts(own.len()) {
        parts.clear();
        parts.extend(inputs.iter().map(|input| &input.as_ref()[encoded.clone()]));
        let own = &own[elements.clone()];
        let exact = sum(codec, &parts, own, room).inspect_err(|_| out.truncate(start))?;
        let here = out.len();
        codec.encode(exact, out);
        if let Some(errors) = errors.as_mut().map(|errors| &mut errors[elements]) {
            codec.decode(&out[here..], errors).expect("just encoded");
            let all = errors.iter_mut().zip(exact);
            all.for_each(|(error, exact)| *error = exact - *error);
        }
    }
    Ok(())
}

/// The sum of a piece, before it is encoded.
pub(super) fn sum<'a>(
    codec: Codec,
    inputs: &[impl AsRef<[u8]>],
    own: &[f32],
    room: &'a mut Room,
) -> Result<&'a [f32], usize> {
    let Room { sum, next } = room;
    sum.resize(own.len(), 0.0);
    next.resize(own.len(), 0.0);
    let Some((first, others)) = inputs.split_first() else {
        sum.copy_from_slice(own);
        return Ok(sum);
    };
    codec.decode(first.as_ref(), sum).map_err(|_| 0usize)?;
    for (input, number) in others.iter().zip(1usize..) {
        codec.decode_add(input.as_ref(), sum, next).map_err(|_| number)?;
        std::mem::swap(sum, next);
    }
    sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
    Ok(sum)
}
