//! Attention against its twin, against slopes and against Burn's own, forward and backward.

use crate::cases::attentions;
use crate::common::{agree, assert_close, devices, numbers, slopes, tensor, values};
use crate::pytorch::{reference, wave};
use annulus_shaders::cpu::attention::{Bias, Given, Place, Placed, Sizes, forward};
use annulus_shaders::cpu::dropout::{Mask, philox};
use annulus_shaders::ops::attention::{AttentionOptions, attention, packed_attention};
use burn::tensor::{Bool, Device, Tensor, activation};

/// Tokens 1, around tiles' edges and odd; heads' widths of every kind: within a chunk of 32, a whole
/// one, more.
const SIZES: [(usize, usize, usize, usize, bool); 12] = [
    (1, 1, 1, 4, true),
    (2, 3, 2, 8, true),
    (1, 5, 3, 12, false),
    (1, 64, 2, 32, true),
    (3, 63, 1, 16, true),
    (1, 65, 2, 28, true),
    (2, 7, 5, 40, true),
    (1, 33, 2, 64, true),
    (1, 13, 1, 100, false),
    (1, 66, 1, 128, true),
    (5, 17, 7, 20, false),
    (1, 130, 2, 24, true),
];

fn sizes((batch, tokens, heads, head_dim, causal): (usize, usize, usize, usize, bool)) -> Sizes {
    Sizes::of_tokens(batch, tokens, heads, head_dim, causal)
}

