//! Weights as halves: packed, multiplied with, and in layers.

use crate::cases::bench::spare;
use crate::cases::products;
use crate::common::{agree, alone, assert_close, gpu, numbers, run, tensor, values};
use annulus_shaders::cpu::activation::Activation;
use annulus_shaders::cpu::halve::{pack, unpack};
use annulus_shaders::halves;
use annulus_shaders::kernel::HALVE;
use annulus_shaders::ops::linear::{MlpWeights, WeightLayout, linear, mlp};
use burn::tensor::{Device, Tensor};

fn rounded(x: &[f32]) -> Vec<f32> {
    unpack(&pack(x), x.len())
}

#[test]
fn the_twin_knows_halves() {
    let numbers = [1.0, -2.0, 0.1, 65_504.0, 6.0e-8, -0.0, 1.000_488_3];
    let words = pack(&numbers);
    assert_eq!(words[0], 0xc000_3c00);
    assert_eq!(words[1], 0x7bff_2e66);
    assert_eq!(words[2], 0x8000_0001);
    // Half way between two halves, to the even one; and no partner.
    assert_eq!(words[3], 0x0000_3c00);
    assert_eq!(
        unpack(&words, 7),
        [1.0, -2.0, 0.099_975_586, 65_504.0, 5.960_464_5e-8, -0.0, 1.0]
    );
}

#[test]
fn numbers_become_one_of_the_two_nearest_halves() {
    let Some(device) = gpu() else { return };
    for count in [1, 2, 127, 128, 1031, 4001] {
        // Magnitudes of all kinds, but no subnormal halves, which a device may take for 0.
        let x: Vec<f32> = numbers(count, 1)
            .iter()
            .enumerate()
            .map(|(at, x)| (x + x.signum() * 0.1) * f32::powi(2.0, at as i32 % 26 - 10))
            .collect();
        let groups = spare(count.div_ceil(128));
        let found = run(&device, &HALVE, &[&x], &[count.div_ceil(2)], count as u32, groups).remove(0);
        let words: Vec<u32> = found.iter().map(|word| word.to_bits()).collect();
        if count % 2 == 1 {
            assert_eq!(words.last().unwrap() >> 16, 0, "beside the last of {count}");
        }
        for (at, (x, half)) in x.iter().zip(unpack(&words, count)).enumerate() {
            // WGSL lets a device round either way.
            let ulp = f32::powi(2.0, x.abs().log2().floor() as i32 - 10);
            assert!((x - half).abs() < ulp, "{at} of {count}: {x} became {half}");
        }
    }
}

#[test]
fn products_with_halves_agree_with_the_twin() {
    agree(products::products_with_halves);
}

/// Outputs and gradients of our layers with halves are those of plain products with the weights that are left of
/// them; the gradient along the weights is that of any weights.
#[test]
fn layers_agree_with_those_of_rounded_weights() {
    // The choice of halves holds for a whole process.
    if !alone("halves::layers_agree_with_those_of_rounded_weights") {
        return;
    }
    let Some(device) = gpu() else { return };
    halves::store_weights(&device).unwrap();
    let device = device.autodiff();
    let plain = Device::flex().autodiff();
    // The last shape is none that kernels for programs which play a GPU take as halves.
    for [rows, inputs, outputs] in [[5, 8, 12], [70, 64, 68], [3, 7, 10]] {
        let (x, w) = (numbers(rows * inputs, 1), numbers(inputs * outputs, 2));
        let (bias, weights) = (numbers(outputs, 3), numbers(rows * outputs, 4));
        for layout in [WeightLayout::InputsFirst, WeightLayout::OutputsFirst] {
            let shape = match layout {
                WeightLayout::InputsFirst => [inputs, outputs],
                WeightLayout::OutputsFirst => [outputs, inputs],
            };
            let pass = |device: &Device, w: &[f32]| {
                let x = tensor(&x, [rows, inputs], device).require_grad();
                let w = tensor(w, shape, device).require_grad();
                // A layout with outputs first has no bias.
                let bias = (layout == WeightLayout::InputsFirst).then(|| tensor(&bias, [outputs], device));
                let out = linear(x.clone(), w.clone(), bias, None, layout);
                let gradients = (out.clone() * tensor(&weights, [rows, outputs], device))
                    .sum()
                    .backward();
                [
                    values(out),
                    values(x.grad(&gradients).unwrap()),
                    values(w.grad(&gradients).unwrap()),
                ]
            };
            let [found, exact, near] = [pass(&device, &w), pass(&plain, &w), pass(&plain, &rounded(&w))];
            let what = format!("{rows} {inputs} {outputs} {layout:?}");
            for ((found, exact), near) in found.iter().zip(&exact).zip(&near) {
                // A device may round weights to the other neighbour: twice the distance.
                let distance = exact
                    .iter()
                    .zip(near)
                    .map(|(x, y)| (x - y).abs())
                    .fold(1e-5, f32::max);
                assert_close(&what, near, found, 3.0 * distance);
            }
            let moved = found[0].iter().zip(&exact[0]).any(|(x, y)| (x - y).abs() > 1e-5);
            let fours = inputs.is_multiple_of(4) && outputs.is_multiple_of(4);
            // Lest halves are not taken at all. Outputs first and forward with a bias there is no such kernel, but here
            // is none.
            assert!(moved || !fours, "{what}: nothing was rounded");
        }
    }
    let (x, up, down) = (numbers(6 * 8, 5), numbers(8 * 16, 6), numbers(16 * 8, 7));
    let pass = |device: &Device, up: &[f32], down: &[f32]| {
        let x = tensor(&x, [6, 8], device).require_grad();
        let weights = MlpWeights {
            up: tensor(up, [8, 16], device),
            up_bias: None,
            down: tensor(down, [16, 8], device),
            down_bias: None,
            layout: WeightLayout::InputsFirst,
        };
        let out: Tensor<2> = mlp(x.clone(), weights, None, Activation::Gelu);
        let gradients = out.clone().sum().backward();
        [values(out), values(x.grad(&gradients).unwrap())]
    };
    let found = pass(&device, &up, &down);
    let near = pass(&plain, &rounded(&up), &rounded(&down));
    let exact = pass(&plain, &up, &down);
    for ((found, near), exact) in found.iter().zip(&near).zip(&exact) {
        let distance = exact
            .iter()
            .zip(near)
            .map(|(x, y)| (x - y).abs())
            .fold(1e-5, f32::max);
        assert_close("mlp", near, found, 3.0 * distance);
        assert_ne!(exact, found);
    }
}
