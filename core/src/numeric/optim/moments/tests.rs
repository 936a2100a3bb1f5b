//! Tests of 8-bit moments: the map against its definition, the mean effect of rounding, and steps in 8 bits beside
//! steps in `f32`.

use super::*;
use crate::base::id::Digest;
use crate::numeric::optim::{Optimizer, Step};
use crate::run::config::{Layout, Manifest};
use crate::state::State;
use proptest::prelude::*;

/// The values of the codes for magnitudes: zero, then eight values from each power of two to the next, up to 1.
fn map(values: Values) -> Vec<f64> {
    let codes = match values {
        Values::Signed => 128,
        Values::Squares => 256,
    };
    let below = |steps: i32| {
        let (octaves, eighths) = ((steps + 7) / 8, (8 - steps % 8) % 8);
        (1.0 + f64::from(eighths) / 8.0) * 2f64.powi(-octaves)
    };
    let mut map: Vec<f64> = (0..codes - 1).map(below).collect();
    map.push(0.0);
    map.reverse();
    map
}

fn coded(values: Values, len: usize) -> Coded {
    match Slot::zeros(Moments::EightBit, values, len) {
        Slot::Coded(coded) => coded,
        Slot::F32(_) => unreachable!("8 bits were asked for"),
    }
}

/// The values of a block after they were stored.
fn kept(values: Values, block: &[f32; BLOCK], noise: &[u32; BLOCK]) -> [f32; BLOCK] {
    let (coded, mut out) = (coded(values, BLOCK), [0.0; BLOCK]);
    let mut slot = Slot::Coded(coded);
    let mut view = slot.view(0..BLOCK);
    view.encode(0, block, (noise, 0));
    view.decode(0, &mut out);
    out
}

/// The stored value by definition: one of its two neighbours in the map, the larger one if the distance from the
/// smaller and the noise add up to a whole step.
fn defined(values: Values, x: f32, largest: f32, noise: u32) -> f32 {
    let map = map(values);
    let share = f64::from(x.abs() / largest);
    let code = map.partition_point(|value| *value <= share) - 1;
    let up = (f64::from(noise & 0xffff) + 0.5) / 65536.0;
    let code = match code {
        // Below the smallest value the map continues with the same step, for the purpose of rounding.
        0 => {
            let step = map[2] - map[1];
            usize::from((share - (map[1] - step)) / step + up >= 1.0)
        }
        top if top + 1 == map.len() => top,
        code => code + usize::from((share - map[code]) / (map[code + 1] - map[code]) + up >= 1.0),
    };
    let code = match values {
        Values::Squares if x > 0.0 => code.max(1),
        _ => code,
    };
    (map[code] as f32 * largest).copysign(x)
}

fn any_value() -> impl Strategy<Value = f32> {
    (-40i32..0, 1f32..2.0, any::<bool>())
        .prop_map(|(e, m, minus)| m * 2f32.powi(e) * if minus { -1.0 } else { 1.0 })
}

proptest! {
    #[test]
    fn a_value_becomes_a_neighbour_in_the_map(
        block in prop::collection::vec(any_value(), BLOCK),
        noise in prop::collection::vec(any::<u32>(), BLOCK),
        squares: bool,
    ) {
        let values = if squares { Values::Squares } else { Values::Signed };
        let block: [f32; BLOCK] = std::array::from_fn(|i| if squares { block[i].abs() } else { block[i] });
        let noise: [u32; BLOCK] = std::array::from_fn(|i| noise[i]);
        let largest = block.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
        for (i, kept) in kept(values, &block, &noise).into_iter().enumerate() {
            prop_assert_eq!(kept, defined(values, block[i], largest, noise[i]), "{} of {}", block[i], largest);
        }
    }
}

