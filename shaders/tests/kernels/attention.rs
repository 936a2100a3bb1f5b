//! Attention against its twin, against slopes and against Burn's own, forward and backward.

use crate::cases::layers;
use crate::common::{agree, assert_close, gpu, numbers, slopes, tensor, values};
use annulus_shaders::cpu::attention::{Sizes, forward};
use annulus_shaders::ops::attention::attention;
use burn::tensor::{Bool, Device, Tensor, activation};

/// Tokens 1, around tiles' edges and odd; heads' widths of every kind: within a chunk of 32, a whole
/// one, more.
const SIZES: [Sizes; 12] = [
    sizes(1, 1, 1, 4, true),
    sizes(2, 3, 2, 8, true),
    sizes(1, 5, 3, 12, false),
    sizes(1, 64, 2, 32, true),
    sizes(3, 63, 1, 16, true),
    sizes(1, 65, 2, 28, true),
    sizes(2, 7, 5, 40, true),
    sizes(1, 33, 2, 64, true),
    sizes(1, 13, 1, 100, false),
    sizes(1, 66, 1, 128, true),
    sizes(5, 17, 7, 20, false),
    sizes(1, 130, 2, 24, true),
];

const fn sizes(batch: usize, tokens: usize, heads: usize, head_dim: usize, causal: bool) -> Sizes {
    Sizes {
        batch,
        tokens,
        heads,
        head_dim,
        causal,
    }
}

fn devices() -> Vec<Device> {
    gpu().into_iter().chain([Device::flex()]).collect()
}

fn shape(sizes: Sizes) -> [usize; 3] {
    [sizes.batch, sizes.tokens, 3 * sizes.inner()]
}

/// The formula as a textbook has it.
fn burns(qkv: Tensor<3>, sizes: Sizes) -> Tensor<3> {
    let [batch, tokens, _] = qkv.dims();
    let part = |kind: usize| {
        let columns = kind * sizes.inner()..(kind + 1) * sizes.inner();
        let x = qkv.clone().slice([0..batch, 0..tokens, columns]);
        x.reshape([batch, tokens, sizes.heads, sizes.head_dim])
            .swap_dims(1, 2)
    };
    let [q, k, v] = [part(0), part(1), part(2)];
    let mut scores = q.matmul(k.transpose()) * sizes.scale();
    if sizes.causal {
        let hidden: Tensor<2, Bool> = Tensor::tril_mask([tokens, tokens], 0, &qkv.device());
        scores = scores.mask_fill(hidden.unsqueeze(), f32::NEG_INFINITY);
    }
    let out = activation::softmax(scores, 3).matmul(v);
    out.swap_dims(1, 2).reshape([batch, tokens, sizes.inner()])
}

#[test]
fn attention_agrees_with_burns_forward_and_backward() {
    for device in devices() {
        let device = device.autodiff();
        for sizes in SIZES {
            let [batch, tokens, columns] = shape(sizes);
            let count = batch * tokens * columns;
            // Scores far apart too.
            let qkv: Vec<f32> = numbers(count, 1).iter().map(|x| 3.0 * x).collect();
            let qkv = tensor(&qkv, shape(sizes), &device).require_grad();
            let weights = tensor(&numbers(count / 3, 2), [batch, tokens, columns / 3], &device);
            let ours = attention(qkv.clone(), sizes.heads, sizes.causal);
            let theirs = burns(qkv.clone(), sizes);
            let what = format!("{sizes:?}");
            assert_close(&what, &values(theirs.clone()), &values(ours.clone()), 1e-5);
            let [ours, theirs] = [ours, theirs].map(|out| {
                let gradients = (out * weights.clone()).sum().backward();
                values(qkv.grad(&gradients).unwrap())
            });
            assert_close(&what, &theirs, &ours, 1e-5);
        }
    }
}

#[test]
fn kernels_agree_with_their_twin() {
    agree(layers::attentions);
}

#[test]
fn gradients_are_slopes() {
    for device in devices() {
        let device = device.autodiff();
        for sizes in [
            sizes(2, 5, 2, 8, true),
            sizes(1, 6, 1, 36, true),
            sizes(1, 3, 2, 4, false),
        ] {
            let [batch, tokens, columns] = shape(sizes);
            let (qkv, weights) = (
                numbers(batch * tokens * columns, 5),
                numbers(batch * tokens * columns / 3, 6),
            );
            let doubles: Vec<f64> = qkv.iter().map(|x| f64::from(*x)).collect();
            let expected = slopes(&doubles, |moved| {
                let (out, _) = forward(moved, sizes);
                out.iter().zip(&weights).map(|(x, w)| x * f64::from(*w)).sum()
            });
            let qkv = tensor(&qkv, shape(sizes), &device).require_grad();
            let out = attention(qkv.clone(), sizes.heads, sizes.causal);
            let weights = tensor(&weights, [batch, tokens, columns / 3], &device);
            let gradients = (out * weights).sum().backward();
            assert_close(
                &format!("{sizes:?}"),
                &expected,
                &values(qkv.grad(&gradients).unwrap()),
                1e-5,
            );
        }
    }
}

#[test]
#[should_panic(expected = "multiple of 4")]
fn heads_of_odd_width_are_refused() {
    attention(tensor(&numbers(30, 1), [1, 1, 30], &Device::flex()), 2, true);
}

#[test]
#[should_panic(expected = "of 3 heads")]
fn columns_that_heads_cannot_share_are_refused() {
    attention(tensor(&numbers(32, 1), [1, 1, 32], &Device::flex()), 3, true);
}
