//! Differentiable operations on a GPU against the same on Burn's CPU backend: what they make, and all gradients.

use crate::cases::bench::{Bench, numbers, scaled, tensor, values};
use annulus_shaders::cpu::activation::Activation;
use annulus_shaders::cpu::dropout::Mask;
use annulus_shaders::ops::activation::activation;
use annulus_shaders::ops::attention::{AttentionOptions, attention, packed_attention};
use annulus_shaders::ops::batch_norm::{batch_norm, statistics};
use annulus_shaders::ops::convolution::{Window, convolution};
use annulus_shaders::ops::cross_entropy::cross_entropy;
use annulus_shaders::ops::dropout::dropout;
use annulus_shaders::ops::embedding::embedding;
use annulus_shaders::ops::gated::swiglu;
use annulus_shaders::ops::linear::{MlpWeights, WeightLayout, linear, mlp};
use annulus_shaders::ops::norm::{layer_norm, rms_norm};
use annulus_shaders::ops::rotary::{rotary, rotary_table};
use annulus_shaders::ops::rotary_halves::rope_halves;
use annulus_shaders::ops::softmax::softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};

/// An operation's result and the gradients of what it was made of.
type Outcome = Vec<Vec<f32>>;

/// All of them, on a device of this class.
pub async fn all(bench: &mut Bench, class: &str, gpu: &Device) {
    let (gpu, cpu) = (gpu.clone().autodiff(), Device::flex().autodiff());
    macro_rules! compare {
        ($($operation:ident),*) => {$(
            let (expected, found) = ($operation(&cpu).await, $operation(&gpu).await);
            let name = format!("{} ({class})", stringify!($operation));
            for (number, (expected, found)) in expected.iter().zip(&found).enumerate() {
                bench.close(&name, &format!("result {number}"), expected, found, 2e-5);
            }
            bench.hold(&name, "results are missing", expected.len() == found.len() && !found.is_empty());
        )*};
    }
    compare!(
        layer,
        tied,
        perceptron,
        attending,
        attending_apart,
        turning,
        turning_halves,
        normed,
        scaled_rows,
        soft,
        silu,
        gating,
        embedded,
        loss,
        dropped,
        convolved,
        convolved_in_groups,
        normed_by_channels
    );
}

/// The values of the first and its gradients for the others, weighted so that they differ.
macro_rules! outcome {
    ($out:expr, $($leaf:expr),*) => {{
        let out = $out;
        let shape = out.dims();
        let weights = tensor(&numbers(shape.iter().product(), 99), shape, &out.device());
        let gradients = (out.clone() * weights).sum().backward();
        vec![
            values(out).await,
            $(values($leaf.grad(&gradients).expect("a gradient")).await,)*
        ]
    }};
}

fn leaf<const D: usize>(shape: [usize; D], seed: u64, device: &Device) -> Tensor<D> {
    tensor(&numbers(shape.iter().product(), seed), shape, device).require_grad()
}

fn whole<const D: usize>(values: Vec<i32>, shape: [usize; D], device: &Device) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// With strides, so that the gradient for the input is made in parts.
async fn convolution_of(groups: usize, device: &Device) -> Outcome {
    let (x, weight) = (
        leaf([2, 12, 9, 10], 1, device),
        leaf([24, 12 / groups, 3, 3], 2, device),
    );
    let bias = leaf([24], 3, device);
    let window = Window {
        strides: [1, 2, 1],
        before: [0, 1, 1],
        behind: [0, 1, 1],
        groups,
        ..Window::PLAIN
    };
    let out = convolution(x.clone(), weight.clone(), Some(bias.clone()), window);
    outcome!(out, x, weight, bias)
}

async fn convolved(device: &Device) -> Outcome {
    convolution_of(1, device).await
}

async fn convolved_in_groups(device: &Device) -> Outcome {
    convolution_of(12, device).await
}

async fn normed_by_channels(device: &Device) -> Outcome {
    let (x, gamma, beta) = (
        leaf([3, 5, 4, 7], 1, device),
        leaf([5], 2, device),
        leaf([5], 3, device),
    );
    let stats = statistics(x.clone());
    let out = batch_norm(x.clone(), stats, gamma.clone(), beta.clone(), 1e-3);
    outcome!(out, x, gamma, beta)
}

async fn layer(device: &Device) -> Outcome {
    let (x, weight) = (leaf([33, 20], 1, device), leaf([20, 68], 2, device));
    let (bias, residual) = (leaf([68], 3, device), leaf([33, 68], 4, device));
    let out = linear(
        x.clone(),
        weight.clone(),
        Some(bias.clone()),
        Some(residual.clone()),
        WeightLayout::InputsFirst,
    );
    outcome!(out, x, weight, bias, residual)
}

