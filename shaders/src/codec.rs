//! Vectors on a GPU in fewer bytes, so that less is read back and sent.

use burn::backend::TensorMetadata;
use burn::backend::wgpu::CubeTensor;
use burn::tensor::Shape;
use bytemuck::{Pod, Zeroable};

use crate::cpu::int8::BLOCK;
use crate::kernel::{F16_DECODE, F16_ENCODE, INT8_DECODE, INT8_ENCODE};
use crate::launch::{empty, grid, launch};

/// A vector in fewer bytes: its code, and what each run or block shares.
///
/// Both tensors are words of 32 bits, whatever their element type says.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// The elements' bits, several in a word, the first in the lowest.
    pub words: CubeTensor,
    /// Per run the exponent as `i32`, or per block the scale as `f32`.
    pub shared: CubeTensor,
}

/// Half precision around an exponent that each run of `run` elements shares.
///
/// # Panics
///
/// If `x` is not contiguous or its length, or `run`, no multiple of 4, or one of them is 0.
pub fn encode_f16(x: &CubeTensor, run: usize) -> Encoded {
    let fours = fours(x);
    assert!(run > 0 && run.is_multiple_of(4), "runs of {run} elements");
    let runs = (4 * fours).div_ceil(run);
    let encoded = Encoded {
        words: empty(x, [2 * fours]),
        shared: empty(x, [runs]),
    };
    let groups = grid(runs);
    let params = EncodeRuns {
        fours: fours as u32,
        run: (run / 4) as u32,
        runs: runs as u32,
        groups_per_row: groups[0],
    };
    launch(
        &F16_ENCODE,
        &[x],
        &[&encoded.words, &encoded.shared],
        params,
        groups,
    );
    encoded
}

/// The way back of [`encode_f16`]. Exponents must be at least -163 and at most 113.
///
/// # Panics
///
/// If the lengths do not fit.
pub fn decode_f16(encoded: &Encoded, run: usize) -> CubeTensor {
    let fours = elements(&encoded.words) / 2;
    assert!(run > 0 && run.is_multiple_of(4), "runs of {run} elements");
    assert_eq!(
        elements(&encoded.shared),
        (4 * fours).div_ceil(run),
        "an exponent per run"
    );
    let x = empty(&encoded.words, [4 * fours]);
    let groups = grid(fours.div_ceil(64));
    let params = [fours as u32, (run / 4) as u32, groups[0]];
    launch(
        &F16_DECODE,
        &[&encoded.words, &encoded.shared],
        &[&x],
        params,
        groups,
    );
    x
}

/// Bytes with a scale per block of [`BLOCK`] elements.
///
/// # Panics
///
/// If `x` is not contiguous or its length no multiple of 4, or 0.
pub fn encode_int8(x: &CubeTensor) -> Encoded {
    let fours = fours(x);
    let blocks = (4 * fours).div_ceil(BLOCK);
    let encoded = Encoded {
        words: empty(x, [fours]),
        shared: empty(x, [blocks]),
    };
    let groups = grid(blocks);
    let params = [fours as u32, groups[0]];
    launch(
        &INT8_ENCODE,
        &[x],
        &[&encoded.words, &encoded.shared],
        params,
        groups,
    );
    encoded
}

/// The way back of [`encode_int8`].
///
/// # Panics
///
/// If the lengths do not fit.
pub fn decode_int8(encoded: &Encoded) -> CubeTensor {
    let fours = elements(&encoded.words);
    assert_eq!(
        elements(&encoded.shared),
        (4 * fours).div_ceil(BLOCK),
        "a scale per block"
    );
    let x = empty(&encoded.words, [4 * fours]);
    let groups = grid(fours.div_ceil(64));
    let params = [fours as u32, groups[0]];
    launch(
        &INT8_DECODE,
        &[&encoded.words, &encoded.shared],
        &[&x],
        params,
        groups,
    );
    x
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct EncodeRuns {
    fours: u32,
    run: u32,
    runs: u32,
    groups_per_row: u32,
}

fn elements(x: &CubeTensor) -> usize {
    Shape::num_elements(&x.shape())
}

fn fours(x: &CubeTensor) -> usize {
    let elements = elements(x);
    assert!(
        x.is_contiguous() && elements > 0 && elements.is_multiple_of(4),
        "{elements} elements"
    );
    elements / 4
}
