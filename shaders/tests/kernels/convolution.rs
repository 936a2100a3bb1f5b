//! Convolutions, batch norm and pooling against Burn's own, forward and backward.

use crate::cases::{channels, convolutions};
use crate::common::{agree, assert_close, devices, numbers, tensor, values};
use annulus_shaders::nn::convolve;
use annulus_shaders::ops::batch_norm::{batch_norm, statistics};
use annulus_shaders::ops::convolution::{Window, convolution, transposed_convolution};
use annulus_shaders::ops::pool::{Kind, Windows, pool};
use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{AvgPool2dConfig, MaxPool2dConfig};
use burn::tensor::module::{conv_transpose2d, conv2d};
use burn::tensor::ops::{ConvOptions, ConvTransposeOptions};
use burn::tensor::{Device, Tensor};

#[test]
fn kernels_agree_with_their_twins() {
    agree(convolutions::all);
}

#[test]
fn kernels_of_batch_norm_agree_with_their_twins() {
    agree(channels::batch_norms);
}

#[test]
fn kernels_of_pooling_agree_with_their_twins() {
    agree(channels::pools);
}

/// Compares two outputs, and what `parts` get as gradients.
fn assert_same(
    what: &str,
    expected: Tensor<4>,
    found: Tensor<4>,
    images: &Tensor<4>,
    others: &[&Tensor<1>],
    weight: Option<&Tensor<4>>,
) {
    assert_eq!(expected.dims(), found.dims(), "{what}");
    assert_close(what, &values(expected.clone()), &values(found.clone()), 2e-5);
    let slopes = tensor(
        &numbers(expected.dims().iter().product(), 9),
        expected.dims(),
        &images.device(),
    );
    let [expected, found] = [expected, found].map(|out| (out * slopes.clone()).sum().backward());
    for part in [Some(images), weight].into_iter().flatten() {
        let [expected, found] = [&expected, &found].map(|all| values(part.grad(all).unwrap()));
        assert_close(what, &expected, &found, 1e-4);
    }
    for part in others {
        let [expected, found] = [&expected, &found].map(|all| values(part.grad(all).unwrap()));
        assert_close(what, &expected, &found, 1e-4);
    }
}

#[test]
fn convolutions_and_their_gradients_are_burns() {
    for device in devices() {
        let device = device.autodiff();
        for (inputs, groups, stride, border, dilation) in [
            (4, 1, [1, 1], [1, 1], [1, 1]),
            (12, 1, [2, 1], [0, 2], [1, 2]),
            (12, 1, [3, 2], [1, 1], [2, 1]),
            (4, 2, [2, 2], [1, 1], [1, 1]),
            (4, 4, [1, 2], [1, 0], [1, 1]),
            (32, 2, [2, 2], [1, 1], [1, 1]),
        ] {
            let outputs = 2 * inputs;
            // Not contiguous.
            let source = tensor(&numbers(2 * inputs * 9 * 10, 1), [2, inputs, 10, 9], &device).require_grad();
            let x = || source.clone().swap_dims(2, 3);
            let weight = tensor(
                &numbers(outputs * inputs / groups * 9, 2),
                [outputs, inputs / groups, 3, 3],
                &device,
            )
            .require_grad();
            let bias = tensor(&numbers(outputs, 3), [outputs], &device).require_grad();
            let window = Window {
                strides: [1, stride[0], stride[1]],
                before: [0, border[0], border[1]],
                behind: [0, border[0], border[1]],
                dilations: [1, dilation[0], dilation[1]],
                groups,
                ..Window::PLAIN
            };
            let options = ConvOptions::new(stride, border, dilation, groups);
            let expected = conv2d(x(), weight.clone(), Some(bias.clone()), options);
            let found = convolution(x(), weight.clone(), Some(bias.clone()), window);
            let what = format!("{window:?}");
            assert_same(&what, expected, found, &source, &[&bias], Some(&weight));

            let weight = tensor(
                &numbers(inputs * outputs / groups * 9, 2),
                [inputs, outputs / groups, 3, 3],
                &device,
            )
            .require_grad();
            let extra = stride.map(|stride| stride - 1);
            let window = Window {
                extra: [0, extra[0], extra[1]],
                ..window
            };
            let options = ConvTransposeOptions::new(stride, border, extra, dilation, groups);
            let expected = conv_transpose2d(x(), weight.clone(), Some(bias.clone()), options);
            let found = transposed_convolution(x(), weight.clone(), Some(bias.clone()), window);
            let what = format!("transposed, {window:?}");
            assert_same(&what, expected, found, &source, &[&bias], Some(&weight));
        }
    }
}

