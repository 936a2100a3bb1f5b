//! The memory that a split model's spans need, and for how many of them a machine has room.

use annulus_core::optim::{Moments, Optimizer};
use annulus_core::parts::Parts;
use annulus_core::split::{Split, Step};
use annulus_core::stages::{StepNeeds, Terms, span_bytes};
use annulus_core::{Manifest, Room};
use std::ops::Range;

/// Bytes of a process that trains nothing yet.
pub(super) const BASE: u64 = 64 << 20;

/// How many times the activations at a boundary a step's backward pass holds at once: a guess from measured language
/// models.
const ACTIVATIONS: u64 = 24;

/// The memory of a process for spans of a split model.
#[derive(Clone, Copy, Debug)]
pub struct SpanTerms {
    /// Bytes per parameter: weights here and on the device, moments, sums of lanes, of the round, and one in flight.
    pub bytes_per_parameter: u64,
    /// Bytes of a process without a span.
    pub base: u64,
}

impl SpanTerms {
    /// For a run with this many lanes.
    pub fn of(optimizer: &Optimizer, moments: Moments, lanes: u16) -> Self {
        let moments = optimizer.slots() as u64 * moments.bytes(1 << 20) / (1 << 20);
        Self {
            bytes_per_parameter: moments + 4 * (4 + u64::from(lanes)),
            base: BASE,
        }
    }

    /// For a replay that keeps everything else on the disk: weights, the sum of a lane, and twice as much while a
    /// microbatch is added.
    pub fn of_replay() -> Self {
        Self {
            bytes_per_parameter: 4 * 4,
            base: BASE,
        }
    }
}

/// The needs of a process that holds one span.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanNeeds {
    /// The span.
    pub steps: Range<usize>,
    /// Parameters that it uses.
    pub parameters: u64,
    /// Estimated bytes of memory.
    pub bytes: u64,
    /// Its share of the whole model's work.
    pub share: f64,
}

/// The needs of processes that hold one span each, and the part of them that a process without a span has too.
pub fn spans(manifest: &Manifest, split: &Split) -> (Vec<SpanNeeds>, u64) {
    let terms = SpanTerms::of(&manifest.optimizer, manifest.moments, split.lanes.get());
    let (needs, terms) = needs(split, terms);
    let behind = |at: usize| split.spans.len() - 1 - at;
    let of = |(at, steps): (usize, Range<usize>)| SpanNeeds {
        parameters: split.used(at).iter().map(|range| range.len() as u64).sum(),
        bytes: span_bytes(&needs[steps.clone()], at == 0, behind(at), &terms),
        share: split.share(steps.clone()),
        steps,
    };
    (split.spans().enumerate().map(of).collect(), terms.fixed_bytes)
}

/// There is no room for even one span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// Bytes that the largest one needs.
    pub need: u64,
}

/// For how many spans there is room in this many bytes, at most `most`: for any spans, or only for those between the
/// ends (`inner`).
///
/// # Errors
///
/// If there is no room for even one.
pub fn room(
    manifest: &Manifest,
    split: &Split,
    bytes: u64,
    (most, inner): (u16, bool),
) -> Result<Room, NoRoom> {
    let (spans, fixed_bytes) = spans(manifest, split);
    let one = if inner { Room::inner(1) } else { Room::of(1) };
    let takes = (0..spans.len()).filter(|span| one.reads(*span, spans.len()));
    let largest = takes.map(|span| spans[span].bytes - fixed_bytes).max();
    let largest = largest.unwrap_or(1).max(1);
    match bytes.saturating_sub(fixed_bytes) / largest {
        0 => Err(NoRoom {
            need: fixed_bytes + largest,
        }),
        room => {
            let room = Room {
                spans: u16::try_from(room).unwrap_or(u16::MAX).min(most),
                ..one
            };
            let room = room.within(spans.len());
            let for_one = bytes.saturating_sub(fixed_bytes) / u64::from(room.spans).max(1);
            let parts = parts_of_one(manifest, split, (for_one, one)).min(room.parts);
            Ok(Room { parts, ..room })
        }
    }
}

