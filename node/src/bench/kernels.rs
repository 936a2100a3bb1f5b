//! What each operation of ours costs at the sizes of a transformer, forward and backward, beside Burn's own operations
//! that it replaces, and how near it comes to what the device can do at best.
//!
//! In one process, without Burn's fusion and tuning, alternating.

use super::{Error, median};
use crate::device::{self, DeviceKind, DeviceRequest};
use crate::tasks::gpt::presets::Preset;
use annulus_shaders::cpu::activation::Activation;
use annulus_shaders::matrices;
use annulus_shaders::ops::activation::activation;
use annulus_shaders::ops::attention::packed_attention;
use annulus_shaders::ops::batch_norm::{batch_norm, statistics};
use annulus_shaders::ops::convolution::{Window, convolution};
use annulus_shaders::ops::cross_entropy::cross_entropy;
use annulus_shaders::ops::embedding::embedding;
use annulus_shaders::ops::linear::{MlpWeights, WeightLayout, linear, mlp};
use annulus_shaders::ops::norm::layer_norm;
use annulus_shaders::ops::softmax::softmax;
use annulus_shaders::split;
use annulus_stock::causal_attention;
use burn::nn::LayerNormConfig;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::activation as stock;
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Device, Distribution, Int, Tensor};
use serde::Serialize;
use std::time::Instant;

/// Samples of a step.
const WINDOWS: usize = 12;

/// Most numbers of a tensor: 1 GiB.
const LARGEST: usize = 1 << 28;

/// Of a step of the GPT task.
#[derive(Clone, Copy)]
struct Sizes {
    tokens: usize,
    rows: usize,
    width: usize,
    heads: usize,
    hidden: usize,
    vocabulary: usize,
}

impl Sizes {
    fn of(preset: Preset) -> Self {
        let shape = preset.shape();
        Self {
            tokens: shape.context,
            rows: WINDOWS * shape.context,
            width: shape.width,
            heads: shape.heads,
            hidden: 4 * shape.width,
            // Where the data say it: bytes.
            vocabulary: if shape.vocabulary == 0 {
                256
            } else {
                shape.vocabulary
            },
        }
    }
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct KernelsReport {
    /// Always "device".
    pub bench: &'static str,
    /// The device.
    pub device: String,
    /// The preset whose sizes these are.
    pub preset: Preset,
    /// Bytes a second of a copy.
    pub bytes_per_second: f64,
    /// Operations a second of the fastest product, ours or Burn's.
    pub operations_per_second: f64,
    /// One for each operation.
    pub rows: Vec<Row>,
    /// The machine's load average over a minute before and after, if it is known.
    pub load: [Option<f64>; 2],
}

/// One operation.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which, and its sizes.
    pub name: String,
    /// Median time forward.
    pub forward_seconds: f64,
    /// Median time forward and backward.
    pub seconds: f64,
    /// Burn's.
    pub stock_seconds: f64,
    /// Bytes that both passes must read and write at least.
    pub bytes: f64,
    /// Multiplications and additions of both passes.
    pub operations: f64,
    /// The time that the device needs at best, over the measured time.
    pub share: f64,
}

type Scalar = Box<dyn Fn() -> Tensor<1>>;

/// An operation, ours and Burn's, as sums of what comes out.
struct Case {
    name: String,
    bytes: f64,
    operations: f64,
    ours: Scalar,
    stock: Scalar,
}

/// Measures all at a preset's sizes on the device that `choice` names, `repeats` times each.
///
/// # Errors
///
/// If there is no such device.
pub fn measure(
    choice: &str,
    preset: Preset,
    repeats: usize,
    mut tell: impl FnMut(&str),
) -> Result<KernelsReport, Error> {
    let load = super::process::load();
    let open = choice
        .parse()
        .and_then(|request: DeviceRequest| device::open(request));
    let open = open.map_err(|error| Error::Device(error.to_string()))?;
    // Nothing is made of the results, so they may be infinite.
    let _units = matrices::within();
    let plain = open.device.clone();
    let device = plain.clone().autodiff();
    tell("the device's best");
    // So large that no cache holds it, where that takes no minutes.
    let hardware = open.kind == DeviceKind::Gpu;
    let (copied, side) = if hardware {
        (LARGEST, 4096)
    } else {
        (LARGEST >> 6, 512)
    };
    let most = split::largest(&plain).unwrap_or(usize::MAX);
    let bytes_per_second = copy_rate(&plain, copied.min(most), repeats);
    let operations_per_second = product_rate(&plain, side, repeats);
    let rows = CASES.map(|case| {
        let case = case(Sizes::of(preset), &device);
        tell(&case.name);
        row(case, &plain, repeats, bytes_per_second, operations_per_second)
    });
    Ok(KernelsReport {
        bench: "device",
        device: open.name,
        preset,
        bytes_per_second,
        operations_per_second,
        rows: rows.into(),
        load: [load, super::process::load()],
    })
}

