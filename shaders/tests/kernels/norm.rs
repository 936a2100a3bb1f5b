//! Layer norm and RMS norm against their twin and Burn's own, forward and backward.

use crate::cases::layers::{self, ROWS};
use crate::common::{agree, assert_close, devices, numbers, slopes, tensor, values};
use crate::pytorch::{reference, wave};
use annulus_shaders::cpu::norm::{Norm, norm, norm_backward};
use annulus_shaders::ops::norm::{layer_norm, rms_norm};
use burn::tensor::{Device, Tensor};

const EPSILON: f32 = 1e-5;

#[test]
fn kernels_agree_with_their_twins() {
    agree(layers::norms);
}

#[test]
fn a_large_mean_does_not_drown_the_variance() {
    for device in devices() {
        let x: Vec<f32> = numbers(768, 1).iter().map(|x| x + 1000.0).collect();
        let doubles: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let expected = norm(&doubles, &vec![1.0; 768], None, Norm::Layer, EPSILON);
        let expected: Vec<f32> = expected.out.iter().map(|x| *x as f32).collect();
        let found = layer_norm(
            tensor(&x, [1, 768], &device),
            Tensor::ones([768], &device),
            None,
            EPSILON,
        );
        assert_close("rows far from 0", &expected, &values(found), 1e-3);
    }
}

#[test]
fn gradients_of_the_twin_are_slopes() {
    let (rows, width) = (3, 5);
    let doubles = |count, seed| -> Vec<f64> { numbers(count, seed).iter().map(|x| f64::from(*x)).collect() };
    let parts = [doubles(rows * width, 1), doubles(width, 2), doubles(width, 3)];
    let gradient = doubles(rows * width, 4);
    for kind in [Norm::Layer, Norm::Rms] {
        let loss = |[x, gamma, beta]: [&[f64]; 3]| -> f64 {
            let normed = norm(x, gamma, Some(beta), kind, EPSILON);
            normed.out.iter().zip(&gradient).map(|(y, g)| y * g).sum()
        };
        let [x, gamma, beta] = &parts;
        let stats = norm(x, gamma, Some(beta), kind, EPSILON).stats;
        let found = norm_backward(x, &stats, gamma, &gradient, kind);
        for (part, found) in [found.x, found.gamma, found.beta].into_iter().enumerate() {
            let expected = slopes(&parts[part], |moved| {
                let mut parts: [&[f64]; 3] = std::array::from_fn(|at| parts[at].as_slice());
                parts[part] = moved;
                loss(parts)
            });
            let found: Vec<f32> = found.iter().map(|x| *x as f32).collect();
            assert_close(&format!("{kind:?} part {part}"), &expected, &found, 1e-6);
        }
    }
}

#[test]
fn gradients_agree_with_burns() {
    for device in devices() {
        let device = device.autodiff();
        for [rows, width] in ROWS.into_iter().filter(|[_, width]| *width > 1) {
            // Two row axes, and not contiguous.
            let source = tensor(&numbers(rows * width, 1), [width, 1, rows], &device).require_grad();
            let gamma = tensor(&numbers(width, 2), [width], &device).require_grad();
            let beta = tensor(&numbers(width, 3), [width], &device).require_grad();
            let weights = tensor(&numbers(rows * width, 4), [rows, 1, width], &device);
            for kind in [Norm::Layer, Norm::Rms] {
                let shift = |out: Tensor<3>| match kind {
                    Norm::Layer => out + beta.clone().unsqueeze(),
                    Norm::Rms => out,
                };
                let x = source.clone().permute([2, 1, 0]);
                let ours = match kind {
                    Norm::Layer => layer_norm(x, gamma.clone(), Some(beta.clone()), EPSILON),
                    Norm::Rms => rms_norm(x, gamma.clone(), EPSILON),
                };
                let x = source.clone().permute([2, 1, 0]);
                let centred = match kind {
                    Norm::Layer => x.clone() - x.clone().mean_dim(2),
                    Norm::Rms => x.clone(),
                };
                let deviation = (centred.clone().powi_scalar(2).mean_dim(2) + EPSILON).sqrt();
                let burns = shift(centred / deviation * gamma.clone().unsqueeze());
                let what = format!("{kind:?} {rows} {width}");
                assert_close(&what, &values(burns.clone()), &values(ours.clone()), 1e-5);
                let [ours, burns] = [ours, burns].map(|out| (out * weights.clone()).sum().backward());
                assert_close(
                    &what,
                    &values(source.grad(&burns).unwrap()),
                    &values(source.grad(&ours).unwrap()),
                    1e-4,
                );
                let mut vectors = vec![&gamma];
                if kind == Norm::Layer {
                    vectors.push(&beta);
                }
                for vector in vectors {
                    let (expected, found) = (vector.grad(&burns).unwrap(), vector.grad(&ours).unwrap());
                    assert_close(&what, &values(expected), &values(found), 1e-4);
                }
            }
        }
    }
}

#[test]
fn no_rows_have_no_slope() {
    for device in devices() {
        let device = device.autodiff();
        let x: Tensor<2> = Tensor::zeros([0, 8], &device).require_grad();
        let gamma: Tensor<1> = Tensor::ones([8], &device).require_grad();
        let out = layer_norm(x, gamma.clone(), Some(gamma.clone()), EPSILON);
        assert_eq!(out.dims(), [0, 8]);
        // A loss that is there.
        let gradients = (out.sum() + gamma.clone().sum()).backward();
        assert_eq!(values(gamma.grad(&gradients).unwrap()), [1.0; 8]);
    }
}

#[test]
#[should_panic(expected = "as long as a row")]
fn a_scale_of_another_length_is_refused() {
    let device = Device::flex();
    let _ = rms_norm(
        Tensor::<2>::zeros([2, 3], &device),
        Tensor::ones([4], &device),
        EPSILON,
    );
}

#[test]
fn rms_norm_and_its_gradients_are_pytorchs() {
    for device in devices() {
        let device = device.autodiff();
        let x: Tensor<2> = tensor(&wave(16, 0.0), [2, 8], &device).require_grad();
        let gamma: Tensor<1> = tensor(&wave(8, 1.0), [8], &device).require_grad();
        let out = rms_norm(x.clone(), gamma.clone(), EPSILON);
        assert_close("out", &reference("rms_norm.out"), &values(out.clone()), 1e-6);
        let weights: Tensor<2> = tensor(&wave(16, 2.0), [2, 8], &device);
        let gradients = (out * weights).sum().backward();
        let found = values(x.grad(&gradients).unwrap());
        assert_close("x", &reference("rms_norm.x"), &found, 2e-6);
        let found = values(gamma.grad(&gradients).unwrap());
        assert_close("gamma", &reference("rms_norm.gamma"), &found, 2e-6);
    }
}
