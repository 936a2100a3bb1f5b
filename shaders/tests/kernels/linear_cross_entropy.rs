//! Losses of a linear layer's scores in chunks of rows, against the same in one and against slopes.

use crate::common::{assert_close, devices, gpu, numbers, slopes, tensor, values, whole};
use annulus_shaders::cpu::cross_entropy::cross_entropy as twin;
use annulus_shaders::ops::cross_entropy::cross_entropy;
use annulus_shaders::ops::linear::{WeightLayout, linear};
use annulus_shaders::ops::linear_cross_entropy::{LossOptions, MOST_SCORES, linear_cross_entropy};
use annulus_shaders::split;
use burn::tensor::{Device, Tensor};

const LAYOUTS: [WeightLayout; 2] = [WeightLayout::InputsFirst, WeightLayout::OutputsFirst];

/// A linear layer whose weights lie in pieces, and a batch.
struct Case {
    rows: usize,
    inputs: usize,
    pieces: Vec<usize>,
    layout: WeightLayout,
    ignore: Option<i32>,
}

impl Case {
    fn classes(&self) -> usize {
        self.pieces.iter().sum()
    }

    fn x(&self, device: &Device) -> Tensor<2> {
        let x = numbers(self.rows * self.inputs, 1);
        tensor(&x, [self.rows, self.inputs], device).require_grad()
    }

    /// Pieces of one matrix, which has the same numbers however it is cut.
    fn weights(&self, pieces: &[usize], device: &Device) -> Vec<Tensor<2>> {
        let (classes, inputs) = (self.classes(), self.inputs);
        let all = numbers(classes * inputs, 2);
        let mut first = 0;
        let piece = |count: &usize| {
            let own = first..first + count;
            first += count;
            let (shape, numbers): (_, Vec<f32>) = match self.layout {
                WeightLayout::OutputsFirst => (
                    [*count, inputs],
                    all[own.start * inputs..own.end * inputs].to_vec(),
                ),
                WeightLayout::InputsFirst => {
                    let rows = (0..inputs).flat_map(|input| own.clone().map(move |class| (class, input)));
                    let turned = rows.map(|(class, input)| all[class * inputs + input]);
                    ([inputs, *count], turned.collect())
                }
            };
            tensor(&numbers, shape, device).require_grad()
        };
        pieces.iter().map(piece).collect()
    }

    fn targets(&self) -> Vec<i32> {
        let class = |(row, x): (usize, f32)| match (row % 5, self.ignore) {
            (3, Some(ignore)) => ignore,
            _ => ((x + 1.0) / 2.0 * self.classes() as f32) as i32 % self.classes() as i32,
        };
        numbers(self.rows, 3).into_iter().enumerate().map(class).collect()
    }

    /// Loss, gradient of the inputs and of all weights, for as many scores at once.
    fn run(&self, most: usize, device: &Device) -> [Vec<f32>; 3] {
        let (x, weights) = (self.x(device), self.weights(&self.pieces, device));
        let options = LossOptions {
            layout: self.layout,
            ignore: self.ignore,
            most,
        };
        let targets = whole(&self.targets(), [self.rows], device);
        let loss = linear_cross_entropy(x.clone(), &weights, targets, options);
        let gradients = loss.clone().mul_scalar(3.0).backward();
        let axis = match self.layout {
            WeightLayout::OutputsFirst => 0,
            WeightLayout::InputsFirst => 1,
        };
        let to_weights = weights.iter().map(|weight| weight.grad(&gradients).unwrap());
        [
            values(loss),
            values(x.grad(&gradients).unwrap()),
            values(Tensor::cat(to_weights.collect(), axis)),
        ]
    }

    /// Loss and gradients by two operations, the product and its cross-entropy.
    fn run_whole(&self, device: &Device) -> [Vec<f32>; 3] {
        let weight = self.weights(&[self.classes()], device).remove(0);
        let x = self.x(device);
        let scores = linear(x.clone(), weight.clone(), None, None, self.layout);
        let loss = cross_entropy(scores, whole(&self.targets(), [self.rows], device), self.ignore);
        let gradients = loss.clone().mul_scalar(3.0).backward();
        [
            values(loss),
            values(x.grad(&gradients).unwrap()),
            values(weight.grad(&gradients).unwrap()),
        ]
    }
}

