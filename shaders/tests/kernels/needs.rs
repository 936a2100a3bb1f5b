//! Layers launch exactly the kernels that they name. With fewer names, a kernel would be used unchecked.

use crate::common::{alone, gpu, numbers, tensor, whole};
use annulus_shaders::KERNELS;
use annulus_shaders::cpu::activation::Activation;
use annulus_shaders::cpu::dropout::Mask;
use annulus_shaders::launch::adapter_of;
use annulus_shaders::needs::{self, Layer};
use annulus_shaders::ops::activation::activation;
use annulus_shaders::ops::attention::{AttentionOptions, attention, packed_attention};
use annulus_shaders::ops::batch_norm::{batch_norm, statistics};
use annulus_shaders::ops::convolution::{Window, convolution};
use annulus_shaders::ops::cross_entropy::cross_entropy;
use annulus_shaders::ops::dropout::dropout;
use annulus_shaders::ops::embedding::embedding;
use annulus_shaders::ops::gated::swiglu;
use annulus_shaders::ops::linear::{MlpWeights, WeightLayout, linear, mlp};
use annulus_shaders::ops::norm::layer_norm;
use annulus_shaders::ops::pool::max_pool;
use annulus_shaders::ops::rotary::{rotary, rotary_table};
use annulus_shaders::ops::rotary_halves::rope_halves;
use annulus_shaders::ops::softmax::softmax;
use annulus_shaders::optim::{LocalOptimizer, Rule, Step, Totals};
use annulus_shaders::split::{SplitLayout, SplitVector};
use burn::tensor::{Device, DeviceKind, Tensor};
use std::sync::Arc;

fn leaf<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    tensor(&numbers(shape.iter().product(), 1), shape, device).require_grad()
}

/// Forward and backward.
fn run<const D: usize>(out: Tensor<D>) {
    drop(out.sum().backward());
}

/// A layer in training, of all shapes that make a difference.
fn train(layer: Layer, device: &Device) {
    match layer {
        Layer::Linear => {
            for outputs in [4, 5] {
                let bias = Some(leaf([outputs], device));
                // So many rows that weight gradients are made in pieces.
                let (x, weight) = (leaf([256, 4], device), leaf([4, outputs], device));
                run(linear(x.clone(), weight, bias, None, WeightLayout::InputsFirst));
                let weight = leaf([outputs, 4], device);
                run(linear(x, weight, None, None, WeightLayout::OutputsFirst));
            }
            let weights = MlpWeights {
                up: leaf([4, 8], device),
                up_bias: Some(leaf([8], device)),
                down: leaf([8, 4], device),
                down_bias: None,
                layout: WeightLayout::InputsFirst,
            };
            run(mlp(leaf([3, 4], device), weights, None, Activation::Gelu));
        }
        Layer::Attention { head_dim } => run(packed_attention(leaf([2, 5, 6 * head_dim], device), 2, true)),
        Layer::SeparateAttention { head_dim, masked } => {
            let [q, k, v] = [2, 1, 1].map(|heads| leaf([2, heads, 5, head_dim], device));
            let mask = masked.then(|| tensor(&numbers(5, 2), [1, 1, 1, 5], device));
            let options = AttentionOptions {
                mask,
                ..AttentionOptions::default()
            };
            run(attention(q, k, v, options));
        }
        Layer::Embedding { width } => {
            for tokens in [3, 4] {
                let ids = whole(&vec![1; tokens], [1, tokens], device);
                let (table, positions) = (leaf([7, width], device), leaf([9, width], device));
                run(embedding(ids, table, Some(positions)));
            }
        }
        Layer::Norm { width } => {
            let (gamma, beta) = (leaf([width], device), leaf([width], device));
            run(layer_norm(leaf([3, width], device), gamma, Some(beta), 1e-5));
        }
        Layer::CrossEntropy { classes } => {
            // More rows than a workgroup takes.
            let targets = whole(&[0; 300], [300], device);
            run(cross_entropy(leaf([300, classes], device), targets, None));
        }
        Layer::Convolution => {
            for groups in [1, 8] {
                let (x, weight) = (leaf([2, 8, 5, 5], device), leaf([8, 8 / groups, 3, 3], device));
                let window = Window {
                    groups,
                    ..Window::PLAIN
                };
                run(convolution(x, weight, Some(leaf([8], device)), window));
            }
        }
        Layer::Pool => run(max_pool(leaf([2, 3, 4, 4], device), 2)),
        Layer::BatchNorm { each } => {
            let x = leaf([2, 3, each], device);
            let stats = statistics(x.clone());
            run(batch_norm(x, stats, leaf([3], device), leaf([3], device), 1e-5));
        }
        Layer::Activation => {
            for width in [4, 5] {
                run(activation(leaf([3, width], device), Activation::Gelu));
            }
        }
        Layer::Gated => {
            for width in [4, 5] {
                run(swiglu(leaf([3, width], device), leaf([3, width], device)));
            }
        }
        Layer::Softmax { width } => run(softmax(leaf([3, width], device))),
        Layer::Rotary => run(rotary(
            leaf([1, 3, 24], device),
            rotary_table(3, 4, 1e4, device),
            2,
        )),
        Layer::RotaryHalves { head_dim } => {
            let table = || tensor(&numbers(3 * head_dim, 2), [1, 3, head_dim], device);
            run(rope_halves(leaf([2, 2, 3, head_dim], device), table(), table()));
        }
        Layer::Dropout => {
            let mask = Mask {
                rate: 0.5,
                seed: 1,
                offset: 2,
            };
            run(dropout(leaf([3, 4], device), mask));
        }
        Layer::LocalSteps => step(&device.clone().without_autodiff()),
    }
}