fn row(
    case: Case,
    device: &Device,
    repeats: usize,
    bytes_per_second: f64,
    operations_per_second: f64,
) -> Row {
    let forward = || drop((case.ours)());
    let both = |scalar: &Scalar| drop(scalar().backward());
    // All compiled before the first is timed.
    for _ in 0..2 {
        both(&case.ours);
        both(&case.stock);
    }
    let (mut forwards, mut ours, mut stock) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..repeats {
        forwards.push(timed(device, forward));
        ours.push(timed(device, || both(&case.ours)));
        stock.push(timed(device, || both(&case.stock)));
    }
    let seconds = median(&ours);
    let bound = (case.bytes / bytes_per_second).max(case.operations / operations_per_second);
    Row {
        name: case.name,
        forward_seconds: median(&forwards),
        seconds,
        stock_seconds: median(&stock),
        bytes: case.bytes,
        operations: case.operations,
        share: bound / seconds,
    }
}

/// Seconds of one of several calls in a row, which the device has finished: so many that waiting for it hardly counts.
fn timed(device: &Device, work: impl Fn()) -> f64 {
    const ENOUGH: f64 = 0.01;
    let mut calls = 4;
    loop {
        finish(device);
        let start = Instant::now();
        (0..calls).for_each(|_| work());
        finish(device);
        let seconds = start.elapsed().as_secs_f64();
        if seconds > ENOUGH || calls > 1000 {
            return seconds / f64::from(calls);
        }
        calls *= 4;
    }
}

fn finish(device: &Device) {
    // A device that fails here fails at the next read too, which says so.
    let _ = device.sync();
}

fn copy_rate(device: &Device, elements: usize, repeats: usize) -> f64 {
    let x = Tensor::<1>::zeros([elements], device);
    let copy = || drop(x.clone().add_scalar(1.0));
    copy();
    let seconds: Vec<f64> = (0..repeats).map(|_| timed(device, copy)).collect();
    (8 * elements) as f64 / median(&seconds)
}

fn product_rate(device: &Device, side: usize, repeats: usize) -> f64 {
    let [a, b] = [(); 2].map(|()| Tensor::<2>::random([side, side], Distribution::Default, device));
    let ours = || {
        drop(linear(
            a.clone(),
            b.clone(),
            None,
            None,
            WeightLayout::InputsFirst,
        ))
    };
    let stock = || drop(a.clone().matmul(b.clone()));
    ours();
    stock();
    let best = |work: &dyn Fn()| median(&(0..repeats).map(|_| timed(device, work)).collect::<Vec<f64>>());
    2.0 * (side as f64).powi(3) / best(&ours).min(best(&stock))
}

/// Makes a case at these sizes.
type Make = fn(Sizes, &Device) -> Case;

const CASES: [Make; 13] = [
    |sizes, device| linear_case(sizes, 3 * sizes.width, device),
    |sizes, device| linear_case(sizes, sizes.width, device),
    |sizes, device| linear_case(sizes, sizes.hidden, device),
    |sizes, device| linear_case(sizes, sizes.vocabulary, device),
    mlp_case,
    attention_case,
    norm_case,
    loss_case,
    embedding_case,
    gelu_case,
    softmax_case,
    convolution_case,
    batch_norm_case,
];

impl Case {
    /// An operation whose passes move at least so many numbers of 4 bytes and take so many multiplications and additions.
    fn new(
        name: String,
        numbers: usize,
        operations: f64,
        ours: impl Fn() -> Tensor<1> + 'static,
        stock: impl Fn() -> Tensor<1> + 'static,
    ) -> Self {
        Self {
            name,
            bytes: 4.0 * numbers as f64,
            operations,
            ours: Box::new(ours),
            stock: Box::new(stock),
        }
    }
}

