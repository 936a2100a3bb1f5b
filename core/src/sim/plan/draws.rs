//! Draws the manifest of a world. Each choice is drawn separately, so that the other worlds stay what they were.

use super::super::lie::Lie;
use super::super::rng::Rng;
use super::{PeerPlan, Plan, SLOWEST_BYTES_PER_S};
use crate::base::random::mix;
use crate::numeric::codec::Codec;
use crate::numeric::optim::{LocalSteps, Moments, Optimizer};
use crate::run::config::{EarlyStop, Layout, Manifest, TensorRule, TensorSpec, Topology};
use std::num::{NonZeroU16, NonZeroU32, NonZeroU64};

/// Separates the draw of the topology.
const TOPOLOGY: u64 = 0x746f_706f;
/// Separates the draw of integer codecs.
const INTEGERS: u64 = 0x696e_7473;
/// From this seed on, sums may be encoded as signs too. Smaller seeds stay the worlds that they were.
const SIGNS_FROM: u64 = 10_000_000_000;
/// Separates the draw of stripes.
const STRIPES: u64 = 0x7374_7269;
/// From this seed on, samples may come in chunks. Smaller seeds stay the worlds that they were.
const STRIPES_FROM: u64 = 1_000_000_000_000;
/// Separates the draw of overlap.
const OVERLAP: u64 = 0x6f76_6572;
/// Separates the draw of local steps.
const LOCAL_STEPS: u64 = 0x6c6f_6361;
/// Separates the draw of what members choose themselves.
const PACE: u64 = 0x7061_6365;
/// Separates the draw of moments.
const MOMENTS: u64 = 0x6d6f_6d65;

pub(super) fn draw_manifest(rng: &mut Rng, count: usize) -> Manifest {
    let len = rng.octaves(1.0, 300.0) as usize;
    let split = rng.index(len + 1);
    let mut tensors = vec![TensorSpec {
        name: "a".into(),
        shape: vec![split],
        offset: 0,
        rule: TensorRule::StepAndDecay,
    }];
    tensors.push(TensorSpec {
        name: "b".into(),
        shape: vec![len - split],
        offset: split,
        rule: TensorRule::Step,
    });
    tensors.retain(|t| !t.is_empty());
    let batch = rng.octaves(1.0, 48.0) as u64;
    let rounds = rng.between(15, 36);
    // At most five pieces a chunk: bugs show with few, and a seed stays cheap.
    let least = (len / count / 5).max(1) as u64;
    Manifest {
        seed: rng.next(),
        samples: NonZeroU64::new(rng.between(1, 1000)).expect("from 1 on"),
        target: NonZeroU64::new(batch * rounds - rng.below(batch)).expect("many rounds"),
        batch: NonZeroU32::new(batch as u32).expect("from 1 on"),
        optimizer: draw_optimizer(rng),
        clip: rng.chance(0.25).then_some(0.5),
        codec: if rng.chance(0.5) { Codec::F32 } else { Codec::F16 },
        topology: Some(Topology::Ring),
        piece: NonZeroU32::new(rng.between(least, least.max(64)) as u32).expect("from 1 on"),
        min_peers: NonZeroU16::new(if rng.chance(0.85) { 1 } else { 2 }).expect("1 or 2"),
        ..Manifest::new(Layout { tensors, len })
    }
}

/// How members exchange, and what they keep. Each is drawn separately, so that the other worlds stay what they
/// were.
pub(super) fn draw_exchange(seed: u64, manifest: &mut Manifest) {
    if Rng::new(mix(seed ^ TOPOLOGY)).chance(0.5) {
        manifest.topology = Some(Topology::Direct);
    }
    let integers = &mut Rng::new(mix(seed ^ INTEGERS));
    if integers.chance(0.4) {
        let few = if seed < SIGNS_FROM { 2 } else { 3 };
        manifest.codec = [Codec::Int8, Codec::Int4, Codec::Sign][integers.index(few)];
    }
    draw_local_steps(&mut Rng::new(mix(seed ^ LOCAL_STEPS)), manifest);
    manifest.overlap = manifest.local.is_some() && Rng::new(mix(seed ^ OVERLAP)).chance(0.3);
    draw_pace(&mut Rng::new(mix(seed ^ PACE)), manifest);
    draw_moments(&mut Rng::new(mix(seed ^ MOMENTS)), manifest);
    if seed >= STRIPES_FROM {
        draw_stripes(&mut Rng::new(mix(seed ^ STRIPES)), manifest);
    }
}

