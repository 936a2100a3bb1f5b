//! Matrix products and linear layers against their twins and Burn's own, forward and backward.

mod common;

use annulus_shaders::cpu::activation::Activation;
use annulus_shaders::cpu::gemm::{Matrix, add_bias, column_sums, product};
use annulus_shaders::kernel::{GEMM_ANY, GEMM_NN, GEMM_NT, GEMM_TILED, GEMM_TN, GEMM_WIDE, GEMM_WIDE_PLAIN};
use annulus_shaders::ops::linear::{MlpWeights, WeightLayout, linear, mlp};
use burn::tensor::{Device, Tensor, activation};
use common::{SENTINEL, assert_close, gpu, numbers, run, slopes, tensor, values};

/// Sizes 1, around the tiles' edges, odd, prime, multiples of 4 and not.
const SHAPES: [[usize; 3]; 9] = [
    [1, 1, 1],
    [7, 63, 5],
    [8, 64, 4],
    [9, 68, 12],
    [33, 31, 37],
    [64, 10, 128],
    [65, 132, 20],
    [128, 4, 8],
    [13, 257, 101],
];

fn devices() -> Vec<Device> {
    gpu().into_iter().chain([Device::flex()]).collect()
}

#[test]
fn products_agree_with_their_twin() {
    for device in devices() {
        for [m, n, k] in SHAPES {
            let (x, w) = (numbers(m * k, 1), numbers(k * n, 2));
            let (bias, residual) = (numbers(n, 3), numbers(m * n, 4));
            for layout in [WeightLayout::InputsFirst, WeightLayout::OutputsFirst] {
                let (shape, matrix) = match layout {
                    WeightLayout::InputsFirst => ([k, n], Matrix::row_major(&w, n)),
                    WeightLayout::OutputsFirst => ([n, k], Matrix::row_major(&w, k).transposed()),
                };
                let mut expected = product([m, n, k], Matrix::row_major(&x, k), matrix);
                add_bias(&mut expected, &bias);
                expected.iter_mut().zip(&residual).for_each(|(x, r)| *x += r);
                let found = linear(
                    tensor(&x, [m, k], &device),
                    tensor(&w, shape, &device),
                    Some(tensor(&bias, [n], &device)),
                    Some(tensor(&residual, [m, n], &device)),
                    layout,
                );
                assert_close(
                    &format!("{m} {n} {k} {layout:?}"),
                    &expected,
                    &values(found),
                    1e-5,
                );
            }
        }
    }
}

#[test]
fn gradients_of_a_linear_layer_agree_with_burns() {
    for device in devices() {
        let device = device.autodiff();
        for [m, n, k] in SHAPES {
            let x = tensor(&numbers(m * k, 1), [m, k], &device).require_grad();
            let w = tensor(&numbers(k * n, 2), [k, n], &device).require_grad();
            let bias = tensor(&numbers(n, 3), [n], &device).require_grad();
            let residual = tensor(&numbers(m * n, 4), [m, n], &device).require_grad();
            let weights = tensor(&numbers(m * n, 5), [m, n], &device);
            let ours = linear(
                x.clone(),
                w.clone(),
                Some(bias.clone()),
                Some(residual.clone()),
                WeightLayout::InputsFirst,
            );
            let burns = x.clone().matmul(w.clone()) + bias.clone().unsqueeze() + residual.clone();
            let [ours, burns] = [ours, burns].map(|out| (out * weights.clone()).sum().backward());
            let what = format!("{m} {n} {k}");
            let check = |expected: Option<Vec<f32>>, found: Option<Vec<f32>>| {
                assert_close(&what, &expected.unwrap(), &found.unwrap(), 1e-5);
            };
            check(x.grad(&burns).map(values), x.grad(&ours).map(values));
            check(w.grad(&burns).map(values), w.grad(&ours).map(values));
            check(bias.grad(&burns).map(values), bias.grad(&ours).map(values));
            check(
                residual.grad(&burns).map(values),
                residual.grad(&ours).map(values),
            );
        }
    }
}

