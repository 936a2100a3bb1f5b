//! Matrix products and linear layers against their twins and Burn's own, forward and backward.

use crate::cases::products::{self, SHAPES};
use crate::common::{agree, assert_close, devices, numbers, slopes, tensor, values};
use annulus_shaders::cpu::activation::Activation;
use annulus_shaders::cpu::gemm::{Matrix, add_bias, column_sums, product};
use annulus_shaders::ops::linear::{MlpWeights, WeightLayout, linear, mlp};
use burn::tensor::{Tensor, activation};

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
fn gradients_of_a_layer_with_outputs_first_agree_with_burns() {
    for device in devices() {
        let device = device.autodiff();
        for ([m, n, k], biased) in SHAPES
            .into_iter()
            .flat_map(|shape| [(shape, false), (shape, true)])
        {
            let x = tensor(&numbers(m * k, 1), [m, k], &device).require_grad();
            let w = tensor(&numbers(k * n, 2), [n, k], &device).require_grad();
            let bias = tensor(&numbers(n, 3), [n], &device).require_grad();
            let weights = tensor(&numbers(m * n, 5), [m, n], &device);
            let given = biased.then(|| bias.clone());
            let ours = linear(x.clone(), w.clone(), given, None, WeightLayout::OutputsFirst);
            let burns = x.clone().matmul(w.clone().transpose()) + bias.clone().unsqueeze();
            let [ours, burns] = [ours, burns].map(|out| (out * weights.clone()).sum().backward());
            let what = format!("{m} {n} {k}, bias {biased}");
            for tensor in [&x, &w] {
                let [expected, found] = [&burns, &ours].map(|all| values(tensor.grad(all).unwrap()));
                assert_close(&what, &expected, &found, 1e-5);
            }
            if biased {
                let [expected, found] = [&burns, &ours].map(|all| values(bias.grad(all).unwrap()));
                assert_close(&what, &expected, &found, 1e-5);
            }
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
                    layout: WeightLayout::InputsFirst,
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
                layout: WeightLayout::InputsFirst,
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

#[test]
fn every_product_kernel_agrees_with_the_twin() {
    agree(products::products);
}

#[test]
fn every_epilogue_agrees_with_the_twin() {
    agree(products::epilogues);
}

#[test]
fn sums_of_parts_agree_with_the_twin() {
    agree(products::totals);
}