/// In most worlds of these seeds samples come in chunks.
fn draw_stripes(rng: &mut Rng, manifest: &mut Manifest) {
    let most = manifest.samples.get() / 2;
    if most > 1 && rng.chance(0.7) {
        manifest.chunk = NonZeroU32::new(rng.between(2, most.min(64)) as u32).expect("from 2 on");
        let stripes = rng.between(1, manifest.batch.get().min(64).into());
        manifest.stripes = NonZeroU16::new(stripes as u16).expect("from 1 on");
    }
}

/// In some worlds members choose how to exchange.
fn draw_pace(rng: &mut Rng, manifest: &mut Manifest) {
    if rng.chance(0.3) {
        manifest.topology = None;
    }
    if let Some(local) = manifest.local.as_mut().filter(|_| rng.chance(0.4)) {
        local.steps = None;
    }
}

/// In some worlds members take local steps: as many samples a round as without, cut into smaller batches.
fn draw_local_steps(rng: &mut Rng, manifest: &mut Manifest) {
    if !rng.chance(0.3) {
        return;
    }
    let most = manifest.batch.get().min(6);
    let steps = NonZeroU32::new(rng.between(1, most.into()) as u32).expect("from 1 on");
    manifest.batch = NonZeroU32::new(manifest.batch.get() / steps).expect("no fewer than steps");
    let outer = ["sgd", "sgd", "nesterov momentum=0.5"][rng.index(3)];
    manifest.local = Some(LocalSteps {
        outer: outer.parse().expect("these are optimizers"),
        outer_lr: if rng.chance(0.7) { 1.0 } else { 0.7 },
        ..LocalSteps::averaged(steps)
    });
}

/// In some worlds moments are kept in 8 bits. Their vectors are longer; otherwise few would have more than one
/// block.
fn draw_moments(rng: &mut Rng, manifest: &mut Manifest) {
    if !rng.chance(0.4) || manifest.local.is_some() {
        return;
    }
    manifest.moments = Moments::EightBit;
    let mut end = 0;
    for tensor in &mut manifest.layout.tensors {
        tensor.offset = end;
        tensor.shape = vec![4, tensor.len()];
        end += tensor.len();
    }
    manifest.layout.len = end;
    let blocks = rng.between(1, 2) as usize;
    manifest.piece = NonZeroU32::new((blocks * manifest.moments.grain()) as u32).expect("from 1 on");
}

/// In some worlds members that slow the run down stand aside. These worlds are longer: trials take a while.
pub(super) fn draw_aside(rng: &mut Rng, plan: &mut Plan) {
    if !rng.chance(0.4) {
        return;
    }
    plan.manifest.stand_aside = true;
    if plan.manifest.tries_newcomers() && plan.faults.is_empty() {
        let target = plan.manifest.target.get() * rng.between(2, 6);
        plan.manifest.target = NonZeroU64::new(target).expect("no less than before");
        // No slower than the slowest line elsewhere: behind such a one a peer is taken for silent.
        let most = (plan.rate_bytes_per_s / SLOWEST_BYTES_PER_S).max(1.0);
        plan.slow_line = most.min([1.0, 1.0, 4.0, 20.0, 100.0][rng.index(5)]);
    }
}

/// Some runs stop early. There each peer sees no gain any more from some round on, or never.
pub(super) fn draw_early_stop(rng: &mut Rng, manifest: &mut Manifest) {
    manifest.early_stop = rng.chance(0.12).then(|| EarlyStop {
        every: NonZeroU32::new(rng.between(3, 20) as u32).expect("from 3 on"),
        patience: NonZeroU32::MIN,
    });
}