/// A stride may come from anybody's file.
#[test]
fn a_stride_beyond_the_input_is_as_one_that_just_reaches_it() {
    for device in devices() {
        let device = device.autodiff();
        let made = |stride: usize, groups: usize| {
            let x = tensor(&numbers(2 * 8 * 64, 1), [2, 8, 8, 8], &device).require_grad();
            let weight = tensor(&numbers(64 * 9 / groups, 2), [8, 8 / groups, 3, 3], &device).require_grad();
            let window = Window {
                strides: [1, stride, 2],
                groups,
                ..Window::PLAIN
            };
            let out = convolution(x.clone(), weight.clone(), None, window);
            let slopes = tensor(&numbers(out.dims().iter().product(), 3), out.dims(), &device);
            let gradients = (out.clone() * slopes).sum().backward();
            let parts = [&x, &weight].map(|part| values(part.grad(&gradients).unwrap()));
            (values(out), parts)
        };
        for groups in [1, 8] {
            assert_eq!(
                made(i32::MAX as usize, groups),
                made(8, groups),
                "{groups} groups"
            );
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused_on_every_device() {
    let refused = |work: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err();
    for device in devices() {
        let zeros = |shape: [usize; 4]| Tensor::<4>::zeros(shape, &device);
        for (x, weight) in [
            ([1, 4, 8, 8], [8, 3, 3, 3]),
            ([1, 3, 8, 8], [8, 4, 3, 3]),
            ([1, 3, 2, 8], [8, 3, 3, 3]),
        ] {
            let convolve = || drop(convolution(zeros(x), zeros(weight), None, Window::PLAIN));
            assert!(refused(&convolve), "{x:?} with {weight:?}");
        }
        let x = zeros([2, 8, 4, 4]);
        let few = || Tensor::<1>::zeros([3], &device);
        let norm = || drop(batch_norm(x.clone(), statistics(x.clone()), few(), few(), 1e-5));
        assert!(refused(&norm));
    }
}

#[test]
fn burns_layers_make_the_same_by_our_operation() {
    let device = Device::flex();
    let x = || tensor(&numbers(2 * 4 * 9 * 10, 1), [2, 4, 9, 10], &device);
    for padding in [
        PaddingConfig2d::Valid,
        PaddingConfig2d::Same,
        PaddingConfig2d::Explicit(0, 1, 2, 3),
    ] {
        let layer: Conv2d = Conv2dConfig::new([4, 6], [3, 2])
            .with_padding(padding)
            .init(&device);
        let [expected, found] = [layer.forward(x()), convolve(&layer, x())];
        assert_eq!(expected.dims(), found.dims());
        assert_close("layer", &values(expected), &values(found), 1e-5);
    }
}

#[test]
fn pooling_and_its_gradients_are_burns() {
    for device in devices() {
        let device = device.autodiff();
        // Not contiguous.
        let source = tensor(&numbers(2 * 3 * 9 * 10, 1), [2, 3, 10, 9], &device).require_grad();
        let x = || source.clone().swap_dims(2, 3);
        let windows = |kind| Windows {
            kernel: [3, 2],
            strides: [2, 1],
            before: [1, 1],
            dilations: [1, 1],
            count: [5, 11],
            kind,
        };
        let border = || PaddingConfig2d::Explicit(1, 1, 1, 1);
        let layer = MaxPool2dConfig::new([3, 2])
            .with_strides([2, 1])
            .with_padding(border());
        let expected = layer.init().forward(x());
        let found = pool(x(), windows(Kind::Maximum));
        assert_same("maxima", expected, found, &source, &[], None);
        for (kind, with_border) in [(Kind::Mean, false), (Kind::MeanWithBorder, true)] {
            let layer = AvgPool2dConfig::new([3, 2])
                .with_strides([2, 1])
                .with_padding(border());
            let expected = layer.with_count_include_pad(with_border).init().forward(x());
            assert_same("means", expected, pool(x(), windows(kind)), &source, &[], None);
        }
    }
}

#[test]
fn batch_norm_is_exact_over_many_numbers_around_three() {
    for device in devices() {
        let numbers: Vec<f32> = numbers(4 * 2 * 160 * 160, 1).iter().map(|x| x + 3.0).collect();
        let x = tensor(&numbers, [4, 2, 160, 160], &device);
        let ones = || Tensor::ones([2], &device);
        let found = values(batch_norm(
            x.clone(),
            statistics(x),
            ones(),
            Tensor::zeros([2], &device),
            1e-5,
        ));
        for channel in 0..2 {
            let places = (0..numbers.len()).filter(|i| i / 25_600 % 2 == channel);
            let wide: Vec<f64> = places.clone().map(|i| f64::from(numbers[i])).collect();
            let mean = wide.iter().sum::<f64>() / wide.len() as f64;
            let variance = wide.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / wide.len() as f64;
            for (place, x) in places.zip(&wide) {
                let expected = (x - mean) / (variance + 1e-5).sqrt();
                assert!(
                    (f64::from(found[place]) - expected).abs() < 1e-6,
                    "{place}: {expected}"
                );
            }
        }
    }
}

#[test]
fn batch_norm_and_its_gradients_are_those_of_its_parts() {
    for device in devices() {
        let device = device.autodiff();
        let source = tensor(&numbers(4 * 6 * 5 * 3, 1), [4, 5, 6, 3], &device).require_grad();
        let x = || source.clone().swap_dims(1, 2);
        let gamma = tensor(&numbers(6, 2), [6], &device).require_grad();
        let beta = tensor(&numbers(6, 3), [6], &device).require_grad();
        let mean = |x: Tensor<4>| x.mean_dim(0).mean_dim(2).mean_dim(3);
        let centered = x() - mean(x());
        let variance = mean(centered.clone().powi_scalar(2));
        let of_channel = |numbers: &Tensor<1>| numbers.clone().reshape([1, 6, 1, 1]);
        let normed = centered / (variance.clone() + 1e-3).sqrt();
        let expected = normed * of_channel(&gamma) + of_channel(&beta);
        let stats = statistics(x());
        let wanted = Tensor::cat(vec![mean(x()).reshape([1, 6]), variance.reshape([1, 6])], 0);
        assert_close("statistics", &values::<2>(wanted), &values(stats.clone()), 1e-5);
        let found = batch_norm(x(), stats, gamma.clone(), beta.clone(), 1e-3);
        assert_same("batch norm", expected, found, &source, &[&gamma, &beta], None);
    }
}
