//! The kernels of flat vectors: packing, norms, optimizers, codes.

use super::bench::{Bench, SENTINEL, numbers, spare};
use annulus_shaders::cpu::adamw::{AdamW, adamw};
use annulus_shaders::cpu::momentum::{Momentum, momentum};
use annulus_shaders::cpu::{f16, int8, pack, sgd::sgd, squared_norm::squared_norm};
use annulus_shaders::kernel::*;

pub const INFINITY: u32 = 0x7f80_0000;

/// All of them.
pub async fn all(bench: &mut Bench) {
    packs(bench).await;
    squared_norms(bench).await;
    steps(bench).await;
    halves(bench).await;
    bytes(bench).await;
}

/// Places of 1, 5 and 2 workgroups in rows of 3, with one to spare, in a vector that is longer; written, then added to.
pub async fn packs(bench: &mut Bench) {
    for (kernel, first) in [(&PACK, 12), (&PACK_ANY, 10), (&PACK_ANY, 1)] {
        let lengths = [first, 4900, 2048];
        let inputs: Vec<Vec<f32>> = lengths
            .iter()
            .zip(1..)
            .map(|(length, seed)| numbers(*length, seed))
            .collect();
        let mut slices = vec![inputs[0].as_slice(); 7];
        (slices[1], slices[6]) = (&inputs[1], &inputs[2]);
        for accumulate in [false, true] {
            let mut params = [u32::MAX; 31];
            // First workgroup, length, offset, padded length.
            params[..4].copy_from_slice(&[0, first as u32, 16, 16]);
            params[4..8].copy_from_slice(&[1, 4900, 48, 1232]);
            // Four places of nothing, so that the last slot is used too.
            params[8..24].copy_from_slice(&[6, 0, 0, 0].repeat(4));
            params[24..28].copy_from_slice(&[6, 2048, 1280, 512]);
            params[28..].copy_from_slice(&[2.0f32.to_bits(), accumulate.into(), 3]);
            let mut expected = vec![SENTINEL; 8000];
            pack::pack(&mut expected[64..128], &inputs[0], 2.0, accumulate);
            pack::pack(&mut expected[192..192 + 4928], &inputs[1], 2.0, accumulate);
            pack::pack(&mut expected[5120..5120 + 2048], &inputs[2], 2.0, accumulate);
            let what = format!("{first} added {accumulate}");
            bench
                .case(kernel, &what, &slices, &[&expected], 1e-7, params, [3, 3, 1])
                .await;
        }
    }
}

