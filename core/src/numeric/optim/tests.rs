//! The optimizers against PyTorch, and against themselves in other block splits.

use proptest::prelude::*;

use super::*;

/// Start, and the gradients of five steps. The first two elements decay (where there is decay), the others do not.
const START: [f32; 4] = [0.5, -1.25, 2.0, -0.125];
const GRADIENTS: [[f32; 4]; 5] = [
    [0.25, -1.5, 0.03125, 4.0],
    [-0.75, -0.5, 0.0, 2.0],
    [1.0, 0.125, -0.0625, -8.0],
    [0.5, 0.25, 0.015625, 0.5],
    [-0.25, 2.0, -0.125, 1.0],
];

// Parameters after each step, computed by PyTorch 1.13 (CPU, float32, `foreach` off), printed as the shortest digits that parse back to them. Two
// parameter groups: weight_decay 0.1 and 0. Its own distance from the same run in float64 is at most 2.1e-7.

/// `SGD(lr=0.1)`
const SGD: [[f32; 4]; 5] = [
    [0.47, -1.0875, 1.996875, -0.525],
    [0.5403, -1.0266249, 1.996875, -0.72499996],
    [0.434897, -1.0288587, 2.003125, 0.07500005],
    [0.38054803, -1.04357, 2.0015624, 0.025000047],
    [0.40174255, -1.2331344, 2.0140624, -0.07499996],
];
/// `SGD(lr=0.1, momentum=0.9)`
const MOMENTUM: [[f32; 4]; 5] = [
    [0.47, -1.0875, 1.996875, -0.525],
    [0.5133, -0.88037497, 1.9940625, -1.0849999],
    [0.447137, -0.6976587, 1.9977813, -0.7889999],
    [0.33311895, -0.5512375, 1.9995656, -0.5725999],
    [0.25217152, -0.6139461, 2.0136716, -0.4778399],
];
/// `SGD(lr=0.1, momentum=0.9, nesterov=True)`
const NESTEROV: [[f32; 4]; 5] = [
    [0.443, -0.94125, 1.9940625, -0.885],
    [0.552783, -0.6967413, 1.9915313, -1.589],
    [0.38757184, -0.5406666, 2.0011282, -0.5226],
    [0.23149297, -0.43244737, 2.0011716, -0.37783998],
    [0.18261176, -0.68919957, 2.026367, -0.39255598],
];
/// `RMSprop(lr=0.01)`
const RMSPROP: [[f32; 4]; 5] = [
    [0.40000004, -1.15, 1.9000003, -0.225],
    [0.4921845, -1.1144482, 1.9000003, -0.26990134],
    [0.41143063, -1.1152357, 1.9896214, -0.18242738],
    [0.37281775, -1.1232951, 1.9676533, -0.18791376],
    [0.38789812, -1.1974154, 2.0546746, -0.19887537],
];
/// `Adam(lr=0.1)`
const ADAM: [[f32; 4]; 5] = [
    [0.4, -1.15, 1.9000001, -0.225],
    [0.44248235, -1.060985, 1.8329943, -0.31821796],
    [0.41056982, -0.99287575, 1.8669978, -0.29758227],
    [0.36407033, -0.94232297, 1.8814895, -0.28387174],
    [0.33341503, -0.9537822, 1.9349194, -0.27826664],
];
/// `AdamW(lr=0.1)`
const ADAMW: [[f32; 4]; 5] = [
    [0.395, -1.1374999, 1.9000001, -0.225],
    [0.440469, -1.0390186, 1.8329943, -0.31821796],
    [0.40962428, -0.9665441, 1.8669978, -0.29758227],
    [0.3641345, -0.91570586, 1.8814895, -0.28387174],
    [0.3358842, -0.92735636, 1.9349194, -0.27826664],
];

#[track_caller]
fn assert_close(got: f32, expected: f32, what: &str) {
    assert!(
        (got - expected).abs() <= 5e-7,
        "{what}: {got:?}, PyTorch has {expected:?}"
    );
}

fn all_names() -> impl Iterator<Item = Optimizer> {
    parse::NAMES.iter().map(|name| name.parse().unwrap())
}