#[test]
fn the_map_has_the_range_and_the_steps_that_are_told_of() {
    for (values, least) in [
        (Values::Signed, 2f64.powi(-16)),
        (Values::Squares, 2f64.powi(-32)),
    ] {
        let map = map(values);
        assert!(map[1] > least && map[1] < 2.0 * least);
        assert_eq!(map.last(), Some(&1.0));
        let steps = map[1..].windows(2).map(|w| w[1] / w[0]);
        assert!(steps.into_iter().all(|step| step > 1.06 && step <= 1.125));
    }
}

#[test]
fn on_the_average_nothing_is_lost() {
    // A second moment near its mean moves by this share in a step.
    let little = 0.0005;
    let mut values = [0.0; BLOCK];
    for (i, value) in values.iter_mut().enumerate() {
        *value = 2f32.powi(-(i as i32 % 12)) * (1.0 + little);
    }
    values[0] = 2.0;
    let (steps, mut mean) = (4000, [0.0f64; BLOCK]);
    for step in 0..steps {
        let kept = kept(Values::Squares, &values, &noise(step, 3));
        mean.iter_mut()
            .zip(kept)
            .for_each(|(mean, kept)| *mean += f64::from(kept) / steps as f64);
    }
    let gained: f64 = mean
        .iter()
        .zip(values)
        .map(|(mean, value)| mean / f64::from(value) - 1.0)
        .sum::<f64>()
        / BLOCK as f64;
    // A step of the map is an eighth, taken with the probability above, so the mean is known to 1e-5.
    assert!(gained.abs() < 4e-5, "{gained}");
}

#[test]
fn zero_stays_and_what_is_divided_by_is_never_rounded_to_it() {
    let mut values = [0.0; BLOCK];
    assert_eq!(kept(Values::Squares, &values, &[0; BLOCK]), values);
    assert_eq!(kept(Values::Signed, &values, &[u32::MAX; BLOCK]), values);
    values[0] = 1.0;
    values[1] = 1e-30;
    values[2] = f32::from_bits(1);
    let least = map(Values::Squares)[1] as f32;
    let kept = kept(Values::Squares, &values, &[0; BLOCK]);
    assert_eq!(kept[..4], [1.0, least, least, 0.0]);
}

#[test]
fn what_is_not_finite_counts_as_the_largest_number() {
    let mut values = [1.0; BLOCK];
    values[..3].copy_from_slice(&[f32::INFINITY, f32::NEG_INFINITY, 0.0]);
    let kept = kept(Values::Signed, &values, &[0; BLOCK]);
    assert_eq!(kept[..4], [f32::MAX, -f32::MAX, 0.0, 0.0]);
    let mut values = [f32::NAN; BLOCK];
    values[1] = 1.0;
    let kept = self::kept(Values::Squares, &values, &[0; BLOCK]);
    assert!(kept.iter().all(|x| x.is_finite() && *x > 0.0));
}

fn manifest(optimizer: &str, len: usize, moments: Moments) -> Manifest {
    Manifest {
        optimizer: optimizer.parse().unwrap(),
        moments,
        ..Manifest::new(Layout::flat(len))
    }
}

/// Every optimizer with state vectors.
const WITH_SLOTS: [&str; 5] = ["momentum", "nesterov", "rmsprop", "adam", "adamw"];

/// Gradients of a bowl with sides of very different steepness, with noise that follows from the step.
fn gradients(params: &[f32], step: u64) -> Vec<f32> {
    let mut random = crate::base::random::SplitMix(step);
    let slope = |i: usize| 10f32.powi(-(i as i32 % 5));
    let of = |(i, p): (usize, &f32)| slope(i) * (p + (random.unit() as f32 - 0.5));
    params.iter().enumerate().map(of).collect()
}

fn step(optimizer: &Optimizer, number: u64) -> Step {
    optimizer.step(0.01, number, 1.0)
}

