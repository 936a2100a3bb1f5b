//! The kernels of layers: products, attention, norms, activations, embeddings, losses.

use crate::bench::{Bench, SENTINEL, bits, numbers, scaled};
use annulus_shaders::cpu::activation::Activation;
use annulus_shaders::cpu::attention::{self, Sizes};
use annulus_shaders::cpu::cross_entropy::{cross_entropy, cross_entropy_backward};
use annulus_shaders::cpu::dropout::{Mask, dropout};
use annulus_shaders::cpu::embedding::{self, embedding, position_gradient, sorted, table_gradient};
use annulus_shaders::cpu::gemm::{Matrix, column_sums, product};
use annulus_shaders::cpu::halve::{pack, unpack};
use annulus_shaders::cpu::norm::{Norm, norm, norm_backward};
use annulus_shaders::cpu::rotary::rotate;
use annulus_shaders::cpu::softmax::{softmax, softmax_backward};
use annulus_shaders::kernel::*;
use annulus_shaders::launch::grid;

const EPSILON: f32 = 1e-5;
const IGNORED: i32 = -1;

/// All of them.
pub async fn all(bench: &mut Bench) {
    products(bench).await;
    products_with_halves(bench).await;
    attentions(bench).await;
    rotations(bench).await;
    norms(bench).await;
    activations(bench).await;
    softmaxes(bench).await;
    dropouts(bench).await;
    embeddings(bench).await;
    losses(bench).await;
}

/// All four ways to lie, a batch of two.
async fn products(bench: &mut Bench) {
    const SUMS: u32 = 128;
    for [m, n, k] in [
        [1, 1, 1],
        [7, 63, 5],
        [8, 64, 4],
        [9, 68, 12],
        [65, 31, 37],
        [13, 132, 100],
    ] {
        let (a, b) = (numbers(2 * m * k, 1), numbers(2 * k * n, 2));
        for (a_turned, b_turned) in [(false, false), (false, true), (true, false), (true, true)] {
            let matrix = |data, rows, columns, turned| match turned {
                false => Matrix::row_major(data, columns),
                true => Matrix::row_major(data, rows).transposed(),
            };
            let (mut out, mut sums) = (Vec::new(), Vec::new());
            for batch in 0..2 {
                let a = matrix(&a[batch * m * k..][..m * k], m, k, a_turned);
                let b = matrix(&b[batch * k * n..][..k * n], k, n, b_turned);
                out.extend(product([m, n, k], a, b));
                let rows: Vec<f32> = (0..k * n)
                    .map(|i| b.data[i / n * b.row + i % n * b.column])
                    .collect();
                sums.extend(column_sums(&rows, n));
            }
            let what = format!("{m} {n} {k} {a_turned} {b_turned}");
            let size = |x: usize| x as u32;
            let strides = |rows, columns, turned| match turned {
                false => [size(columns), 1],
                true => [1, size(rows)],
            };
            let ([a_row, a_column], [b_row, b_column]) = (strides(m, k, a_turned), strides(k, n, b_turned));
            let sizes = [size(m), size(n), size(k)];
            for (kernel, tile) in [(&GEMM_ANY, 32), (&GEMM_TILED, 64)] {
                let [m_, n_, k_] = sizes;
                let params = [
                    m_,
                    n_,
                    k_,
                    a_row,
                    a_column,
                    b_row,
                    b_column,
                    size(m * k),
                    size(k * n),
                    SUMS,
                ];
                let groups = [size(n.div_ceil(tile)), size(m.div_ceil(tile)), 2];
                let expected = [out.as_slice(), &sums];
                bench
                    .case(kernel, &what, &[&a, &b, &b, &a], &expected, 1e-5, params, groups)
                    .await;
            }
            if !b_turned && n.is_multiple_of(4) {
                let [m_, n_, k_] = sizes;
                let batch = [size(m * k), size(k * n / 4)];
                let params = [m_, n_, k_, a_row, a_column, size(n / 4), batch[0], batch[1], SUMS];
                let groups = [size(n.div_ceil(64)), size(m.div_ceil(8)), 2];
                let expected = [out.as_slice(), &sums];
                for kernel in [&GEMM_WIDE, &GEMM_WIDE_PLAIN] {
                    bench
                        .case(kernel, &what, &[&a, &b, &b, &b], &expected, 1e-5, params, groups)
                        .await;
                }
            }
            let fours = |x: usize, y: usize| x.is_multiple_of(4) && y.is_multiple_of(4);
            let params = [
                sizes[0],
                sizes[1],
                sizes[2],
                size(if a_turned { m } else { k } / 4),
                size(if b_turned { k } else { n } / 4),
                size(m * k / 4),
                size(k * n / 4),
                if a_turned { SUMS } else { 0 },
            ];
            let groups = [size(n.div_ceil(64)), size(m.div_ceil(8)), 2];
            let (kernel, inputs, expected): (_, &[&[f32]], &[&[f32]]) = match (a_turned, b_turned) {
                (false, false) if fours(k, n) => (&GEMM_NN, &[&a, &b, &a, &a], &[&out, &[SENTINEL; 4]]),
                (false, true) if fours(k, n) => (&GEMM_NT, &[&a, &b, &a], &[&out]),
                (true, false) if fours(m, n) => (&GEMM_TN, &[&a, &b], &[&out, &sums]),
                _ => continue,
            };
            bench
                .case(kernel, &what, inputs, expected, 1e-5, params, groups)
                .await;
        }
    }
}

