//! Error feedback delivers later what rounding takes from small values.

use annulus_core::collective::{Assembly, Cut, Plan};
use annulus_core::feedback::compensate;
use annulus_core::{Topology, codec::Codec};

const LEN: usize = 200;
const MEMBERS: usize = 3;

/// The mean over several rounds of what a state would get, if each member gives the same in each round.
fn mean((codec, topology): (Codec, Topology), feedback: bool, rounds: usize, own: &[Vec<f32>]) -> Vec<f64> {
    let cut = Cut {
        members: MEMBERS,
        guests: Vec::new(),
        len: LEN,
        piece: 48,
        grain: 1,
        kept: None,
    };
    let mut errors = vec![vec![0.0; LEN]; MEMBERS];
    let mut mean = vec![0.0; LEN];
    for _ in 0..rounds {
        let mut values = own.to_vec();
        if feedback {
            values
                .iter_mut()
                .zip(&errors)
                .for_each(|(values, errors)| compensate(values, errors));
        }
        let sums = Assembly::serial(
            Plan {
                topology,
                cut: cut.clone(),
            },
            codec,
            &values,
            Some(&mut errors),
        );
        sums.decode(0..LEN, |range, values| {
            for (mean, value) in mean[range].iter_mut().zip(values) {
                *mean += f64::from(*value) / rounds as f64;
            }
        });
    }
    mean
}

#[test]
fn small_values_beside_large_ones_arrive_in_time() {
    // One value in a block of 64 is 1,000 times the others, which alone all round to 0.
    let value = |member: usize, i: usize| match i % 16 {
        0 => 1.0,
        _ => ((i * 37 + member * 11) % 19) as f32 * 1e-4,
    };
    let own: Vec<Vec<f32>> = (0..MEMBERS)
        .map(|m| (0..LEN).map(|i| value(m, i)).collect())
        .collect();
    let exact: Vec<f64> = (0..LEN)
        .map(|i| own.iter().map(|own| f64::from(own[i])).sum())
        .collect();
    let off = |mean: &[f64]| {
        mean.iter()
            .zip(&exact)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f64::max)
    };
    // At most each member's last error is still missing, over all rounds. That is half a scale of a sum each. With
    // signs it grows until the mean magnitude equals what the largest value brings in a round, sixteen times that
    // here.
    for (codec, loses, errors) in [
        (Codec::Int4, 4e-3, 3.0 * 3.0 / 14.0),
        (Codec::Sign, 1.0, 3.0 * 3.0 * 16.0),
    ] {
        for how in Topology::ALL.map(|topology| (codec, topology)) {
            let lost = off(&mean(how, false, 2000, &own));
            assert!(lost > loses, "{how:?}: {lost}");
            let late = off(&mean(how, true, 2000, &own));
            assert!(late < errors / 2000.0 * 1.1, "{how:?}: {late}");
        }
    }
}