/// The most parts that a span may need so that it fits into `bytes`, whatever its steps are; at least as many as the
/// largest of the present spans that such a peer can hold.
fn parts_of_one(manifest: &Manifest, split: &Split, (bytes, like): (u64, Room)) -> u16 {
    let of_lanes = SpanTerms::of(&manifest.optimizer, manifest.moments, split.lanes.get());
    let (needs, terms) = needs(split, of_lanes);
    let parts = Parts::of_len(manifest.layout.len);
    let mut fit = parts.count();
    for begin in 0..needs.len() {
        for end in begin + 1..=needs.len() {
            let takes = span_bytes(&needs[begin..end], begin == 0, split.spans.len() - 1, &terms);
            if takes - terms.fixed_bytes > bytes {
                let needed = split.parts_of(parts, begin..end).len();
                fit = fit.min(needed.saturating_sub(1));
                // A longer one needs no less.
                break;
            }
        }
    }
    let needs = split.needs(parts);
    let held = (0..needs.len()).filter(|span| like.reads(*span, needs.len()));
    let largest = held.map(|span| needs[span].len()).max();
    fit.max(largest.unwrap_or(0)) as u16
}

/// The needs of a split's steps, and the terms that hold for all of them.
pub(super) fn needs(split: &Split, terms: SpanTerms) -> (Vec<StepNeeds>, Terms) {
    let samples = u64::from(split.micro_batch.get());
    // All steps that share elements must see the same pieces.
    let borders = split.borders();
    let pieces = |range: &Range<usize>| {
        let borders: Vec<usize> = borders.range(range.start..=range.end).copied().collect();
        let piece = |pair: &[usize]| (pair[0], (pair[1] - pair[0]) as u64);
        borders.windows(2).map(piece).collect::<Vec<_>>()
    };
    let mut widest = 0;
    let mut before = 0;
    let mut need = |step: &Step| {
        let given = 4 * samples * u64::from(step.boundary);
        let own = given.max(before);
        (widest, before) = (given.max(widest), given);
        StepNeeds {
            forward_us: step.cost.into(),
            // The backward pass computes the forward pass again.
            backward_us: 3 * u64::from(step.cost),
            tensors: step.ranges.iter().flat_map(pieces).collect(),
            working_bytes: ACTIVATIONS * own,
        }
    };
    let needs = split.steps.iter().map(&mut need).collect();
    let terms = Terms {
        bytes_per_parameter: terms.bytes_per_parameter,
        boundary_bytes: widest,
        fixed_bytes: terms.base,
    };
    (needs, terms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use annulus_core::codec::Codec;
    use annulus_core::stages::MORE;
    use annulus_core::{Layout, Topology};
    use std::num::{NonZeroU16, NonZeroU32};

    #[test]
    fn who_takes_no_ends_counts_what_lies_between_them() {
        // The ends have a million elements each, and what lies between them a thousand.
        let mut end = 0;
        let step = |len: usize| {
            let start = end;
            end += len;
            Step {
                ranges: std::iter::once(start..start + len).collect(),
                cost: 1,
                boundary: 4,
            }
        };
        let split = Split {
            steps: [1 << 20, 1000, 1000, 1 << 20].map(step).to_vec(),
            spans: vec![NonZeroU16::MIN; 4],
            micro_batch: NonZeroU32::MIN,
            boundary: Codec::F32,
            lanes: NonZeroU16::MIN,
        };
        let manifest = Manifest {
            copies: NonZeroU16::new(1),
            topology: Some(Topology::Direct),
            optimizer: "adam".parse().unwrap(),
            ..Manifest::new(Layout::flat(end))
        };
        // Weights and moments, and five vectors in flight; 16 bytes at a boundary, 24 times for the work, and for the
        // last span those that may wait for it.
        let large = BASE + (1 << 20) * 28;
        let few = BASE + (1 << 20);
        let need = large + 24 * 16 + (1 + u64::from(MORE)) * 16;
        let room = |bytes, inner| super::room(&manifest, &split, bytes, (u16::MAX, inner));
        let spans = |bytes, inner| room(bytes, inner).map(|room| (room.spans, room.inner));
        assert_eq!(spans(large, false), Err(NoRoom { need }));
        let twice = BASE + 2 * (need - BASE);
        assert_eq!(spans(twice, false), Ok((2, false)));
        assert_eq!(spans(twice - 1, false), Ok((1, false)));
        assert!(room(few, false).is_err());
        assert_eq!(spans(few, true), Ok((2, true)));
        assert!(room(BASE, true).is_err());
        // Each end needs half of all parts, so any other cut's spans that do not reach from end to end may need as
        // many. A span with both ends fits only if that is asked for and there is memory.
        let parts = |bytes, most| super::room(&manifest, &split, bytes, (most, false)).map(|room| room.parts);
        let all = Parts::of_len(end).count() as u16;
        assert!(parts(twice, 2).is_ok_and(|parts| parts < all));
        assert_eq!(parts(2 * twice, 1), Ok(all));
        // A peer that takes no ends has room only for what lies between them.
        let end = split.parts_of(Parts::of_len(end), 0..1).len() as u16;
        assert!(room(few, true).is_ok_and(|room| room.parts < end));
    }
}