/// As they lie and with the second operand turned; numbers that are halves already, so that no rounding tells.
async fn products_with_halves(bench: &mut Bench) {
    for [m, n, k] in [[1, 4, 4], [9, 68, 12], [65, 132, 20], [13, 66, 7]] {
        let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
        let b = unpack(&pack(&b), b.len());
        let words: Vec<f32> = pack(&b).into_iter().map(f32::from_bits).collect();
        let size = |x: usize| x as u32;
        let groups = grid(words.len().div_ceil(64) + 3);
        let what = format!("{}", b.len());
        bench
            .case(&HALVE, &what, &[&b], &[&words], 0.0, [size(b.len())], groups)
            .await;
        for turned in [false, true] {
            let (matrix, [b_row, b_column]) = match turned {
                false => (Matrix::row_major(&b, n), [size(n), 1]),
                true => (Matrix::row_major(&b, k).transposed(), [1, size(k)]),
            };
            let out = product([m, n, k], Matrix::row_major(&a, k), matrix);
            let what = format!("{m} {n} {k} {turned}");
            let params = [size(m), size(n), size(k), size(k), 1, b_row, b_column, 0, 0, 0];
            let groups = [size(n.div_ceil(64)), size(m.div_ceil(64)), 1];
            let inputs: [&[f32]; 4] = [&a, &words, &a, &a];
            let expected = [&out[..], &[SENTINEL; 4]];
            let kernel = &GEMM_TILED_HALVES;
            bench
                .case(kernel, &what, &inputs, &expected, 1e-5, params, groups)
                .await;
            if !n.is_multiple_of(4) || !k.is_multiple_of(4) {
                continue;
            }
            let rows = size(if turned { k } else { n } / 4);
            let params = [size(m), size(n), size(k), size(k / 4), rows, 0, 0, 0];
            let groups = [size(n.div_ceil(64)), size(m.div_ceil(8)), 1];
            let (kernel, inputs, expected) = match turned {
                false => (&GEMM_NN_HALVES, &inputs[..], &expected[..]),
                true => (&GEMM_NT_HALVES, &inputs[..3], &expected[..1]),
            };
            bench
                .case(kernel, &what, inputs, expected, 1e-5, params, groups)
                .await;
        }
    }
}