/// In some worlds with liars a page hands one ticket to all guests: to liars, which do nothing but disturb, and to
/// honest visitors that come meanwhile. Nothing else keeps newcomers waiting there.
pub(super) fn draw_page(rng: &mut Rng, plan: &mut Plan, lie: Option<Lie>) {
    if !rng.chance(0.1) && !lie.is_some_and(|lie| Lie::OF_PAGES.contains(&lie)) {
        return;
    }
    plan.has_page = true;
    plan.faults.clear();
    plan.fault_every_us = 1e15;
    plan.latency_us = plan.latency_us.min(80_000.0);
    plan.slow_line = 1.0;
    let manifest = &mut plan.manifest;
    (manifest.copies, manifest.split, manifest.stand_aside) = (None, None, false);
    manifest.min_peers = NonZeroU16::MIN;
    // Waits take a while.
    let longer = manifest.target.get() * rng.between(2, 6);
    manifest.target = NonZeroU64::new(longer).expect("no less than before");
    for is_guest in [true, true, false, false] {
        let at_us = (rng.unit() * 30.0 * plan.round_us) as u64;
        let peer = plan.newcomer(rng);
        plan.peers.push(PeerPlan {
            at_us,
            is_guest,
            dialable: true,
            ..peer
        });
    }
    if let Some(liars) = &mut plan.liars {
        liars.lies = vec![Lie::Visit];
        liars.longest_us = 1e6 * rng.octaves(20.0, 200.0);
        if lie == Some(Lie::Work) || lie.is_none() && rng.chance(0.4) {
            liars.lies = vec![Lie::Work];
        }
    }
    if lie == Some(Lie::Work) {
        // Nobody checks the work of guests otherwise.
        let manifest = &mut plan.manifest;
        (manifest.local, manifest.overlap) = (None, false);
        if manifest.feedback() {
            manifest.codec = Codec::Int8;
        }
    }
    let others = [Some(Lie::ComeAndGo), Some(Lie::Own), None, None][rng.index(4)];
    if let Some(other) = lie
        .or(others)
        .filter(|lie| matches!(lie, Lie::ComeAndGo | Lie::Own))
    {
        plan.liars.as_mut().expect("a page has liars").lies = vec![other];
        if other == Lie::ComeAndGo {
            draw_trials(rng, plan);
        }
    }
}

/// Newcomers have trials, and nobody slows the others down: all are about as fast, on quick lines.
fn draw_trials(rng: &mut Rng, plan: &mut Plan) {
    const LENGTH_US: f64 = 100e6;
    plan.round_us = 1e6 * rng.octaves(0.2, 0.5);
    let rounds = LENGTH_US / plan.round_us;
    let manifest = &mut plan.manifest;
    (manifest.stand_aside, manifest.early_stop) = (true, None);
    (manifest.local, manifest.overlap) = (None, false);
    if manifest.codec == Codec::Sign {
        manifest.codec = Codec::Int8;
    }
    manifest.batch = NonZeroU32::new(96).expect("not 0");
    manifest.target = NonZeroU64::new(96 * rounds as u64).expect("many rounds");
    plan.latency_us = plan.latency_us.min(2_000.0);
    plan.rate_bytes_per_s = 2e7;
    plan.jitter = 0.1;
    let speed = 96e6 / plan.round_us / plan.peers.len() as f64;
    for peer in &mut plan.peers {
        peer.at_us = (rng.unit() * 0.3 * LENGTH_US) as u64;
        peer.speed = speed * rng.octaves(0.8, 1.25);
    }
    plan.peers[0].at_us = 0;
    plan.heal_at_share = 0.9;
    plan.heal_at_us = 3 * LENGTH_US as u64;
    if let Some(liars) = &mut plan.liars {
        liars.every_us = plan.round_us;
        liars.longest_us = LENGTH_US;
    }
}

/// In some worlds a tensor follows a mean. Models in steps show it gradients, which lead it away from a minimum: there
/// it is slow.
pub(super) fn draw_means(rng: &mut Rng, manifest: &mut Manifest) {
    if !rng.chance(0.3) {
        return;
    }
    let rate = [0.01, 0.1, 0.5, 1.0][rng.index(4)];
    let rate = if manifest.split.is_some() { 1e-3 } else { rate };
    let tensors = &mut manifest.layout.tensors;
    let at = rng.index(tensors.len());
    tensors[at].rule = TensorRule::Mean { rate };
}

/// In some worlds members keep parts of the moments, of longer vectors.
pub(super) fn draw_keepers(rng: &mut Rng, manifest: &mut Manifest) {
    if !rng.chance(0.3) {
        return;
    }
    manifest.copies = NonZeroU16::new([1, 2, 2, 2, 3][rng.index(5)]);
    (manifest.local, manifest.overlap) = (None, false);
    manifest.topology = Some(Topology::Direct);
    if manifest.optimizer.slots() == 0 {
        manifest.optimizer = "momentum".parse().expect("this is an optimizer");
    }
    let mut end = 0;
    for tensor in &mut manifest.layout.tensors {
        tensor.offset = end;
        tensor.shape = vec![4, tensor.len()];
        end += tensor.len();
    }
    manifest.layout.len = end;
    if manifest.moments == Moments::F32 {
        manifest.piece = NonZeroU32::new(rng.between(64, 400) as u32).expect("from 64 on");
    }
}

fn draw_optimizer(rng: &mut Rng) -> Optimizer {
    let text = ["sgd", "momentum", "nesterov", "rmsprop", "adam", "adamw"][rng.index(6)];
    text.parse().expect("these are the names of optimizers")
}
