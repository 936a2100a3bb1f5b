//! Attention against its twin, against slopes and against Burn's own, forward and backward.

mod common;

use annulus_shaders::cpu::attention::{Sizes, backward, forward};
use annulus_shaders::ops::attention::attention;
use burn::tensor::{Bool, Device, Tensor, activation};
use common::{assert_close, gpu, numbers, slopes, tensor, values};

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
    let Some(device) = gpu() else { return };
    for sizes in SIZES {
        let [batch, tokens, columns] = shape(sizes);
        let qkv = numbers(batch * tokens * columns, 3);
        let d_out = numbers(qkv.len() / 3, 4);
        let (out, lse) = forward(&qkv, sizes);
        let d_qkv = backward(&qkv, &out, &lse, &d_out, sizes);
        let what = format!("{sizes:?}");
        for found in kernels::forward(&device, &qkv, sizes) {
            assert_close(&what, &out, &found[0], 1e-5);
            assert_close(&what, &lse, &found[1], 1e-5);
        }
        for found in kernels::backward(&device, [&qkv, &out, &lse, &d_out], sizes) {
            assert_close(&what, &d_qkv, &found, 1e-5);
        }
    }
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

/// The kernels by themselves.
mod kernels {
    use super::common::{SENTINEL, run};
    use super::{Device, Sizes};
    use annulus_shaders::kernel::{
        ATTENTION_BACKWARD, ATTENTION_BACKWARD_KEYS, ATTENTION_BACKWARD_KEYS_NARROW,
        ATTENTION_BACKWARD_KEYS_SLIM, ATTENTION_BACKWARD_NARROW, ATTENTION_BACKWARD_QUERIES,
        ATTENTION_BACKWARD_QUERIES_NARROW, ATTENTION_BACKWARD_QUERIES_SLIM, ATTENTION_BACKWARD_TILED,
        ATTENTION_FORWARD, ATTENTION_FORWARD_NARROW, ATTENTION_FORWARD_TILED, ATTENTION_FORWARD_UNROLLED,
        ATTENTION_FORWARD_UNROLLED_NARROW, ATTENTION_FORWARD_UNROLLED_SLIM, Kernel,
    };
    use annulus_shaders::launch::grid;

    /// Tokens and columns of a unit of work, and units in a workgroup.
    const SERIAL: [usize; 3] = [4, 32, 8];
    const SLIM: [usize; 3] = [4, 16, 8];
    const TILED: [usize; 3] = [32, 64, 1];

    fn params(sizes: Sizes, [_, columns, _]: [usize; 3]) -> [u32; 7] {
        [
            sizes.tokens as u32,
            sizes.heads as u32,
            sizes.head_dim as u32 / 4,
            (sizes.batch * sizes.heads) as u32,
            sizes.head_dim.div_ceil(columns) as u32,
            sizes.causal.into(),
            (sizes.scale() as f32).to_bits(),
        ]
    }

    fn groups(sizes: Sizes, [tokens, columns, units]: [usize; 3]) -> usize {
        let blocks = sizes.tokens.div_ceil(tokens) * sizes.head_dim.div_ceil(columns);
        (sizes.batch * sizes.heads * blocks).div_ceil(units)
    }

    /// All kernels that fit, with as many workgroups as needed and some too many.
    pub fn forward(device: &Device, qkv: &[f32], sizes: Sizes) -> Vec<Vec<Vec<f32>>> {
        let outputs = [qkv.len() / 3, sizes.batch * sizes.heads * sizes.tokens];
        let call = |kernel: &'static Kernel, tile, surplus| {
            let groups = grid(groups(sizes, tile) + surplus);
            run(device, kernel, &[qkv], &outputs, params(sizes, tile), groups)
        };
        let mut found = vec![
            call(&ATTENTION_FORWARD, SERIAL, 0),
            call(&ATTENTION_FORWARD, SERIAL, 3),
            call(&ATTENTION_FORWARD_TILED, TILED, 0),
            call(&ATTENTION_FORWARD_TILED, TILED, 3),
            call(&ATTENTION_FORWARD_UNROLLED, SERIAL, 3),
        ];
        if sizes.head_dim <= SERIAL[1] {
            found.push(call(&ATTENTION_FORWARD_NARROW, SERIAL, 3));
            found.push(call(&ATTENTION_FORWARD_UNROLLED_NARROW, SERIAL, 3));
        }
        if sizes.head_dim <= SLIM[1] {
            found.push(call(&ATTENTION_FORWARD_UNROLLED_SLIM, SLIM, 3));
        }
        found
    }

    /// As [`forward`].
    pub fn backward(device: &Device, inputs: [&[f32]; 4], sizes: Sizes) -> Vec<Vec<f32>> {
        let call = |kernel: &'static Kernel, tile, surplus| {
            let half = groups(sizes, tile);
            let mut words = params(sizes, tile).to_vec();
            words.push(half as u32);
            let params: [u32; 8] = words.try_into().unwrap();
            let groups = grid(2 * half + surplus);
            run(device, kernel, &inputs, &[inputs[0].len()], params, groups).remove(0)
        };
        let mut found = vec![
            call(&ATTENTION_BACKWARD, SERIAL, 0),
            call(&ATTENTION_BACKWARD, SERIAL, 3),
            call(&ATTENTION_BACKWARD_TILED, TILED, 0),
            call(&ATTENTION_BACKWARD_TILED, TILED, 3),
        ];
        if sizes.head_dim <= SERIAL[1] {
            found.push(call(&ATTENTION_BACKWARD_NARROW, SERIAL, 3));
        }
        let any: Pair = [&ATTENTION_BACKWARD_QUERIES, &ATTENTION_BACKWARD_KEYS];
        let narrow: Pair = [
            &ATTENTION_BACKWARD_QUERIES_NARROW,
            &ATTENTION_BACKWARD_KEYS_NARROW,
        ];
        let slim: Pair = [&ATTENTION_BACKWARD_QUERIES_SLIM, &ATTENTION_BACKWARD_KEYS_SLIM];
        found.push(in_turn(device, inputs, sizes, any, SERIAL));
        if sizes.head_dim <= SERIAL[1] {
            found.push(in_turn(device, inputs, sizes, narrow, SERIAL));
        }
        if sizes.head_dim <= SLIM[1] {
            found.push(in_turn(device, inputs, sizes, slim, SLIM));
        }
        found
    }

    /// The kernels for queries, and for keys and values.
    type Pair = [&'static Kernel; 2];

    /// The slopes of the queries and then those of keys and values; neither kernel may touch the other's.
    fn in_turn(
        device: &Device,
        [qkv, out, lse, d_out]: [&[f32]; 4],
        sizes: Sizes,
        [queries, keys]: Pair,
        tile: [usize; 3],
    ) -> Vec<f32> {
        let params = params(sizes, tile);
        let groups = grid(groups(sizes, tile) + 3);
        let lengths = [qkv.len(), lse.len()];
        let found = run(device, queries, &[qkv, out, lse, d_out], &lengths, params, groups);
        let [mut d_qkv, delta] = <[Vec<f32>; 2]>::try_from(found).unwrap();
        let inputs = [qkv, lse, &delta, d_out];
        let of_keys = run(device, keys, &inputs, &lengths[..1], params, groups).remove(0);
        for (at, (x, y)) in d_qkv.iter_mut().zip(of_keys).enumerate() {
            let is_query = (at / sizes.inner()).is_multiple_of(3);
            assert_eq!(
                [*x == SENTINEL, y == SENTINEL],
                [!is_query, is_query],
                "element {at}"
            );
            if !is_query {
                *x = y;
            }
        }
        d_qkv
    }
}