#[test]
fn five_steps_are_pytorch_s() {
    for (text, lr, expected) in [
        ("sgd", 0.1, SGD),
        ("momentum", 0.1, MOMENTUM),
        ("nesterov", 0.1, NESTEROV),
        ("rmsprop", 0.01, RMSPROP),
        ("adam", 0.1, ADAM),
        ("adamw", 0.1, ADAMW),
    ] {
        let optimizer: Optimizer = format!("{text} weight_decay=0.1").parse().unwrap();
        let mut params = START;
        let mut state = vec![[0.0f32; 4]; optimizer.slots()];
        for (n, (gradient, expected)) in GRADIENTS.iter().zip(expected).enumerate() {
            // The sum over eight samples; the scale brings back the mean, exactly.
            let sums = gradient.map(|g| g * 8.0);
            let step = optimizer.step(lr, n as u64 + 1, 0.125);
            for (part, decay) in [(0..2, true), (2..4, false)] {
                let mut slots: Vec<&mut [f32]> = state.iter_mut().map(|s| &mut s[part.clone()]).collect();
                let params = &mut params[part.clone()];
                optimizer.apply(&step, params, &mut slots, &sums[part], decay);
            }
            for i in 0..4 {
                assert_close(
                    params[i],
                    expected[i],
                    &format!("{text}, step {}, element {i}", n + 1),
                );
            }
        }
    }
}

#[test]
fn clipping_is_pytorch_s() {
    // clip_grad_norm_ of the first gradient: its norm, and what is left at max_norm 1.
    let norm = norm_squared(&GRADIENTS[0]).sqrt();
    assert!((norm - 4.2794247).abs() < 5e-7);
    let scale = clip_scale(norm, 1.0);
    let expected = [0.058419056, -0.35051435, 0.007302382, 0.9347049];
    for (g, expected) in GRADIENTS[0].iter().zip(expected) {
        assert_close(g * scale, expected, "clipped");
    }
    assert_eq!(clip_scale(norm, 10.0), 1.0);
    assert_eq!(clip_scale(0.0, 1.0), 1.0);
    assert_eq!(clip_scale(f64::NAN, 1.0), 0.0);
    assert_eq!(clip_scale(f64::INFINITY, 1.0), 0.0);
}

#[test]
fn the_norm_is_exact_and_its_order_is_the_documented_one() {
    let block: Vec<f32> = (0..1003).map(|i| (i as f32 * 0.37 - 150.0) * 1.0001).collect();
    let mut sums = [0.0f64; 8];
    for (i, x) in block.iter().enumerate() {
        sums[i % 8] += f64::from(*x) * f64::from(*x);
    }
    let tree = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    assert_eq!(norm_squared(&block).to_bits(), tree.to_bits());
    assert_eq!(norm_squared(&[]), 0.0);
    assert_eq!(norm_squared(&[3.0, 4.0]), 25.0);
    // Squares beyond f32's range are within f64's.
    assert_eq!(
        norm_squared(&[1e30, 0.0]),
        f64::from(1e30f32) * f64::from(1e30f32)
    );
}

#[test]
fn schedules_are_nanogpt_s_and_pytorch_s() {
    // CosineAnnealingLR(SGD(lr=0.1), T_max=5, eta_min=0.01)
    let cosine = Schedule::Cosine {
        warmup: 0,
        total: 5,
        floor: 0.1,
    };
    let expected = [0.1, 0.091405764, 0.06890576, 0.041094236, 0.018594235, 0.01, 0.01];
    for (step, expected) in (1..).zip(expected) {
        assert_close(cosine.rate(0.1, step), expected, &format!("cosine, step {step}"));
    }
    // nanoGPT's get_lr with warmup_iters=3, lr_decay_iters=7, min_lr a tenth.
    let cosine = Schedule::Cosine {
        warmup: 3,
        total: 7,
        floor: 0.1,
    };
    let expected = [
        0.025,
        0.05,
        0.075,
        0.1,
        0.086819805,
        0.055,
        0.023180194,
        0.01,
        0.01,
        0.01,
    ];
    for (step, expected) in (1..).zip(expected) {
        assert_close(
            cosine.rate(0.1, step),
            expected,
            &format!("warm cosine, step {step}"),
        );
    }
    let warmup = Schedule::Warmup { steps: 3 };
    let expected = [0.025, 0.05, 0.075, 0.1, 0.1];
    for (step, expected) in (1..).zip(expected) {
        assert_close(warmup.rate(0.1, step), expected, &format!("warm-up, step {step}"));
    }
    assert_eq!(Schedule::Constant.rate(0.1, 1), 0.1);
    assert_eq!(Schedule::Constant.rate(0.1, u64::MAX), 0.1);
    // Impossible lengths give a rate too.
    let backwards = Schedule::Cosine {
        warmup: 9,
        total: 2,
        floor: 0.5,
    };
    assert_eq!(backwards.rate(1.0, 10), 0.5);
    assert_eq!(Schedule::Warmup { steps: 0 }.rate(1.0, 1), 1.0);
    assert_eq!(backwards.check(), Ok(()));
    for floor in [-0.1, 1.1, f32::NAN] {
        let schedule = Schedule::Cosine {
            warmup: 0,
            total: 1,
            floor,
        };
        assert!(schedule.check().is_err());
    }
    assert!(Schedule::Warmup { steps: u64::MAX }.rate(1.0, 0).is_finite());
}

