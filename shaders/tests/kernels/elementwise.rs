//! Activations, softmax and dropout against their twins and Burn's own, forward and backward.

use crate::cases::bench::scaled;
use crate::cases::layers;
use crate::common::{agree, assert_close, devices, numbers, slopes, tensor, values};
use crate::pytorch::{reference, wave};
use annulus_shaders::cpu::activation::Activation;
use annulus_shaders::cpu::dropout::{Mask, philox};
use annulus_shaders::cpu::gated::gated as gated_twin;
use annulus_shaders::cpu::softmax::{softmax as softmax_twin, softmax_backward};
use annulus_shaders::ops::activation::activation;
use annulus_shaders::ops::dropout::dropout;
use annulus_shaders::ops::gated::{gated, swiglu};
use annulus_shaders::ops::softmax::softmax;
use burn::tensor::{Device, Tensor, activation as burns};

const KINDS: [Activation; 4] = [
    Activation::Relu,
    Activation::Gelu,
    Activation::Silu,
    Activation::GeluTanh,
];
/// Rows and widths.
const SIZES: [[usize; 2]; 8] = [
    [1, 1],
    [7, 64],
    [63, 12],
    [65, 127],
    [64, 128],
    [257, 36],
    [3, 1031],
    [300, 5],
];

#[test]
fn activations_agree_with_their_twins() {
    agree(layers::activations);
}

#[test]
fn gradients_of_activations_are_slopes_and_burns() {
    let at: Vec<f64> = scaled(99, 1).iter().map(|x| f64::from(*x)).collect();
    for device in devices() {
        let device = device.autodiff();
        for kind in KINDS {
            let expected = slopes(&at, |moved| moved.iter().map(|x| kind.apply(*x)).sum());
            let leaf: Tensor<2> = tensor(&scaled(99, 1), [9, 11], &device).require_grad();
            let out = activation(leaf.clone(), kind);
            let theirs = match kind {
                Activation::Relu => burns::relu(leaf.clone()),
                Activation::Gelu => burns::gelu(leaf.clone()),
                Activation::GeluTanh => burns::gelu_approximate(leaf.clone()),
                _ => burns::silu(leaf.clone()),
            };
            assert_close(&format!("{kind:?}"), &values(theirs), &values(out.clone()), 1e-5);
            let found = values(leaf.grad(&out.sum().backward()).unwrap());
            assert_close(&format!("{kind:?}"), &expected, &found, 2e-6);
        }
    }
}

#[test]
fn gates_agree_with_their_twins() {
    agree(layers::gates);
}

#[test]
fn gradients_of_gates_are_slopes() {
    let (gate, x) = (scaled(20, 1), numbers(20, 2));
    let both: Vec<f64> = gate.iter().chain(&x).map(|x| f64::from(*x)).collect();
    for device in devices() {
        let device = device.autodiff();
        for kind in KINDS {
            let expected = slopes(&both, |moved| {
                gated_twin(&moved[..20], &moved[20..], kind).iter().sum()
            });
            let leaves = [&gate, &x].map(|numbers| tensor::<2>(numbers, [4, 5], &device).require_grad());
            let [gate, x] = leaves.clone();
            let gradients = gated(gate, x, kind).sum().backward();
            let found = leaves.map(|leaf| values(leaf.grad(&gradients).unwrap())).concat();
            assert_close(&format!("{kind:?}"), &expected, &found, 2e-6);
        }
    }
}

#[test]
fn gates_and_gradients_are_pytorchs() {
    let four_fold: Vec<f32> = wave(9, 0.0).iter().map(|x| 4.0 * x).collect();
    for device in devices() {
        let device = device.autodiff();
        let leaf = |numbers: &[f32]| tensor::<1>(numbers, [9], &device).require_grad();
        let x = leaf(&four_fold);
        let out = activation(x.clone(), Activation::GeluTanh);
        assert_close("GELU", &reference("gelu_tanh.out"), &values(out.clone()), 1e-6);
        let found = values(x.grad(&out.sum().backward()).unwrap());
        assert_close("GELU's slope", &reference("gelu_tanh.x"), &found, 1e-6);
        let (gate, x) = (leaf(&four_fold), leaf(&wave(9, 1.0)));
        let out = swiglu(gate.clone(), x.clone());
        assert_close("SwiGLU", &reference("swiglu.out"), &values(out.clone()), 1e-6);
        let gradients = out.sum().backward();
        for (name, leaf) in [("gate", gate), ("x", x)] {
            let found = values(leaf.grad(&gradients).unwrap());
            assert_close(name, &reference(&format!("swiglu.{name}")), &found, 1e-6);
        }
    }
}

#[test]
fn a_part_of_a_tensor_is_taken_for_no_more_than_it_is() {
    for device in devices() {
        let device = device.autodiff();
        let leaf: Tensor<2> = tensor(&scaled(40, 1), [5, 8], &device).require_grad();
        let out = activation(leaf.clone().narrow(0, 2, 2), Activation::Silu);
        let expected: Vec<f32> = scaled(40, 1)[16..32]
            .iter()
            .map(|x| Activation::Silu.apply(*x))
            .collect();
        assert_close("values", &expected, &values(out.clone()), 1e-6);
        // A gradient that is a part of another.
        let both = Tensor::cat(vec![leaf.clone(), out], 0);
        let found = values(leaf.grad(&both.sum().backward()).unwrap());
        let slope = |(at, x): (usize, f32)| match at {
            16..32 => 1.0 + Activation::Silu.slope(x),
            _ => 1.0,
        };
        let expected: Vec<f32> = scaled(40, 1).into_iter().enumerate().map(slope).collect();
        assert_close("slopes", &expected, &found, 1e-6);
    }
}

