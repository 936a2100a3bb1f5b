//! The kernels of matrix products.

use super::bench::{Bench, SENTINEL, numbers, spare};
use annulus_shaders::cpu::activation::Activation;
use annulus_shaders::cpu::gemm::{Matrix, add_bias, column_sums, product};
use annulus_shaders::cpu::halve::{pack, unpack};
use annulus_shaders::kernel::*;

/// Sizes 1, around the tiles' edges, odd, prime, multiples of 4 and not.
pub const SHAPES: [[usize; 3]; 10] = [
    [1, 1, 1],
    [7, 63, 5],
    [8, 64, 4],
    [9, 68, 12],
    [33, 31, 37],
    [64, 10, 128],
    [65, 132, 20],
    [128, 4, 8],
    [13, 257, 101],
    // So many rows that a GPU makes weight gradients in pieces.
    [300, 12, 20],
];

/// All of them.
pub async fn all(bench: &mut Bench) {
    products(bench).await;
    epilogues(bench).await;
    totals(bench).await;
    products_with_halves(bench).await;
}

/// All four ways to lie, a batch of two.
pub async fn products(bench: &mut Bench) {
    const SUMS: u32 = 128;
    for [m, n, k] in SHAPES {
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
            let fours = |x: usize, y: usize| x.is_multiple_of(4) && y.is_multiple_of(4);
            let rows = fours(if a_turned { m } else { k }, if b_turned { k } else { n });
            for (kernel, tile, fits) in [
                (&GEMM_ANY, 32, true),
                (&GEMM_TILED, 64, rows && n.is_multiple_of(4)),
                (&GEMM_TILED_SCALAR, 64, true),
            ] {
                if !fits {
                    continue;
                }
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

/// What the kernels for any strides do to a sum before they store it.
pub async fn epilogues(bench: &mut Bench) {
    const BIAS: u32 = 1;
    const EXTRA: u32 = 2;
    const RELU: u32 = 4;
    const GELU: u32 = 8;
    const SIDE: u32 = 16;
    const RELU_SLOPE: u32 = 32;
    const GELU_SLOPE: u32 = 64;
    for [m, n, k] in [[65, 70, 3], [61, 68, 12]] {
        let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
        let bias = numbers(n, 3);
        // Up to 2.5 either way, where all parts of GELU and its slope tell.
        let extra: Vec<f32> = numbers(m * n, 4).iter().map(|x| 2.5 * x).collect();
        let sums = product([m, n, k], Matrix::row_major(&a, k), Matrix::row_major(&b, n));
        for flags in [
            0,
            BIAS,
            EXTRA,
            RELU,
            GELU,
            RELU_SLOPE,
            GELU_SLOPE,
            BIAS | GELU | SIDE | EXTRA,
            BIAS | RELU | SIDE,
        ] {
            let has = |flag| flags & flag != 0;
            let mut out = sums.clone();
            if has(BIAS) {
                add_bias(&mut out, &bias);
            }
            let side = match has(SIDE) {
                true => out.clone(),
                false => vec![SENTINEL; m * n],
            };
            for (activation, apply, slope) in [
                (Activation::Relu, RELU, RELU_SLOPE),
                (Activation::Gelu, GELU, GELU_SLOPE),
            ] {
                if has(apply) {
                    activation.apply_all(&mut out);
                }
                if has(slope) {
                    activation.times_slopes(&mut out, &extra);
                }
            }
            if has(EXTRA) {
                out.iter_mut().zip(&extra).for_each(|(x, e)| *x += e);
            }
            let what = format!("{m} {n} {k} flags {flags}");
            let [m_, n_, k_] = [m, n, k].map(|size| size as u32);
            let (inputs, expected) = ([&a[..], &b, &bias, &extra], [&out[..], &side]);
            let fits = n.is_multiple_of(4) && k.is_multiple_of(4);
            for (kernel, tile, fits) in [
                (&GEMM_ANY, 32, true),
                (&GEMM_TILED, 64, fits),
                (&GEMM_TILED_SCALAR, 64, true),
            ] {
                if fits {
                    let params = [m_, n_, k_, k_, 1, n_, 1, 0, 0, flags];
                    let groups = [n_.div_ceil(tile), m_.div_ceil(tile), 1];
                    bench
                        .case(kernel, &what, &inputs, &expected, 1e-6, params, groups)
                        .await;
                }
            }
            // A product of each depth alone, then their sum.
            let mut parts = Vec::new();
            for depth in 0..k {
                let column: Vec<f32> = a.iter().skip(depth).step_by(k).copied().collect();
                let row = Matrix::row_major(&b[depth * n..][..n], n);
                parts.extend(product([m, n, 1], Matrix::row_major(&column, 1), row));
            }
            let of_parts = [&parts[..], &bias, &extra, &parts];
            let params = [m_, n_, k_, 0, 0, 0, 0, 0, 0, flags];
            let kernel = if n.is_multiple_of(4) {
                &GEMM_TOTAL
            } else {
                &GEMM_TOTAL_SCALAR
            };
            let groups = spare((m * n).div_ceil(64));
            bench
                .case(kernel, &what, &of_parts, &expected, 1e-6, params, groups)
                .await;
            for (kernel, takes) in [
                (&GEMM_WIDE, !has(RELU_SLOPE) && !has(GELU_SLOPE)),
                (&GEMM_WIDE_PLAIN, flags & !(BIAS | EXTRA) == 0),
            ] {
                if takes && n.is_multiple_of(4) {
                    let params = [m_, n_, k_, k_, 1, n_ / 4, 0, 0, flags];
                    let groups = [n_.div_ceil(64), m_.div_ceil(8), 1];
                    bench
                        .case(kernel, &what, &inputs, &expected, 1e-6, params, groups)
                        .await;
                }
            }
        }
    }
}

/// Sums of parts, and of their columns' sums.
pub async fn totals(bench: &mut Bench) {
    const SUMS: u32 = 128;
    for (kernel, [m, n, pieces]) in [
        (&GEMM_TOTAL, [1, 4, 1]),
        (&GEMM_TOTAL, [7, 68, 4]),
        (&GEMM_TOTAL, [65, 132, 11]),
        (&GEMM_TOTAL_SCALAR, [1, 1, 3]),
        (&GEMM_TOTAL_SCALAR, [9, 67, 6]),
    ] {
        let (parts, sums) = (numbers(pieces * m * n, 1), numbers(pieces * n, 2));
        let [out, side] = [column_sums(&parts, m * n), column_sums(&sums, n)];
        let params = [m as u32, n as u32, pieces as u32, 0, 0, 0, 0, 0, 0, SUMS];
        let inputs = [&parts[..], &parts, &parts, &sums];
        let groups = spare((m * n).div_ceil(64));
        let what = format!("{m} {n} in {pieces}");
        bench
            .case(kernel, &what, &inputs, &[&out, &side], 1e-6, params, groups)
            .await;
    }
}

/// As they lie and with the second operand turned; numbers that are halves already, so that no rounding tells.
pub async fn products_with_halves(bench: &mut Bench) {
    for [m, n, k] in [
        [1, 4, 4],
        [7, 64, 12],
        [65, 132, 20],
        [33, 68, 100],
        [13, 66, 7],
        [13, 257, 101],
    ] {
        let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
        let b = unpack(&pack(&b), b.len());
        let words: Vec<f32> = pack(&b).into_iter().map(f32::from_bits).collect();
        let size = |x: usize| x as u32;
        let groups = spare(words.len().div_ceil(64));
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
            if !n.is_multiple_of(4) || !k.is_multiple_of(4) {
                continue;
            }
            let kernel = &GEMM_TILED_HALVES;
            bench
                .case(kernel, &what, &inputs, &expected, 1e-5, params, groups)
                .await;
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
