//! The kernels of batch norm and pooling.

use super::bench::{Bench, SENTINEL, numbers, spare};
use annulus_shaders::cpu::batch_norm::{Channels, batch_norm, batch_norm_backward, statistics};
use annulus_shaders::cpu::pool::{Kind, Windows};
use annulus_shaders::kernel::*;

/// Images, channels, numbers of a channel.
const CHANNELS: [[usize; 3]; 6] = [
    [1, 1, 1],
    [3, 5, 7],
    [2, 4, 36],
    [17, 2, 100],
    [1, 70, 4],
    [2, 2, 9000],
];
const EPSILON: f32 = 1e-5;

/// All of them.
pub async fn all(bench: &mut Bench) {
    batch_norms(bench).await;
    pools(bench).await;
}

/// Statistics, forward and backward.
pub async fn batch_norms(bench: &mut Bench) {
    for [images, channels, each] in CHANNELS {
        let of = Channels {
            count: channels,
            each,
        };
        let x: Vec<f32> = numbers(images * channels * each, 1)
            .iter()
            .map(|x| x + 3.0)
            .collect();
        let (gamma, beta) = (numbers(channels, 2), numbers(channels, 3));
        let gradient = numbers(x.len(), 4);
        let stats = statistics(&x, of);
        let epsilon = f64::from(EPSILON);
        let slopes = batch_norm_backward(&x, &stats, &gamma, &gradient, epsilon, of);
        let what = format!("{images} {channels} {each}");
        let parts = images.min(4);
        let across = each.next_power_of_two().min(64);
        let head = [images, channels, each, parts, across].map(|word| word as u32);
        let params = |kind: u32| {
            let [a, b, c, d, e] = head;
            [a, b, c, d, e, kind]
        };
        // What a part's images have, by the definition of each kind.
        let sums = |first: &dyn Fn(usize, usize) -> f64, second: &dyn Fn(usize, usize) -> f64| -> Vec<f32> {
            let both = [first, second];
            let all = both.iter().flat_map(|sum| {
                (0..channels * parts).map(move |i| {
                    let (channel, part) = (i / parts, i % parts);
                    let of_part = part * images / parts..(part + 1) * images / parts;
                    let numbers = of_part
                        .flat_map(|image| (0..each).map(move |i| (image * channels + channel) * each + i));
                    numbers.map(|at| sum(at, channel)).sum::<f64>() as f32
                })
            });
            all.collect()
        };
        let wide = |at: usize| f64::from(x[at]);
        let shift = |channel: usize| f64::from(x[channel * each]);
        let plain = sums(&|at, _| wide(at), &|at, _| wide(at).powi(2));
        let shifted = sums(&|at, c| wide(at) - shift(c), &|at, c| {
            (wide(at) - shift(c)).powi(2)
        });
        let mean = |channel: usize| f64::from(stats[channel]);
        let mut squares = sums(&|_, _| 0.0, &|at, c| (wide(at) - mean(c)).powi(2));
        for (i, square) in squares[..channels * parts].iter_mut().enumerate() {
            *square = stats[i / parts];
        }
        let slope = |at: usize| f64::from(gradient[at]);
        let sloped = sums(&|at, _| slope(at), &|at, c| slope(at) * (wide(at) - mean(c)));
        let groups = spare(channels * parts);
        for (kind, known, expected) in [
            (0, &x, &plain),
            (1, &x, &shifted),
            (2, &shifted, &squares),
            (3, &stats, &sloped),
        ] {
            let inputs = [x.as_slice(), &gradient, known];
            bench
                .case(
                    &BATCH_NORM_SUMS,
                    &what,
                    &inputs,
                    &[expected],
                    2e-6,
                    params(kind),
                    groups,
                )
                .await;
        }
        let total = [slopes.beta.as_slice(), &slopes.gamma].concat();
        let numbers_of = (images * each) as u32;
        let groups = spare(channels.div_ceil(64));
        for (parts_of, expected, gradients) in [(&squares, &stats, 0), (&sloped, &total, 1)] {
            let params = [
                channels as u32,
                parts as u32,
                numbers_of,
                gradients,
                EPSILON.to_bits(),
            ];
            bench
                .case(
                    &BATCH_NORM_TOTAL,
                    &what,
                    &[parts_of, &stats],
                    &[expected],
                    1e-5,
                    params,
                    groups,
                )
                .await;
        }
        let expected = batch_norm(&x, &stats, &gamma, &beta, epsilon, of);
        let (kernel, width) = fitting([&BATCH_NORM, &BATCH_NORM_SCALAR], each);
        let count = images * channels * width;
        let sizes = [count, channels, width].map(|word| word as u32);
        let groups = spare(count.div_ceil(64));
        let inputs = [x.as_slice(), &stats, &gamma, &beta];
        let params = [sizes[0], sizes[1], sizes[2], EPSILON.to_bits()];
        bench
            .case(kernel, &what, &inputs, &[&expected], 1e-5, params, groups)
            .await;
        let (kernel, _) = fitting([&BATCH_NORM_BACKWARD, &BATCH_NORM_BACKWARD_SCALAR], each);
        let params = [sizes[0], sizes[1], sizes[2], numbers_of, EPSILON.to_bits()];
        let inputs = [x.as_slice(), &gradient, &stats, &gamma, &total];
        bench
            .case(kernel, &what, &inputs, &[&slopes.x], 1e-5, params, groups)
            .await;
    }
}

