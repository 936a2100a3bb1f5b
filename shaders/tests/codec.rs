//! Codes on the GPU against their twins, to the bit where the kernels compute with integers.

mod common;

use annulus_shaders::codec::{Encoded, decode_f16, decode_int8, encode_f16, encode_int8};
use annulus_shaders::cpu::{f16, int8};
use annulus_shaders::kernel::{F16_DECODE, F16_ENCODE, INT8_DECODE, INT8_ENCODE};
use annulus_shaders::launch::{from_raw, raw};
use burn::backend::wgpu::CubeTensor;
use burn::tensor::Device;
use common::{SENTINEL, gpu, numbers, run, tensor, values};

fn upload(values: &[f32], device: &Device) -> CubeTensor {
    raw(tensor(values, [values.len()], device)).unwrap()
}

/// The words of a tensor.
fn words(tensor: CubeTensor) -> Vec<u32> {
    values(from_raw::<1>(tensor))
        .into_iter()
        .map(f32::to_bits)
        .collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn floats(words: &[u32]) -> Vec<f32> {
    words.iter().copied().map(f32::from_bits).collect()
}

fn pairs(halves: &[u16]) -> Vec<u32> {
    halves
        .chunks(2)
        .map(|pair| u32::from(pair[0]) | u32::from(pair[1]) << 16)
        .collect()
}

/// All sorts of `f32`: every exponent, both signs, ties, subnormals.
fn bit_patterns(count: u32, below: u32) -> Vec<f32> {
    let pattern = |i: u32| {
        let mixed = i.wrapping_mul(0x9e37_79b9) ^ (i >> 3).wrapping_mul(0x85eb_ca6b);
        // Few bits below the last of a half, so that there are ties.
        let mask = if i.is_multiple_of(3) { !0xfff } else { !0 };
        f32::from_bits(((mixed & 0x7fff_ffff & mask) % below) | (mixed & 0x8000_0000))
    };
    (0..count).map(pattern).collect()
}

const INFINITY: u32 = 0x7f80_0000;

/// Vectors of awkward lengths and contents.
fn vectors() -> Vec<Vec<f32>> {
    let subnormal = bit_patterns(1024, 0x0080_0000);
    let mixed: Vec<f32> = numbers(20_020, 1)
        .into_iter()
        .enumerate()
        .map(|(i, x)| x * 2f32.powi((i % 90) as i32 - 60))
        .collect();
    let mut broken = numbers(2052, 2);
    (broken[5], broken[700], broken[1500], broken[2051]) = (
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::from_bits(0xffc0_1234),
    );
    // Rounds up to 2^15 beside what is not finite, and at the largest exponent.
    (broken[6], broken[701]) = (2.0 - f32::EPSILON, -1.999_99);
    vec![
        vec![0.0, -0.0, 0.0, 0.0],
        vec![0.0; 260],
        numbers(4, 3),
        numbers(252, 4),
        numbers(256, 5),
        numbers(260, 6),
        vec![f32::MAX, -f32::MAX, 1.0, f32::MIN_POSITIVE],
        vec![
            f32::from_bits(1),
            -f32::from_bits(3),
            0.0,
            f32::from_bits(0x0040_0001),
        ],
        vec![
            2.0 - f32::EPSILON,
            1.0 + 2f32.powi(-11),
            1.0 + 3.0 * 2f32.powi(-11),
            1.5,
        ],
        mixed,
        subnormal,
        bit_patterns(8192, INFINITY),
        bit_patterns(8192, 0x7fff_ffff),
        broken,
    ]
}

#[test]
fn halves_agree_with_their_twin_to_the_bit() {
    let Some(device) = gpu() else { return };
    for x in vectors() {
        for run_len in [4, 252, 256, 4096, 65_536] {
            let encoded = encode_f16(&upload(&x, &device), run_len);
            let runs: Vec<(i32, Vec<u16>)> = x.chunks(run_len).map(f16::encode).collect();
            let exponents: Vec<u32> = runs.iter().map(|(k, _)| *k as u32).collect();
            let halves: Vec<u16> = runs.iter().flat_map(|(_, halves)| halves.clone()).collect();
            let what = format!("{} numbers from {} in runs of {run_len}", x.len(), x[0]);
            assert_eq!(words(encoded.shared.clone()), exponents, "{what}");
            assert_eq!(words(encoded.words.clone()), pairs(&halves), "{what}");
            let decoded: Vec<f32> = runs
                .iter()
                .flat_map(|(k, halves)| f16::decode(*k, halves))
                .collect();
            let found = words(decode_f16(&encoded, run_len));
            for (at, (expected, found)) in bits(&decoded).into_iter().zip(found).enumerate() {
                let nans = [expected, found].map(|bits| bits & 0x7fff_ffff > INFINITY);
                assert!(
                    expected == found || nans == [true, true],
                    "{what}: {at}: {found:x} not {expected:x}"
                );
            }
        }
    }
}

#[test]
fn every_half_is_decoded_with_every_exponent() {
    let Some(device) = gpu() else { return };
    // All halves, each run of them with an exponent of its own.
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    for first in [-163, -100, -30, 0, 50, 98] {
        let exponents: Vec<u32> = (0..16).map(|i| (first + i) as u32).collect();
        let encoded = Encoded {
            words: upload(&floats(&pairs(&halves)), &device),
            shared: upload(&floats(&exponents), &device),
        };
        let found = words(decode_f16(&encoded, 4096));
        for (at, (half, found)) in halves.iter().zip(found).enumerate() {
            let expected = f16::decode(exponents[at / 4096] as i32, &[*half])[0];
            let same = expected.to_bits() == found || expected.is_nan() && f32::from_bits(found).is_nan();
            assert!(
                same,
                "{half:x} with {}: {found:x} not {expected:e}",
                first + at as i32 / 4096
            );
        }
    }
}

#[test]
fn the_error_of_a_half_is_bounded() {
    for x in [numbers(4096, 1), bit_patterns(64, 0x0080_0000)] {
        let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let (k, halves) = f16::encode(&x);
        for (x, decoded) in x.iter().zip(f16::decode(k, &halves)) {
            let error = f64::from(x - decoded).abs();
            assert!(error <= f64::from(x.abs()) / 2048.0 + f64::from(largest) * 2f64.powi(-39));
        }
    }
}

#[test]
fn bytes_agree_with_their_twin() {
    let Some(device) = gpu() else { return };
    for x in vectors() {
        let encoded = encode_int8(&upload(&x, &device));
        let (bytes, scales) = int8::encode(&x);
        let what = format!("{} numbers from {}", x.len(), x[0]);
        // Division need not be exact on a GPU.
        let found_scales = values(from_raw::<1>(encoded.shared.clone()));
        assert_eq!(found_scales.len(), scales.len());
        for (found, expected) in found_scales.iter().zip(&scales) {
            let close = (found - expected).abs() <= expected * 1e-6;
            assert!(
                close || found.is_nan() && expected.is_nan(),
                "{what}: {found:e} not {expected:e}"
            );
        }
        let found: Vec<i8> = words(encoded.words.clone())
            .into_iter()
            .flat_map(|word| word.to_le_bytes())
            .map(|b| b as i8)
            .collect();
        for (at, (found, expected)) in found.iter().zip(&bytes).enumerate() {
            let (quotient, next) = (x[at] / scales[at / 256], f32::from(*expected));
            // One further only where the quotient is as good as in the middle.
            let tie = (quotient - next).abs() > 0.4999;
            let off = (i32::from(*found) - i32::from(*expected)).abs();
            assert!(
                off == 0 || tie && off == 1,
                "{what}: {at}: {found} not {expected} of {quotient}"
            );
        }
        let expected = int8::decode(&found, &found_scales);
        let decoded = values(from_raw::<1>(decode_int8(&encoded)));
        for (found, expected) in decoded.iter().zip(&expected) {
            let close = (found - expected).abs() <= expected.abs() * 1e-6 + 1e-37;
            assert!(
                close || found.is_nan() && expected.is_nan() || found == expected,
                "{what}: {found:e} not {expected:e}"
            );
        }
    }
}

#[test]
fn codes_in_rows_of_workgroups_touch_nothing_else() {
    let Some(device) = gpu() else { return };
    // 250 vec4 in rows of 2 workgroups with one to spare; outputs that are longer.
    let x = numbers(1200, 1);
    let sentinel = SENTINEL.to_bits();
    let found = run(
        &device,
        &F16_ENCODE,
        &[&x],
        &[600, 10],
        [250u32, 50, 5, 2],
        [2, 4, 1],
    );
    let runs: Vec<(i32, Vec<u16>)> = x[..1000].chunks(200).map(f16::encode).collect();
    let mut expected = pairs(
        &runs
            .iter()
            .flat_map(|(_, halves)| halves.clone())
            .collect::<Vec<_>>(),
    );
    expected.resize(600, sentinel);
    let mut exponents: Vec<u32> = runs.iter().map(|(k, _)| *k as u32).collect();
    exponents.resize(10, sentinel);
    assert_eq!(
        [bits(&found[0]), bits(&found[1])],
        [expected.clone(), exponents.clone()]
    );
    let found = run(
        &device,
        &F16_DECODE,
        &[&found[0], &found[1]],
        &[1200],
        [250u32, 50, 2],
        [2, 3, 1],
    )
    .remove(0);
    let mut expected: Vec<f32> = runs
        .iter()
        .flat_map(|(k, halves)| f16::decode(*k, halves))
        .collect();
    expected.resize(1200, SENTINEL);
    assert_eq!(found, expected);

    let found = run(&device, &INT8_ENCODE, &[&x], &[300, 10], [250u32, 2], [2, 3, 1]);
    let (bytes, scales) = int8::encode(&x[..1000]);
    assert_eq!(bits(&found[0])[250..], [sentinel; 50]);
    assert_eq!(found[1][4..], [SENTINEL; 6]);
    let found_bytes: Vec<i8> = bits(&found[0])[..250]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .map(|b| b as i8)
        .collect();
    assert!(
        found_bytes
            .iter()
            .zip(&bytes)
            .all(|(found, expected)| (found - expected).abs() <= 1)
    );
    assert!(
        found[1]
            .iter()
            .zip(&scales)
            .all(|(found, expected)| (found - expected).abs() <= 1e-6 * expected)
    );
    let decoded = run(
        &device,
        &INT8_DECODE,
        &[&found[0], &found[1]],
        &[1200],
        [250u32, 2],
        [2, 3, 1],
    )
    .remove(0);
    let expected = int8::decode(&found_bytes, &found[1]);
    common::assert_close("decoded", &expected[..1000], &decoded[..1000], 1e-6);
    assert_eq!(decoded[1000..], [SENTINEL; 200]);
}