#[test]
fn lines_stairs_and_cycles_are_pytorch_s() {
    let near = |schedule: Schedule, expected: &[f32]| {
        for (step, expected) in (1..).zip(expected) {
            assert_close(
                schedule.rate(0.1, step),
                *expected,
                &format!("{schedule:?}, step {step}"),
            );
        }
    };
    let linear = |warmup, total, floor| Schedule::Linear { warmup, total, floor };
    // LinearLR(SGD(lr=0.1), start_factor=1, end_factor=0.2, total_iters=4)
    near(linear(0, 4, 0.2), &[0.1, 0.08, 0.06, 0.04, 0.02, 0.02]);
    // The same behind a warm-up.
    near(
        linear(2, 6, 0.2),
        &[0.033333335, 0.06666667, 0.1, 0.08, 0.06, 0.04, 0.02],
    );
    let step = |warmup, size: u64, gamma| {
        let size = size.try_into().unwrap();
        Schedule::Step { warmup, size, gamma }
    };
    // StepLR(SGD(lr=0.1), step_size=2, gamma=0.5)
    near(step(0, 2, 0.5), &[0.1, 0.1, 0.05, 0.05, 0.025, 0.025]);
    near(step(1, 2, 0.5), &[0.05, 0.1, 0.1, 0.05, 0.05]);
    let cycle = |total, rise| Schedule::OneCycle { total, rise };
    // OneCycleLR(SGD(lr=0.1), max_lr=0.1, total_steps=10)
    near(
        cycle(10, 0.3),
        &[
            0.004,
            0.052,
            0.1,
            0.09504846,
            0.0811745,
            0.0611262,
            0.0388742,
            0.018825835,
            0.004951937,
            4e-07,
            4e-07,
        ],
    );
    // Impossible shares and lengths give a rate too.
    for (total, rise) in [(0, 0.3), (1, 0.3), (1, 1.0), (5, 0.0), (5, 1.0), (u64::MAX, 0.5)] {
        for number in [0, 1, 2, 5, 6, u64::MAX] {
            let rate = cycle(total, rise).rate(1.0, number);
            assert!((0.0..=1.0).contains(&rate), "{total} {rise} {number}: {rate}");
        }
    }
    assert_eq!(linear(9, 2, 0.5).rate(1.0, 10), 0.5);
    assert!(linear(0, 1, 1.1).check().is_err() && step(0, 1, -0.5).check().is_err());
    assert!(cycle(5, f32::NAN).check().is_err() && cycle(5, 0.5).check().is_ok());
}

#[test]
fn a_schedule_is_brought_to_the_length_of_its_run() {
    let (total, floor) = (9, 0.0);
    let linear = |warmup, total| Schedule::Linear { warmup, total, floor };
    assert_eq!(linear(5, 0).over(20, u64::MAX), linear(5, 20));
    assert_eq!(linear(5, 0).over(20, 2), linear(2, 20));
    assert_eq!(
        Schedule::Warmup { steps: 5 }.over(20, 2),
        Schedule::Warmup { steps: 2 }
    );
    let cycle = |total| Schedule::OneCycle { total, rise: 0.3 };
    assert_eq!(cycle(total).over(20, 2), cycle(20));
    assert_eq!(Schedule::Constant.over(20, 2), Schedule::Constant);
}

