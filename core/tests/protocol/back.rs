//! Two peers hold a span each. One is killed, and comes back with the parts on its disk.

use crate::story::{ANN, BEN, MILLI, SECOND, Story};
use annulus_core::codec::Codec;
use annulus_core::split::{Split, Step};
use annulus_core::{Event, PeerId, Topology, Waits};
use std::num::{NonZeroU16, NonZeroU32};

fn story(saves_every: u64) -> Story {
    patient_story(saves_every, Waits::default())
}

/// A model of two spans that nobody has room for as a whole.
fn patient_story(saves_every: u64, waits: Waits) -> Story {
    let step = |i: usize| Step {
        ranges: std::iter::once(600 * i..600 * (i + 1)).collect(),
        cost: 1,
        boundary: 2,
    };
    let mut story = Story::with(Topology::Direct, |manifest| {
        manifest.min_peers = NonZeroU16::MIN;
        manifest.copies = Some(NonZeroU16::MIN);
        manifest.optimizer = "adam".parse().expect("its name");
        manifest.layout.len = 1200;
        manifest.split = Some(Split {
            steps: (0..2).map(step).collect(),
            spans: vec![NonZeroU16::MIN; 2],
            micro_batch: NonZeroU32::new(8).expect("not 0"),
            boundary: Codec::F32,
            lanes: NonZeroU16::MIN,
        });
    });
    (story.saves_every, story.waits) = (saves_every, waits);
    story.found(ANN, 20 * MILLI);
    story.join(BEN, ANN, 20 * MILLI);
    story
}

/// Runs until Ann has committed this many more training rounds.
fn train(story: &mut Story, rounds: usize) {
    let trained = |story: &Story| story.records(ANN).filter(|record| record.weight() > 0).count();
    let until = trained(story) + rounds;
    let end = story.now + 60 * SECOND;
    while trained(story) < until && story.now < end {
        story.run(MILLI);
    }
    assert!(trained(story) >= until, "it trains");
}

/// Runs until three rounds after one that both save, where they save every fifth.
fn train_past_a_point(story: &mut Story) {
    while story.peers[&ANN].head().round % 5 != 3 {
        train(story, 1);
    }
}

fn backs(story: &Story, who: PeerId) -> Vec<(u64, u64, u64)> {
    let told = story.events.iter().filter(|(_, peer, _)| *peer == who);
    told.filter_map(|(_, _, event)| match event {
        Event::WentBack { from, to, samples } => Some((*from, *to, *samples)),
        _ => None,
    })
    .collect()
}

/// Every sample counts once: the valid rounds have taken the stream from its beginning.
fn adds_up(story: &Story) {
    let head = story.peers[&ANN].head();
    assert_eq!((head.counted(), head.cursor), (8 * head.steps, 8 * head.steps));
}

/// Both hold the parts of an undisturbed run after as many steps.
fn has_the_bits_of_an_undisturbed_run(disturbed: &Story) {
    for who in [ANN, BEN] {
        let peer = &disturbed.peers[&who];
        let (steps, kept) = (peer.head().steps, &peer.state().kept);
        let mut story = story(0);
        while story.peers[&who].head().steps < steps {
            story.run(MILLI);
        }
        let other = &story.peers[&who].state().kept;
        let set = kept.set();
        assert!(!set.is_empty() && set == other.set());
        assert_eq!(
            kept.digests(&set),
            other.digests(&set),
            "{who} after {steps} steps"
        );
    }
}

#[test]
fn who_comes_back_with_an_older_checkpoint_takes_those_who_wait_for_it_back_with_it() {
    let mut story = story(5);
    train(&mut story, 20);
    train_past_a_point(&mut story);
    // Both have it.
    story.run(10 * MILLI);
    let (round, counted) = (story.peers[&ANN].head().round, story.peers[&ANN].head().counted());
    story.kill(BEN);
    // After a short absence, it may come back with its latest parts.
    story.run(10 * SECOND);
    story.come_back(BEN, 20 * MILLI);
    story.run(15 * SECOND);
    assert!(story.are_together(&[ANN, BEN]));
    assert_eq!(backs(&story, ANN), [], "they have not waited long");
    assert_eq!(
        story.peers[&ANN].head().counted(),
        counted,
        "nothing can be trained"
    );
    story.run(25 * SECOND);
    let back = backs(&story, ANN);
    let expected = (round - round % 5, 8 * (round % 5));
    assert_eq!(
        back.iter()
            .map(|(_, to, samples)| (*to, *samples))
            .collect::<Vec<_>>(),
        [expected]
    );
    assert_eq!(back, backs(&story, BEN));
    train(&mut story, 30);
    assert!(story.are_together(&[ANN, BEN]));
    adds_up(&story);
    has_the_bits_of_an_undisturbed_run(&story);
}

#[test]
fn a_run_with_short_waits_goes_back_soon() {
    let mut story = patient_story(5, Waits::scaled(1));
    train(&mut story, 12);
    train_past_a_point(&mut story);
    story.run(10 * MILLI);
    story.kill(BEN);
    story.run(SECOND);
    story.come_back(BEN, 20 * MILLI);
    story.run(10 * SECOND);
    assert_eq!(backs(&story, ANN).len(), 1);
}

#[test]
fn who_comes_back_with_the_last_round_goes_on_with_it_at_once() {
    let mut story = story(1);
    train(&mut story, 10);
    // Both have it.
    story.run(10 * MILLI);
    let steps = story.peers[&ANN].head().steps;
    story.kill(BEN);
    story.run(3 * SECOND);
    story.come_back(BEN, 20 * MILLI);
    train(&mut story, 10);
    assert_eq!(backs(&story, ANN), []);
    assert!(story.peers[&ANN].head().steps >= steps + 10);
    adds_up(&story);
}

#[test]
fn nobody_goes_back_who_cannot_have_all_parts_of_one_round() {
    let mut story = story(5);
    train(&mut story, 12);
    train_past_a_point(&mut story);
    story.kill(BEN);
    story.run(60 * SECOND);
    assert_eq!(
        backs(&story, ANN),
        [],
        "the other half is on no disk that is there"
    );
    // A stranger with room for them does not have them.
    story.join(crate::story::CAT, ANN, 20 * MILLI);
    story.run(60 * SECOND);
    assert_eq!(backs(&story, ANN), []);
    story.come_back(BEN, 20 * MILLI);
    train(&mut story, 10);
    assert_eq!(backs(&story, ANN).len(), 1);
    adds_up(&story);
}
