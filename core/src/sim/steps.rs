//! A model in steps: small pure functions of weights, a sample's position and the previous step's output, so that a
//! wrong weight, tensor or sample, or one counted twice, changes the sums. Also the reference of a round, computed
//! in one place.

use crate::base::random::mix;
use crate::ledger::{Head, Record};
use crate::peer::interface::{Pass, SpanDone};
use crate::run::config::Manifest;
use crate::run::split::{Split, Step};
use std::ops::Range;

/// Outputs of the last step.
const END: usize = 2;

/// A number between -1 and 1 that depends on a place.
fn noise(seed: u64, at: usize) -> f32 {
    let bits = mix(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (at as u64) << 20);
    (bits >> 40) as f32 * (2.0 / (1 << 24) as f32) - 1.0
}

/// A step's output for one sample.
fn forward(step: u64, weights: &[f32], (position, x): (u64, &[f32]), out: usize) -> Vec<f32> {
    let n = weights.len();
    let mut mean = 0.0;
    for (i, w) in weights.iter().enumerate() {
        mean += w * noise(position ^ step << 40, i);
    }
    mean /= n as f32;
    let y = |j: usize| {
        let x = x[j % x.len()];
        0.5 * x + 0.25 * weights[(7 * j) % n] + 0.125 * weights[(7 * j + 3) % n] * x + mean
    };
    (0..out).map(y).collect()
}

/// The gradients of the input and of the weights, for one sample.
fn backward(
    step: u64,
    weights: &[f32],
    (position, x): (u64, &[f32]),
    gradient: &[f32],
    of_weights: &mut [f32],
) -> Vec<f32> {
    let n = weights.len();
    let mut of_x = vec![0.0; x.len()];
    let mut all = 0.0;
    for (j, g) in gradient.iter().enumerate() {
        let at = j % x.len();
        of_x[at] += g * (0.5 + 0.125 * weights[(7 * j + 3) % n]);
        of_weights[(7 * j) % n] += 0.25 * g;
        of_weights[(7 * j + 3) % n] += 0.125 * g * x[at];
        all += g;
    }
    for (i, w) in of_weights.iter_mut().enumerate() {
        *w += all * noise(position ^ step << 40, i) / n as f32;
    }
    of_x
}

/// The input and output widths of a step for one sample.
fn widths(split: &Split, step: usize) -> (usize, usize) {
    let out = |step: usize| match step + 1 == split.steps.len() {
        true => END,
        false => split.steps[step].boundary as usize,
    };
    (step.checked_sub(1).map_or(1, out), out(step))
}

fn of_step(weights: &impl Fn(Range<usize>) -> Vec<f32>, step: &Step) -> Vec<f32> {
    step.ranges
        .iter()
        .flat_map(|range| weights(range.clone()))
        .collect()
}

/// The output of some steps for a microbatch. The first step of all has only the samples as input.
fn run(
    split: &Split,
    steps: Range<usize>,
    weights: &impl Fn(Range<usize>) -> Vec<f32>,
    positions: &[u64],
    input: &[f32],
) -> Vec<f32> {
    let mut x: Vec<f32> = match steps.start {
        0 => positions.iter().map(|position| noise(*position, 1)).collect(),
        _ => input.to_vec(),
    };
    for step in steps {
        let (before, after) = widths(split, step);
        let weights = of_step(weights, &split.steps[step]);
        let of = |(position, x): (&u64, &[f32])| forward(step as u64, &weights, (*position, x), after);
        x = positions.iter().zip(x.chunks(before)).flat_map(of).collect();
    }
    x
}

/// The gradients of some steps for a microbatch, one after the other, that of the input, and the sum of the losses.
fn run_back(
    split: &Split,
    steps: Range<usize>,
    weights: &impl Fn(Range<usize>) -> Vec<f32>,
    positions: &[u64],
    (input, gradient): (&[f32], &[f32]),
) -> (Vec<Vec<f32>>, Vec<f32>, f32) {
    let mut loss = 0.0;
    let mut gradient = gradient.to_vec();
    if steps.end == split.steps.len() {
        let y = run(split, steps.clone(), weights, positions, input);
        gradient.clear();
        for (k, y) in y.iter().enumerate() {
            let error = y - noise(positions[k / END], 2 + k % END);
            loss += error * error;
            gradient.push(2.0 * error);
        }
    }
    let mut of_steps = Vec::new();
    for step in steps.clone().rev() {
        let (before, after) = widths(split, step);
        let x = match step {
            0 => positions.iter().map(|position| noise(*position, 1)).collect(),
            _ => run(split, steps.start..step, weights, positions, input),
        };
        let own = of_step(weights, &split.steps[step]);
        let mut of_weights = vec![0.0; own.len()];
        let samples = positions.iter().zip(x.chunks(before)).zip(gradient.chunks(after));
        let of = |((position, x), g): ((&u64, &[f32]), &[f32])| {
            backward(step as u64, &own, (*position, x), g, &mut of_weights)
        };
        let next: Vec<f32> = samples.flat_map(of).collect();
        gradient = next;
        of_steps.push(of_weights);
    }
    of_steps.reverse();
    if steps.start == 0 {
        gradient.clear();
    }
    (of_steps, gradient, loss)
}

