//! Convolutions and batch norm against Burn's own, forward and backward.

use crate::common::{assert_close, devices, numbers, tensor, values};
use annulus_shaders::nn::convolve;
use annulus_shaders::ops::batch_norm::{batch_norm, statistics};
use annulus_shaders::ops::convolution::{Window, convolution, transposed_convolution};
use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::module::{conv_transpose2d, conv2d};
use burn::tensor::ops::{ConvOptions, ConvTransposeOptions};
use burn::tensor::{Device, Tensor};

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
        for (groups, stride, border, dilation) in [
            (1, [1, 1], [1, 1], [1, 1]),
            (1, [2, 1], [0, 2], [1, 2]),
            (2, [2, 2], [1, 1], [1, 1]),
            (4, [1, 2], [1, 0], [1, 1]),
        ] {
            // Not contiguous.
            let source = tensor(&numbers(2 * 4 * 9 * 10, 1), [2, 4, 10, 9], &device).require_grad();
            let x = || source.clone().swap_dims(2, 3);
            let weight =
                tensor(&numbers(8 * 4 / groups * 9, 2), [8, 4 / groups, 3, 3], &device).require_grad();
            let bias = tensor(&numbers(8, 3), [8], &device).require_grad();
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

            let weight =
                tensor(&numbers(4 * 8 / groups * 9, 2), [4, 8 / groups, 3, 3], &device).require_grad();
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