fn shape(sizes: Sizes) -> [usize; 3] {
    [sizes.batch, sizes.queries, 3 * sizes.inner()]
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
    let mut scores = q.matmul(k.transpose()) * sizes.scale;
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
        for sizes in SIZES.map(sizes) {
            let [batch, tokens, columns] = shape(sizes);
            let count = batch * tokens * columns;
            // Scores far apart too.
            let qkv: Vec<f32> = numbers(count, 1).iter().map(|x| 3.0 * x).collect();
            let qkv = tensor(&qkv, shape(sizes), &device).require_grad();
            let weights = tensor(&numbers(count / 3, 2), [batch, tokens, columns / 3], &device);
            let ours = packed_attention(qkv.clone(), sizes.heads, sizes.causal);
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
    agree(attentions::all);
}

#[test]
fn gradients_are_slopes() {
    for device in devices() {
        let device = device.autodiff();
        for sizes in [(2, 5, 2, 8, true), (1, 6, 1, 36, true), (1, 3, 2, 4, false)].map(sizes) {
            let [batch, tokens, columns] = shape(sizes);
            let (qkv, weights) = (
                numbers(batch * tokens * columns, 5),
                numbers(batch * tokens * columns / 3, 6),
            );
            let doubles: Vec<f64> = qkv.iter().map(|x| f64::from(*x)).collect();
            let expected = slopes(&doubles, |moved| {
                let to = Place::tokens_first(tokens, sizes.heads, sizes.head_dim);
                let (out, _) = forward(Given::packed(moved, sizes), to, sizes);
                out.iter().zip(&weights).map(|(x, w)| x * f64::from(*w)).sum()
            });
            let qkv = tensor(&qkv, shape(sizes), &device).require_grad();
            let out = packed_attention(qkv.clone(), sizes.heads, sizes.causal);
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
    packed_attention(tensor(&numbers(30, 1), [1, 1, 30], &Device::flex()), 2, true);
}

#[test]
#[should_panic(expected = "of 3 heads")]
fn columns_that_heads_cannot_share_are_refused() {
    packed_attention(tensor(&numbers(32, 1), [1, 1, 32], &Device::flex()), 3, true);
}

/// An attention of separate tensors: sizes, the shape of a mask, and whether tokens come before heads in memory.
#[derive(Clone, Debug)]
struct Separate {
    sizes: Sizes,
    mask: Option<[usize; 4]>,
    tokens_first: bool,
}

const DROPOUT: Mask = Mask {
    rate: 0.4,
    seed: 3 << 33 | 7,
    offset: 11,
};

fn separate() -> Vec<Separate> {
    let of =
        |batch, [queries, keys]: [usize; 2], [heads, group]: [usize; 2], head_dim, causal, mask, dropout| {
            Separate {
                sizes: Sizes {
                    queries,
                    keys,
                    group,
                    scale: 0.5,
                    dropout,
                    ..Sizes::of_tokens(batch, queries, heads, head_dim, causal)
                },
                mask,
                tokens_first: heads % 2 == 0,
            }
        };
    vec![
        of(1, [1, 1], [1, 1], 4, false, None, None),
        of(2, [5, 9], [4, 2], 8, false, None, None),
        of(1, [70, 37], [2, 2], 36, true, None, None),
        of(1, [37, 70], [3, 3], 64, true, None, None),
        of(2, [5, 5], [6, 3], 12, true, Some([2, 1, 1, 5]), None),
        of(2, [6, 11], [3, 1], 20, false, Some([1, 3, 6, 11]), None),
        of(
            1,
            [35, 70],
            [4, 1],
            40,
            false,
            Some([1, 1, 35, 70]),
            Some(DROPOUT),
        ),
        of(2, [9, 7], [2, 2], 16, true, None, Some(DROPOUT)),
    ]
}

impl Separate {
    fn options(&self, device: &Device) -> AttentionOptions {
        let mask = self
            .mask
            .map(|shape| tensor(&self.mask_numbers(shape), shape, device));
        AttentionOptions {
            causal: self.sizes.causal,
            mask,
            scale: Some(self.sizes.scale),
            dropout: self.sizes.dropout,
        }
    }

    /// Every third key is hidden, but not the first.
    fn mask_numbers(&self, shape: [usize; 4]) -> Vec<f32> {
        let numbers = numbers(shape.iter().product(), 8).into_iter().enumerate();
        let hide = |(at, x)| {
            if at % shape[3] % 3 == 2 {
                f32::NEG_INFINITY
            } else {
                x
            }
        };
        numbers.map(hide).collect()
    }

    /// Queries, keys and values, `[batch, heads, tokens, head_dim]`, from leaves in the order of memory.
    fn leaves(&self, device: &Device) -> [Tensor<4>; 3] {
        let sizes = self.sizes;
        [0, 1, 2].map(|kind| {
            let [tokens, heads] = [sizes.tokens()[kind], sizes.heads_of()[kind]];
            let count = sizes.batch * tokens * heads * sizes.head_dim;
            let shape = match self.tokens_first {
                true => [sizes.batch, tokens, heads, sizes.head_dim],
                false => [sizes.batch, heads, tokens, sizes.head_dim],
            };
            tensor(&numbers(count, kind as u64 + 1), shape, device).require_grad()
        })
    }

    fn heads_first(&self, leaf: &Tensor<4>) -> Tensor<4> {
        match self.tokens_first {
            true => leaf.clone().swap_dims(1, 2),
            false => leaf.clone(),
        }
    }

    /// The factor of each weight, as the generator says it.
    fn kept(&self, mask: Mask) -> Vec<f32> {
        let Sizes {
            batch,
            heads,
            queries,
            keys,
            ..
        } = self.sizes;
        let [key, offset] = [mask.seed, mask.offset].map(|word| [word as u32, (word >> 32) as u32]);
        let kept = (0..batch * heads * queries * keys).map(|at| {
            let (row, column) = ((at / keys) as u32, at % keys);
            let words = philox([column as u32 / 4, row, offset[0], offset[1]], key);
            if words[column % 4] >= mask.threshold() {
                mask.scale()
            } else {
                0.0
            }
        });
        kept.collect()
    }

    /// The formula as a textbook has it.
    fn burns(&self, [q, k, v]: [Tensor<4>; 3], device: &Device) -> Tensor<4> {
        let sizes = self.sizes;
        let whole = [sizes.batch, sizes.heads, sizes.keys, sizes.head_dim];
        let [k, v] = [k, v].map(|shared| {
            let each: Tensor<5> = shared.unsqueeze_dim(2);
            let [batch, heads, _, keys, width] = each.dims();
            each.expand([batch, heads, sizes.group, keys, width])
                .reshape(whole)
        });
        let mut scores = q.matmul(k.transpose()) * sizes.scale;
        if let Some(mask) = self.options(device).mask {
            scores = scores + mask.expand([sizes.batch, sizes.heads, sizes.queries, sizes.keys]);
        }
        if sizes.causal {
            let hidden: Tensor<2, Bool> = Tensor::tril_mask([sizes.queries, sizes.keys], 0, device);
            scores = scores.mask_fill(hidden.unsqueeze(), f32::NEG_INFINITY);
        }
        let mut weights = activation::softmax(scores, 3);
        if let Some(mask) = sizes.dropout {
            let shape = weights.dims();
            weights = weights * tensor(&self.kept(mask), shape, device);
        }
        weights.matmul(v)
    }
}

#[test]
fn separate_attention_agrees_with_burns_forward_and_backward() {
    for device in devices() {
        let device = device.autodiff();
        for case in separate() {
            let what = format!("{case:?}");
            let leaves = case.leaves(&device);
            let qkv = || leaves.each_ref().map(|leaf| case.heads_first(leaf));
            let [q, k, v] = qkv();
            let ours = attention(q, k, v, case.options(&device));
            let theirs = case.burns(qkv(), &device);
            assert_close(&what, &values(theirs.clone()), &values(ours.clone()), 1e-5);
            let shape = ours.dims();
            let weights: Tensor<4> = tensor(&numbers(shape.iter().product(), 5), shape, &device);
            let [ours, theirs] = [ours, theirs].map(|out| {
                let gradients = (out * weights.clone()).sum().backward();
                leaves
                    .each_ref()
                    .map(|leaf| values(leaf.grad(&gradients).unwrap()))
            });
            for (kind, (ours, theirs)) in ["q", "k", "v"].iter().zip(ours.iter().zip(&theirs)) {
                assert_close(&format!("{kind} of {what}"), theirs, ours, 1e-5);
            }
        }
    }
}

#[test]
fn gradients_of_separate_attention_are_slopes() {
    let sizes = Sizes {
        queries: 5,
        keys: 6,
        group: 2,
        dropout: Some(DROPOUT),
        ..Sizes::of_tokens(1, 5, 2, 4, true)
    };
    let shapes = [[1, 2, 5, 4], [1, 1, 6, 4], [1, 1, 6, 4]];
    let (all, weights, mask) = (numbers(88, 5), numbers(40, 6), numbers(30, 7));
    let doubles: Vec<f64> = all.iter().map(|x| f64::from(*x)).collect();
    let bias: Vec<f64> = mask.iter().map(|x| f64::from(*x)).collect();
    let places = [
        Place::heads_first(5, 2, 4),
        Place::heads_first(6, 1, 4),
        Place::heads_first(6, 1, 4),
    ];
    let starts = [0, 40, 64];
    let expected = slopes(&doubles, |moved| {
        let [q, k, v] = [0, 1, 2].map(|kind| Placed {
            numbers: &moved[starts[kind]..],
            place: places[kind],
        });
        let bias = Some(Bias {
            numbers: &bias,
            steps: [0, 0, 6, 1],
        });
        let (out, _) = forward(Given { q, k, v, bias }, places[0], sizes);
        out.iter().zip(&weights).map(|(x, w)| x * f64::from(*w)).sum()
    });
    for device in devices() {
        let device = device.autodiff();
        let leaves = [0, 1, 2].map(|kind| {
            let count: usize = shapes[kind].iter().product();
            tensor(&all[starts[kind]..][..count], shapes[kind], &device).require_grad()
        });
        let [q, k, v] = leaves.clone();
        let options = AttentionOptions {
            causal: true,
            mask: Some(tensor(&mask, [1, 1, 5, 6], &device)),
            dropout: sizes.dropout,
            ..AttentionOptions::default()
        };
        let weights: Tensor<4> = tensor(&weights, [1, 2, 5, 4], &device);
        let gradients = (attention(q, k, v, options) * weights).sum().backward();
        let found = leaves.map(|leaf| values(leaf.grad(&gradients).unwrap())).concat();
        assert_close("slopes", &expected, &found, 1e-5);
    }
}

/// A query that sees no key gets 0, as in PyTorch.
#[test]
fn attention_and_its_gradients_are_pytorchs() {
    for device in devices() {
        let device = device.autodiff();
        let leaf = |shape: [usize; 4], seed: f64| {
            tensor(&wave(shape.iter().product(), seed), shape, &device).require_grad()
        };
        // As pytorch.py has them.
        let hidden = |at: usize| match at {
            5..=9 | 11 => f32::NEG_INFINITY,
            _ => 0.0,
        };
        let hidden: Vec<f32> = (0..15).map(hidden).collect();
        let cases = [
            ("hidden", false, Some((hidden, [1, 1, 3, 5])), None),
            ("added", false, Some((wave(30, 4.0), [1, 2, 3, 5])), Some(0.3)),
            ("causal", true, None, None),
        ];
        for (name, causal, mask, scale) in cases {
            let leaves = [
                leaf([1, 2, 3, 4], 0.0),
                leaf([1, 1, 5, 4], 1.0),
                leaf([1, 1, 5, 4], 2.0),
            ];
            let [q, k, v] = leaves.clone();
            let options = AttentionOptions {
                causal,
                mask: mask.map(|(numbers, shape)| tensor(&numbers, shape, &device)),
                scale,
                dropout: None,
            };
            let out = attention(q, k, v, options);
            let of = |what: &str| reference(&format!("attention.{name}.{what}"));
            assert_close(name, &of("out"), &values(out.clone()), 1e-6);
            let weights: Tensor<4> = tensor(&wave(24, 3.0), [1, 2, 3, 4], &device);
            let gradients = (out * weights).sum().backward();
            for (what, leaf) in ["q", "k", "v"].iter().zip(&leaves) {
                let found = values(leaf.grad(&gradients).unwrap());
                assert_close(&format!("{what} of {name}"), &of(what), &found, 2e-6);
            }
        }
    }
}

#[test]
fn a_tensor_may_be_queries_keys_and_values_at_once() {
    for device in devices() {
        let device = device.autodiff();
        let gradient = |shared: bool| {
            let leaf: Tensor<4> = tensor(&numbers(96, 1), [2, 2, 3, 8], &device).require_grad();
            let others = [
                leaf.clone(),
                tensor(&numbers(96, 1), [2, 2, 3, 8], &device).require_grad(),
            ];
            let k = others[usize::from(!shared)].clone();
            let out = attention(leaf.clone(), k.clone(), k.clone(), AttentionOptions::default());
            let gradients = out.powi_scalar(2).sum().backward();
            let own = values(leaf.grad(&gradients).unwrap());
            let of_keys = values(k.grad(&gradients).unwrap());
            (own, of_keys)
        };
        let ((all, _), (of_queries, of_keys)) = (gradient(true), gradient(false));
        let sum: Vec<f32> = of_queries.iter().zip(&of_keys).map(|(a, b)| a + b).collect();
        assert_close("sum", &sum, &all, 1e-6);
    }
}

fn refuse(q: [usize; 4], k: [usize; 4], options: AttentionOptions) {
    let [q, k] = [q, k].map(|shape| tensor(&numbers(shape.iter().product(), 1), shape, &Device::flex()));
    attention(q, k.clone(), k, options);
}

#[test]
#[should_panic(expected = "do not fit")]
fn heads_that_cannot_share_keys_are_refused() {
    refuse([1, 3, 2, 4], [1, 2, 2, 4], AttentionOptions::default());
}

#[test]
#[should_panic(expected = "for scores [1, 2, 2, 3]")]
fn a_mask_of_another_shape_is_refused() {
    let options = AttentionOptions {
        mask: Some(tensor(&numbers(4, 1), [1, 1, 2, 2], &Device::flex())),
        ..AttentionOptions::default()
    };
    refuse([1, 2, 2, 4], [1, 2, 3, 4], options);
}

#[test]
#[should_panic(expected = "gets no gradient")]
fn a_mask_that_needs_a_gradient_is_refused() {
    let device = Device::flex().autodiff();
    let x: Tensor<4> = tensor(&numbers(8, 1), [1, 1, 2, 4], &device);
    let options = AttentionOptions {
        mask: Some(tensor(&numbers(4, 1), [1, 1, 2, 2], &device).require_grad()),
        ..AttentionOptions::default()
    };
    attention(x.clone(), x.clone(), x, options);
}
