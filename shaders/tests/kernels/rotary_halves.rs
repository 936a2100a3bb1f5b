//! Rotary positions of halves against their twin, PyTorch and slopes, forward and backward.

use crate::cases::layers;
use crate::common::{agree, assert_close, devices, numbers, slopes, tensor, values};
use crate::pytorch::{reference, wave};
use annulus_shaders::cpu::attention::{Place, Placed};
use annulus_shaders::cpu::rotary_halves::{Angles, rotate};
use annulus_shaders::ops::rotary_halves::rope_halves;
use burn::tensor::{Device, Tensor};

#[test]
fn the_kernel_agrees_with_its_twin() {
    agree(layers::rotations_of_halves);
}

#[test]
fn turning_and_its_gradient_are_pytorchs() {
    let table = |what: &str, device: &Device| tensor(&reference(&format!("rope.{what}")), [1, 3, 8], device);
    for device in devices() {
        let device = device.autodiff();
        let leaf: Tensor<4> = tensor(&wave(48, 0.0), [1, 2, 3, 8], &device).require_grad();
        let out = rope_halves(leaf.clone(), table("cosine", &device), table("sine", &device));
        assert_close("out", &reference("rope.out"), &values(out.clone()), 1e-6);
        let weights: Tensor<4> = tensor(&wave(48, 1.0), [1, 2, 3, 8], &device);
        let gradients = (out * weights).sum().backward();
        let found = values(leaf.grad(&gradients).unwrap());
        assert_close("x", &reference("rope.x"), &found, 1e-6);
    }
}

/// Any angles, not only those that belong to positions; each sequence has its own; tokens come before heads.
#[test]
fn gradients_are_slopes() {
    let shape = [2, 2, 3, 6];
    let (x, weights) = (numbers(72, 1), numbers(72, 2));
    let [cosine, sine] = [3, 4].map(|seed| numbers(36, seed));
    let in_doubles = |numbers: &[f32]| -> Vec<f64> { numbers.iter().map(|x| f64::from(*x)).collect() };
    let tables = [in_doubles(&cosine), in_doubles(&sine)];
    let expected = slopes(&in_doubles(&x), |moved| {
        let angles = Angles {
            cosine: &tables[0],
            sine: &tables[1],
            batch: 18,
        };
        let place = Place::tokens_first(3, 2, 6);
        let numbers = Placed {
            numbers: moved,
            place,
        };
        let out = rotate(numbers, angles, place, shape, false);
        out.iter().zip(&weights).map(|(x, w)| x * f64::from(*w)).sum()
    });
    for device in devices() {
        let device = device.autodiff();
        let leaf: Tensor<4> = tensor(&x, [2, 3, 2, 6], &device).require_grad();
        let [cosine, sine] = [&cosine, &sine].map(|table| tensor(table, [2, 3, 6], &device));
        let out = rope_halves(leaf.clone().swap_dims(1, 2), cosine, sine).swap_dims(1, 2);
        let weights: Tensor<4> = tensor(&weights, [2, 3, 2, 6], &device);
        let gradients = (out * weights).sum().backward();
        assert_close("slopes", &expected, &values(leaf.grad(&gradients).unwrap()), 1e-6);
    }
}

#[test]
#[should_panic(expected = "angles [1, 3, 8]")]
fn angles_of_other_tokens_are_refused() {
    let device = Device::flex();
    let table = || tensor(&numbers(24, 1), [1, 3, 8], &device);
    rope_halves(tensor(&numbers(32, 1), [1, 1, 4, 8], &device), table(), table());
}