#[test]
fn gradients_of_a_tied_output_layer_agree_with_burns() {
    for device in devices() {
        let device = device.autodiff();
        for [m, n, k] in SHAPES {
            let x = tensor(&numbers(m * k, 1), [m, k], &device).require_grad();
            let w = tensor(&numbers(k * n, 2), [n, k], &device).require_grad();
            let weights = tensor(&numbers(m * n, 5), [m, n], &device);
            let ours = linear(x.clone(), w.clone(), None, None, WeightLayout::OutputsFirst);
            let burns = x.clone().matmul(w.clone().transpose());
            let [ours, burns] = [ours, burns].map(|out| (out * weights.clone()).sum().backward());
            let what = format!("{m} {n} {k}");
            assert_close(
                &what,
                &values(x.grad(&burns).unwrap()),
                &values(x.grad(&ours).unwrap()),
                1e-5,
            );
            assert_close(
                &what,
                &values(w.grad(&burns).unwrap()),
                &values(w.grad(&ours).unwrap()),
                1e-5,
            );
        }
    }
}

#[test]
fn gradients_of_an_mlp_agree_with_burns() {
    for device in devices() {
        let device = device.autodiff();
        for (kind, [m, n, k], hidden) in [
            (Activation::Relu, [64, 10, 12], 32),
            (Activation::Gelu, [9, 16, 8], 20),
            (Activation::Gelu, [7, 3, 5], 13),
            (Activation::Relu, [1, 1, 1], 1),
        ] {
            let parameter = |shape: [usize; 2], seed| {
                tensor(&numbers(shape[0] * shape[1], seed), shape, &device).require_grad()
            };
            let (x, up, down) = (
                parameter([m, k], 1),
                parameter([k, hidden], 2),
                parameter([hidden, n], 3),
            );
            let bias = |size: usize, seed| tensor(&numbers(size, seed), [size], &device).require_grad();
            let (up_bias, down_bias) = (bias(hidden, 4), bias(n, 5));
            let residual = parameter([m, n], 6);
            let weights = tensor(&numbers(m * n, 7), [m, n], &device);
            let ours = mlp(
                x.clone(),
                MlpWeights {
                    up: up.clone(),
                    up_bias: Some(up_bias.clone()),
                    down: down.clone(),
                    down_bias: Some(down_bias.clone()),
                },
                Some(residual.clone()),
                kind,
            );
            let hidden = x.clone().matmul(up.clone()) + up_bias.clone().unsqueeze();
            let hidden = match kind {
                Activation::Relu => activation::relu(hidden),
                _ => activation::gelu(hidden),
            };
            let burns = hidden.matmul(down.clone()) + down_bias.clone().unsqueeze() + residual.clone();
            let what = format!("{kind:?} {m} {n} {k}");
            // Burn's GELU is exact, but its backward pass is that of the approximation with tanh.
            let tolerance = if kind == Activation::Gelu { 2e-3 } else { 1e-5 };
            assert_close(&what, &values(burns.clone()), &values(ours.clone()), 1e-5);
            let [ours, burns] = [ours, burns].map(|out| (out * weights.clone()).sum().backward());
            for matrix in [&x, &up, &down, &residual] {
                let (expected, found) = (matrix.grad(&burns).unwrap(), matrix.grad(&ours).unwrap());
                assert_close(&what, &values(expected), &values(found), tolerance);
            }
            for vector in [&up_bias, &down_bias] {
                let (expected, found) = (vector.grad(&burns).unwrap(), vector.grad(&ours).unwrap());
                assert_close(&what, &values(expected), &values(found), tolerance);
            }
        }
    }
}

