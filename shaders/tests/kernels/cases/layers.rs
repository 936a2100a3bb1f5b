//! The kernels of layers but for products and attention: norms, activations, embeddings, losses.

use super::bench::{Bench, SENTINEL, bits, numbers, scaled, spare};
use annulus_shaders::cpu::activation::Activation;
use annulus_shaders::cpu::attention::{Place, Placed};
use annulus_shaders::cpu::cross_entropy::{cross_entropy, cross_entropy_backward};
use annulus_shaders::cpu::dropout::{Mask, dropout};
use annulus_shaders::cpu::embedding::{self, embedding, position_gradient, sorted, table_gradient};
use annulus_shaders::cpu::gated::{gated, gated_backward};
use annulus_shaders::cpu::norm::{Norm, norm, norm_backward};
use annulus_shaders::cpu::rotary::rotate;
use annulus_shaders::cpu::rotary_halves::{self, Angles};
use annulus_shaders::cpu::softmax::{softmax, softmax_backward};
use annulus_shaders::kernel::*;

/// Rows and widths: 1, around workgroups, odd, prime, multiples of 4 and not.
pub const ROWS: [[usize; 2]; 10] = [
    [1, 1],
    [1, 4],
    [7, 64],
    [63, 12],
    [65, 127],
    [64, 128],
    [257, 36],
    [3, 768],
    [5, 1031],
    [300, 5],
];
/// Rows and classes: 1, around workgroups, odd, prime, multiples of 4 and not.
pub const CLASSES: [[usize; 2]; 9] = [
    [1, 1],
    [1, 4],
    [64, 10],
    [63, 65],
    [65, 256],
    [129, 7],
    [3, 1031],
    [2, 50_257],
    [257, 12],
];
/// Batch, tokens, vocabulary, width.
pub const TOKENS: [[usize; 4]; 7] = [
    [1, 1, 1, 1],
    [1, 64, 65, 64],
    [3, 21, 65, 64],
    [5, 13, 11, 7],
    [2, 64, 997, 300],
    [12, 64, 65, 128],
    [1, 3, 50_257, 12],
];
const EPSILON: f32 = 1e-5;
const IGNORED: i32 = -1;

/// All of them.
pub async fn all(bench: &mut Bench) {
    rotations(bench).await;
    rotations_of_halves(bench).await;
    norms(bench).await;
    activations(bench).await;
    gates(bench).await;
    softmaxes(bench).await;
    dropouts(bench).await;
    embeddings(bench).await;
    losses(bench).await;
}

/// Batch, heads, tokens, width.
pub async fn rotations_of_halves(bench: &mut Bench) {
    for (shape, tokens_first, shared) in [
        ([1, 1, 1, 2], false, true),
        ([2, 3, 5, 8], true, true),
        ([3, 2, 17, 12], false, false),
        ([1, 4, 65, 64], true, false),
        ([2, 2, 3, 6], true, false),
    ] {
        let [batch, heads, tokens, width] = shape;
        let place = match tokens_first {
            true => Place::tokens_first(tokens, heads, width),
            false => Place::heads_first(tokens, heads, width),
        };
        let to = Place::heads_first(tokens, heads, width);
        let x = numbers(batch * heads * tokens * width, 1);
        let tables = if shared { 1 } else { batch };
        let [cosine, sine] = [2, 3].map(|seed| numbers(tables * tokens * width, seed));
        let step = if shared { 0 } else { tokens * width };
        let angles = Angles {
            cosine: &cosine,
            sine: &sine,
            batch: step,
        };
        let (kernel, half) = fitting([&ROTARY_HALVES, &ROTARY_HALVES_SCALAR], width / 2);
        let each = width / 2 / half;
        for back in [false, true] {
            let numbers = &x[..];
            let expected = rotary_halves::rotate(Placed { numbers, place }, angles, to, shape, back);
            let elements =
                |place: Place| [place.start, place.batch, place.head, place.token].map(|x| x / each);
            let count = batch * heads * tokens * half;
            let rest = [count, half, tokens, heads, step / each, back.into(), 0, 0];
            let params: Vec<u32> = [&elements(place)[..], &elements(to), &rest]
                .concat()
                .iter()
                .map(|word| *word as u32)
                .collect();
            let params: [u32; 16] = params.try_into().expect("as many words as there are parameters");
            let what = format!("{shape:?} back {back}");
            let inputs = [&x[..], &cosine, &sine];
            let groups = spare(count.div_ceil(64));
            bench
                .case(kernel, &what, &inputs, &[&expected], 1e-6, params, groups)
                .await;
        }
    }
}