#[test]
fn text_names_an_optimizer_and_its_settings() {
    for optimizer in all_names() {
        let text = optimizer.to_string();
        assert_eq!(text.parse(), Ok(optimizer.clone()), "{text}");
        let bytes = postcard::to_allocvec(&optimizer).unwrap();
        assert_eq!(postcard::from_bytes::<Optimizer>(&bytes), Ok(optimizer));
    }
    let text = Optimizer::parse("adamw beta2=0.95").unwrap().to_string();
    assert_eq!(
        text,
        "adamw beta1=0.9 beta2=0.95 eps=0.00000001 weight_decay=0.01"
    );

    let error = |text: &str| Optimizer::parse(text).unwrap_err().to_string();
    assert_eq!(
        error("adamm"),
        "no optimizer is called \"adamm\": use one of sgd, momentum, nesterov, rmsprop, adam, adamw"
    );
    assert!(error("").starts_with("no optimizer is called \"\""));
    assert_eq!(
        error("sgd momentum=0.9"),
        "\"momentum=0.9\" is no setting: write name=number with one of weight_decay"
    );
    assert!(error("adam beta1").contains("beta1, beta2, eps, weight_decay"));
    assert!(error("adam beta1=x").starts_with("\"beta1=x\" is no setting"));
    assert_eq!(
        error("adam beta1=1"),
        "beta1 is 1: it must be at least 0 and below 1"
    );
    assert_eq!(error("adam eps=0"), "eps is 0: it must be positive");
    assert_eq!(
        error("sgd weight_decay=NaN"),
        "weight_decay is NaN: it must be at least 0"
    );
}

proptest! {
    /// Three steps in one call each, and three steps in blocks of any borders in reverse order: the same bits.
    #[test]
    fn any_split_into_blocks_gives_the_same_bits(
        values in prop::collection::vec((-1e3f32..1e3, -1e3f32..1e3), 1..200),
        mut borders in prop::collection::vec(0usize..200, 0..6),
        decay: bool,
    ) {
        let start: Vec<f32> = values.iter().map(|v| v.0).collect();
        let sums: Vec<f32> = values.iter().map(|v| v.1).collect();
        let n = start.len();
        borders.extend([0, n]);
        borders.iter_mut().for_each(|b| *b = (*b).min(n));
        borders.sort();

        for name in parse::NAMES {
            let optimizer: Optimizer = format!("{name} weight_decay=0.05").parse().unwrap();
            let run = |blocks: &[(usize, usize)]| {
                let mut params = start.clone();
                let mut state = vec![vec![0.0f32; n]; optimizer.slots()];
                for number in 1..=3 {
                    let step = optimizer.step(0.01, number, 0.37);
                    for &(from, to) in blocks {
                        let mut slots: Vec<&mut [f32]> = state.iter_mut().map(|s| &mut s[from..to]).collect();
                        let params = &mut params[from..to];
                        optimizer.apply(&step, params, &mut slots, &sums[from..to], decay);
                    }
                }
                state.push(params);
                state.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let whole = run(&[(0, n)]);
            let blocks: Vec<_> = borders.windows(2).map(|w| (w[0], w[1])).rev().collect();
            prop_assert_eq!(&whole, &run(&blocks), "{}", optimizer);
        }
    }
}

/// Numbers at which something overflows, and any others.
fn any_number() -> impl Strategy<Value = f32> {
    let edges = [
        f32::MAX,
        f32::MIN,
        1e38,
        -3e37,
        2e19,
        -1e-38,
        f32::MIN_POSITIVE,
        0.0,
        -0.0,
        1.0,
    ];
    prop_oneof![
        prop::sample::select(edges.to_vec()),
        any::<f32>().prop_map(finite)
    ]
}

proptest! {
    /// All that a step may come upon: sums are finite, and so is the state before it.
    #[test]
    fn no_step_leaves_anything_behind_that_is_not_finite(
        values in prop::collection::vec((any_number(), any_number(), any_number(), any_number()), 1..20),
        (lr, weight_decay) in (any_number(), any_number()),
        (mean, clip) in (1u32.., prop::option::of(any::<f64>())),
        (number, fraction, eps) in (1u64.., 0f32..1.0, prop::sample::select(vec![f32::MIN_POSITIVE, 1e-8, 1e30])),
        rate in 0f32..=1.0,
    ) {
        let (lr, weight_decay) = (lr.abs(), weight_decay.abs());
        for mut optimizer in all_names() {
            match &mut optimizer {
                Optimizer::Sgd { weight_decay: decay } => *decay = weight_decay,
                Optimizer::Momentum { momentum, weight_decay: decay, .. } => {
                    (*momentum, *decay) = (fraction, weight_decay);
                }
                Optimizer::RmsProp { alpha, eps: least, weight_decay: decay } => {
                    (*alpha, *least, *decay) = (fraction, eps, weight_decay);
                }
                Optimizer::Adam { beta1, beta2, eps: least, weight_decay: decay }
                | Optimizer::AdamW { beta1, beta2, eps: least, weight_decay: decay } => {
                    (*beta1, *beta2, *least, *decay) = (fraction, 1.0 - f32::EPSILON - fraction / 2.0, eps, weight_decay);
                }
            }
            prop_assert_eq!(optimizer.check(), Ok(()));
            let mut params: Vec<f32> = values.iter().map(|v| v.0).collect();
            let sums: Vec<f32> = values.iter().map(|v| v.1).collect();
            let mut slots: Vec<Vec<f32>> = vec![values.iter().map(|v| v.2).collect(), values.iter().map(|v| v.3).collect()];
            slots.truncate(optimizer.slots());
            for (slot, kind) in slots.iter_mut().zip(optimizer.slot_values()) {
                if *kind == Values::Squares {
                    slot.iter_mut().for_each(|square| *square = square.abs());
                }
            }
            for round in 0..4 {
                let step = optimizer.step(lr, number.saturating_add(round), 1.0 / mean as f32);
                let step = clip.map_or(step, |norm| step.clipped(clip_scale(norm.sqrt(), 1.0)));
                let mut views: Vec<&mut [f32]> = slots.iter_mut().map(Vec::as_mut_slice).collect();
                optimizer.apply(&step, &mut params, &mut views, &sums, round % 2 == 0);
                step.follow(rate, &mut params[..1], &sums[..1]);
                let all = params.iter().chain(slots.iter().flatten());
                let odd: Vec<&f32> = all.filter(|x| !x.is_finite()).collect();
                prop_assert!(odd.is_empty(), "{} leaves {:?}", optimizer, odd);
            }
        }
    }
}

/// The bits of all rates, the same on every machine.
#[test]
fn the_bits_of_schedules_are_pinned() {
    let (warmup, total, floor) = (7, 100, 0.03);
    let schedules = [
        Schedule::Cosine { warmup, total, floor },
        Schedule::Linear { warmup, total, floor },
        Schedule::Step {
            warmup,
            size: 9.try_into().unwrap(),
            gamma: 0.7,
        },
        Schedule::OneCycle { total, rise: 0.3 },
    ];
    let got = schedules.map(|schedule| {
        let rates: Vec<f32> = (1..=110).map(|number| schedule.rate(0.003, number)).collect();
        hash(&rates)
    });
    let expected: [u64; 4] = [
        0x5653_e3cb_b921_1cee,
        0xe2e3_6ddc_8f6c_4d24,
        0x0523_3116_9c60_665c,
        0x5f67_da8b_6840_7b8d,
    ];
    assert_eq!(got, expected, "got {got:#x?}");
}

/// FNV-1a over the bytes of numbers.
fn hash(numbers: &[f32]) -> u64 {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
    bytes.fold(0xcbf29ce484222325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100000001b3)
    })
}

