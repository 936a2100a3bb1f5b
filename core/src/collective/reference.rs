//! The definition of each topology's all-reduce in plain loops, without the plan: the sums that all members hold,
//! and the rounding errors of each.

use super::Cut;
use crate::numeric::codec::Codec;
use crate::run::config::Topology;
use std::ops::Range;

/// The sums as decoded, and for each member the rounding errors of what it encoded. Contributions are in the order
/// of the view.
pub fn sums(
    topology: Topology,
    cut: &Cut,
    codec: Codec,
    contributions: &[&[f32]],
) -> (Vec<f32>, Vec<Vec<f32>>) {
    let (n, len) = (contributions.len(), cut.len);
    let mut errors = vec![vec![0.0; len]; n];
    let plus = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<f32>>();
    let mut sums = Vec::new();
    let full: Vec<usize> = (0..n).filter(|member| !cut.guests.contains(member)).collect();
    for (at, owner) in full.iter().copied().enumerate() {
        let chunk = chunk(cut, owner);
        for start in chunk.clone().step_by(cut.piece) {
            let piece = start..chunk.end.min(start + cut.piece);
            let of = |member: usize| &contributions[member][piece.clone()];
            let mut travelled = |member: usize, values: &[f32]| {
                let (mut bytes, mut decoded) = (Vec::new(), vec![0.0; values.len()]);
                codec.encode(values, &mut bytes);
                codec.decode(&bytes, &mut decoded).expect("just encoded");
                let lost = values
                    .iter()
                    .zip(&decoded)
                    .map(|(value, decoded)| value - decoded);
                errors[member].splice(piece.clone(), lost);
                decoded
            };
            // Each adds its own values last.
            let added = |inputs: Vec<Vec<f32>>, own: &[f32]| {
                let sum = inputs.into_iter().reduce(|sum, input| plus(&sum, &input));
                sum.map_or(own.to_vec(), |sum| plus(&sum, own))
            };
            let sum = match topology {
                // The sum travels from the full member after the owner to the owner, and each of them adds the values of
                // its guests.
                Topology::Ring => {
                    let mut inputs = Vec::new();
                    let mut sum = Vec::new();
                    for step in 1..=full.len() {
                        let number = (at + step) % full.len();
                        let of_guests = cut.guests.iter().skip(number).step_by(full.len());
                        inputs.extend(of_guests.map(|guest| travelled(*guest, of(*guest))));
                        sum = added(std::mem::take(&mut inputs), of(full[number]));
                        if step < full.len() {
                            inputs.push(travelled(full[number], &sum));
                        }
                    }
                    sum
                }
                // The contributions travel to the owner from the member after it on; its own is there.
                Topology::Direct => {
                    let others = (1..n).map(|k| (owner + k) % n);
                    added(
                        others.map(|other| travelled(other, of(other))).collect(),
                        of(owner),
                    )
                }
            };
            sums.extend(travelled(owner, &sum));
        }
    }
    (sums, errors)
}

/// The elements that a full member owns.
pub fn chunk(cut: &Cut, owner: usize) -> Range<usize> {
    let full: Vec<usize> = (0..cut.members).filter(|m| !cut.guests.contains(m)).collect();
    let (n, len) = (full.len(), cut.len);
    let even = |c: usize| c * len / n;
    let owner = full
        .iter()
        .position(|m| *m == owner)
        .expect("it is a full member");
    match owner + 1 {
        last if last == n => even(owner) - even(owner) % cut.grain..len,
        next => even(owner) - even(owner) % cut.grain..even(next) - even(next) % cut.grain,
    }
}