pub async fn rotations(bench: &mut Bench) {
    for [batch, tokens, heads, width] in [
        [1, 1, 1, 4],
        [2, 3, 2, 8],
        [1, 65, 3, 12],
        [3, 17, 1, 64],
        [1, 128, 4, 32],
    ] {
        let count = batch * tokens * 3 * heads * width;
        let (qkv, table) = (numbers(count, 3), numbers(tokens * width, 4));
        for (back, turn) in [(false, 1.0f32), (true, -1.0)] {
            let mut expected = qkv.clone();
            rotate(&mut expected, &table, [tokens, heads, width], back);
            let [vectors, tokens, inner, width] =
                [count / 4, tokens, heads * width / 4, width / 4].map(|size| size as u32);
            let params = [vectors, tokens, inner, width, turn.to_bits()];
            let what = format!("{count} back {back}");
            let groups = spare(count.div_ceil(256));
            bench
                .case(
                    &ROTARY,
                    &what,
                    &[&qkv, &table],
                    &[&expected],
                    1e-6,
                    params,
                    groups,
                )
                .await;
        }
    }
}

pub async fn norms(bench: &mut Bench) {
    for [rows, width] in ROWS {
        let x: Vec<f32> = numbers(rows * width, 1).iter().map(|x| x + 3.0).collect();
        let (gamma, beta) = (numbers(width, 2), numbers(width, 3));
        let gradient = numbers(rows * width, 4);
        for (kind, shift, lanes) in [
            (Norm::Layer, Some(&beta), 1),
            (Norm::Layer, Some(&beta), 8),
            (Norm::Layer, None, 64),
            (Norm::Rms, None, 1),
            (Norm::Rms, None, 32),
        ] {
            let what = format!("{kind:?} {rows} {width} {lanes}");
            let (kernel, elements) = fitting([&NORM, &NORM_SCALAR], width);
            let expected = norm(&x, &gamma, shift.map(Vec::as_slice), kind, EPSILON);
            let flags = u32::from(kind == Norm::Layer) | if shift.is_some() { 2 } else { 0 };
            let head = [rows as u32, elements as u32, lanes, flags];
            let [a, b, c, d] = head;
            let params = [a, b, c, d, EPSILON.to_bits()];
            let groups = spare(rows.div_ceil((64 / lanes) as usize));
            let inputs = [x.as_slice(), &gamma, shift.unwrap_or(&gamma)];
            let outputs = [expected.out.as_slice(), &expected.stats];
            bench
                .case(kernel, &what, &inputs, &outputs, 1e-5, params, groups)
                .await;

            let (kernel, _) = fitting([&NORM_BACKWARD, &NORM_BACKWARD_SCALAR], width);
            let slopes = norm_backward(&x, &expected.stats, &gamma, &gradient, kind);
            let row_groups = rows.div_ceil((256 / lanes) as usize);
            let params = [a, b, c, d, row_groups as u32];
            let untouched = vec![SENTINEL; width];
            let to_beta = shift.map_or(&untouched, |_| &slopes.beta);
            let inputs = [x.as_slice(), &expected.stats, &gamma, &gradient];
            let outputs = [slopes.x.as_slice(), &slopes.gamma, to_beta];
            let groups = spare(row_groups + elements.div_ceil(8));
            bench
                .case(kernel, &what, &inputs, &outputs, 2e-5, params, groups)
                .await;
        }
    }
}

