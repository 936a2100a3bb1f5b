//! Worlds with a split model.

use super::kept::needs_of_span;
use super::rng::Rng;
use crate::numeric::codec::Codec;
use crate::numeric::optim::Moments;
use crate::run::config::{Manifest, Topology};
use crate::run::room::Room;
use crate::run::split::{Split, Step};
use std::num::{NonZeroU16, NonZeroU32, NonZeroU64};

/// From this seed on more worlds have a split model, a quarter of all, including some with liars. Smaller seeds
/// stay the worlds that they were.
pub(super) const MORE_FROM: u64 = 1_000_000_000;

/// From this seed on some worlds have many rounds, and members that are not needed for copies: then speeds decide
/// who holds which span.
const LONG_FROM: u64 = 10_000_000_000;

/// Whether models stay split where there are liars.
pub(super) fn may_have_liars(seed: u64) -> bool {
    seed >= MORE_FROM
}

/// In some worlds the model is split over its members.
pub(super) fn draw(seed: u64, rng: &mut Rng, manifest: &mut Manifest, peers: usize) {
    let share = if seed < MORE_FROM { 0.2 } else { 0.36 };
    if manifest.copies.is_some() || !rng.chance(share) {
        return;
    }
    manifest.copies = NonZeroU16::new([1, 2, 2, 3][rng.index(4)]);
    (manifest.local, manifest.overlap) = (None, false);
    (manifest.topology, manifest.codec) = (Some(Topology::Direct), Codec::F32);
    if manifest.optimizer.slots() == 0 {
        manifest.optimizer = "adam".parse().expect("this is an optimizer");
    }
    let mut end = 0;
    for tensor in &mut manifest.layout.tensors {
        tensor.offset = end;
        tensor.shape = vec![6, tensor.len()];
        end += tensor.len();
    }
    manifest.layout.len = end;
    if manifest.moments == Moments::F32 {
        manifest.piece = NonZeroU32::new(rng.between(64, 400) as u32).expect("from 64 on");
    }
    let steps = rng.between(1, (end as u64).min(6)) as usize;
    let mut step = |i: usize| Step {
        ranges: std::iter::once(i * end / steps..(i + 1) * end / steps).collect(),
        cost: 1,
        boundary: rng.between(1, 4) as u32,
    };
    let mut steps: Vec<Step> = (0..steps).map(&mut step).collect();
    // The last uses some elements of the first again.
    if steps.len() > 1 && rng.chance(0.5) {
        let first = steps[0].ranges[0].clone();
        let tied = first.start..first.start + first.len().div_ceil(2);
        steps.last_mut().expect("there are some").ranges.insert(0, tied);
    }
    let mut spans = vec![NonZeroU16::MIN];
    for _ in 1..steps.len() {
        match rng.chance(0.6) && spans.len() < peers {
            true => spans.push(NonZeroU16::MIN),
            false => {
                let last = spans.last_mut().expect("there is a first");
                *last = last.saturating_add(1);
            }
        }
    }
    let batch = u64::from(manifest.batch.get());
    manifest.split = Some(Split {
        steps,
        spans,
        micro_batch: NonZeroU32::new(rng.between(1, batch.div_ceil(2)) as u32).expect("from 1 on"),
        boundary: [Codec::F32, Codec::F32, Codec::F16, Codec::Int8][rng.index(4)],
        lanes: NonZeroU16::new(rng.between(1, 4) as u16).expect("from 1 on"),
    });
    if seed >= LONG_FROM && rng.chance(0.3) {
        manifest.copies = Some(NonZeroU16::MIN);
        manifest.target = NonZeroU64::new(batch * rng.between(60, 150)).expect("from 60 on");
    }
}

/// A peer's room for one span, in parts: half of the peers have hardly more than the largest span of the founder's
/// cut needs.
pub(super) fn room_of_one(manifest: &Manifest, draw: u64) -> u16 {
    let most = Room::of(1).parts;
    let Some(split) = manifest.split.as_ref().filter(|_| draw.is_multiple_of(2)) else {
        return most;
    };
    let spans = 0..split.spans.len();
    let largest = spans.map(|span| needs_of_span(manifest, &split.spans, span).len());
    let more = (draw >> 8) % 3;
    (largest.max().unwrap_or(0) as u16)
        .saturating_add(more as u16)
        .min(most)
}