/// Σ weights · (f(x up + up_bias) down), in `f64`.
fn mlp_sum(parts: [&[f64]; 5], [m, n, k, hidden]: [usize; 4], kind: Activation) -> f64 {
    let [x, up, up_bias, down, weights] = parts;
    let mut inner = product(
        [m, hidden, k],
        Matrix::row_major(x, k),
        Matrix::row_major(up, hidden),
    );
    add_bias(&mut inner, up_bias);
    inner.iter_mut().for_each(|z| *z = kind.apply(*z));
    let out = product(
        [m, n, hidden],
        Matrix::row_major(&inner, hidden),
        Matrix::row_major(down, n),
    );
    out.iter().zip(weights).map(|(x, w)| x * w).sum()
}

#[test]
fn gradients_of_an_mlp_are_slopes() {
    for device in devices() {
        let device = device.autodiff();
        for (kind, sizes) in [
            (Activation::Gelu, [9, 16, 8, 20]),
            (Activation::Gelu, [7, 3, 5, 13]),
            (Activation::Relu, [9, 4, 8, 12]),
        ] {
            let [m, n, k, hidden] = sizes;
            let shapes = [[m, k], [k, hidden], [1, hidden], [hidden, n], [m, n]];
            let floats: Vec<Vec<f32>> = shapes
                .iter()
                .zip(1..)
                .map(|(shape, seed)| numbers(shape[0] * shape[1], seed))
                .collect();
            let doubles: Vec<Vec<f64>> = floats
                .iter()
                .map(|part| part.iter().map(|x| f64::from(*x)).collect())
                .collect();
            let tensors: Vec<Tensor<2>> = shapes
                .iter()
                .zip(&floats)
                .map(|(shape, part)| tensor(part, *shape, &device).require_grad())
                .collect();
            let weights = MlpWeights {
                up: tensors[1].clone(),
                up_bias: Some(tensors[2].clone().squeeze_dim(0)),
                down: tensors[3].clone(),
                down_bias: None,
            };
            let out = mlp(tensors[0].clone(), weights, None, kind);
            let gradients = (out * tensors[4].clone()).sum().backward();
            for part in 0..4 {
                let expected = slopes(&doubles[part], |moved| {
                    let mut parts: [&[f64]; 5] = std::array::from_fn(|i| doubles[i].as_slice());
                    parts[part] = moved;
                    mlp_sum(parts, sizes, kind)
                });
                let found = values(tensors[part].grad(&gradients).unwrap());
                assert_close(
                    &format!("{kind:?} {sizes:?} part {part}"),
                    &expected,
                    &found,
                    1e-5,
                );
            }
        }
    }
}

#[test]
fn what_needs_no_gradient_gets_none() {
    for device in devices() {
        let device = device.autodiff();
        let x: Tensor<2> = tensor(&numbers(8, 1), [2, 4], &device).require_grad();
        let w = tensor(&numbers(32, 2), [4, 8], &device);
        let gradients = linear(x.clone(), w.clone(), None, None, WeightLayout::InputsFirst)
            .sum()
            .backward();
        assert!(x.grad(&gradients).is_some());
        assert!(w.grad(&gradients).is_none());
        let sums = column_sums(&values(w.transpose()), 4);
        assert_close(
            "x",
            &[sums.clone(), sums].concat(),
            &values(x.grad(&gradients).unwrap()),
            1e-5,
        );
    }
}

/// The parameters of `gemm_any` and `gemm_tiled`.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Strided {
    sizes: [u32; 3],
    a: [u32; 2],
    b: [u32; 2],
    batch: [u32; 2],
    flags: u32,
}

/// The parameters of `gemm_nn`, `gemm_nt` and `gemm_tn`.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Vectors {
    sizes: [u32; 3],
    rows: [u32; 2],
    batch: [u32; 2],
    flags: u32,
}

/// The parameters of `gemm_wide`.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Wide {
    sizes: [u32; 3],
    a: [u32; 2],
    b_row: u32,
    batch: [u32; 2],
    flags: u32,
}