/// In the order of their numbers in kernels.
const ACTIVATIONS: [Activation; 4] = [
    Activation::Relu,
    Activation::Gelu,
    Activation::Silu,
    Activation::GeluTanh,
];

pub async fn gates(bench: &mut Bench) {
    for (code, kind) in (1u32..).zip(ACTIVATIONS) {
        for count in [1, 4, 63, 256, 257, 1031] {
            let (gate, x, gradient) = (scaled(count, 1), numbers(count, 2), numbers(count, 3));
            let what = format!("{kind:?} {count}");
            let (kernel, elements) = fitting([&GATED, &GATED_SCALAR], count);
            let (params, groups) = ([elements as u32, code], spare(elements.div_ceil(64)));
            let expected = gated(&gate, &x, kind);
            bench
                .case(kernel, &what, &[&gate, &x], &[&expected], 2e-6, params, groups)
                .await;
            let (kernel, _) = fitting([&GATED_BACKWARD, &GATED_BACKWARD_SCALAR], count);
            let [to_gate, to_x] = gated_backward(&gate, &x, &gradient, kind);
            let inputs = [&gate[..], &x, &gradient];
            bench
                .case(kernel, &what, &inputs, &[&to_gate, &to_x], 4e-6, params, groups)
                .await;
        }
    }
}

pub async fn activations(bench: &mut Bench) {
    for (code, kind) in (1u32..).zip(ACTIVATIONS) {
        // The last takes more than one row of workgroups.
        for count in [1, 4, 63, 256, 257, 1031, 4_200_001] {
            if count > 10_000 && kind != Activation::Relu {
                continue;
            }
            let (x, gradient) = (scaled(count, 1), numbers(count, 2));
            let what = format!("{kind:?} {count}");
            let (kernel, elements) = fitting([&ACTIVATION, &ACTIVATION_SCALAR], count);
            let (params, groups) = ([elements as u32, code], spare(elements.div_ceil(64)));
            let expected: Vec<f32> = x.iter().map(|x| kind.apply(*x)).collect();
            bench
                .case(kernel, &what, &[&x], &[&expected], 2e-6, params, groups)
                .await;
            let (kernel, _) = fitting([&ACTIVATION_BACKWARD, &ACTIVATION_BACKWARD_SCALAR], count);
            let expected: Vec<f32> = x.iter().zip(&gradient).map(|(x, g)| g * kind.slope(*x)).collect();
            let inputs = [x.as_slice(), &gradient];
            bench
                .case(kernel, &what, &inputs, &[&expected], 4e-6, params, groups)
                .await;
        }
    }
}

pub async fn softmaxes(bench: &mut Bench) {
    for [rows, width] in ROWS {
        let (x, gradient) = (scaled(rows * width, 1), numbers(rows * width, 2));
        let expected = softmax(&x, width);
        let slopes = softmax_backward(&expected, &gradient, width);
        for lanes in [1, 8, 64] {
            let what = format!("{rows} {width} {lanes}");
            let (kernel, elements) = fitting([&SOFTMAX, &SOFTMAX_SCALAR], width);
            let params = [rows as u32, elements as u32, lanes];
            let groups = spare(rows.div_ceil((64 / lanes) as usize));
            bench
                .case(kernel, &what, &[&x], &[&expected], 2e-6, params, groups)
                .await;
            let (kernel, _) = fitting([&SOFTMAX_BACKWARD, &SOFTMAX_BACKWARD_SCALAR], width);
            let inputs = [expected.as_slice(), &gradient];
            bench
                .case(kernel, &what, &inputs, &[&slopes], 2e-6, params, groups)
                .await;
        }
    }
}