async fn attentions(bench: &mut Bench) {
    // Tokens and columns of a unit of work, and units in a workgroup.
    const SERIAL: [usize; 3] = [4, 32, 8];
    const SLIM: [usize; 3] = [4, 16, 8];
    const TILED: [usize; 3] = [32, 64, 1];
    for (batch, tokens, heads, head_dim, causal) in [
        (1, 1, 1, 4, true),
        (1, 9, 2, 16, true),
        (2, 7, 3, 12, false),
        (1, 65, 2, 28, true),
        (1, 33, 2, 64, true),
        (2, 13, 1, 100, true),
    ] {
        let sizes = Sizes {
            batch,
            tokens,
            heads,
            head_dim,
            causal,
        };
        let what = format!("{sizes:?}");
        let qkv = numbers(batch * tokens * 3 * sizes.inner(), 3);
        let d_out = numbers(qkv.len() / 3, 4);
        let (out, lse) = attention::forward(&qkv, sizes);
        let d_qkv = attention::backward(&qkv, &out, &lse, &d_out, sizes);
        for (forward, backward, [rows, columns, units]) in [
            (&ATTENTION_FORWARD, Some(&ATTENTION_BACKWARD), SERIAL),
            (
                &ATTENTION_FORWARD_NARROW,
                Some(&ATTENTION_BACKWARD_NARROW),
                SERIAL,
            ),
            (&ATTENTION_FORWARD_TILED, Some(&ATTENTION_BACKWARD_TILED), TILED),
            (&ATTENTION_FORWARD_UNROLLED, None, SERIAL),
            (&ATTENTION_FORWARD_UNROLLED_NARROW, None, SERIAL),
            (&ATTENTION_FORWARD_UNROLLED_SLIM, None, SLIM),
        ] {
            // Narrow and slim texts are for heads of one chunk of columns.
            let one_chunk = forward.name.ends_with("_narrow") || forward.name.ends_with("_slim");
            if one_chunk && head_dim > columns {
                continue;
            }
            let blocks = tokens.div_ceil(rows) * head_dim.div_ceil(columns);
            let groups = (batch * heads * blocks).div_ceil(units);
            let params = [
                tokens as u32,
                heads as u32,
                head_dim as u32 / 4,
                (batch * heads) as u32,
                head_dim.div_ceil(columns) as u32,
                causal.into(),
                (sizes.scale() as f32).to_bits(),
            ];
            // Some workgroups too many.
            let surplus = grid(groups + 3);
            let expected = [out.as_slice(), &lse];
            bench
                .case(forward, &what, &[&qkv], &expected, 1e-5, params, surplus)
                .await;
            let inputs = [qkv.as_slice(), &out, &lse, &d_out];
            if let Some(kernel) = backward {
                let [a, b, c, d, e, f, g] = params;
                let params = [a, b, c, d, e, f, g, groups as u32];
                let groups = grid(2 * groups + 3);
                bench
                    .case(kernel, &what, &inputs, &[&d_qkv], 1e-5, params, groups)
                    .await;
                continue;
            }
            // One kernel writes the queries' slopes, the other one the rest, and neither touches the other's.
            let [for_queries, for_keys] = match columns {
                16 => [&ATTENTION_BACKWARD_QUERIES_SLIM, &ATTENTION_BACKWARD_KEYS_SLIM],
                _ if one_chunk => [
                    &ATTENTION_BACKWARD_QUERIES_NARROW,
                    &ATTENTION_BACKWARD_KEYS_NARROW,
                ],
                _ => [&ATTENTION_BACKWARD_QUERIES, &ATTENTION_BACKWARD_KEYS],
            };
            let is_query = |at: usize| (at / sizes.inner()).is_multiple_of(3);
            let part = |queries: bool| -> Vec<f32> {
                let there = d_qkv.iter().enumerate();
                there
                    .map(|(at, x)| if is_query(at) == queries { *x } else { SENTINEL })
                    .collect()
            };
            let delta: Vec<f32> = (0..lse.len())
                .map(|at| {
                    let (pair, token) = (at / tokens, at % tokens);
                    let row = (pair / heads * tokens + token) * heads + pair % heads;
                    let columns = row * head_dim..(row + 1) * head_dim;
                    out[columns.clone()]
                        .iter()
                        .zip(&d_out[columns])
                        .map(|(x, y)| x * y)
                        .sum()
                })
                .collect();
            let expected = [&part(true)[..], &delta];
            bench
                .case(for_queries, &what, &inputs, &expected, 1e-5, params, surplus)
                .await;
            let inputs = [qkv.as_slice(), &lse, &delta, &d_out];
            bench
                .case(for_keys, &what, &inputs, &[&part(false)], 1e-5, params, surplus)
                .await;
        }
    }
}