/// Root mean square of the parameters after these steps from ones.
fn left(optimizer: &str, moments: Moments, steps: u64) -> f64 {
    let manifest = manifest(optimizer, 1000, moments);
    let mut state = State::new(vec![1.0; 1000], &manifest);
    for number in 1..=steps {
        let sums = gradients(&state.params, number);
        state.apply(&manifest, &step(&manifest.optimizer, number), 0..1000, &sums);
    }
    let squares = state.params.iter().map(|p| f64::from(*p) * f64::from(*p));
    (squares.sum::<f64>() / 1000.0).sqrt()
}

#[test]
fn steps_in_8_bits_lead_where_steps_without_do() {
    for optimizer in WITH_SLOTS {
        let [plain, coded] = Moments::ALL.map(|moments| left(optimizer, moments, 300));
        assert!(
            (coded / plain - 1.0).abs() < 0.05,
            "{optimizer}: {plain} and {coded}"
        );
    }
}

#[test]
fn any_split_at_blocks_gives_the_same_bits() {
    const LEN: usize = 1500;
    for optimizer in WITH_SLOTS {
        let manifest = manifest(optimizer, LEN, Moments::EightBit);
        let run = |parts: &[Range<usize>]| {
            let mut state = State::new((0..LEN).map(|i| i as f32 / 750.0 - 1.0).collect(), &manifest);
            for number in 1..=5 {
                let sums = gradients(&state.params, number);
                for part in parts {
                    let step = step(&manifest.optimizer, number);
                    state.apply(&manifest, &step, part.clone(), &sums[part.clone()]);
                }
            }
            state
        };
        let whole = run(&[0..512, 512..LEN]);
        assert!(whole == run(&[1280..LEN, 0..256, 256..1280]), "{optimizer}");
        assert_ne!(
            whole.digest(),
            State::new(whole.params.clone(), &manifest).digest()
        );
    }
}

#[test]
#[should_panic = "element 100 is within a block"]
fn other_parts_are_refused() {
    let manifest = manifest("adam", 1000, Moments::EightBit);
    let mut state = State::new(vec![1.0; 1000], &manifest);
    state.apply(&manifest, &step(&manifest.optimizer, 1), 100..256, &[0.0; 156]);
}

#[test]
fn a_state_is_as_long_as_is_told() {
    for (moments, len) in Moments::ALL
        .into_iter()
        .flat_map(|m| [0, 1, 256, 1000].map(|l| (m, l)))
    {
        let manifest = manifest("adam", len, moments);
        let state = State::new(vec![1.0; len], &manifest);
        let bytes: usize = state.sections().map(<[u8]>::len).sum();
        assert_eq!(bytes as u64, manifest.state_bytes(), "{moments} {len}");
    }
    let bytes = manifest("adam", 1 << 20, Moments::EightBit).state_bytes();
    assert_eq!(bytes as f64 / f64::from(1 << 20), 4.0 + 2.0 * (1.0 + 4.0 / 256.0));
}

/// A run's bits, the same on every machine.
#[test]
fn the_bits_of_a_run_are_pinned() {
    let got = WITH_SLOTS.map(|optimizer| {
        let manifest = manifest(optimizer, 1000, Moments::EightBit);
        let mut state = State::new((0..1000).map(|i| i as f32 / 500.0 - 1.0).collect(), &manifest);
        for number in 1..=50 {
            let sums = gradients(&state.params, number);
            state.apply(&manifest, &step(&manifest.optimizer, number), 0..1000, &sums);
        }
        let bytes: Vec<u8> = state.sections().flatten().copied().collect();
        u64::from_le_bytes(Digest::of(&bytes).0[..8].try_into().unwrap())
    });
    let expected: [u64; 5] = [
        0x2da1_d069_1b10_2db9,
        0x1dcc_b34a_8c39_ecdd,
        0x16f1_3e0b_3c5c_575b,
        0xa343_552b_6709_8005,
        0xed39_6023_d6a1_479f,
    ];
    assert_eq!(got, expected, "got {got:#x?}");
}
