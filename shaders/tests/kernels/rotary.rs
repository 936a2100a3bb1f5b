//! Rotary positions against their twin and Burn's own, forward and backward.

use crate::cases::layers;
use crate::common::{agree, assert_close, devices, numbers, slopes, tensor, values};
use annulus_shaders::cpu;
use annulus_shaders::ops::rotary::{rotary, rotary_table};
use burn::nn::RotaryEncodingConfig;
use burn::tensor::{Device, Tensor};

/// Batch, tokens, heads, head_dim.
const SHAPES: [[usize; 4]; 5] = [
    [1, 1, 1, 4],
    [2, 3, 2, 8],
    [1, 65, 3, 12],
    [3, 17, 1, 64],
    [1, 128, 4, 32],
];

fn burns(qkv: Tensor<3>, [batch, tokens, heads, d]: [usize; 4]) -> Tensor<3> {
    let config = RotaryEncodingConfig::new(tokens, d);
    let encoding = config.init(&qkv.device());
    let parts = qkv.chunk(3, 2);
    let turned = |part: &Tensor<3>| {
        let heads_first: Tensor<4> = part.clone().reshape([batch, tokens, heads, d]).swap_dims(1, 2);
        encoding
            .forward(heads_first)
            .swap_dims(1, 2)
            .reshape([batch, tokens, heads * d])
    };
    Tensor::cat(vec![turned(&parts[0]), turned(&parts[1]), parts[2].clone()], 2)
}

#[test]
fn turning_agrees_with_burns_forward_and_backward() {
    for device in devices() {
        let device = device.autodiff();
        for shape in SHAPES {
            let [batch, tokens, heads, d] = shape;
            let (count, packed) = (batch * tokens * 3 * heads * d, [batch, tokens, 3 * heads * d]);
            let qkv = tensor(&numbers(count, 1), packed, &device).require_grad();
            let weights = tensor(&numbers(count, 2), packed, &device);
            // Angles for more tokens than there are.
            let ours = rotary(qkv.clone(), rotary_table(tokens + 2, d, 10_000.0, &device), heads);
            let theirs = burns(qkv.clone(), shape);
            let what = format!("{shape:?}");
            // Burn's angles are rounded to f32 before the cosine.
            assert_close(&what, &values(theirs.clone()), &values(ours.clone()), 3e-5);
            let [ours, theirs] = [ours, theirs].map(|out| {
                let gradients = (out * weights.clone()).sum().backward();
                values(qkv.grad(&gradients).unwrap())
            });
            assert_close(&what, &theirs, &ours, 3e-5);
        }
    }
}

#[test]
fn the_kernel_agrees_with_its_twin() {
    agree(layers::rotations);
}

#[test]
fn gradients_are_slopes() {
    for device in devices() {
        let device = device.autodiff();
        let (sizes, packed) = ([3, 2, 8], [2, 3, 48]);
        let (qkv, weights) = (numbers(288, 5), numbers(288, 6));
        let table: Vec<f64> = cpu::rotary::table(3, 8, 100.0)
            .into_iter()
            .map(f64::from)
            .collect();
        let doubles: Vec<f64> = qkv.iter().map(|x| f64::from(*x)).collect();
        let expected = slopes(&doubles, |moved| {
            let mut turned = moved.to_vec();
            cpu::rotary::rotate(&mut turned, &table, sizes, false);
            turned.iter().zip(&weights).map(|(x, w)| x * f64::from(*w)).sum()
        });
        let qkv = tensor(&qkv, packed, &device).require_grad();
        let out = rotary(qkv.clone(), rotary_table(3, 8, 100.0, &device), 2);
        let gradients = (out * tensor(&weights, packed, &device)).sum().backward();
        assert_close("slopes", &expected, &values(qkv.grad(&gradients).unwrap()), 1e-5);
    }
}

#[test]
#[should_panic(expected = "angles for 2")]
fn a_table_too_short_is_refused() {
    let device = Device::flex();
    rotary(
        tensor(&numbers(36, 1), [1, 3, 12], &device),
        rotary_table(2, 4, 1e4, &device),
        1,
    );
}
