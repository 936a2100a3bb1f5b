//! How far one contribution, perhaps a liar's, can mislead all.

use crate::story::*;
use annulus_core::optim::{CLIP, LocalSteps, Optimizer};
use annulus_core::{Exit, Manifest, Topology};
use std::num::NonZeroU32;

/// Three members learn a simple function, one of them contributes huge numbers for a second, and then all learn for
/// a minute. Returns the largest distance of a weight from its optimum at the end.
fn after_a_lie(change: impl FnOnce(&mut Manifest), huge: f32) -> f32 {
    let mut story = Story::with(Topology::Direct, |manifest| {
        manifest.min_peers = 1.try_into().unwrap();
        manifest.clip = Some(CLIP);
        change(manifest);
    });
    story.optimum = Some(1.0);
    story.gather(3, 100 * MILLI);
    story.run(20 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT]));
    story.gradient.insert(CAT, huge);
    story.run(SECOND);
    story.gradient.clear();
    story.run(60 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT]) && story.exits.is_empty());
    story.farthest(ANN)
}

fn optimizers() -> [(Optimizer, f32); 4] {
    let of = |text: &str| Optimizer::parse(text).unwrap();
    [
        (of("sgd"), 0.1),
        (of("momentum momentum=0.9"), 0.03),
        (of("adam"), 0.01),
        (of("adamw beta2=0.95 weight_decay=0"), 0.01),
    ]
}

#[test]
fn no_trace_remains_of_a_huge_gradient() {
    for (optimizer, lr) in optimizers() {
        for huge in [1e18, 3e35, -3e35] {
            let name = optimizer.to_string();
            let optimizer = optimizer.clone();
            let off = after_a_lie(
                |manifest| (manifest.optimizer, manifest.lr) = (optimizer, lr),
                huge,
            );
            assert!(off < 0.05, "{name}, {huge}: {off}");
        }
    }
}

#[test]
fn no_trace_remains_of_a_huge_way_of_local_steps() {
    for (optimizer, lr) in optimizers() {
        for huge in [1e30, 3e35, -3e35] {
            let name = optimizer.to_string();
            let optimizer = optimizer.clone();
            let change = |manifest: &mut Manifest| {
                manifest.local = Some(LocalSteps::averaged(NonZeroU32::new(4).unwrap()));
                (manifest.optimizer, manifest.lr) = (optimizer, lr);
            };
            let off = after_a_lie(change, huge);
            assert!(off < 0.05, "{name}, {huge}: {off}");
        }
    }
}

/// With a rate that is far too high, parameters overflow. All end together, and hold the same finite numbers.
#[test]
fn members_whose_parameters_overflow_end_together() {
    for (optimizer, _) in optimizers().into_iter().take(2) {
        let mut story = Story::with(Topology::Direct, |manifest| {
            manifest.min_peers = 3.try_into().unwrap();
            (manifest.optimizer, manifest.lr) = (optimizer.clone(), 1e5);
        });
        story.optimum = Some(1.0);
        story.gather(3, 100 * MILLI);
        story.run(60 * SECOND);
        for who in [ANN, BEN, CAT] {
            assert_eq!(story.exits.get(&who), Some(&Exit::NotFinite), "{optimizer}");
            let (peer, ann) = (&story.peers[&who], &story.peers[&ANN]);
            assert_eq!(
                (peer.head().round, peer.digest()),
                (ann.head().round, ann.digest())
            );
            let mut numbers = peer.state().floats().flatten();
            assert!(numbers.all(|x| x.is_finite()), "{optimizer}: {:?}", peer.state());
        }
    }
}
