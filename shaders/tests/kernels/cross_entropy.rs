//! Softmax and cross-entropy in one, against its twin and Burn's own, forward and backward.

use crate::cases::layers::{self, CLASSES};
use crate::common::{agree, assert_close, devices, gpu, numbers, slopes, tensor, values, whole};
use annulus_shaders::cpu::cross_entropy::{UnknownClass, cross_entropy as twin, cross_entropy_backward};
use annulus_shaders::ops::cross_entropy::cross_entropy;
use burn::tensor::{Device, Int, Tensor, activation};

const IGNORED: i32 = -1;

fn logits(rows: usize, classes: usize) -> Vec<f32> {
    numbers(rows * classes, 1).iter().map(|x| 8.0 * x).collect()
}

/// Classes, every fifth of them ignored.
fn targets(rows: usize, classes: usize) -> Vec<i32> {
    let class = |(row, x): (usize, f32)| match row % 5 {
        3 => IGNORED,
        _ => ((x + 1.0) / 2.0 * classes as f32) as i32 % classes as i32,
    };
    numbers(rows, 2).into_iter().enumerate().map(class).collect()
}

#[test]
fn kernels_agree_with_their_twins() {
    agree(layers::losses);
}

#[test]
fn gradients_of_the_twin_are_slopes() {
    let (rows, classes) = (6, 5);
    let logits: Vec<f64> = logits(rows, classes).iter().map(|x| f64::from(*x)).collect();
    let targets = targets(rows, classes);
    let losses = twin(&logits, classes, &targets, Some(IGNORED)).unwrap();
    let found = cross_entropy_backward(
        &logits,
        classes,
        &targets,
        Some(IGNORED),
        (&losses.norms, losses.sums),
        2.0,
    );
    let expected = slopes(&logits, |moved| {
        2.0 * twin(moved, classes, &targets, Some(IGNORED)).unwrap().mean
    });
    let found: Vec<f32> = found.iter().map(|x| *x as f32).collect();
    assert_close("slopes", &expected, &found, 1e-7);
}

#[test]
fn loss_and_gradients_agree_with_burns() {
    for device in devices() {
        let device = device.autodiff();
        for [rows, classes] in CLASSES {
            let what = format!("{rows} {classes}");
            let leaf = tensor(&logits(rows, classes), [rows, classes], &device).require_grad();
            let all = targets(rows, classes);
            let kept: Vec<i32> = (0..rows as i32)
                .filter(|row| all[*row as usize] != IGNORED)
                .collect();
            let classes_kept: Vec<i32> = kept.iter().map(|row| all[*row as usize]).collect();
            let count = kept.len();
            let index: Tensor<1, Int> = whole(&kept, [count], &device);
            let hot: Tensor<2, Int> = whole(&classes_kept, [count, 1], &device);
            let burns = activation::log_softmax(leaf.clone(), 1)
                .select(0, index)
                .gather(1, hot)
                .mean()
                .neg();
            let ours = cross_entropy(
                leaf.clone().reshape([1, rows, classes]),
                whole(&all, [1, rows], &device),
                Some(IGNORED),
            );
            assert_close(&what, &values(burns.clone()), &values(ours.clone()), 1e-5);
            let [ours, burns] = [ours, burns].map(|loss| loss.mul_scalar(3.0).backward());
            let (expected, found) = (leaf.grad(&burns).unwrap(), leaf.grad(&ours).unwrap());
            assert_close(&what, &values(expected), &values(found), 1e-6);
        }
    }
}

#[test]
fn no_logit_is_too_large_wherever_it_stands() {
    for device in devices() {
        for (classes, at) in (0..4).map(|at| (8, at)).chain((0..5).map(|at| (5, at))) {
            let mut row = vec![0.0; classes];
            row[at] = 200.0;
            let loss: Tensor<1> = cross_entropy(
                tensor(&row, [1, classes], &device),
                whole(&[4], [1], &device),
                None,
            );
            let expected = 200.0 - row[4];
            assert_close(&format!("{classes} {at}"), &[expected], &values(loss), 1e-6);
        }
    }
}

#[test]
fn a_mean_over_nothing_is_zero_and_has_no_slope() {
    for device in devices() {
        let device = device.autodiff();
        let leaf: Tensor<2> = tensor(&logits(70, 6), [70, 6], &device).require_grad();
        let loss = cross_entropy(leaf.clone(), whole(&[7; 70], [70], &device), Some(7));
        assert_eq!(values(loss.clone()), [0.0]);
        assert_eq!(values(leaf.grad(&loss.backward()).unwrap()), [0.0; 420]);
    }
}

#[test]
fn a_logit_of_minus_infinity_is_a_class_that_cannot_be() {
    for device in devices() {
        for classes in [4, 5] {
            let mut row = vec![f32::NEG_INFINITY; classes];
            row[1..3].fill(2.0);
            let loss: Tensor<1> = cross_entropy(
                tensor(&row, [1, classes], &device),
                whole(&[2], [1], &device),
                None,
            );
            assert_close("ln 2", &[std::f32::consts::LN_2], &values(loss), 1e-6);
        }
    }
}

#[test]
fn a_target_that_is_no_class_is_loud_on_a_gpu_and_harmless_to_other_rows() {
    let Some(device) = gpu() else { return };
    let device = device.autodiff();
    for (classes, target) in [(8, 8), (8, -3), (5, i32::MAX), (5, i32::MIN)] {
        let leaf: Tensor<2> = tensor(&logits(3, classes), [3, classes], &device).require_grad();
        let loss = cross_entropy(leaf.clone(), whole(&[0, target, 1], [3], &device), Some(IGNORED));
        assert!(values(loss.clone())[0].is_nan());
        let gradient = values(leaf.grad(&loss.backward()).unwrap());
        let rows: Vec<bool> = gradient
            .chunks(classes)
            .map(|row| row.iter().all(|x| x.is_nan()))
            .collect();
        assert_eq!(rows, [false, true, false]);
        assert!(gradient[..classes].iter().all(|x| x.is_finite()));
    }
}

#[test]
#[should_panic(expected = "target 8 of row 1 is none of 4 classes")]
fn a_target_that_is_no_class_is_an_error_on_the_cpu() {
    let device = Device::flex();
    let unknown = twin(&[0.0f32; 8], 4, &[0, -2], None).unwrap_err();
    assert_eq!(
        unknown,
        UnknownClass {
            row: 1,
            target: -2,
            classes: 4
        }
    );
    let _ = cross_entropy(
        Tensor::<2>::zeros([2, 4], &device),
        whole(&[0, 8], [2], &device),
        None,
    );
}
