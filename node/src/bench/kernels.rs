//! What each operation of ours costs at the sizes of a small transformer, forward and backward, beside Burn's own
//! operations that it replaces, and how near it comes to what the device can do at best.
//!
//! In one process, without Burn's fusion and tuning, alternating.

use super::{Error, median};
use crate::device::{self, DeviceRequest};
use annulus_shaders::cpu::activation::Activation;
use annulus_shaders::ops::activation::activation;
use annulus_shaders::ops::attention::attention;
use annulus_shaders::ops::cross_entropy::cross_entropy;
use annulus_shaders::ops::embedding::embedding;
use annulus_shaders::ops::linear::{MlpWeights, WeightLayout, linear, mlp};
use annulus_shaders::ops::norm::layer_norm;
use annulus_shaders::ops::softmax::softmax;
use annulus_stock::causal_attention;
use burn::nn::LayerNormConfig;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::activation as stock;
use burn::tensor::{Device, Distribution, Int, Tensor};
use serde::Serialize;
use std::time::Instant;

/// The sizes: nanoGPT's for a processor.
const WINDOWS: usize = 12;
const TOKENS: usize = 64;
const ROWS: usize = WINDOWS * TOKENS;
const WIDTH: usize = 128;
const HEADS: usize = 4;
const HIDDEN: usize = 4 * WIDTH;
const VOCABULARY: usize = 256;

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct KernelsReport {
    /// Always "kernels".
    pub bench: &'static str,
    /// The device.
    pub device: String,
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
    /// What the device could do at best, over what was measured.
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

/// Measures all on the device that `choice` names, `repeats` times each.
///
/// # Errors
///
/// If there is no such device.
pub fn measure(choice: &str, repeats: usize, mut tell: impl FnMut(&str)) -> Result<KernelsReport, Error> {
    let load = super::process::load();
    let open = choice
        .parse()
        .and_then(|request: DeviceRequest| device::open(request));
    let open = open.map_err(|error| Error::Device(error.to_string()))?;
    let plain = open.device.clone();
    let device = plain.clone().autodiff();
    tell("the device's best");
    let bytes_per_second = copy_rate(&plain, repeats);
    let operations_per_second = product_rate(&plain, repeats);
    let rows = cases(&device).into_iter().map(|case| {
        tell(&case.name);
        row(case, &plain, repeats, bytes_per_second, operations_per_second)
    });
    Ok(KernelsReport {
        bench: "kernels",
        device: open.name,
        bytes_per_second,
        operations_per_second,
        rows: rows.collect(),
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

/// Seconds of one of several calls in a row, which the device has finished.
fn timed(device: &Device, work: impl Fn()) -> f64 {
    const CALLS: u32 = 4;
    finish(device);
    let start = Instant::now();
    for _ in 0..CALLS {
        work();
    }
    finish(device);
    start.elapsed().as_secs_f64() / f64::from(CALLS)
}

fn finish(device: &Device) {
    // A device that fails here fails at the next read too, which says so.
    let _ = device.sync();
}

fn copy_rate(device: &Device, repeats: usize) -> f64 {
    const ELEMENTS: usize = 4 << 20;
    let x = Tensor::<1>::zeros([ELEMENTS], device);
    let copy = || drop(x.clone().add_scalar(1.0));
    copy();
    let seconds: Vec<f64> = (0..repeats).map(|_| timed(device, copy)).collect();
    (8 * ELEMENTS) as f64 / median(&seconds)
}

fn product_rate(device: &Device, repeats: usize) -> f64 {
    const SIDE: usize = 512;
    let [a, b] = [(); 2].map(|()| Tensor::<2>::random([SIDE, SIDE], Distribution::Default, device));
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
    2.0 * (SIDE as f64).powi(3) / best(&ours).min(best(&stock))
}

fn cases(device: &Device) -> Vec<Case> {
    vec![
        linear_case(device),
        mlp_case(device),
        attention_case(device),
        norm_case(device),
        loss_case(device),
        embedding_case(device),
        gelu_case(device),
        softmax_case(device),
    ]
}

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

/// As many as there are rows.
fn ids(below: usize, device: &Device) -> Tensor<1, Int> {
    let ids: Vec<i32> = (0..ROWS).map(|i| (i * 7919 % below) as i32).collect();
    Tensor::from_data(ids.as_slice(), device)
}

/// Multiplications and additions of a product of an m x k and a k x n matrix.
fn product(m: usize, n: usize, k: usize) -> f64 {
    2.0 * (m * n * k) as f64
}

fn linear_case(device: &Device) -> Case {
    let x = random(ROWS, WIDTH, device);
    let (w, b) = (random(WIDTH, HIDDEN, device), zeros(HIDDEN, device));
    let same = (x.clone(), w.clone(), b.clone());
    let ours = move || {
        let (x, w, b) = same.clone();
        linear(x, w, Some(b), None, WeightLayout::InputsFirst).sum()
    };
    Case::new(
        format!("linear {ROWS} x {WIDTH} to {HIDDEN}"),
        3 * (ROWS * WIDTH + WIDTH * HIDDEN + ROWS * HIDDEN),
        3.0 * product(ROWS, HIDDEN, WIDTH),
        ours,
        move || burn::tensor::module::linear(x.clone(), w.clone(), Some(b.clone())).sum(),
    )
}

fn mlp_case(device: &Device) -> Case {
    let x = random(ROWS, WIDTH, device);
    let (up, down) = (random(WIDTH, HIDDEN, device), random(HIDDEN, WIDTH, device));
    let same = (x.clone(), up.clone(), down.clone());
    let ours = move || {
        let (x, up, down) = same.clone();
        let weights = MlpWeights {
            up,
            up_bias: None,
            down,
            down_bias: None,
        };
        mlp(x, weights, None, Activation::Gelu).sum()
    };
    let stock = move || {
        let hidden = stock::gelu(x.clone().matmul(up.clone()));
        hidden.matmul(down.clone()).sum()
    };
    Case::new(
        format!("perceptron {WIDTH}-{HIDDEN}-{WIDTH}, GELU"),
        3 * (2 * ROWS * WIDTH + 2 * WIDTH * HIDDEN + 2 * ROWS * HIDDEN),
        6.0 * product(ROWS, HIDDEN, WIDTH),
        ours,
        stock,
    )
}

fn attention_case(device: &Device) -> Case {
    let qkv = random(ROWS, 3 * WIDTH, device);
    let packed = move || qkv.clone().reshape([WINDOWS, TOKENS, 3 * WIDTH]);
    let same = packed.clone();
    let columns = WIDTH / HEADS;
    Case::new(
        format!("attention {WINDOWS} x {TOKENS}, {HEADS} heads of {columns}"),
        ROWS * WIDTH * (3 + 1 + 3 + 2 + 3),
        // Half of the scores, for the mask: two products forward, five backward.
        7.0 * (WINDOWS * HEADS) as f64 * product(TOKENS, TOKENS, columns) / 2.0,
        move || attention(same(), HEADS, true).sum(),
        move || causal_attention(packed(), HEADS).sum(),
    )
}

fn norm_case(device: &Device) -> Case {
    let x = random(ROWS, WIDTH, device);
    let (gamma, beta) = (zeros(WIDTH, device), zeros(WIDTH, device));
    let layer = LayerNormConfig::new(WIDTH).init(device);
    let same = x.clone();
    Case::new(
        format!("layer norm {ROWS} x {WIDTH}"),
        5 * ROWS * WIDTH,
        0.0,
        move || layer_norm(same.clone(), gamma.clone(), Some(beta.clone()), 1e-5).sum(),
        move || layer.forward(x.clone()).sum(),
    )
}

fn loss_case(device: &Device) -> Case {
    let (logits, targets) = (random(ROWS, VOCABULARY, device), ids(VOCABULARY, device));
    let loss = CrossEntropyLossConfig::new().init(device);
    let same = (logits.clone(), targets.clone());
    Case::new(
        format!("cross-entropy {ROWS} x {VOCABULARY}"),
        3 * ROWS * VOCABULARY,
        0.0,
        move || cross_entropy(same.0.clone(), same.1.clone(), None),
        move || loss.forward(logits.clone(), targets.clone()),
    )
}

fn embedding_case(device: &Device) -> Case {
    let table = random(VOCABULARY, WIDTH, device);
    let tokens: Tensor<2, Int> = ids(VOCABULARY, device).reshape([WINDOWS, TOKENS]);
    let same = (tokens.clone(), table.clone());
    Case::new(
        format!("embedding {ROWS} of {VOCABULARY} x {WIDTH}"),
        2 * (ROWS * WIDTH + VOCABULARY * WIDTH),
        0.0,
        move || embedding(same.0.clone(), same.1.clone(), None).sum(),
        move || burn::tensor::module::embedding(table.clone(), tokens.clone()).sum(),
    )
}

fn gelu_case(device: &Device) -> Case {
    let x = random(ROWS, HIDDEN, device);
    let same = x.clone();
    Case::new(
        format!("GELU {ROWS} x {HIDDEN}"),
        5 * ROWS * HIDDEN,
        0.0,
        move || activation(same.clone(), Activation::Gelu).sum(),
        move || stock::gelu(x.clone()).sum(),
    )
}

fn softmax_case(device: &Device) -> Case {
    let rows = WINDOWS * HEADS * TOKENS;
    let x = random(rows, TOKENS, device);
    let same = x.clone();
    Case::new(
        format!("softmax {rows} x {TOKENS}"),
        5 * rows * TOKENS,
        0.0,
        move || softmax(same.clone()).sum(),
        move || stock::softmax(x.clone(), 1).sum(),
    )
}