async fn rotations(bench: &mut Bench) {
    for [batch, tokens, heads, width] in [[1, 1, 1, 4], [2, 3, 2, 8], [1, 65, 3, 12]] {
        let count = batch * tokens * 3 * heads * width;
        let (qkv, table) = (numbers(count, 3), numbers(tokens * width, 4));
        for (back, turn) in [(false, 1.0f32), (true, -1.0)] {
            let mut expected = qkv.clone();
            rotate(&mut expected, &table, [tokens, heads, width], back);
            let [vectors, tokens, inner, width] =
                [count / 4, tokens, heads * width / 4, width / 4].map(|size| size as u32);
            let params = [vectors, tokens, inner, width, turn.to_bits()];
            let what = format!("{count} back {back}");
            let groups = grid(count.div_ceil(256) + 2);
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

async fn norms(bench: &mut Bench) {
    for [rows, width] in [[1, 1], [1, 4], [65, 127], [64, 128], [257, 36], [3, 1031]] {
        let x: Vec<f32> = numbers(rows * width, 1).iter().map(|x| x + 3.0).collect();
        let (gamma, beta) = (numbers(width, 2), numbers(width, 3));
        let gradient = numbers(rows * width, 4);
        for (kind, shift, lanes) in [
            (Norm::Layer, Some(&beta), 1),
            (Norm::Layer, Some(&beta), 8),
            (Norm::Layer, None, 64),
            (Norm::Rms, None, 32),
        ] {
            let what = format!("{kind:?} {rows} {width} {lanes}");
            let (kernel, elements) = fitting([&NORM, &NORM_SCALAR], width);
            let expected = norm(&x, &gamma, shift.map(Vec::as_slice), kind, EPSILON);
            let flags = u32::from(kind == Norm::Layer) | if shift.is_some() { 2 } else { 0 };
            let head = [rows as u32, elements as u32, lanes, flags];
            let [a, b, c, d] = head;
            let params = [a, b, c, d, EPSILON.to_bits()];
            let groups = grid(rows.div_ceil((64 / lanes) as usize) + 3);
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
            let groups = grid(row_groups + elements.div_ceil(8) + 3);
            bench
                .case(kernel, &what, &inputs, &outputs, 2e-5, params, groups)
                .await;
        }
    }
}

async fn activations(bench: &mut Bench) {
    let kinds = [Activation::Relu, Activation::Gelu, Activation::Silu];
    for (code, kind) in (1u32..).zip(kinds) {
        // The last takes more than one row of workgroups.
        for count in [1, 4, 63, 256, 1031, 4_200_001] {
            if count > 10_000 && kind != Activation::Relu {
                continue;
            }
            let (x, gradient) = (scaled(count, 1), numbers(count, 2));
            let what = format!("{kind:?} {count}");
            let (kernel, elements) = fitting([&ACTIVATION, &ACTIVATION_SCALAR], count);
            let (params, groups) = ([elements as u32, code], grid(elements.div_ceil(64) + 3));
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

async fn softmaxes(bench: &mut Bench) {
    for [rows, width] in [[1, 1], [7, 64], [65, 127], [257, 36], [3, 1031]] {
        let (x, gradient) = (scaled(rows * width, 1), numbers(rows * width, 2));
        let expected = softmax(&x, width);
        let slopes = softmax_backward(&expected, &gradient, width);
        for lanes in [1, 8, 64] {
            let what = format!("{rows} {width} {lanes}");
            let (kernel, elements) = fitting([&SOFTMAX, &SOFTMAX_SCALAR], width);
            let params = [rows as u32, elements as u32, lanes];
            let groups = grid(rows.div_ceil((64 / lanes) as usize) + 3);
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
async fn dropouts(bench: &mut Bench) {
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
        let groups = grid(count.div_ceil(256) + 3);
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
async fn embeddings(bench: &mut Bench) {
    for [batch, tokens, vocabulary, width] in
        [[1, 1, 1, 1], [1, 64, 65, 64], [5, 13, 11, 7], [4, 32, 997, 300]]
    {
        let what = format!("{batch} {tokens} {vocabulary} {width}");
        let count = batch * tokens;
        let id = |x: f32| (x.max(0.0) * vocabulary as f32) as i32 % vocabulary as i32;
        let ids: Vec<i32> = numbers(count, 1).into_iter().map(id).collect();
        let rows = tokens + 3;
        let (table, positions) = (numbers(vocabulary * width, 2), numbers(rows * width, 3));
        let sizes = embedding::Sizes {
            width,
            period: tokens,
        };
        let (kernel, elements) = fitting([&EMBEDDING, &EMBEDDING_SCALAR], width);
        let id_words = bits(&ids);
        for (lanes, positions) in [(1, None), (8, Some(&positions)), (64, Some(&positions))] {
            let expected = embedding(&ids, &table, positions.map(Vec::as_slice), sizes).expect("ids of rows");
            let blocks = elements.div_ceil(lanes);
            let params = [
                count as u32,
                elements as u32,
                lanes as u32,
                blocks as u32,
                u32::from(positions.is_some()),
                vocabulary as u32,
                tokens as u32,
                f32::NAN.to_bits(),
            ];
            let inputs = [&id_words, &table, positions.unwrap_or(&table)].map(Vec::as_slice);
            let groups = grid((count * blocks).div_ceil(64 / lanes) + 3);
            bench
                .case(kernel, &what, &inputs, &[&expected], 0.0, params, groups)
                .await;
        }

        let order = bits(&sorted(&ids).concat());
        let (kernel, fours) = fitting([&EMBEDDING_SORT, &EMBEDDING_SORT_SCALAR], count);
        let groups = grid(fours.div_ceil(64) + 3);
        bench
            .case(kernel, &what, &[&id_words], &[&order], 0.0, fours as u32, groups)
            .await;

        let gradient = numbers(count * width, 4);
        let to_table = table_gradient(&ids, &gradient, vocabulary, width);
        let to_positions = position_gradient(&gradient, rows, sizes);
        let (kernel, elements) = fitting([&EMBEDDING_BACKWARD, &EMBEDDING_BACKWARD_SCALAR], width);
        for (lanes, positions) in [(1, 0), (8, rows), (64, rows)] {
            let blocks = elements.div_ceil(lanes);
            let params = [
                count as u32,
                elements as u32,
                lanes as u32,
                blocks as u32,
                vocabulary as u32,
                positions as u32,
                tokens as u32,
            ];
            let second = &to_positions[..positions * width];
            let groups = grid(((vocabulary + positions) * blocks).div_ceil(64 / lanes) + 3);
            let inputs = [order.as_slice(), &gradient];
            bench
                .case(kernel, &what, &inputs, &[&to_table, second], 0.0, params, groups)
                .await;
        }
    }
}

async fn losses(bench: &mut Bench) {
    for [rows, classes] in [[1, 1], [64, 10], [63, 65], [65, 256], [3, 1031]] {
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
                .run(kernel, &inputs, &[rows, 2 * groups, 1], params, grid(groups + 3))
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
                .case(
                    kernel,
                    &what,
                    &inputs,
                    &[&gradient],
                    1e-6,
                    params,
                    grid(groups + 3),
                )
                .await;
        }
    }
}
