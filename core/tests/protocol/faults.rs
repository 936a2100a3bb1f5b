//! The effect of one member's fault on the others: a device that gives nonsense or is slow, a mute path, a damaged
//! or lost state. Nobody lies here on purpose.

use crate::story::{ANN, BEN, CAT, MILLI, SECOND, Story};
use annulus_core::wire::{Doing, Message};
use annulus_core::{Digest, Event, Exit, Input, Layout, PeerId, Reason, Topology};

const DAN: PeerId = PeerId([4; 32]);

/// Three members that count this many samples per second each, and a fourth one.
fn three_and(pace: f64, dan: f64) -> Story {
    let mut story = Story::with(Topology::Ring, |manifest| {
        manifest.batch = 480.try_into().unwrap()
    });
    story.usual_latency_us = MILLI / 2;
    for who in [ANN, BEN, CAT] {
        story.pace.insert(who, pace);
    }
    story.pace.insert(DAN, dan);
    story.gather(3, SECOND);
    story.run(20 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT]));
    story
}

/// Samples that Ann counts in this time.
fn counted(story: &mut Story, for_us: u64) -> f64 {
    let before = story.peers[&ANN].head().samples;
    story.run(for_us);
    (story.peers[&ANN].head().samples - before) as f64
}

fn join_all(story: &mut Story, who: PeerId) {
    story.join(who, ANN, SECOND);
    story.open(who, BEN);
    story.open(who, CAT);
}

#[test]
fn a_straggler_costs_the_others_next_to_nothing() {
    for slower in [20.0, 100.0, 1000.0] {
        let mut story = three_and(464.0, 464.0 / slower);
        let three = counted(&mut story, 60 * SECOND);
        join_all(&mut story, DAN);
        story.run(20 * SECOND);
        let four = counted(&mut story, 60 * SECOND);
        assert!(
            story.are_together(&[ANN, BEN, CAT, DAN]),
            "it stands by, {slower}"
        );
        assert!(
            four >= 0.95 * three,
            "{four} of {three} with one {slower} times slower"
        );
    }
}

#[test]
fn who_stands_by_gets_a_share_again_once_it_is_fast() {
    let mut story = three_and(464.0, 0.464);
    let three = counted(&mut story, 60 * SECOND);
    join_all(&mut story, DAN);
    story.run(20 * SECOND);
    story.pace.insert(DAN, 464.0);
    story.run(60 * SECOND);
    let four = counted(&mut story, 60 * SECOND);
    assert!(four >= 1.1 * three, "{four} after {three}");
}

#[test]
fn a_joiner_that_overstates_its_speed_costs_one_round() {
    let mut story = three_and(464.0, 0.464);
    let three = counted(&mut story, 60 * SECOND);
    story.warm.insert(DAN, 1_000_000_000);
    join_all(&mut story, DAN);
    let four = counted(&mut story, 60 * SECOND);
    assert!(four >= 0.9 * three, "{four} of {three}");
}

#[test]
fn a_device_that_yields_nothing_finite_costs_no_sample_and_hardly_any_time() {
    for faster in [1.0, 10.0, 1000.0] {
        let mut story = three_and(464.0, 464.0 * faster);
        let three = counted(&mut story, 60 * SECOND);
        story.gradient.insert(DAN, f32::NAN);
        story.warm.insert(DAN, (464_000.0 * faster) as u64);
        join_all(&mut story, DAN);
        story.run(2 * SECOND);
        let four = counted(&mut story, 60 * SECOND);
        assert!(story.are_together(&[ANN, BEN, CAT, DAN]));
        assert_eq!(story.peers[&ANN].head().skipped, 0);
        assert!(
            four >= 0.9 * three,
            "{four} of {three} with one {faster} times faster"
        );
    }
}

#[test]
fn values_too_large_to_be_summed_never_enter_a_state() {
    let mut story = three_and(464.0, 464.0);
    for who in [ANN, BEN, CAT] {
        story.gradient.insert(who, 2e38);
    }
    join_all(&mut story, DAN);
    story.run(10 * SECOND);
    for peer in story.peers.values() {
        assert!(peer.state().params.iter().all(|x| x.is_finite()));
    }
    assert!(story.peers[&DAN].is_member());
    assert!(counted(&mut story, 10 * SECOND) > 0.0);
}

#[test]
fn a_path_that_became_mute_stops_the_run_ever_more_seldom() {
    for topology in Topology::ALL {
        let mut story = Story::over(topology, 1);
        story.gather(4, 100 * MILLI);
        story.run(10 * SECOND);
        assert!(story.are_together(&[ANN, BEN, CAT, DAN]));
        // Small frames pass, large ones are lost for ever.
        story.bulk_us.insert((BEN, CAT), 1_000_000 * SECOND);
        story.run(60 * SECOND);
        let mute = |(_, _, event): &&(u64, PeerId, Event)| {
            matches!(
                event,
                Event::Member {
                    peer: BEN,
                    reason: Reason::Mute,
                    ..
                }
            )
        };
        assert!(story.events.iter().any(|event| mute(&event)), "{topology}");
        let before = story.commits(ANN).len();
        story.run(300 * SECOND);
        // Without any failure, about nine rounds a second.
        assert!(story.commits(ANN).len() > before + 1300, "{topology}");
    }
}