/// Each kernel whatever the adapter, all four ways to lie, a batch of two, and nothing written
/// beyond the end.
#[test]
fn every_product_kernel_agrees_with_the_twin() {
    const SUMS: u32 = 128;
    let Some(device) = gpu() else { return };
    for [m, n, k] in SHAPES {
        let (a, b) = (numbers(2 * m * k, 1), numbers(2 * k * n, 2));
        for (a_transposed, b_transposed) in [(false, false), (false, true), (true, false), (true, true)] {
            let matrix = |data, rows, columns, transposed| match transposed {
                false => Matrix::row_major(data, columns),
                true => Matrix::row_major(data, rows).transposed(),
            };
            let mut expected = Vec::new();
            let mut sums = Vec::new();
            for batch in 0..2 {
                let a = matrix(&a[batch * m * k..][..m * k], m, k, a_transposed);
                let b = matrix(&b[batch * k * n..][..k * n], k, n, b_transposed);
                expected.extend(product([m, n, k], a, b));
                let rows: Vec<f32> = (0..k * n)
                    .map(|i| b.data[i / n * b.row + i % n * b.column])
                    .collect();
                sums.extend(column_sums(&rows, n));
            }
            expected.extend([SENTINEL; 5]);
            sums.extend([SENTINEL; 5]);
            let what = format!("{m} {n} {k} {a_transposed} {b_transposed}");
            let size = |x: usize| x as u32;
            let strides = |rows, columns, transposed| match transposed {
                false => [size(columns), 1],
                true => [1, size(rows)],
            };
            let strided = Strided {
                sizes: [size(m), size(n), size(k)],
                a: strides(m, k, a_transposed),
                b: strides(k, n, b_transposed),
                batch: [size(m * k), size(k * n)],
                flags: SUMS,
            };
            let lengths = [expected.len(), sums.len()];
            for (kernel, tile) in [(&GEMM_ANY, 32), (&GEMM_TILED, 64)] {
                let groups = [size(n.div_ceil(tile)), size(m.div_ceil(tile)), 2];
                let found = run(&device, kernel, &[&a, &b, &b, &a], &lengths, strided, groups);
                assert_close(&format!("{} {what}", kernel.name), &expected, &found[0], 1e-5);
                assert_close(&format!("{} sums {what}", kernel.name), &sums, &found[1], 1e-5);
            }
            if !b_transposed && n.is_multiple_of(4) {
                let wide = Wide {
                    sizes: strided.sizes,
                    a: strided.a,
                    b_row: size(n / 4),
                    batch: [size(m * k), size(k * n / 4)],
                    flags: SUMS,
                };
                let groups = [size(n.div_ceil(64)), size(m.div_ceil(8)), 2];
                let padded = lengths.map(|length| length.next_multiple_of(4));
                for kernel in [&GEMM_WIDE, &GEMM_WIDE_PLAIN] {
                    let found = run(&device, kernel, &[&a, &b, &b, &b], &padded, wide, groups);
                    let what = format!("{} {what}", kernel.name);
                    assert_close(&what, &expected, &found[0][..expected.len()], 1e-5);
                    assert_close(&what, &sums, &found[1][..sums.len()], 1e-5);
                }
            }
            let fours = |x: usize, y: usize| x.is_multiple_of(4) && y.is_multiple_of(4);
            let vectors = Vectors {
                sizes: [size(m), size(n), size(k)],
                rows: [
                    size(if a_transposed { m } else { k } / 4),
                    size(if b_transposed { k } else { n } / 4),
                ],
                batch: [size(m * k / 4), size(k * n / 4)],
                flags: if a_transposed { SUMS } else { 0 },
            };
            let groups = [size(n.div_ceil(64)), size(m.div_ceil(8)), 2];
            let padded = |values: &[f32]| values.len().next_multiple_of(4);
            let lengths = [padded(&expected), padded(&sums)];
            let a4: Vec<f32> = a.iter().copied().chain([0.0; 4]).collect();
            let found = match (a_transposed, b_transposed) {
                (false, false) if fours(k, n) => {
                    run(&device, &GEMM_NN, &[&a, &b, &a4, &a4], &lengths, vectors, groups)
                }
                (false, true) if fours(k, n) => {
                    run(&device, &GEMM_NT, &[&a, &b, &a4], &lengths[..1], vectors, groups)
                }
                (true, false) if fours(m, n) => run(&device, &GEMM_TN, &[&a, &b], &lengths, vectors, groups),
                _ => continue,
            };
            assert_close(
                &format!("vectors {what}"),
                &expected,
                &found[0][..expected.len()],
                1e-5,
            );
            if a_transposed {
                assert_close(
                    &format!("vectors' sums {what}"),
                    &sums,
                    &found[1][..sums.len()],
                    1e-5,
                );
            }
        }
    }
}