fn random(rows: usize, columns: usize, device: &Device) -> Tensor<2> {
    Tensor::random([rows, columns], Distribution::Normal(0.0, 1.0), device).require_grad()
}

fn zeros(length: usize, device: &Device) -> Tensor<1> {
    Tensor::zeros([length], device).require_grad()
}

fn ids(count: usize, below: usize, device: &Device) -> Tensor<1, Int> {
    let ids: Vec<i32> = (0..count).map(|i| (i * 7919 % below) as i32).collect();
    Tensor::from_data(ids.as_slice(), device)
}

/// Multiplications and additions of a product of an m x k and a k x n matrix.
fn product(m: usize, n: usize, k: usize) -> f64 {
    2.0 * (m * n * k) as f64
}

fn linear_case(sizes: Sizes, outputs: usize, device: &Device) -> Case {
    let Sizes { width, .. } = sizes;
    let rows = sizes.rows.min(LARGEST / outputs);
    let x = random(rows, width, device);
    let (w, b) = (random(width, outputs, device), zeros(outputs, device));
    let same = (x.clone(), w.clone(), b.clone());
    let ours = move || {
        let (x, w, b) = same.clone();
        linear(x, w, Some(b), None, WeightLayout::InputsFirst).sum()
    };
    Case::new(
        format!("linear {rows} x {width} to {outputs}"),
        3 * (rows * width + width * outputs + rows * outputs),
        3.0 * product(rows, outputs, width),
        ours,
        move || burn::tensor::module::linear(x.clone(), w.clone(), Some(b.clone())).sum(),
    )
}

fn mlp_case(sizes: Sizes, device: &Device) -> Case {
    let Sizes {
        rows, width, hidden, ..
    } = sizes;
    let x = random(rows, width, device);
    let (up, down) = (random(width, hidden, device), random(hidden, width, device));
    let same = (x.clone(), up.clone(), down.clone());
    let ours = move || {
        let (x, up, down) = same.clone();
        let weights = MlpWeights {
            up,
            up_bias: None,
            down,
            down_bias: None,
            layout: WeightLayout::InputsFirst,
        };
        mlp(x, weights, None, Activation::Gelu).sum()
    };
    let stock = move || {
        let hidden = stock::gelu(x.clone().matmul(up.clone()));
        hidden.matmul(down.clone()).sum()
    };
    Case::new(
        format!("perceptron {width}-{hidden}-{width}, GELU"),
        3 * (2 * rows * width + 2 * width * hidden + 2 * rows * hidden),
        6.0 * product(rows, hidden, width),
        ours,
        stock,
    )
}

fn attention_case(sizes: Sizes, device: &Device) -> Case {
    let Sizes {
        tokens,
        rows,
        width,
        heads,
        ..
    } = sizes;
    let qkv = random(rows, 3 * width, device);
    let packed = move || qkv.clone().reshape([WINDOWS, tokens, 3 * width]);
    let same = packed.clone();
    let columns = width / heads;
    Case::new(
        format!("attention {WINDOWS} x {tokens}, {heads} heads of {columns}"),
        rows * width * (3 + 1 + 3 + 2 + 3),
        // Half of the scores, for the mask: two products forward, five backward.
        7.0 * (WINDOWS * heads) as f64 * product(tokens, tokens, columns) / 2.0,
        move || packed_attention(same(), heads, true).sum(),
        move || causal_attention(packed(), heads).sum(),
    )
}

fn norm_case(sizes: Sizes, device: &Device) -> Case {
    let Sizes { rows, width, .. } = sizes;
    let x = random(rows, width, device);
    let (gamma, beta) = (zeros(width, device), zeros(width, device));
    let layer = LayerNormConfig::new(width).init(device);
    let same = x.clone();
    Case::new(
        format!("layer norm {rows} x {width}"),
        5 * rows * width,
        0.0,
        move || layer_norm(same.clone(), gamma.clone(), Some(beta.clone()), 1e-5).sum(),
        move || layer.forward(x.clone()).sum(),
    )
}