/// To the bit.
pub async fn dropouts(bench: &mut Bench) {
    for (count, seed, offset) in [
        (1, 0, 0),
        (255, 7, u64::MAX),
        (1031, u64::MAX, 1),
        (8004, 1 << 40, 1 << 33),
    ] {
        let mask = Mask {
            rate: 0.3,
            seed,
            offset,
        };
        let x = numbers(count, 1);
        let [seed, offset] = [seed, offset].map(|word: u64| [word as u32, (word >> 32) as u32]);
        let params = [
            count as u32,
            mask.threshold(),
            mask.scale().to_bits(),
            seed[0],
            seed[1],
            offset[0],
            offset[1],
        ];
        let groups = spare(count.div_ceil(256));
        let expected = dropout(&x, mask);
        bench
            .case(
                &DROPOUT,
                &format!("{mask:?}"),
                &[&x],
                &[&expected],
                0.0,
                params,
                groups,
            )
            .await;
    }
}

/// Rows and gradients to the bit: the twins add in the same order.
pub async fn embeddings(bench: &mut Bench) {
    for [batch, period, vocabulary, width] in TOKENS {
        let tokens = batch * period;
        // Many of one kind and some of none.
        let id = |x: f32| (x.max(0.0) * vocabulary as f32) as i32 % vocabulary as i32;
        let ids: Vec<i32> = numbers(tokens, 1).into_iter().map(id).collect();
        let rows = period + 3;
        let (table, positions) = (numbers(vocabulary * width, 2), numbers(rows * width, 3));
        let gradient = numbers(tokens * width, 4);
        let sizes = embedding::Sizes { width, period };
        let to_positions = position_gradient(&gradient, rows, sizes);
        let order = bits(&sorted(&ids).concat());
        let id_words = bits(&ids);
        for (blocks, lanes, placed, first) in [
            (1, 1, false, 0),
            (3, 1, true, vocabulary / 3),
            (1, 8, true, 0),
            (2, 8, false, vocabulary / 2),
            (1, 64, true, 0),
            (3, 64, true, 0),
        ] {
            let what = format!("{batch} {period} {vocabulary} {width} from {first}, {blocks} of {lanes}");
            // A part of the table, or all of it.
            let part = &table[first * width..(vocabulary - first / 2) * width];
            let part_rows = part.len() / width;
            let to_table = table_gradient(&ids, &gradient, first..first + part_rows, width);
            let (kernel, elements) = fitting([&EMBEDDING, &EMBEDDING_SCALAR], width);
            let placed_by = placed.then_some(positions.as_slice());
            let whole = embedding::TableRows {
                first,
                of: vocabulary,
            };
            let expected = embedding(&ids, (part, whole), placed_by, sizes).expect("ids of rows");
            let [count, elements, lanes_, blocks_] =
                [tokens, elements, lanes, blocks].map(|size| size as u32);
            let [part_rows_, first_, vocabulary_, period] =
                [part_rows, first, vocabulary, period].map(|size| size as u32);
            let invalid = f32::NAN.to_bits();
            let params = [
                count,
                elements,
                lanes_,
                blocks_,
                placed.into(),
                part_rows_,
                first_,
                vocabulary_,
                period,
                invalid,
            ];
            let inputs = [&id_words[..], part, placed_by.unwrap_or(part)];
            let groups = spare((tokens * blocks).div_ceil(64 / lanes));
            bench
                .case(kernel, &what, &inputs, &[&expected], 0.0, params, groups)
                .await;
            let (kernel, _) = fitting([&EMBEDDING_BACKWARD, &EMBEDDING_BACKWARD_SCALAR], width);
            let rows = if placed { rows } else { 0 };
            let params = [
                count,
                elements,
                lanes_,
                blocks_,
                part_rows_,
                first_,
                rows as u32,
                period,
            ];
            let expected = [&to_table[..], &to_positions[..rows * width]];
            let groups = spare(((part_rows + rows) * blocks).div_ceil(64 / lanes));
            bench
                .case(
                    kernel,
                    &what,
                    &[&order, &gradient],
                    &expected,
                    0.0,
                    params,
                    groups,
                )
                .await;
        }
    }
    for count in [1, 2, 63, 64, 65, 256, 1031] {
        let id = |x: f32| (x.max(0.0) * 40.0) as i32;
        let mut ids: Vec<i32> = numbers(count, 1).into_iter().map(id).collect();
        // Also such as are no row of any table.
        ids[count / 2] = i32::MIN;
        ids[count / 3] = i32::MAX;
        ids[count - 1] = i32::MAX;
        let (kernel, elements) = fitting([&EMBEDDING_SORT, &EMBEDDING_SORT_SCALAR], count);
        let (what, groups) = (format!("{count}"), spare(elements.div_ceil(64)));
        let order = bits(&sorted(&ids).concat());
        bench
            .case(
                kernel,
                &what,
                &[&bits(&ids)],
                &[&order],
                0.0,
                elements as u32,
                groups,
            )
            .await;
    }
}