/// By each optimizer that there is.
fn step(device: &Device) {
    let layout = Arc::new(SplitLayout::new([8], usize::MAX).unwrap());
    let mut params = SplitVector::upload(&layout, &[1.0; 8], device).unwrap();
    let gradients = params.clone();
    let (weight_decay, momentum) = (0.1, 0.9);
    let adam = Rule::Adam {
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-3,
        weight_decay,
        decoupled: true,
    };
    let momentum = Rule::Momentum {
        momentum,
        nesterov: false,
        weight_decay,
    };
    for rule in [Rule::Sgd { weight_decay }, momentum, adam] {
        let mut optimizer = LocalOptimizer::new(rule, &layout, &[true], device).unwrap();
        let totals = Totals::of_gradients(&gradients, &layout);
        let step = Step {
            lr: 0.1,
            number: 1,
            scale: 1.0,
            clip: Some(1.0),
        };
        optimizer.step(&mut params, &gradients, Some(&totals), step);
    }
}

fn launches() -> Vec<u64> {
    KERNELS.iter().map(|kernel| kernel.launches()).collect()
}

#[test]
fn layers_launch_what_they_say_and_nothing_else() {
    // Launches are counted for a whole process.
    if !alone("needs::layers_launch_what_they_say_and_nothing_else") {
        return;
    }
    let Some(device) = gpu() else { return };
    // Where nothing is said of the kind, a program is taken for a GPU: so both choices of kernels are tried.
    let unnamed = Device::wgpu_options().device_kind(DeviceKind::DefaultDevice);
    for device in [device, unnamed.init().unwrap()] {
        let adapter = adapter_of(&device).unwrap();
        for layer in Layer::all() {
            let before = launches();
            train(layer, &device.clone().autodiff());
            let counts = launches().into_iter().zip(before);
            let launched = KERNELS
                .iter()
                .zip(counts)
                .filter(|(_, (now, before))| now > before);
            let mut launched: Vec<&str> = launched.map(|(kernel, _)| kernel.name).collect();
            // The trainer gathers the gradients with kernels of its own.
            let said = needs::kernels(&[layer], adapter).into_iter();
            let mut said: Vec<&str> = said.map(|kernel| kernel.name).collect();
            said.retain(|name| !name.starts_with("pack"));
            launched.sort_unstable();
            said.sort_unstable();
            assert_eq!(launched, said, "{layer:?} on {adapter:?}");
        }
    }
}
