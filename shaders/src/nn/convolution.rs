//! Burn's convolutional layers by our operation.

use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;
use std::array;

use crate::ops::convolution::{Window, convolution};

/// The output of Burn's layer for `[batch, channels, rows, columns]`, by our operation, which on a CPU is several times as fast.
pub fn convolve(layer: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    let [_, _, rows, columns] = x.dims();
    let [before, behind] = match layer.padding {
        PaddingConfig2d::Valid => [[0; 2]; 2],
        PaddingConfig2d::Explicit(top, left, bottom, right) => [[top, left], [bottom, right]],
        PaddingConfig2d::Same => {
            let needed: [usize; 2] = array::from_fn(|axis| {
                let length = [rows, columns][axis];
                let steps = length.div_ceil(layer.stride[axis]).saturating_sub(1);
                (steps * layer.stride[axis] + layer.kernel_size[axis]).saturating_sub(length)
            });
            [needed.map(|n| n / 2), needed.map(|n| n - n / 2)]
        }
    };
    let axes = |first, [rows, columns]: [usize; 2]| [first, rows, columns];
    let window = Window {
        strides: axes(1, layer.stride),
        before: axes(0, before),
        behind: axes(0, behind),
        dilations: axes(1, layer.dilation),
        groups: layer.groups,
        ..Window::PLAIN
    };
    let bias = layer.bias.as_ref().map(|bias| bias.val());
    convolution(x, layer.weight.val(), bias, window)
}