#[test]
fn softmax_agrees_with_its_twin() {
    agree(layers::softmaxes);
}

#[test]
fn no_number_is_too_large_for_softmax_wherever_it_stands() {
    for device in devices() {
        for (width, at) in (0..4).map(|at| (8, at)).chain((0..5).map(|at| (5, at))) {
            let mut row = vec![0.0; width];
            row[at] = 200.0;
            let found = values(softmax(tensor(&row, [1, width], &device)));
            row[at] = 1.0;
            assert_close(&format!("{width} {at}"), &row, &found, 1e-6);
        }
    }
}

#[test]
fn gradients_of_softmax_are_slopes_and_burns() {
    let x: Vec<f64> = scaled(15, 1).iter().map(|x| f64::from(*x)).collect();
    let weights: Vec<f64> = numbers(15, 2).iter().map(|x| f64::from(*x)).collect();
    let expected = slopes(&x, |moved| {
        softmax_twin(moved, 5)
            .iter()
            .zip(&weights)
            .map(|(y, w)| y * w)
            .sum()
    });
    let found = softmax_backward(&softmax_twin(&x, 5), &weights, 5);
    let found: Vec<f32> = found.iter().map(|x| *x as f32).collect();
    assert_close("slopes", &expected, &found, 1e-7);
    for device in devices() {
        let device = device.autodiff();
        for [rows, width] in SIZES {
            // Not contiguous.
            let leaf: Tensor<2> = tensor(&scaled(rows * width, 1), [width, rows], &device).require_grad();
            let weights = tensor(&numbers(rows * width, 2), [rows, width], &device);
            let ours = softmax(leaf.clone().transpose());
            let theirs = burns::softmax(leaf.clone().transpose(), 1);
            let what = format!("{rows} {width}");
            assert_close(&what, &values(theirs.clone()), &values(ours.clone()), 1e-6);
            let [ours, theirs] = [ours, theirs].map(|out| (out * weights.clone()).sum().backward());
            let (expected, found) = (leaf.grad(&theirs).unwrap(), leaf.grad(&ours).unwrap());
            assert_close(&what, &values(expected), &values(found), 1e-6);
        }
    }
}

/// The known answers that come with the authors' Random123.
#[test]
fn the_generator_is_philox() {
    let answers = [
        (
            [0; 4],
            [0; 2],
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
        ),
        (
            [u32::MAX; 4],
            [u32::MAX; 2],
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
        ),
        (
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ];
    for (counter, key, expected) in answers {
        assert_eq!(philox(counter, key), expected);
    }
}

#[test]
fn dropout_has_the_same_bits_as_its_twin() {
    agree(layers::dropouts);
}

#[test]
fn dropout_drops_its_share_and_its_gradient_the_same() {
    for device in devices() {
        let device = device.autodiff();
        let mask = Mask {
            rate: 0.2,
            seed: 42,
            offset: 3,
        };
        let leaf: Tensor<2> = Tensor::ones([100, 1000], &device).require_grad();
        let out = dropout(leaf.clone(), mask);
        let kept = values(out.clone());
        let dropped = kept.iter().filter(|x| **x == 0.0).count();
        // Five standard deviations around the mean.
        assert!(dropped.abs_diff(20_000) < 640, "{dropped}");
        assert!(kept.iter().all(|x| *x == 0.0 || *x == 1.25));
        assert_eq!(values(leaf.grad(&out.sum().backward()).unwrap()), kept);
        for other in [Mask { offset: 4, ..mask }, Mask { seed: 43, ..mask }] {
            assert_ne!(values(dropout(leaf.clone(), other)), kept);
        }
        assert_eq!(
            values(dropout(leaf.clone(), Mask { rate: 0.0, ..mask })),
            values(leaf)
        );
    }
}

#[test]
#[should_panic(expected = "not from 0 to below 1")]
fn a_rate_of_1_is_refused() {
    let x: Tensor<1> = Tensor::ones([3], &Device::flex());
    let _ = dropout(
        x,
        Mask {
            rate: 1.0,
            seed: 0,
            offset: 0,
        },
    );
}

#[test]
fn clipped_numbers_and_their_gradients_are_those_of_both_bounds() {
    let x = [-3.0, -1.0, -0.5, 0.0, 2.0, 2.5];
    for device in crate::common::devices() {
        let device = device.autodiff();
        let x = tensor(&x, [6], &device).require_grad();
        let out = annulus_shaders::ops::clip::clip(x.clone(), -1.0, 2.0);
        assert_eq!(values(out.clone()), [-1.0, -1.0, -0.5, 0.0, 2.0, 2.0]);
        let gradients = out.sum().backward();
        assert_eq!(
            values(x.grad(&gradients).unwrap()),
            [0.0, 1.0, 1.0, 1.0, 1.0, 0.0]
        );
        let below = annulus_shaders::ops::clip::clip(x, f32::NEG_INFINITY, 0.0);
        assert_eq!(values(below), [-3.0, -1.0, -0.5, 0.0, 0.0, 0.0]);
    }
}
