//! Tensors that follow a mean: batch norm's running statistics. No optimizer, clipping or weight decay touches them.

use annulus_core::local::LocalOptimizer;
use annulus_core::optim::{LocalSteps, Moments, norm_squared};
use annulus_core::{
    Contact, Input, Layout, Manifest, Output, Peer, PeerId, Settings, State, TensorRule, TensorSpec, Time,
    Topology,
};
use std::num::{NonZeroU16, NonZeroU32};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

const RATE: f32 = 0.25;
/// Local steps of a round.
const STEPS: NonZeroU32 = NonZeroU32::new(3).unwrap();
/// Trained elements, then those that follow a mean, then trained ones again. Borders lie within blocks of moments.
const LEN: usize = 900;
const MEANS: Range<usize> = 300..700;

fn layout() -> Layout {
    let rules = [
        (0..MEANS.start, TensorRule::StepAndDecay),
        (MEANS, TensorRule::Mean { rate: RATE }),
        (MEANS.end..LEN, TensorRule::Step),
    ];
    let tensor = |(range, rule): (Range<usize>, TensorRule)| TensorSpec {
        name: format!("from {}", range.start),
        shape: vec![range.len()],
        offset: range.start,
        rule,
    };
    Layout {
        tensors: rules.map(tensor).into(),
        len: LEN,
    }
}

fn manifest() -> Manifest {
    Manifest {
        samples: 100.try_into().unwrap(),
        target: 1_000_000.try_into().unwrap(),
        batch: 8.try_into().unwrap(),
        optimizer: "adamw weight_decay=0.1".parse().unwrap(),
        piece: 256.try_into().unwrap(),
        ..Manifest::new(layout())
    }
}

fn start() -> Vec<f32> {
    (0..LEN).map(|i| 1.0 + i as f32 / 64.0).collect()
}

/// Sums of gradients, and in the middle large ones.
fn sums() -> Vec<f32> {
    let sum = |i: usize| (i % 7) as f32 - 3.0 + if MEANS.contains(&i) { 800.0 } else { 0.0 };
    (0..LEN).map(sum).collect()
}

/// A lone founder's state after one round of these sums over its share. With local steps, each step has these sums.
fn after_a_round(manifest: &Manifest, sums: &[f32]) -> State {
    let manifest = Arc::new(manifest.clone());
    assert_eq!(manifest.check(), Ok(()));
    let settings = Settings::stand_in(PeerId([1; 32]), Contact::default(), &manifest);
    let state = State::new(start(), &manifest);
    let mut peer = Peer::found(manifest.clone(), settings, state, Time(0));
    let Some(Output::Compute {
        local, mut buffer, ..
    }) = peer.poll()
    else {
        panic!("a founder computes");
    };
    let weight = 8 * manifest.local.as_ref().map_or(1, |_| STEPS.get());
    match local {
        None => buffer.copy_from_slice(sums),
        Some(round) => {
            let mut optimizer = LocalOptimizer::new(&manifest);
            let mut now = optimizer.begin(&round, &buffer);
            for (step, samples) in round.steps(weight as usize) {
                assert_eq!(samples.len(), 8);
                optimizer.step(&manifest, (&round, step), &mut now, (sums, 8));
            }
            optimizer.end(&round, &mut buffer, now, weight);
        }
    }
    let contribution = Input::Contribution {
        round: 1,
        gradient: buffer,
        weight,
        loss: 1.0,
        compute: Duration::from_millis(1),
        late: false,
    };
    peer.handle(contribution, Time(10));
    assert_eq!(peer.head().round, 1);
    peer.state().clone()
}

#[test]
fn a_round_adds_the_rate_times_the_mean() {
    for (moments, copies) in [
        (Moments::F32, None),
        (Moments::EightBit, None),
        (Moments::F32, NonZeroU16::new(1)),
    ] {
        let manifest = Manifest {
            moments,
            copies,
            topology: Some(Topology::Direct),
            clip: Some(1.0),
            ..manifest()
        };
        let state = after_a_round(&manifest, &sums());
        for i in MEANS {
            assert_eq!(
                state.params[i],
                start()[i] + RATE * (sums()[i] / 8.0),
                "element {i}"
            );
        }
        assert_ne!(state.params[..MEANS.start], start()[..MEANS.start]);
        let before = State::new(start(), &manifest);
        for (slot, before) in state.slots.iter().zip(&before.slots) {
            assert_eq!(slot.codes(MEANS), before.codes(MEANS));
            if moments == Moments::F32 {
                assert_eq!(slot.floats(MEANS), before.floats(MEANS), "no moments");
            }
        }
    }
}

#[test]
fn local_steps_follow_it_and_the_outer_optimizer_only_averages() {
    for outer in ["sgd", "nesterov momentum=0.9"] {
        let manifest = Manifest {
            clip: Some(0.01),
            local: Some(LocalSteps {
                outer: outer.parse().unwrap(),
                outer_lr: 0.5,
                ..LocalSteps::averaged(STEPS)
            }),
            ..manifest()
        };
        let state = after_a_round(&manifest, &sums());
        for i in MEANS {
            let expected = start()[i] + STEPS.get() as f32 * RATE * (sums()[i] / 8.0);
            let got = state.params[i];
            assert!(
                (got - expected).abs() < 1e-4,
                "element {i}: {got}, not {expected}"
            );
        }
    }
}

#[test]
fn the_norm_for_clipping_leaves_it_out() {
    let clipped = Manifest {
        clip: Some(1.0),
        optimizer: "sgd".parse().unwrap(),
        ..manifest()
    };
    let mut quiet = sums();
    quiet[MEANS].fill(0.0);
    let (with, without) = (after_a_round(&clipped, &sums()), after_a_round(&clipped, &quiet));
    for trained in [0..MEANS.start, MEANS.end..LEN] {
        assert_eq!(with.params[trained.clone()], without.params[trained]);
    }
    // It is clipped: otherwise nothing could differ.
    let norm = norm_squared(&quiet).sqrt() / 8.0;
    assert!(norm > 1.0);
    let expected = start()[0] - 0.01 * (quiet[0] / 8.0) * (1.0 / norm) as f32;
    assert!((with.params[0] - expected).abs() < 1e-6);
}
