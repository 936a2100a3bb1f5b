//! Norms and optimizers on the GPU against their twins.

use std::sync::Arc;

use crate::cases::vectors;
use crate::common::{agree, assert_close, gpu, numbers, values};
use annulus_shaders::cpu::adamw::{AdamW, adamw};
use annulus_shaders::cpu::momentum::{Momentum, momentum};
use annulus_shaders::cpu::{sgd::sgd, squared_norm::squared_norm};
use annulus_shaders::flat::{FlatLayout, FlatVector};
use annulus_shaders::optim::{LocalOptimizer, Rule, Step, Totals, bias_corrected};
use annulus_shaders::split::{SplitLayout, SplitVector};
use burn::tensor::Device;

/// Odd, prime, around the sizes of blocks; every other one decays.
const LENGTHS: [usize; 9] = [1, 63, 64, 65, 257, 10, 5003, 70_001, 128];

/// All in one buffer, and in three.
fn layouts() -> [Arc<SplitLayout>; 2] {
    [usize::MAX, 70_016].map(|largest| Arc::new(SplitLayout::new(LENGTHS, largest).unwrap()))
}

fn dense_len() -> usize {
    LENGTHS.iter().sum()
}

fn upload_all(layout: &Arc<SplitLayout>, dense: &[f32], device: &Device) -> SplitVector {
    SplitVector::upload(layout, dense, device).unwrap()
}

/// The numbers of all parts, without the gaps.
fn dense<'a>(parts: impl IntoIterator<Item = &'a FlatVector>) -> Vec<f32> {
    let gathered = parts.into_iter().map(|part| {
        let mut numbers = vec![0.0; part.layout().dense_len()];
        let found = values(part.tensor());
        part.layout().gather(&found, [&mut numbers]);
        assert_eq!(part.layout().spread(&numbers), found, "gaps stay 0");
        numbers
    });
    gathered.collect::<Vec<_>>().concat()
}

fn upload(layout: &Arc<FlatLayout>, dense: &[f32], device: &Device) -> FlatVector {
    FlatVector::upload(layout, dense, device).unwrap()
}

#[test]
fn norms_agree_with_their_twin() {
    let Some(device) = gpu() else { return };
    for (len, bad) in [(1, 0), (64, 1), (65, 2), (4096, 5), (4099, 0), (300_007, 11)] {
        let layout = Arc::new(FlatLayout::new([len]));
        let mut dense = numbers(len, len as u64);
        let what = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN];
        (0..bad).for_each(|i| dense[i * 7 % len] = what[i % 4]);
        // Two different ones of these places may be the same.
        let (squares, others) = squared_norm(&dense);
        let exact: Vec<f64> = dense.iter().map(|x| f64::from(*x)).collect();
        let (exact, _) = squared_norm(&exact);
        assert!((f64::from(squares) - exact).abs() <= 1e-4 * exact);
        let vector = upload(&layout, &dense, &device);
        let found = values(Totals::of(&vector, layout.len()).tensor());
        assert!(
            (f64::from(found[0]) - exact).abs() <= 1e-6 * exact,
            "{len}: {} not {exact}",
            found[0]
        );
        assert_eq!(found[1], others as f32, "{len}");
        let again = values(Totals::of(&vector, layout.len()).tensor());
        assert_eq!(found, again);
    }
}

#[test]
fn norms_take_what_they_are_given_and_no_more() {
    agree(vectors::squared_norms);
}

#[test]
fn workgroups_in_rows_touch_each_element_once() {
    agree(vectors::steps);
}

/// One parameter tensor at a time by the twin.
fn by_twin(rule: Rule, step: Step, factor: f32, dense: &mut [Vec<f32>], sums: &[f32]) {
    let mut at = 0;
    for (index, len) in LENGTHS.into_iter().enumerate() {
        let range = at..at + len;
        at += len;
        let decays = if index % 2 == 0 { 1.0 } else { 0.0 };
        let scale = step.scale * factor;
        let sums = &sums[range.clone()];
        match (rule, &mut *dense) {
            (Rule::Sgd { weight_decay }, [p]) => {
                sgd(&mut p[range], sums, step.lr, scale, weight_decay * decays)
            }
            (
                Rule::Momentum {
                    momentum: stays,
                    nesterov,
                    weight_decay,
                },
                [p, v],
            ) => {
                let rule = Momentum {
                    lr: step.lr,
                    scale,
                    weight_decay: weight_decay * decays,
                    momentum: stays,
                    nesterov,
                };
                momentum(&rule, &mut p[range.clone()], &mut v[range], sums);
            }
            (
                Rule::Adam {
                    beta1,
                    beta2,
                    eps,
                    weight_decay,
                    decoupled,
                },
                [p, m, v],
            ) => {
                let (size, second) = bias_corrected(step.lr, step.number, beta1, beta2);
                let [l2, decoupled] = if decoupled {
                    [0.0, step.lr * weight_decay]
                } else {
                    [weight_decay, 0.0]
                };
                let rule = AdamW {
                    scale,
                    size,
                    second,
                    eps,
                    beta1,
                    beta2,
                    l2: l2 * decays,
                    decoupled: decoupled * decays,
                };
                adamw(
                    &rule,
                    &mut p[range.clone()],
                    &mut m[range.clone()],
                    &mut v[range],
                    sums,
                );
            }
            _ => unreachable!("each rule has its state"),
        }
    }
}