/// Rows, inputs and classes, some of which fit vec4 and some not.
fn cases() -> Vec<Case> {
    let sizes: [(usize, usize, &[usize]); 4] = [
        (300, 16, &[64, 64, 24]),
        (137, 8, &[129]),
        (65, 5, &[7, 3]),
        (1, 4, &[4, 4]),
    ];
    let mut cases = Vec::new();
    for (rows, inputs, pieces) in sizes {
        for layout in LAYOUTS {
            for ignore in [None, Some(-1)] {
                cases.push(Case {
                    rows,
                    inputs,
                    pieces: pieces.to_vec(),
                    layout,
                    ignore,
                });
            }
        }
    }
    cases
}

#[test]
fn loss_and_gradients_in_chunks_are_those_of_the_whole() {
    for device in devices() {
        let device = device.autodiff();
        for case in cases() {
            let expected = case.run_whole(&device);
            // All rows at once, some of them, and one after the other.
            for most in [MOST_SCORES, 64 * case.classes(), 10 * case.classes(), 1] {
                let found = case.run(most, &device);
                for (name, (expected, found)) in
                    ["loss", "x", "weights"].iter().zip(expected.iter().zip(&found))
                {
                    let Case {
                        rows,
                        inputs,
                        pieces,
                        layout,
                        ignore,
                    } = &case;
                    let what =
                        format!("{name} of {rows} {inputs} {pieces:?} {layout:?} {ignore:?} by {most}");
                    assert_close(&what, expected, found, 1e-5);
                }
                assert_eq!(case.run(most, &device), found, "the same bits again");
            }
        }
    }
}

#[test]
fn a_loss_in_one_has_the_bits_of_two_operations() {
    for device in devices() {
        let device = device.autodiff();
        for case in cases().into_iter().filter(|case| case.pieces.len() == 1) {
            assert_eq!(case.run(MOST_SCORES, &device), case.run_whole(&device));
        }
    }
}

#[test]
fn gradients_in_chunks_are_slopes() {
    let case = Case {
        rows: 7,
        inputs: 3,
        pieces: vec![3, 2],
        layout: WeightLayout::OutputsFirst,
        ignore: Some(-1),
    };
    let doubles = |values: Vec<f32>| -> Vec<f64> { values.into_iter().map(f64::from).collect() };
    let (x, weight) = (doubles(numbers(7 * 3, 1)), doubles(numbers(5 * 3, 2)));
    let loss = |x: &[f64], weight: &[f64]| {
        let scores = x.chunks(3).flat_map(|row| {
            let score = |class: &[f64]| row.iter().zip(class).map(|(x, w)| x * w).sum();
            weight.chunks(3).map(score).collect::<Vec<f64>>()
        });
        let scores: Vec<f64> = scores.collect();
        3.0 * twin(&scores, 5, &case.targets(), case.ignore).unwrap().mean
    };
    let to_x = slopes(&x, |moved| loss(moved, &weight));
    let to_weight = slopes(&weight, |moved| loss(&x, moved));
    for device in devices() {
        let [_, found_x, found_weight] = case.run(15, &device.autodiff());
        assert_close("x", &to_x, &found_x, 1e-6);
        assert_close("weights", &to_weight, &found_weight, 1e-6);
    }
}

#[test]
fn a_mean_over_nothing_in_chunks_is_zero_and_has_no_gradient() {
    for device in devices() {
        let device = device.autodiff();
        let x = tensor(&numbers(40, 1), [10, 4], &device).require_grad();
        let weight = tensor(&numbers(24, 2), [6, 4], &device);
        let options = LossOptions {
            layout: WeightLayout::OutputsFirst,
            ignore: Some(7),
            most: 20,
        };
        let loss = linear_cross_entropy(x.clone(), &[weight], whole(&[7; 10], [10], &device), options);
        assert_eq!(values(loss.clone()), [0.0]);
        assert_eq!(values(x.grad(&loss.backward()).unwrap()), [0.0; 40]);
    }
}

/// More scores than the device binds.
#[test]
fn gradients_of_more_scores_than_a_buffer_holds_agree_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let largest = split::largest(&gpu).unwrap();
    if largest > 64 << 20 {
        println!("skipped: a binding of this adapter holds {largest} numbers, too many for a test");
        return;
    }
    let case = Case {
        rows: largest / 32_768 + 100,
        inputs: 8,
        pieces: vec![16_384, 16_320],
        layout: WeightLayout::OutputsFirst,
        ignore: None,
    };
    assert!(case.rows * case.classes() > largest);
    let [on_gpu, on_cpu] = [gpu, Device::flex()].map(|device| case.run(MOST_SCORES, &device.autodiff()));
    for (expected, found) in on_cpu.iter().zip(&on_gpu) {
        assert_close("in chunks", expected, found, 1e-5);
    }
}