/// A device's result of a pass, with the weights that it has of the steps.
pub(crate) fn compute(split: &Split, steps: Range<usize>, pass: &Pass, given: &[f32]) -> SpanDone {
    let used = split.used_by(steps.clone());
    let weights = |range: Range<usize>| {
        let mut before = 0;
        for own in &used {
            if own.start <= range.start && range.end <= own.end {
                let start = before + range.start - own.start;
                return given[start..start + range.len()].to_vec();
            }
            before += own.len();
        }
        panic!("a span has the weights of its steps")
    };
    let positions: Vec<u64> = pass.positions.iter().cloned().flatten().collect();
    if !pass.back {
        return SpanDone {
            output: run(split, steps, &weights, &positions, &pass.input),
            ..SpanDone::default()
        };
    }
    let tensors = (&pass.input[..], &pass.gradient[..]);
    let (of_steps, output, loss) = run_back(split, steps, &weights, &positions, tensors);
    let mut sum = pass.sum.clone();
    for (sum, g) in sum.iter_mut().zip(of_steps.iter().flatten()) {
        *sum += g;
    }
    SpanDone {
        output,
        sum,
        loss,
        ..SpanDone::default()
    }
}

/// A round's sums, in one place and from the definition: each step's gradients of a lane in the order of
/// microbatches, lanes in their order, then the steps that use the same elements.
pub(crate) fn sums(head: &Head, manifest: &Manifest, params: &[f32]) -> Vec<f32> {
    let split = &manifest.split.as_ref().expect("it is split").cut(&head.spans);
    let weights = |range: Range<usize>| params[range].to_vec();
    let taken = head.allot(manifest).batch;
    let positions: Vec<u64> = taken.iter().flat_map(|hole| hole.start..hole.end).collect();
    let microbatches: Vec<&[u64]> = positions.chunks(split.micro_batch.get() as usize).collect();
    let (all, lanes) = (
        microbatches.len(),
        microbatches.len().min(split.lanes.get().into()),
    );
    let spans: Vec<Range<usize>> = split.spans().collect();
    let travelled = |values: Vec<f32>| {
        let (mut bytes, mut decoded) = (Vec::new(), vec![0.0; values.len()]);
        split.boundary.encode(&values, &mut bytes);
        split.boundary.decode(&bytes, &mut decoded).expect("just encoded");
        decoded
    };
    // By lane and step.
    let zeros = || {
        split
            .steps
            .iter()
            .map(|step| vec![0.0f32; step.len()])
            .collect::<Vec<_>>()
    };
    let mut of_lanes: Vec<Vec<Vec<f32>>> = (0..lanes).map(|_| zeros()).collect();
    for (number, positions) in microbatches.iter().enumerate() {
        let lane = (0..lanes).find(|lane| number < all * (lane + 1) / lanes);
        let sums = &mut of_lanes[lane.expect("each is in a lane")];
        let mut inputs = vec![Vec::new()];
        for span in &spans[..spans.len() - 1] {
            let input = inputs.last().expect("there is a first");
            inputs.push(travelled(run(split, span.clone(), &weights, positions, input)));
        }
        let mut gradient = Vec::new();
        for (span, input) in spans.iter().zip(&inputs).rev() {
            let tensors = (&input[..], &gradient[..]);
            let (of_steps, back, _) = run_back(split, span.clone(), &weights, positions, tensors);
            for (sum, g) in sums[span.clone()]
                .iter_mut()
                .flatten()
                .zip(of_steps.iter().flatten())
            {
                *sum += g;
            }
            gradient = travelled(back);
        }
    }
    let mut sums: Vec<Option<f32>> = vec![None; params.len()];
    for step in 0..split.steps.len() {
        let mut of_step = of_lanes[0][step].clone();
        for lane in &of_lanes[1..] {
            of_step.iter_mut().zip(&lane[step]).for_each(|(sum, g)| *sum += g);
        }
        let elements = split.steps[step].ranges.iter().cloned().flatten();
        for (at, g) in elements.zip(of_step) {
            sums[at] = Some(sums[at].map_or(g, |sum| sum + g));
        }
    }
    sums.into_iter()
        .map(|sum| sum.expect("some step uses each"))
        .collect()
}

/// Checks that a record counts all samples or none.
pub(super) fn check_weight(
    head: &Head,
    record: &Record,
    manifest: &Manifest,
    null: bool,
) -> Result<(), String> {
    let given: u64 = head
        .allot(manifest)
        .batch
        .iter()
        .map(|hole| hole.end - hole.start)
        .sum();
    let counted: u64 = record.headers.iter().map(|h| u64::from(h.weight)).sum();
    let refused = record.headers.iter().any(|h| h.keeps.refuses);
    match null {
        true if counted > 0 => Err(format!("{counted} samples are counted in a round without any")),
        false if !refused && counted != given => Err(format!("{counted} of {given} samples are counted")),
        _ => Ok(()),
    }
}