pub async fn squared_norms(bench: &mut Bench) {
    // 70 invocations share 100 vec4 of 128, in groups of 64.
    let mut x = numbers(512, 1);
    (x[5], x[6], x[399]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    let mut expected = Vec::new();
    for first in 0..70 {
        let own = [first, first + 70].into_iter().filter(|at| *at < 100);
        let own: Vec<f32> = own.flat_map(|at| &x[4 * at..4 * at + 4]).copied().collect();
        let (squares, others) = squared_norm(&own);
        expected.extend([squares, others as f32]);
    }
    bench
        .case(
            &SQUARED_NORM,
            "parts",
            &[&x],
            &[&expected],
            1e-6,
            [100u32, 70],
            [3, 1, 1],
        )
        .await;
    for count in [1u32, 2, 63, 64, 65, 127, 129, 200] {
        let pairs = numbers(2 * 200, 2);
        let sum = |which: usize| {
            let ours = pairs.chunks(2).take(count as usize);
            ours.map(|pair| f64::from(pair[which])).sum::<f64>() as f32
        };
        let (kernel, what) = (&SQUARED_NORM_TOTAL, format!("{count} parts"));
        bench
            .case(
                kernel,
                &what,
                &[&pairs],
                &[&[sum(0), sum(1)]],
                1e-5,
                [count],
                [1, 1, 1],
            )
            .await;
    }
}

/// 5 rows of 2 workgroups for 592 vec4, and more workgroups than that; with a gradient that is clipped, one that is not
/// and one that is not finite.
pub async fn steps(bench: &mut Bench) {
    const COUNT: usize = 4 * 592;
    let (sums, decay) = (numbers(COUNT, 1), numbers(COUNT / 64, 2));
    let (lr, weight_decay, scale) = (0.5, 0.25, 2.0);
    let groups = [2, 6, 1];
    for (totals, clip) in [
        ([4.0f32, 0.0], 1.5f32),
        ([4.0, 0.0], f32::MAX),
        ([4.0, 1.0], 1.5),
        // The norm of twice these is 1e-6, as is what keeps the divisor from 0: clipped to half of that.
        ([0.25e-12, 0.0], 1e-6),
    ] {
        let (broken, norm) = (totals[1] > 0.0, totals[0].sqrt() * scale);
        let factor = (clip / (norm + 1e-6)).min(1.0);
        let what = format!("{totals:?} {clip}");
        let inputs = [sums.as_slice(), &decay, &totals];
        let head = [592, 2, 1, clip.to_bits(), scale.to_bits()];
        let words = |rest: &[u32]| -> Vec<u32> { [head.as_slice(), rest].concat() };
        let start = || vec![SENTINEL; COUNT];
        let blocks = || {
            let blocks = decay.iter().enumerate().filter(|_| !broken);
            blocks.map(|(block, decays)| (64 * block..64 * block + 64, weight_decay * decays))
        };

        let mut p = start();
        for (range, decays) in blocks() {
            sgd(&mut p[range.clone()], &sums[range], lr, scale * factor, decays);
        }
        let rest = [lr, weight_decay].map(f32::to_bits);
        let params: [u32; 7] = words(&rest).try_into().expect("seven words");
        bench
            .case(&SGD, &what, &inputs, &[&p], 1e-6, params, groups)
            .await;

        for nesterov in [false, true] {
            let (mut p, mut v) = (start(), start());
            for (range, weight_decay) in blocks() {
                let rule = Momentum {
                    lr,
                    scale: scale * factor,
                    weight_decay,
                    momentum: 0.5,
                    nesterov,
                };
                momentum(&rule, &mut p[range.clone()], &mut v[range.clone()], &sums[range]);
            }
            let rest = [
                lr.to_bits(),
                weight_decay.to_bits(),
                0.5f32.to_bits(),
                nesterov.into(),
            ];
            let params: [u32; 9] = words(&rest).try_into().expect("nine words");
            bench
                .case(&MOMENTUM, &what, &inputs, &[&p, &v], 1e-6, params, groups)
                .await;
        }

        for decoupled in [0.0, 0.125] {
            let (mut p, mut m, mut v) = (start(), start(), start());
            let l2 = if decoupled > 0.0 { 0.0 } else { weight_decay };
            for (range, decays) in blocks() {
                let rule = AdamW {
                    scale: scale * factor,
                    size: lr,
                    second: 1.5,
                    eps: 0.125,
                    beta1: 0.5,
                    // Without memory of the squares, as the sentinel has no square root.
                    beta2: 0.0,
                    l2: decays / weight_decay * l2,
                    decoupled: decays / weight_decay * decoupled,
                };
                adamw(
                    &rule,
                    &mut p[range.clone()],
                    &mut m[range.clone()],
                    &mut v[range.clone()],
                    &sums[range],
                );
            }
            let rest = [lr, 1.5, 0.125, 0.5, 0.0, l2, decoupled].map(f32::to_bits);
            let params: [u32; 12] = words(&rest).try_into().expect("twelve words");
            bench
                .case(&ADAMW, &what, &inputs, &[&p, &m, &v], 1e-6, params, groups)
                .await;
        }
    }
}

/// All sorts of `f32`: every exponent, both signs, ties, subnormals.
pub fn bit_patterns(count: u32, below: u32) -> Vec<f32> {
    let pattern = |i: u32| {
        let mixed = i.wrapping_mul(0x9e37_79b9) ^ (i >> 3).wrapping_mul(0x85eb_ca6b);
        // Few bits below the last of a half, so that there are ties.
        let mask = if i.is_multiple_of(3) { !0xfff } else { !0 };
        f32::from_bits(((mixed & 0x7fff_ffff & mask) % below) | (mixed & 0x8000_0000))
    };
    (0..count).map(pattern).collect()
}

/// Vectors of awkward lengths and contents.
pub fn vectors() -> Vec<Vec<f32>> {
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

/// To the bit: the kernels compute with integers.
pub async fn halves(bench: &mut Bench) {
    for x in vectors() {
        for run in [4, 252, 256, 4096, 65_536] {
            let what = format!("{} numbers from {} in runs of {run}", x.len(), x[0]);
            let runs: Vec<(i32, Vec<u16>)> = x.chunks(run).map(f16::encode).collect();
            let float = |word: u32| f32::from_bits(word);
            let exponents: Vec<f32> = runs.iter().map(|(k, _)| float(*k as u32)).collect();
            let halves: Vec<u16> = runs.iter().flat_map(|(_, halves)| halves.clone()).collect();
            let pair = |pair: &[u16]| float(u32::from(pair[0]) | u32::from(pair[1]) << 16);
            let words: Vec<f32> = halves.chunks(2).map(pair).collect();
            let decoded = runs.iter().flat_map(|(k, halves)| f16::decode(*k, halves));
            let decoded: Vec<f32> = decoded.collect();

            let [fours, run, count] = [x.len() / 4, run / 4, runs.len()].map(|x| x as u32);
            let groups = spare(runs.len());
            let outputs = [words.len(), exponents.len()];
            let params = [fours, run, count, groups[0]];
            let found = bench.run(&F16_ENCODE, &[&x], &outputs, params, groups).await;
            for (what_of, expected, found) in
                [("words", &words, &found[0]), ("exponents", &exponents, &found[1])]
            {
                let same = expected
                    .iter()
                    .zip(found)
                    .all(|(e, f)| e.to_bits() == f.to_bits());
                // Words are no numbers: they are the same or not.
                bench.close(F16_ENCODE.name, &what, &[], &[], 0.0);
                bench.hold(F16_ENCODE.name, &format!("{what}: {what_of}"), same);
            }
            let groups = spare((fours as usize).div_ceil(64));
            let (inputs, params) = ([found[0].as_slice(), &found[1]], [fours, run, groups[0]]);
            bench
                .case(&F16_DECODE, &what, &inputs, &[&decoded], 0.0, params, groups)
                .await;
        }
    }
}

pub async fn bytes(bench: &mut Bench) {
    // Those near the ends of the range of f32 are for the halves.
    for x in vectors()
        .into_iter()
        .filter(|x| x.iter().all(|x| x.abs() < 1e30 || !x.is_finite()))
    {
        let what = format!("{} numbers from {}", x.len(), x[0]);
        let (bytes, scales) = int8::encode(&x);
        let fours = x.len() / 4;
        let groups = spare(scales.len());
        let outputs = [fours, scales.len()];
        let params = [fours as u32, groups[0]];
        let found = bench.run(&INT8_ENCODE, &[&x], &outputs, params, groups).await;
        let name = INT8_ENCODE.name;
        // Division need not be exact on a GPU.
        bench.close(name, &what, &scales, &found[1], 1e-6);
        let words = found[0].iter().map(|word| word.to_bits().to_le_bytes());
        let found_bytes: Vec<i8> = words.flatten().map(|byte| byte as i8).collect();
        for (at, (found, expected)) in found_bytes.iter().zip(&bytes).enumerate() {
            // One further only where the quotient is as good as in the middle.
            let tie = (x[at] / scales[at / 256] - f32::from(*expected)).abs() > 0.4999;
            let off = (i32::from(*found) - i32::from(*expected)).abs();
            let problem = format!("{what}: byte {at} is {found}, not {expected}");
            bench.hold(name, &problem, off == 0 || tie && off == 1);
        }
        let expected = int8::decode(&found_bytes, &found[1]);
        let groups = spare(fours.div_ceil(64));
        let (inputs, params) = ([found[0].as_slice(), &found[1]], [fours as u32, groups[0]]);
        bench
            .case(&INT8_DECODE, &what, &inputs, &[&expected], 1e-6, params, groups)
            .await;
    }
}