/// Windows that overlap, that leave numbers out, and that lie over a border.
pub async fn pools(bench: &mut Bench) {
    for (kernel, strides, before, dilations, count) in [
        ([1, 1], [1, 1], [0, 0], [1, 1], [9, 10]),
        ([2, 2], [2, 2], [0, 0], [1, 1], [4, 5]),
        ([3, 2], [2, 1], [1, 1], [1, 1], [5, 11]),
        ([2, 3], [1, 3], [1, 1], [2, 1], [9, 4]),
        // All in the border.
        ([1, 2], [1, 1], [0, 1], [1, 11], [9, 1]),
    ] {
        for kind in [Kind::Maximum, Kind::Mean, Kind::MeanWithBorder] {
            if kind != Kind::Maximum && dilations != [1, 1] {
                continue;
            }
            let windows = Windows {
                kernel,
                strides,
                before,
                dilations,
                count,
                kind,
            };
            let (planes, lengths) = (7, [9, 10]);
            // With equal numbers.
            let x: Vec<f32> = numbers(planes * 90, 1)
                .iter()
                .map(|x| (x * 5.0).round())
                .collect();
            let (out, places) = windows.forward(&x, lengths);
            let places: Vec<f32> = places.into_iter().map(f32::from_bits).collect();
            let gradient = numbers(out.len(), 2);
            let bits: Vec<u32> = places.iter().map(|place| place.to_bits()).collect();
            let to_x = windows.backward(&gradient, &bits, lengths);
            let sizes = [lengths, count, kernel, strides, before, dilations];
            let words: Vec<u32> = sizes.as_flattened().iter().map(|size| *size as u32).collect();
            let params = [&[planes as u32], &words[..], &[kind as u32]].concat();
            let params: [u32; 14] = params.try_into().expect("as many words as there are parameters");
            let what = format!("{windows:?}");
            let untouched = vec![SENTINEL; out.len()];
            let chosen = if kind == Kind::Maximum {
                &places
            } else {
                &untouched
            };
            let groups = spare(out.len().div_ceil(64));
            bench
                .case(&POOL, &what, &[&x], &[&out, chosen], 1e-6, params, groups)
                .await;
            let groups = spare(x.len().div_ceil(64));
            bench
                .case(
                    &POOL_BACKWARD,
                    &what,
                    &[&gradient, &places],
                    &[&to_x],
                    1e-6,
                    params,
                    groups,
                )
                .await;
        }
    }
}