/// Four members with a vector of 64 frames to each owner.
fn four_of_many_frames() -> Story {
    let mut story = Story::with(Topology::Direct, |manifest| manifest.layout = Layout::flat(1024));
    story.gather(4, 100 * MILLI);
    story.run(10 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT, DAN]));
    story
}

#[test]
fn who_is_too_slow_even_to_sum_is_out_within_ten_seconds_and_may_come_back() {
    // In a ring, neither end of a slow path can tell which is to blame.
    let mut story = four_of_many_frames();
    let (since, began) = (story.events.len(), story.now);
    // Its pieces come one by one, and a round takes minutes, but nobody is silent.
    story.frame_us.insert(DAN, SECOND);
    story.run(30 * SECOND);
    let out = story.events[since..].iter().find(|(_, who, event)| {
        let too_slow = Reason::TooSlow;
        *who != DAN && matches!(event, Event::Member { peer: DAN, reason, .. } if *reason == too_slow)
    });
    let out = out.expect("it stays").0 - began;
    assert!(out < 11 * SECOND, "out after {out} us");
    assert!(story.are_together(&[ANN, BEN, CAT]));
    story.frame_us.remove(&DAN);
    story.run(60 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT, DAN]), "it may come back");
}

#[test]
fn where_everybody_is_slow_nobody_is_too_slow() {
    for slowest in [1, 3, 6] {
        let mut story = four_of_many_frames();
        let since = story.events.len();
        for frame in [MILLI, 2 * MILLI, 5 * MILLI] {
            let slowest = (DAN, slowest * frame);
            story.frame_us = [(ANN, frame), (BEN, frame), (CAT, frame), slowest].into();
            story.run(60 * SECOND);
        }
        let before = story.commits(ANN).len();
        story.run(300 * SECOND);
        assert_eq!(
            crate::story::troubles(&story, since),
            Vec::<String>::new(),
            "{slowest}"
        );
        let rounds = story.commits(ANN).len() - before;
        assert!((20..200).contains(&rounds), "{slowest}: {rounds} rounds");
    }
}

#[test]
fn who_says_for_ever_that_it_has_just_begun_is_too_slow() {
    let mut story = Story::new(1);
    story.gather(3, 100 * MILLI);
    story.run(10 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT]));
    story.compute_us.insert(BEN, 1_000_000 * SECOND);
    story.liar = Some((BEN, |_, _, message| {
        if let Message::Alive { doing, .. } = message {
            *doing = Doing::Computing { elapsed_us: 0 };
        }
    }));
    story.run(20 * SECOND);
    let before = story.commits(ANN).len();
    story.run(20 * SECOND);
    assert!(story.commits(ANN).len() > before + 50);
}