pub async fn losses(bench: &mut Bench) {
    for [rows, classes] in CLASSES {
        let logits: Vec<f32> = numbers(rows * classes, 1).iter().map(|x| 8.0 * x).collect();
        let target = |(row, x): (usize, f32)| match row % 5 {
            3 => IGNORED,
            _ => ((x + 1.0) / 2.0 * classes as f32) as i32 % classes as i32,
        };
        let targets: Vec<i32> = numbers(rows, 2).into_iter().enumerate().map(target).collect();
        let expected = cross_entropy(&logits, classes, &targets, Some(IGNORED)).expect("targets are classes");
        let losses = (expected.norms.as_slice(), expected.sums);
        let gradient = cross_entropy_backward(&logits, classes, &targets, Some(IGNORED), losses, 3.0);
        let ignore = IGNORED as u32;
        let invalid = f32::NAN.to_bits();
        for lanes in [1, 8, 64] {
            let what = format!("{rows} {classes} {lanes}");
            let (kernel, width) = fitting([&CROSS_ENTROPY, &CROSS_ENTROPY_SCALAR], classes);
            let name = kernel.name;
            let groups = rows.div_ceil(64 / lanes);
            let [row_count, width, lanes] = [rows, width, lanes].map(|x| x as u32);
            let params = [row_count, width, lanes, 1, groups as u32, ignore, invalid];
            let inputs = [logits.clone(), bits(&targets)];
            let inputs = [inputs[0].as_slice(), &inputs[1]];
            let found = bench
                .run(kernel, &inputs, &[rows, 2 * groups, 1], params, spare(groups))
                .await;
            bench.close(name, &what, &expected.norms, &found[0], 1e-5);
            if groups == 1 {
                bench.close(name, &what, &expected.sums, &found[1], 1e-5);
                bench.close(name, &what, &[expected.mean], &found[2], 1e-5);
            } else {
                let sums = [0, 1].map(|which| found[1].iter().skip(which).step_by(2).sum());
                bench.close(name, &what, &expected.sums, &sums, 1e-5);
                bench.hold(name, "a mean of parts", found[2] == [SENTINEL]);
                let outputs = [expected.sums.as_slice(), &[expected.mean]];
                let (kernel, parts) = (&CROSS_ENTROPY_MEAN, &found[1]);
                bench
                    .case(kernel, &what, &[parts], &outputs, 1e-5, groups as u32, [1, 1, 1])
                    .await;
            }
            let (kernel, _) = fitting([&CROSS_ENTROPY_BACKWARD, &CROSS_ENTROPY_BACKWARD_SCALAR], classes);
            let params = [row_count, width, lanes, 1, ignore, invalid];
            let inputs = [inputs[0], inputs[1], &expected.norms, &expected.sums, &[3.0]];
            bench
                .case(kernel, &what, &inputs, &[&gradient], 1e-6, params, spare(groups))
                .await;
        }
    }
}
