//! What a peer tells its user must be true, and say what to do.

use crate::story::*;
use annulus_core::decision::Suspicion;
use annulus_core::invitation::{Invitation, Role};
use annulus_core::signature::{Attempt, Key};
use annulus_core::tickets::Barred;
use annulus_core::wire::Message;
use annulus_core::{Event, Exit, Input, PeerId};

/// The lost samples in each report to a user.
fn lost(story: &Story, who: PeerId) -> Vec<u64> {
    let events = story.events.iter().filter(|(_, peer, _)| *peer == who);
    let lost = events.filter_map(|(_, _, event)| match event {
        Event::Lost { samples } => Some(*samples),
        _ => None,
    });
    lost.collect()
}

fn samples(story: &Story, who: PeerId) -> u64 {
    story.peers[&who].head().samples
}

#[test]
fn nothing_is_lost_where_first_one_sleeps_and_then_the_other() {
    let mut story = Story::new(1);
    story.gather(2, 100 * MILLI);
    story.run(8 * SECOND);
    for (sleeper, seconds) in [(BEN, 12), (ANN, 20), (BEN, 20)] {
        story.fall_asleep(sleeper);
        story.run(seconds * SECOND);
        story.wake(sleeper);
        story.run(12 * SECOND);
        assert!(story.are_together(&[ANN, BEN]));
    }
    assert!(samples(&story, ANN) > 1000);
    let one_round = u64::from(story.manifest.batch.get());
    for who in [ANN, BEN] {
        assert!(
            lost(&story, who).iter().sum::<u64>() <= one_round,
            "{:?}",
            lost(&story, who)
        );
    }
}

#[test]
fn what_one_side_has_counted_apart_is_what_it_is_told_that_is_lost() {
    let mut story = Story::new(1);
    story.gather(2, 100 * MILLI);
    // Once more, so that both remember an older parting too.
    for _ in 0..2 {
        story.run(8 * SECOND);
        story.cut(ANN, BEN);
        let before = samples(&story, ANN);
        story.run(20 * SECOND);
        let apart = [ANN, BEN].map(|who| samples(&story, who) - before);
        let told = story.events.len();
        story.open(ANN, BEN);
        story.run(8 * SECOND);
        assert!(story.are_together(&[ANN, BEN]));
        let lost = story.events[told..]
            .iter()
            .filter_map(|(_, who, event)| match event {
                Event::Lost { samples } => Some((*who, *samples)),
                _ => None,
            });
        let lost: Vec<_> = lost.collect();
        let [(who, lost)] = lost[..] else {
            panic!("one of them has lost something: {lost:?}")
        };
        let own = apart[usize::from(who == BEN)];
        let one_round = u64::from(story.manifest.batch.get());
        assert!(
            own > 100 && lost.abs_diff(own) <= 2 * one_round,
            "{lost} of {own}"
        );
    }
}

#[test]
fn who_goes_on_from_a_checkpoint_is_told_of_what_it_has_counted_since() {
    let mut story = Story::new(1);
    story.saves_every = 20;
    story.gather(3, 100 * MILLI);
    story.run(8 * SECOND);
    // All remember that one was lost once.
    story.fall_asleep(CAT);
    story.run(10 * SECOND);
    story.wake(CAT);
    story.run(10 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT]));
    story.kill(BEN);
    story.run(5 * SECOND);
    let told = story.events.len();
    story.come_back(BEN, 100 * MILLI);
    story.run(5 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT]));
    assert!(
        story.events[told..]
            .iter()
            .any(|(_, who, event)| *who == BEN && matches!(event, Event::Outcast { .. }))
    );
    let one_round = u64::from(story.manifest.batch.get());
    assert!(
        lost(&story, BEN).iter().all(|lost| *lost <= 2 * one_round),
        "{:?}",
        lost(&story, BEN)
    );
}

#[test]
fn names_that_nobody_has_are_no_news() {
    let mut story = three();
    let view_of = |story: &Story, who: PeerId| story.peers[&who].view().unwrap().0;
    while [ANN, CAT]
        .iter()
        .any(|who| view_of(&story, *who) != view_of(&story, BEN))
    {
        story.run(MILLI);
    }
    let view = view_of(&story, BEN);
    let chain = story.peers[&BEN].head().chain;
    let suspects: Vec<PeerId> = (10..74).map(|name| PeerId([name; 32])).collect();
    let signature = Key::stand_in(BEN).sign(&Attempt { chain, view }, &Suspicion(&suspects));
    for other in [ANN, CAT] {
        let suspects = suspects.clone();
        let flush = Message::Flush {
            view,
            suspects,
            signature,
        };
        story.say(BEN, other, flush);
    }
    story.run(20 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT]));
    assert_eq!(troubles(&story, 0), Vec::<String>::new());
    let is_invented = |event: &Event| match event {
        Event::Member { peer, .. } | Event::Outlawed { peer, .. } => suspects.contains(peer),
        _ => false,
    };
    assert!(!story.events.iter().any(|(_, _, event)| is_invented(event)));
    let retried = story.records(ANN).any(|record| record.attempt > 0);
    assert!(retried, "the attempt was stopped");
    for who in [ANN, BEN, CAT] {
        assert!(story.peers[&who].buffered_bytes() < 64 << 10);
    }
}

