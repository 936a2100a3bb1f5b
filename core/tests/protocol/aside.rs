//! A member that would slow the run down stands aside: samples per virtual second, with it and without.

use crate::story::{ANN, BEN, CAT, MILLI, SECOND, Story};
use annulus_core::aside::Cause;
use annulus_core::{Event, PeerId, Topology};

const DAN: PeerId = PeerId([4; 32]);

/// A run of these members, each of which computes 300 samples a second.
fn run_of(members: &[PeerId]) -> Story {
    let mut story = Story::with(Topology::Direct, |manifest| {
        (manifest.batch, manifest.stand_aside) = (96.try_into().unwrap(), true);
        manifest.target = 1_000_000_000.try_into().unwrap();
    });
    for (i, who) in members.iter().enumerate() {
        story.pace.insert(*who, 300.0);
        match i {
            0 => story.found(*who, MILLI),
            _ => come(&mut story, *who, &members[..i]),
        }
        story.run(10 * SECOND);
    }
    assert!(story.are_together(members));
    story
}

/// A peer joins, with links to all.
fn come(story: &mut Story, who: PeerId, others: &[PeerId]) {
    story.join(who, others[0], MILLI);
    others[1..].iter().for_each(|other| story.open(who, *other));
}

/// Slows down all frames of a peer.
fn slow_line(story: &mut Story, who: PeerId, others: &[PeerId]) {
    let ways = others.iter().map(|other| ((who, *other), 1500 * MILLI));
    story.bulk_us.extend(ways);
}

/// Samples a second, over this many seconds.
fn rate(story: &mut Story, seconds: u64) -> f64 {
    let before = story.peers[&ANN].head().samples;
    story.run(seconds * SECOND);
    (story.peers[&ANN].head().samples - before) as f64 / seconds as f64
}

/// Why a peer stands aside, each time that it does.
fn causes(story: &Story, who: PeerId) -> Vec<Cause> {
    let aside = |(_, teller, event): &(u64, PeerId, Event)| match event {
        Event::Aside(aside) if aside.peer == who && *teller == ANN => Some(aside.cause),
        _ => None,
    };
    story.events.iter().filter_map(aside).collect()
}

#[test]
fn a_member_behind_a_slow_line_costs_less_than_a_tenth() {
    let mut story = run_of(&[ANN, BEN, CAT]);
    let without = rate(&mut story, 60);
    story.pace.insert(DAN, 300.0);
    slow_line(&mut story, DAN, &[ANN, BEN, CAT]);
    come(&mut story, DAN, &[ANN, BEN, CAT]);
    let with = rate(&mut story, 300);
    assert!(
        with > 0.9 * without,
        "{with:.0} samples a second, {without:.0} without it"
    );
    let causes = causes(&story, DAN);
    assert!(
        !causes.is_empty() && causes.iter().all(|cause| *cause == Cause::Link),
        "{causes:?}"
    );
    // It follows nobody meanwhile, its state is five minutes old at most, and it comes back once its line is better.
    let [ann, dan] = [ANN, DAN].map(|who| story.peers[&who].head().round);
    let rounds_in_five_minutes = (without * 300.0 / 96.0) as u64;
    assert!((30..rounds_in_five_minutes).contains(&(ann - dan)), "{ann} {dan}");
    story.bulk_us.clear();
    story.run(400 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT, DAN]));
    assert!(rate(&mut story, 60) > 1.1 * without);
}

/// Two devices on one processor: while the second computes, the first is a third as fast, as measured with a native
/// peer and a tab.
fn share_processor(story: &mut Story, seconds: u64) -> f64 {
    let (before, until) = (story.peers[&ANN].head().samples, story.now + seconds * SECOND);
    while story.now < until {
        let both = story.peers[&BEN].is_member();
        story.pace.insert(ANN, if both { 100.0 } else { 300.0 });
        story.run(20 * MILLI);
    }
    (story.peers[&ANN].head().samples - before) as f64 / seconds as f64
}

#[test]
fn a_device_that_shares_a_processor_costs_less_than_a_tenth() {
    let mut story = run_of(&[ANN]);
    let without = rate(&mut story, 60);
    story.pace.insert(BEN, 30.0);
    come(&mut story, BEN, &[ANN]);
    let with = share_processor(&mut story, 120);
    assert!(
        with > 0.9 * without,
        "{with:.0} samples a second, {without:.0} without it"
    );
    assert!(causes(&story, BEN).contains(&Cause::Machine));
}

#[test]
fn a_device_that_is_a_hundred_times_as_slow_costs_less_than_a_tenth() {
    let mut story = run_of(&[ANN, BEN]);
    let without = rate(&mut story, 60);
    story.pace.insert(CAT, 3.0);
    // It overstates its speed.
    story.warm.insert(CAT, 300_000);
    come(&mut story, CAT, &[ANN, BEN]);
    let with = rate(&mut story, 120);
    assert!(
        with > 0.9 * without,
        "{with:.0} samples a second, {without:.0} without it"
    );
}

#[test]
fn an_equal_member_helps_and_stays() {
    let mut story = run_of(&[ANN, BEN]);
    let without = rate(&mut story, 60);
    story.pace.insert(CAT, 300.0);
    come(&mut story, CAT, &[ANN, BEN]);
    let with = rate(&mut story, 60);
    assert!(
        with > 1.25 * without,
        "{with:.0} samples a second, {without:.0} without it"
    );
    assert_eq!(causes(&story, CAT), []);
}

#[test]
fn a_peer_that_stands_aside_takes_over_when_the_others_are_gone() {
    let mut story = run_of(&[ANN]);
    story.pace.insert(BEN, 300.0);
    slow_line(&mut story, BEN, &[ANN]);
    come(&mut story, BEN, &[ANN]);
    story.run(20 * SECOND);
    assert!(!causes(&story, BEN).is_empty() && !story.peers[&BEN].is_member());
    let samples = story.peers[&BEN].head().samples;
    story.cut(ANN, BEN);
    story.run(60 * SECOND);
    assert!(story.peers[&BEN].is_member() && story.peers[&BEN].head().samples > samples);
}
