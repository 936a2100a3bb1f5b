//! Codes on the GPU against their twins, to the bit where the kernels compute with integers.

use crate::cases::vectors::{self as cases, INFINITY, bit_patterns, vectors};
use crate::common::{agree, gpu, numbers, tensor, values};
use annulus_shaders::codec::{Encoded, decode_f16, decode_int8, encode_f16, encode_int8};
use annulus_shaders::cpu::{f16, int8};
use annulus_shaders::launch::{from_raw, raw};
use burn::backend::wgpu::CubeTensor;
use burn::tensor::Device;

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
fn kernels_agree_with_their_twins() {
    agree(async |bench| {
        cases::halves(bench).await;
        cases::bytes(bench).await;
    });
}