/// Ann, as many contributors as there is room for, and one more.
fn full_run() -> (Story, Vec<PeerId>, PeerId) {
    let mut story = Story::new(1);
    let names: Vec<PeerId> = (2..=34).map(|name| PeerId([name; 32])).collect();
    let of_run = Invitation::of_run(Key::stand_in(story.manifest.key));
    let guests = of_run.narrow(
        story.manifest.root(),
        Key::stand_in(PeerId([200; 32])),
        Role::Contribute,
        None,
        None,
    );
    let guests = guests.unwrap();
    for name in &names {
        let admission = guests.admit(*name, story.manifest.run_id());
        story.admissions.insert(*name, admission);
    }
    let (inside, more) = (names[..32].to_vec(), names[32]);
    story.found(ANN, 500 * MILLI);
    for (i, guest) in inside.iter().enumerate() {
        story.join(*guest, ANN, 500 * MILLI);
        inside[..i].iter().for_each(|other| story.open(*guest, *other));
    }
    story.run(30 * SECOND);
    assert_eq!(story.peers[&ANN].head().members.len(), 33);
    (story, inside, more)
}

#[test]
fn for_whom_there_is_no_place_is_told_so_costs_little_and_comes_in_once_there_is_one() {
    let (mut story, inside, more) = full_run();
    story.join(more, ANN, 500 * MILLI);
    story.run(2 * SECOND);
    let is_told = |story: &Story| {
        let told =
            |(_, who, event): &&(u64, PeerId, Event)| *who == more && matches!(event, Event::NoPlace { .. });
        story.events.iter().filter(told).count()
    };
    assert_eq!(is_told(&story), 1);
    let rounds = story.commits(ANN).len();
    let sent = |story: &Story| story.sent.get(&(ANN, more)).copied().unwrap_or(0);
    let before = sent(&story);
    story.run(100 * SECOND);
    assert!(story.commits(ANN).len() > rounds + 50);
    assert!(sent(&story) - before < 20, "{} messages", sent(&story) - before);
    assert!((3..6).contains(&is_told(&story)), "it asks again");
    assert!(!story.exits.contains_key(&more));
    story.give(inside[3], Input::Leave);
    story.run(60 * SECOND);
    assert!(story.peers[&more].is_member());
    assert_eq!(troubles(&story, 0), Vec::<String>::new());
}

#[test]
fn a_liar_alone_makes_nobody_wait_for_a_place() {
    let mut story = three();
    story.liar = Some((ANN, |_, to, message| {
        if to == PeerId([4; 32]) {
            *message = Message::NoPlace { slow: None };
        }
    }));
    let dan = PeerId([4; 32]);
    story.join(dan, ANN, 100 * MILLI);
    story.open(dan, BEN);
    story.run(5 * SECOND);
    assert!(story.peers[&BEN].head().position(dan).is_some());
}

#[test]
fn who_runs_twice_leaves_with_a_word_and_a_member_among_others_stays() {
    let mut story = Story::new(1);
    story.saves_every = 10;
    story.gather(3, 100 * MILLI);
    story.run(8 * SECOND);
    let in_use = || Input::DialFailed {
        peer: ANN,
        barred: Some(Barred::InUse),
    };
    let told = story.events.len();
    story.give(BEN, in_use());
    story.run(5 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT]));
    assert_eq!(troubles(&story, told), Vec::<String>::new());
    // A copy of its folder continues elsewhere, without a link to anybody.
    story.kill(BEN);
    story.come_back_alone(BEN, 100 * MILLI);
    story.run(SECOND);
    assert!(story.peers[&BEN].is_member(), "it does not know yet");
    for _ in 0..3 {
        for peer in [ANN, CAT] {
            let barred = Some(Barred::InUse);
            story.give(BEN, Input::DialFailed { peer, barred });
        }
        story.run(300 * MILLI);
    }
    assert_eq!(story.exits.get(&BEN), Some(&Exit::Barred(Barred::InUse)));
}

#[test]
fn who_runs_twice_does_not_go_on_alone_though_only_one_member_says_so() {
    let mut story = Story::new(1);
    story.saves_every = 10;
    story.gather(3, 100 * MILLI);
    story.run(8 * SECOND);
    story.kill(BEN);
    story.come_back_alone(BEN, 100 * MILLI);
    for _ in 0..120 {
        let barred = Some(Barred::InUse);
        if !story.exits.contains_key(&BEN) {
            story.give(BEN, Input::DialFailed { peer: ANN, barred });
        }
        story.run(SECOND);
    }
    assert_eq!(story.exits.get(&BEN), Some(&Exit::Barred(Barred::InUse)));
    let again =
        |(_, who, event): &&(u64, PeerId, Event)| *who == BEN && matches!(event, Event::Continued { .. });
    assert_eq!(story.events.iter().filter(again).count(), 0);
}

#[test]
fn who_goes_on_alone_after_it_has_followed_others_says_from_where() {
    let mut story = Story::new(1);
    story.gather(2, 100 * MILLI);
    story.run(8 * SECOND);
    story.cut(ANN, BEN);
    // Apart from each other, Ann counts more samples.
    story.compute_us.insert(BEN, SECOND);
    story.run(20 * SECOND);
    // Ben meets Ann again and follows her, but is not admitted before she is gone.
    story.liar = Some((BEN, |_, _, message| {
        if let Message::Ready { ready } = message {
            *ready = None;
        }
    }));
    let told = story.events.len();
    story.compute_us.insert(ANN, SECOND);
    story.open(ANN, BEN);
    story.run(4 * SECOND);
    let follower = if story.peers[&BEN].is_member() { ANN } else { BEN };
    assert_eq!(follower, BEN, "Ann has more samples");
    let followed = story.peers[&BEN].head().chain;
    assert!(story.peers[&BEN].head().round > 200);
    story.kill(ANN);
    story.run(60 * SECOND);
    assert!(story.peers[&BEN].is_member());
    let from = story.events[told..]
        .iter()
        .find_map(|(_, who, event)| match event {
            Event::Continued { from } if *who == BEN => Some(*from),
            _ => None,
        });
    assert_eq!(from, Some(followed));
}