#[test]
fn the_round_that_shows_a_damaged_state_does_not_take_its_contribution() {
    let mut story = Story::new(1);
    story.gather(3, 100 * MILLI);
    story.run(10 * SECOND);
    assert!(story.are_together(&[ANN, BEN, CAT]));
    story.peers.get_mut(&CAT).unwrap().flip_bit(3, 20);
    story.run(20 * SECOND);
    for who in [ANN, BEN, CAT] {
        for record in story.records(who) {
            let digests: Vec<Digest> = record.headers.iter().map(|h| h.digest).collect();
            assert!(digests.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }
    assert!(story.are_together(&[ANN, BEN, CAT]), "it has come back");
}

#[test]
fn of_two_members_the_one_whose_state_is_damaged_knows_it() {
    for topology in Topology::ALL {
        for damaged in [ANN, BEN] {
            let mut story = Story::over(topology, 1);
            story.gather(2, 100 * MILLI);
            story.run(10 * SECOND);
            assert!(story.are_together(&[ANN, BEN]));
            story.peers.get_mut(&damaged).unwrap().flip_bit(3, 20);
            let since = story.events.len();
            story.run(20 * SECOND);
            let out: Vec<PeerId> = story.events[since..]
                .iter()
                .filter(|(_, _, event)| matches!(event, Event::Outcast { .. }))
                .map(|(_, who, _)| *who)
                .collect();
            assert_eq!(out, [damaged], "{topology}: nobody else goes");
            assert!(story.are_together(&[ANN, BEN]), "it has come back");
            assert_eq!(story.peers[&ANN].digest(), story.peers[&ANN].state().digest());
        }
    }
}

#[test]
fn a_newcomer_does_not_spin_on_blocks_of_another_lineage() {
    let mut story = Story::new(1);
    story.gather(2, 100 * SECOND);
    story.run(150 * SECOND);
    assert!(story.are_together(&[ANN, BEN]));
    story.liar = Some((ANN, |_, _, message| {
        if let Message::Block { chain, .. } = message {
            *chain = Digest([7; 32]);
        }
    }));
    story.join(CAT, BEN, 100 * SECOND);
    story.open(CAT, ANN);
    story.run(20 * SECOND);
    let whole = |(_, peer, event): &(u64, PeerId, Event)| {
        *peer == CAT && matches!(event, Event::Syncing { bytes, total, .. } if bytes == total)
    };
    assert!(story.events.iter().any(whole));
    assert!(
        story.sent[&(CAT, ANN)] < 50,
        "{} messages",
        story.sent[&(CAT, ANN)]
    );
}

#[test]
fn a_newcomer_fetches_again_only_the_blocks_that_were_wrong() {
    // While no round goes by, and while many do.
    for compute_us in [SECOND, 20 * MILLI] {
        let mut story = Story::with(Topology::Ring, |manifest| {
            manifest.layout = Layout::flat(160);
            manifest.optimizer = "adam".parse().unwrap();
        });
        story.gather(2, compute_us);
        story.run(9 * SECOND);
        assert!(story.are_together(&[ANN, BEN]));
        story.blocks.clear();
        story.liar = Some((ANN, |_, _, message| {
            if let Message::Block { data, .. } = message {
                *data = data.iter().map(|byte| byte ^ 1).collect();
            }
        }));
        story.join(CAT, BEN, compute_us);
        story.open(CAT, ANN);
        story.run(20 * SECOND);
        assert!(story.are_together(&[ANN, BEN, CAT]));
        let [ann, ben] = [ANN, BEN].map(|who| story.blocks[&who]);
        assert!(ann > 1, "she was asked for some");
        assert_eq!(ben, 10, "those that it was asked for, and {ann} of Ann's");
    }
}

#[test]
fn a_newcomer_fetches_all_where_the_sponsor_does_not_say_what_was_wrong() {
    let lies: [crate::story::Lie; 2] = [
        |_, _, message| match message {
            Message::Block { block: 4, data, .. } => *data = data.iter().map(|byte| byte ^ 1).collect(),
            Message::Digests { data, .. } => *data = data.slice(32..),
            _ => {}
        },
        |_, to, message| match message {
            Message::Block { block: 4, data, .. } => *data = data.iter().map(|byte| byte ^ 1).collect(),
            Message::Digests { .. } if to == CAT => *message = Message::Followed { round: 0 },
            _ => {}
        },
    ];
    for lie in lies {
        let mut story = Story::with(Topology::Ring, |manifest| {
            manifest.layout = Layout::flat(160);
        });
        story.gather(2, 20 * MILLI);
        story.run(SECOND);
        story.liar = Some((BEN, lie));
        story.join(CAT, BEN, 20 * MILLI);
        story.open(CAT, ANN);
        story.run(20 * SECOND);
        assert!(
            story.are_together(&[ANN, BEN, CAT]),
            "it has gone to another sponsor"
        );
        assert!(
            story.blocks[&ANN] + story.blocks[&BEN] >= 20,
            "{:?}",
            story.blocks
        );
    }
}

#[test]
fn newcomers_among_themselves_say_that_the_state_is_gone() {
    let mut story = Story::new(1);
    story.join(BEN, DAN, SECOND);
    story.join(CAT, DAN, SECOND);
    story.open(BEN, CAT);
    story.run(20 * SECOND);
    assert!(story.exits.is_empty(), "somebody may come back");
    story.run(60 * SECOND);
    assert_eq!(story.exits[&BEN], Exit::Lost);
    assert_eq!(story.exits.get(&CAT), Some(&Exit::Lost));
}

#[test]
fn who_only_waits_for_one_that_is_being_let_in_does_not_give_up() {
    let mut story = Story::new(1);
    story.found(ANN, 300 * SECOND);
    story.join(BEN, ANN, SECOND);
    story.join(CAT, BEN, SECOND);
    story.run(200 * SECOND);
    assert!(story.exits.is_empty());
    assert!(!story.peers[&CAT].is_member());
}

#[test]
fn a_goodbye_passes_contacts_on() {
    let mut story = Story::new(1);
    story.dialable.extend([BEN, CAT]);
    // None of them has been admitted yet, and Ann is the only one that the others know.
    story.join(ANN, DAN, SECOND);
    story.join(BEN, ANN, SECOND);
    story.join(CAT, ANN, SECOND);
    story.run(SECOND);
    assert!(!story.dialled.contains(&(BEN, CAT)));
    story.give(ANN, Input::Leave);
    story.run(SECOND);
    assert_eq!(story.exits.get(&ANN), Some(&Exit::Left));
    assert!(story.dialled.contains(&(BEN, CAT)));
    assert!(story.dialled.contains(&(CAT, BEN)));
}