fn loss_case(sizes: Sizes, device: &Device) -> Case {
    let Sizes { vocabulary, .. } = sizes;
    let rows = sizes.rows.min(LARGEST / vocabulary);
    let (logits, targets) = (random(rows, vocabulary, device), ids(rows, vocabulary, device));
    let loss = CrossEntropyLossConfig::new().init(device);
    let same = (logits.clone(), targets.clone());
    Case::new(
        format!("cross-entropy {rows} x {vocabulary}"),
        3 * rows * vocabulary,
        0.0,
        move || cross_entropy(same.0.clone(), same.1.clone(), None),
        move || loss.forward(logits.clone(), targets.clone()),
    )
}

fn embedding_case(sizes: Sizes, device: &Device) -> Case {
    let Sizes {
        rows,
        tokens,
        width,
        vocabulary,
        ..
    } = sizes;
    let table = random(vocabulary, width, device);
    let tokens: Tensor<2, Int> = ids(rows, vocabulary, device).reshape([WINDOWS, tokens]);
    let same = (tokens.clone(), table.clone());
    Case::new(
        format!("embedding {rows} of {vocabulary} x {width}"),
        2 * (rows * width + vocabulary * width),
        0.0,
        move || embedding(same.0.clone(), same.1.clone(), None).sum(),
        move || burn::tensor::module::embedding(table.clone(), tokens.clone()).sum(),
    )
}

fn gelu_case(sizes: Sizes, device: &Device) -> Case {
    let Sizes { rows, hidden, .. } = sizes;
    let x = random(rows, hidden, device);
    let same = x.clone();
    Case::new(
        format!("GELU {rows} x {hidden}"),
        5 * rows * hidden,
        0.0,
        move || activation(same.clone(), Activation::Gelu).sum(),
        move || stock::gelu(x.clone()).sum(),
    )
}

fn softmax_case(sizes: Sizes, device: &Device) -> Case {
    let tokens = sizes.tokens;
    let rows = sizes.rows * sizes.heads;
    let x = random(rows, tokens, device);
    let same = x.clone();
    Case::new(
        format!("softmax {rows} x {tokens}"),
        5 * rows * tokens,
        0.0,
        move || softmax(same.clone()).sum(),
        move || stock::softmax(x.clone(), 1).sum(),
    )
}

/// Of a residual network's first stage: images of 32 x 32 with 64 channels.
const IMAGES: [usize; 4] = [WINDOWS, 64, 32, 32];

fn convolution_case(_: Sizes, device: &Device) -> Case {
    let [images, channels, side, _] = IMAGES;
    let made = |shape| Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), device).require_grad();
    let (x, weight) = (made(IMAGES), made([channels, channels, 3, 3]));
    let window = Window {
        before: [0, 1, 1],
        behind: [0, 1, 1],
        ..Window::PLAIN
    };
    let same = (x.clone(), weight.clone());
    let options = || ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
    Case::new(
        format!("convolution of 3 x 3, {images} x {channels} x {side} x {side}"),
        3 * (2 * images * channels * side * side + 9 * channels * channels),
        3.0 * product(images * side * side, channels, 9 * channels),
        move || convolution(same.0.clone(), same.1.clone(), None, window).sum(),
        move || conv2d(x.clone(), weight.clone(), None, options()).sum(),
    )
}

fn batch_norm_case(_: Sizes, device: &Device) -> Case {
    let [images, channels, side, _] = IMAGES;
    let x = Tensor::<4>::random(IMAGES, Distribution::Normal(0.0, 1.0), device).require_grad();
    let (gamma, beta) = (zeros(channels, device), zeros(channels, device));
    let same = (x.clone(), gamma.clone(), beta.clone());
    let stock = move || {
        let mean = |x: Tensor<4>| x.mean_dim(0).mean_dim(2).mean_dim(3);
        let of_channel = |numbers: &Tensor<1>| numbers.clone().reshape([1, channels, 1, 1]);
        let centered = x.clone() - mean(x.clone());
        let variance = mean(centered.clone().powi_scalar(2));
        let normed = centered / (variance + 1e-5).sqrt();
        (normed * of_channel(&gamma) + of_channel(&beta)).sum()
    };
    let ours = move || {
        let (x, gamma, beta) = same.clone();
        batch_norm(x.clone(), statistics(x), gamma, beta, 1e-5).sum()
    };
    Case::new(
        format!("batch norm {images} x {channels} x {side} x {side}"),
        8 * images * channels * side * side,
        0.0,
        ours,
        stock,
    )
}