/// A long run's bits, the same on every machine: `cargo test` on another architecture, or under WASM, compares them.
#[test]
fn the_bits_of_a_long_run_are_pinned() {
    let mut got = Vec::new();
    for optimizer in all_names() {
        let n = 1000;
        let mut params: Vec<f32> = (0..n).map(|i| i as f32 / 500.0 - 1.0).collect();
        let mut state = vec![vec![0.0f32; n]; optimizer.slots()];
        let schedule = Schedule::Cosine {
            warmup: 10,
            total: 80,
            floor: 0.1,
        };
        for number in 1..=100 {
            let sums: Vec<f32> = params
                .iter()
                .enumerate()
                .map(|(i, p)| p * 3.0 + (i % 7) as f32)
                .collect();
            let scale = clip_scale(norm_squared(&sums).sqrt() / 3.0, 5.0) / 3.0;
            let step = optimizer.step(schedule.rate(0.01, number), number, scale);
            let mut slots: Vec<&mut [f32]> = state.iter_mut().map(Vec::as_mut_slice).collect();
            optimizer.apply(&step, &mut params, &mut slots, &sums, true);
        }
        got.push(hash(&params));
    }
    let expected: [u64; 6] = [
        0x6938_0939_0896_4b96,
        0x7570_e4ab_bd0e_be23,
        0x9b78_4c58_7e07_c2fa,
        0x28d3_f741_411e_af1b,
        0xa46e_d418_4e73_2424,
        0xc1b7_fb2e_6f73_2b1d,
    ];
    assert_eq!(got, expected, "got {got:#x?}");
}