const RULES: [Rule; 5] = [
    Rule::Sgd { weight_decay: 0.1 },
    Rule::Momentum {
        momentum: 0.9,
        nesterov: false,
        weight_decay: 0.1,
    },
    Rule::Momentum {
        momentum: 0.8,
        nesterov: true,
        weight_decay: 0.2,
    },
    Rule::Adam {
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-3,
        weight_decay: 0.1,
        decoupled: false,
    },
    Rule::Adam {
        beta1: 0.8,
        beta2: 0.95,
        eps: 1e-3,
        weight_decay: 0.3,
        decoupled: true,
    },
];

#[test]
fn steps_agree_with_their_twins() {
    let Some(device) = gpu() else { return };
    let decays: Vec<bool> = (0..LENGTHS.len()).map(|index| index % 2 == 0).collect();
    let len = dense_len();
    for (layout, largest) in layouts().iter().zip([usize::MAX, 70_016]) {
        // As a trainer has it, with the loss behind the gradients.
        let with_loss = SplitLayout::new(LENGTHS.into_iter().chain([1]), largest);
        let with_loss = Arc::new(with_loss.unwrap());
        for (rule, clip) in RULES.into_iter().flat_map(|rule| {
            let clips = [None, Some(0.5), Some(1e9)];
            clips.map(|clip| (rule, clip))
        }) {
            let mut expected = vec![vec![0.0; len]; 1 + rule.slots()];
            expected[0] = numbers(len, 1);
            let mut params = upload_all(layout, &expected[0], &device);
            let view = params.view(6, [5003]);
            let mut optimizer = LocalOptimizer::new(rule, layout, &decays, &device).unwrap();
            for number in 1..=4 {
                let mut sums = numbers(len, 10 + number);
                let step = Step {
                    lr: 0.05,
                    number,
                    scale: 0.25,
                    clip,
                };
                let norm = squared_norm(&sums).0.sqrt() * step.scale;
                let factor = clip.map_or(1.0, |clip: f32| (clip / (norm + 1e-6)).min(1.0));
                by_twin(rule, step, factor, &mut expected, &sums);
                sums.push(1e6);
                let gradients = upload_all(&with_loss, &sums, &device);
                let totals = clip.map(|_| Totals::of_gradients(&gradients, layout));
                optimizer.step(&mut params, &gradients, totals.as_ref(), step);
            }
            let what = format!("{rule:?} {clip:?} {largest}");
            assert_close(&what, &expected[0], &dense(params.parts()), 2e-6);
            for (slot, expected) in expected[1..].iter().enumerate() {
                let found = dense(optimizer.state().map(|state| &state[slot]));
                assert_close(&what, expected, &found, 2e-6);
            }
            let at: usize = LENGTHS[..6].iter().sum();
            assert_close(&what, &expected[0][at..at + 5003], &values(view), 2e-6);
        }
    }
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    let Some(device) = gpu() else { return };
    let before = numbers(dense_len(), 1);
    for (rule, layout) in RULES
        .into_iter()
        .flat_map(|rule| layouts().map(|layout| (rule, layout)))
    {
        let mut params = upload_all(&layout, &before, &device);
        let mut optimizer = LocalOptimizer::new(rule, &layout, &[true; LENGTHS.len()], &device).unwrap();
        let mut sums = numbers(dense_len(), 2);
        // No part changes, whichever holds the NaN.
        sums[4711] = f32::NAN;
        let gradients = upload_all(&layout, &sums, &device);
        let totals = Totals::of_gradients(&gradients, &layout);
        let step = Step {
            lr: 0.1,
            number: 1,
            scale: 1.0,
            clip: None,
        };
        optimizer.step(&mut params, &gradients, Some(&totals), step);
        assert_eq!(dense(params.parts()), before);
        let state: Vec<&FlatVector> = optimizer.state().flatten().collect();
        assert!(dense(state).iter().all(|x| *x == 0.0));
    }
}
