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
    for owner in 0..n {
        let chunk = chunk(cut, owner);
        for start in chunk.clone().step_by(cut.piece) {
            let piece = start..chunk.end.min(start + cut.piece);
            // From the member after the owner on; the owner itself is the last.
            let of = |k: usize| &contributions[(owner + k) % n][piece.clone()];
            let mut travelled = |k: usize, values: &[f32]| {
                let (mut bytes, mut decoded) = (Vec::new(), vec![0.0; values.len()]);
                codec.encode(values, &mut bytes);
                codec.decode(&bytes, &mut decoded).expect("just encoded");
                let lost = values
                    .iter()
                    .zip(&decoded)
                    .map(|(value, decoded)| value - decoded);
                errors[(owner + k) % n].splice(piece.clone(), lost);
                decoded
            };
            let sum = match topology {
                // The sum travels from member to member.
                Topology::Ring => (2..=n).fold(of(1).to_vec(), |sum, k| plus(&travelled(k - 1, &sum), of(k))),
                // The contributions travel to the owner; its own is there.
                Topology::Direct if n == 1 => of(n).to_vec(),
                Topology::Direct => {
                    let first = travelled(1, of(1));
                    let others = (2..n).fold(first, |sum, k| plus(&sum, &travelled(k, of(k))));
                    plus(&others, of(n))
                }
            };
            sums.extend(travelled(n, &sum));
        }
    }
    (sums, errors)
}

/// The elements that a member owns.
pub fn chunk(cut: &Cut, owner: usize) -> Range<usize> {
    let (n, len) = (cut.members, cut.len);
    let even = |c: usize| c * len / n;
    match owner + 1 {
        last if last == n => even(owner) - even(owner) % cut.grain..len,
        next => even(owner) - even(owner) % cut.grain..even(next) - even(next) % cut.grain,
    }
}
