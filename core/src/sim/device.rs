//! A device that computes something like a gradient. The result depends on every parameter and on each sample's
//! position, so a wrong state, a wrong share or a sample counted twice changes the sum.

use crate::base::random::mix;
use crate::ledger::local::{LocalOptimizer, LocalRound};
use crate::run::config::{Layout, Manifest};
use std::ops::Range;

/// The sum of the first `weight` samples' gradients, in order, and the sum of their losses. For a tensor that follows a
/// mean: the sum of what the samples show minus its values.
pub fn contribution(
    layout: &Layout,
    params: &[f32],
    positions: &[Range<u64>],
    weight: u64,
) -> (Vec<f32>, f32) {
    let mut sum = vec![0.0f32; params.len()];
    let mut loss = 0.0f32;
    for position in positions.iter().cloned().flatten().take(weight as usize) {
        let mut noise = mix(position.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x00A5_5A00);
        for (sum, param) in sum.iter_mut().zip(params) {
            noise = noise.wrapping_mul(0xD134_2543_DE82_EF95).wrapping_add(1);
            // The upper 24 bits are the good ones, and f32 holds them exactly.
            let wanted = (noise >> 40) as f32 * (2.0 / (1 << 24) as f32) - 1.0;
            let error = *param - wanted;
            *sum += error;
            loss += error * error;
        }
    }
    for means in layout.means() {
        sum[means].iter_mut().for_each(|error| *error = -*error);
    }
    (sum, loss)
}

/// The parameters after local steps over the first `weight` samples of a share, and the sum of their losses. For
/// the first steps of a share, the losses do not matter.
pub fn local_contribution(
    params: &[f32],
    positions: &[Range<u64>],
    weight: u64,
    (manifest, round): (&Manifest, &LocalRound),
    optimizer: &mut LocalOptimizer,
) -> (Vec<f32>, f32) {
    let mut now = optimizer.begin(round, params);
    let there: Vec<u64> = positions
        .iter()
        .cloned()
        .flatten()
        .take(weight as usize)
        .collect();
    let mut loss = 0.0;
    for (step, samples) in round.steps(there.len()) {
        let each: Vec<Range<u64>> = there[samples].iter().map(|at| *at..at + 1).collect();
        let (sum, of_step) = contribution(&manifest.layout, &now, &each, weight);
        loss += of_step;
        optimizer.step(manifest, (round, step), &mut now, (&sum, each.len() as u32));
    }
    let mut start = params.to_vec();
    optimizer.end(round, &mut start, now, weight as u32);
    (start, loss)
}

/// The first parameters.
pub fn initial(len: usize, seed: u64) -> Vec<f32> {
    (0..len as u64)
        .map(|i| (mix(seed ^ i) >> 40) as f32 * (1.0 / (1 << 24) as f32) - 0.5)
        .collect()
}