async fn tied(device: &Device) -> Outcome {
    let (x, weight) = (leaf([7, 12], 1, device), leaf([65, 12], 2, device));
    let out = linear(x.clone(), weight.clone(), None, None, WeightLayout::OutputsFirst);
    outcome!(out, x, weight)
}

async fn perceptron(device: &Device) -> Outcome {
    let (x, residual) = (leaf([9, 8], 1, device), leaf([9, 16], 6, device));
    let weights = MlpWeights {
        up: leaf([8, 20], 2, device),
        up_bias: Some(leaf([20], 3, device)),
        down: leaf([20, 16], 4, device),
        down_bias: Some(leaf([16], 5, device)),
        layout: WeightLayout::InputsFirst,
    };
    let (up, down) = (weights.up.clone(), weights.down.clone());
    let biases = [weights.up_bias.clone(), weights.down_bias.clone()].map(|bias| bias.expect("it has one"));
    let out = mlp(x.clone(), weights, Some(residual.clone()), Activation::Gelu);
    outcome!(out, x, up, biases[0], down, biases[1], residual)
}

async fn attending(device: &Device) -> Outcome {
    let qkv = leaf([2, 65, 3 * 2 * 20], 1, device);
    outcome!(packed_attention(qkv.clone(), 2, true), qkv)
}

/// Heads that share keys, tokens before heads in memory, a mask and dropout.
async fn attending_apart(device: &Device) -> Outcome {
    let q = leaf([2, 37, 4, 20], 1, device);
    let [k, v] = [2, 3].map(|seed| leaf([2, 65, 2, 20], seed, device));
    let options = AttentionOptions {
        causal: false,
        mask: Some(tensor(&numbers(2 * 65, 4), [2, 1, 1, 65], device)),
        scale: None,
        dropout: Some(Mask {
            rate: 0.25,
            seed: 5,
            offset: 6,
        }),
    };
    let [queries, keys, values_] = [&q, &k, &v].map(|x| x.clone().swap_dims(1, 2));
    outcome!(attention(queries, keys, values_, options), q, k, v)
}

async fn turning(device: &Device) -> Outcome {
    let qkv = leaf([2, 7, 3 * 2 * 8], 1, device);
    let angles = rotary_table(9, 8, 10_000.0, device);
    outcome!(rotary(qkv.clone(), angles, 2), qkv)
}

async fn turning_halves(device: &Device) -> Outcome {
    let x = leaf([2, 7, 2, 8], 1, device);
    let [cosine, sine] = [2, 3].map(|seed| tensor(&numbers(56, seed), [1, 7, 8], device));
    outcome!(rope_halves(x.clone().swap_dims(1, 2), cosine, sine), x)
}

async fn normed(device: &Device) -> Outcome {
    let (x, gamma, beta) = (
        leaf([65, 127], 1, device),
        leaf([127], 2, device),
        leaf([127], 3, device),
    );
    let out = layer_norm(x.clone(), gamma.clone(), Some(beta.clone()), 1e-5);
    outcome!(out, x, gamma, beta)
}

async fn scaled_rows(device: &Device) -> Outcome {
    let (x, gamma) = (leaf([65, 128], 1, device), leaf([128], 2, device));
    outcome!(rms_norm(x.clone(), gamma.clone(), 1e-5), x, gamma)
}

async fn soft(device: &Device) -> Outcome {
    let x = leaf([63, 65], 1, device);
    outcome!(softmax(x.clone()), x)
}

async fn silu(device: &Device) -> Outcome {
    let x: Tensor<2> = tensor(&scaled(9 * 257, 1), [9, 257], device).require_grad();
    outcome!(activation(x.clone(), Activation::Silu), x)
}

async fn gating(device: &Device) -> Outcome {
    let (gate, x) = (leaf([9, 257], 1, device), leaf([9, 257], 2, device));
    outcome!(swiglu(gate.clone(), x.clone()), gate, x)
}

async fn embedded(device: &Device) -> Outcome {
    let (table, positions) = (leaf([11, 12], 1, device), leaf([9, 12], 2, device));
    let ids = whole((0..21).map(|i| i * i % 11).collect(), [3, 7], device);
    let out = embedding(ids, table.clone(), Some(positions.clone()));
    outcome!(out, table, positions)
}

async fn loss(device: &Device) -> Outcome {
    let logits = leaf([130, 65], 1, device);
    let targets = whole(
        (0..130).map(|i| i * i % 67 - 1).map(|i| i.min(64)).collect(),
        [130],
        device,
    );
    let loss = cross_entropy(logits.clone(), targets, Some(-1));
    outcome!(loss, logits)
}

async fn dropped(device: &Device) -> Outcome {
    let x = leaf([9, 257], 1, device);
    let mask = Mask {
        rate: 0.25,
        seed: 7,
        offset: 3,
    };
    outcome!(dropout(x.clone(), mask), x)
}