/// What the kernels for any strides do to a sum before they store it, whatever the adapter would take
/// them for.
#[test]
fn every_epilogue_agrees_with_the_twin() {
    let [
        bias_flag,
        extra_flag,
        relu,
        gelu,
        side_flag,
        relu_slope,
        gelu_slope,
    ] = [1, 2, 4, 8, 16, 32, 64];
    let Some(device) = gpu() else { return };
    for [m, n, k] in [[65, 70, 3], [61, 68, 5]] {
        let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
        let bias = numbers(n, 3);
        // Up to 2.5 either way, where all parts of GELU and its slope tell.
        let extra: Vec<f32> = numbers(m * n, 4).iter().map(|x| 2.5 * x).collect();
        let sums = product([m, n, k], Matrix::row_major(&a, k), Matrix::row_major(&b, n));
        for flags in [
            0,
            bias_flag,
            extra_flag,
            relu,
            gelu,
            relu_slope,
            gelu_slope,
            bias_flag | gelu | side_flag | extra_flag,
            bias_flag | relu | side_flag,
        ] {
            let has = |flag| flags & flag != 0;
            let mut expected = sums.clone();
            if has(bias_flag) {
                add_bias(&mut expected, &bias);
            }
            let side = match has(side_flag) {
                true => expected.clone(),
                false => vec![SENTINEL; m * n],
            };
            for (activation, apply, slope) in [
                (Activation::Relu, relu, relu_slope),
                (Activation::Gelu, gelu, gelu_slope),
            ] {
                if has(apply) {
                    activation.apply_all(&mut expected);
                }
                if has(slope) {
                    activation.times_slopes(&mut expected, &extra);
                }
            }
            if has(extra_flag) {
                expected.iter_mut().zip(&extra).for_each(|(x, e)| *x += e);
            }
            let params = Strided {
                sizes: [m as u32, n as u32, k as u32],
                a: [k as u32, 1],
                b: [n as u32, 1],
                batch: [0, 0],
                flags,
            };
            let inputs: [&[f32]; 4] = [&a, &b, &bias, &extra];
            for (kernel, tile) in [(&GEMM_ANY, 32), (&GEMM_TILED, 64)] {
                let groups = [n.div_ceil(tile) as u32, m.div_ceil(tile) as u32, 1];
                let found = run(&device, kernel, &inputs, &[m * n, m * n], params, groups);
                let what = format!("{} {flags}", kernel.name);
                assert_close(&what, &expected, &found[0], 1e-6);
                assert_close(&what, &side, &found[1], 1e-6);
            }
            let simple = flags & !(bias_flag | extra_flag) == 0;
            for (kernel, takes) in [
                (&GEMM_WIDE, !has(relu_slope) && !has(gelu_slope)),
                (&GEMM_WIDE_PLAIN, simple),
            ] {
                if !takes || !n.is_multiple_of(4) {
                    continue;
                }
                let params = Wide {
                    sizes: params.sizes,
                    a: params.a,
                    b_row: n as u32 / 4,
                    batch: [0, 0],
                    flags,
                };
                let groups = [n.div_ceil(64) as u32, m.div_ceil(8) as u32, 1];
                let found = run(&device, kernel, &inputs, &[m * n, m * n], params, groups);
                let what = format!("{} {flags}", kernel.name);
                assert_close(&what, &expected, &found[0], 1e-6);
                assert_close(&what, &side, &found[1], 1e-6);
            }
        }
    }
}
